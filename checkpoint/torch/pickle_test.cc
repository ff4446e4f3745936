// Pickles of all protocols, put together byte by byte: what they mean, what is refused, and that no
// bytes crash.
#include <cmath>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/pickle_machine.h"
#include "checkpoint/torch/testing/torch_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::checkpoint {
namespace {

using ::testing::HasSubstr;
using Kind = PickleValue::Kind;

constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
constexpr auto kDamaged = absl::StatusCode::kDataLoss;

class PickleTest : public ::testing::Test {
 protected:
  PickleValue Read(const std::string& pickle) {
    const auto result = ReadPickle(pickle, &arena_);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return PickleValue(arena_.Add(Kind::kNone));
    EXPECT_EQ(result->bytes, pickle.size());
    return result->root;
  }
  void ExpectFault(const std::string& pickle, absl::StatusCode code, const std::string& what) {
    const absl::Status status = ReadPickle(pickle, &arena_).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
  void ExpectIntegers(const PickleValue& list, const std::vector<int64_t>& expected) {
    ASSERT_EQ(list.kind(), Kind::kSequence);
    std::vector<int64_t> found;
    for (const PickleValue& item : list.items()) found.push_back(item.integer());
    EXPECT_EQ(found, expected);
  }

  PickleArena arena_;
};

// What Python itself writes, in every protocol: {'a': [1, -2, 2.5, True, None], 'b': ('é',
// b'\x80')}.
TEST_F(PickleTest, EveryProtocolGivesTheSame) {
  const std::string pickles[] = {
      "(dp0\nVa\np1\n(lp2\nI1\naI-2\naF2.5\naI01\naNasVb\np3\n(V\xe9\np4\nc_codecs\nencode\np5\n"
      "(V\x80\np6\nVlatin1\np7\ntp8\nRp9\ntp10\ns.",
      Literal("\x80\x02}q\0(X\1\0\0\0aq\1]q\2(K\1J\xfe\xff\xff\xffG@\4\0\0\0\0\0\0\x88Ne"
              "X\1\0\0\0bq\3X\2\0\0\0\xc3\xa9q\4c_codecs\nencode\nq\5X\2\0\0\0\xc2\x80q\6"
              "X\6\0\0\0latin1q\7\x86q\x08Rq\t\x86q\nu."),
      Literal("\x80\4\x95\x2e\0\0\0\0\0\0\0}\x94(\x8c\1a\x94]\x94(K\1J\xfe\xff\xff\xff"
              "G@\4\0\0\0\0\0\0\x88Ne\x8c\1b\x94\x8c\2\xc3\xa9\x94\x43\1\x80\x94\x86\x94u."),
  };
  for (const std::string& pickle : pickles) {
    const PickleValue root = Read(pickle);
    ASSERT_EQ(root.kind(), Kind::kMap);
    ASSERT_EQ(root.members().size(), 2u);
    const PickleValue* const a = root.Find("a");
    ASSERT_TRUE(a != nullptr && a->kind() == Kind::kSequence && a->items().size() == 5);
    EXPECT_EQ(a->items()[0].integer(), 1);
    EXPECT_EQ(a->items()[1].integer(), -2);
    EXPECT_EQ(a->items()[2].real(), 2.5);
    EXPECT_TRUE(a->items()[3].boolean());
    EXPECT_EQ(a->items()[4].kind(), Kind::kNone);
    const PickleValue* const b = root.Find("b");
    ASSERT_TRUE(b != nullptr && b->kind() == Kind::kSequence && b->items().size() == 2);
    EXPECT_EQ(b->items()[0].text(), "é");
    EXPECT_EQ(b->items()[1].kind(), Kind::kBytes);
    EXPECT_EQ(b->items()[1].text(), "\x80");
    EXPECT_EQ(root.Find("c"), nullptr);
    EXPECT_EQ(a->Find("a"), nullptr);
  }
}

TEST_F(PickleTest, Numbers) {
  const auto longs = [&](const std::string& bytes) {
    return Read(
        absl::StrCat("\x80\x02\x8a", std::string(1, static_cast<char>(bytes.size())), bytes, "."));
  };
  EXPECT_EQ(longs("").integer(), 0);
  EXPECT_EQ(longs("\xff").integer(), -1);
  EXPECT_EQ(longs(std::string("\xff\0", 2)).integer(), 255);
  EXPECT_EQ(longs(std::string(7, '\xff') + "\x7f").integer(), INT64_MAX);
  EXPECT_EQ(longs(std::string(7, '\0') + "\x80").integer(), INT64_MIN);
  EXPECT_EQ(longs(std::string(12, '\xff')).integer(), -1);
  // Beyond 64 bits numbers are only near.
  EXPECT_EQ(longs(std::string(7, '\0') + std::string("\x80\0", 2)).real(), 0x1p63);
  EXPECT_EQ(longs(std::string(8, '\0') + "\x40").real(), 0x1p70);
  EXPECT_EQ(longs(std::string(8, '\0') + "\x80").real(), -0x1p71);
  EXPECT_EQ(Read("L1180591620717411303424L\n.").real(), 0x1p70);
  EXPECT_EQ(Read("L-7L\n.").integer(), -7);
  EXPECT_EQ(Read(Literal("M\x01\x80.")).integer(), 0x8001);
  EXPECT_FALSE(Read("I00\n.").boolean());
  for (const char* bad : {"Iseven\n.", "I\n.", "L\n.", "Fx\n.", "Inan\n."}) {
    ExpectFault(bad, kDamaged, "a line is no");
  }
}

TEST_F(PickleTest, TextsOfOldPickles) {
  EXPECT_EQ(Read(R"(S'don\'t \x41\n'
.)")
                .text(),
            "don't A\n");
  EXPECT_EQ(Read("V\\u20ac\xe4\n.").text(), "€ä");
  EXPECT_EQ(Read("U\x02\xff\xfe.").kind(), Kind::kBytes);
  EXPECT_EQ(Read("U\x02hi.").kind(), Kind::kText);
  for (const char* bad :
       {"S'open\n.", "Sx\n.", "S'\\x4'\n.", "S'\\q'\n.", "S'a\\'\n.", "V\\u20a\n."}) {
    ExpectFault(bad, kDamaged, "a line is no");
  }
}

TEST_F(PickleTest, TheLastValueOfAKeyCounts) {
  const PickleValue root =
      Read(PickleBytes().Raw("}(").Text("k").Raw("K\1").Text("k").Raw("K\2u").Finish());
  EXPECT_EQ(root.members().size(), 2u);
  EXPECT_EQ(root.Find("k")->integer(), 2);
}

TEST_F(PickleTest, ContainersOfTrainingScripts) {
  ExpectIntegers(Read("\x80\4\x8f(K\1K\2\x90."), {1, 2});
  ExpectIntegers(Read("\x80\4(K\1K\2\x91."), {1, 2});
  ExpectIntegers(Read("c__builtin__\nset\n](K\3K\4e\x85R."), {3, 4});
  ExpectIntegers(Read("ctorch\nSize\n(K\3K\4t\x85R."), {3, 4});
  ExpectIntegers(Read("(K\1K\2l."), {1, 2});
  const PickleValue ordered = Read(PickleBytes()
                                       .Global("collections", "OrderedDict")
                                       .Raw(")R")
                                       .Text("a")
                                       .Raw("K\1s}(")
                                       .Text("_metadata")
                                       .Raw("}ub")
                                       .Finish());
  EXPECT_EQ(ordered.Find("a")->integer(), 1);
  EXPECT_EQ(ordered.Find("_metadata"), nullptr);
  // Python 2 gave the pairs to the constructor.
  const PickleValue pairs = Read("ccollections\nOrderedDict\n((](S'a'\nK\1e](S'b'\nK\2eltR.");
  ASSERT_EQ(pairs.kind(), Kind::kMap);
  EXPECT_EQ(pairs.Find("b")->integer(), 2);
  EXPECT_EQ(Read("(S'a'\nK\1d.").Find("a")->integer(), 1);
  // What is remembered of a list is the list, and not what it held.
  ExpectIntegers(Read("\x80\2]q\1K\5a0h\1."), {5});
}

TEST_F(PickleTest, NamespacesAndEnumsAreData) {
  for (const std::string& made :
       {std::string("\x80\2cargparse\nNamespace\n)\x81"),
        std::string("\x80\2ctypes\nSimpleNamespace\n)R"),
        std::string("ccopy_reg\n_reconstructor\n(cargparse\nNamespace\nc__builtin__\nobject\nNtR"),
        std::string("(iargparse\nNamespace\n"), std::string("(cargparse\nNamespace\no"),
        std::string("\x80\4\x8c\x08"
                    "argparse\x8c\x09Namespace\x93)}\x92")}) {
    const PickleValue object = Read(made + Literal("}X\1\0\0\0nK\7sb."));
    ASSERT_EQ(object.kind(), Kind::kObject) << made;
    EXPECT_THAT(object.class_name(), HasSubstr("Namespace"));
    ASSERT_NE(object.Find("n"), nullptr);
    EXPECT_EQ(object.Find("n")->integer(), 7);
  }
  const PickleValue number = Read("cmegatron.model.enums\nAttnMaskType\nK\2\x85R.");
  EXPECT_EQ(number.class_name(), "megatron.model.enums.AttnMaskType");
  EXPECT_EQ(number.Find("value")->integer(), 2);
  const PickleValue named = Read(PickleBytes()
                                     .Global("__builtin__", "getattr")
                                     .Global("megatron.core.enums", "ModelType")
                                     .Text("encoder")
                                     .Raw("\x86R")
                                     .Finish());
  EXPECT_EQ(named.class_name(), "megatron.core.enums.ModelType");
  EXPECT_EQ(named.Find("name")->text(), "encoder");
  EXPECT_EQ(Read("cfp16.loss_scaler\nDynamicLossScaler\n)\x81}b.").class_name(),
            "fp16.loss_scaler.DynamicLossScaler");
  EXPECT_EQ(Read("ctorch\nfloat16\n.").class_name(), "torch.float16");
  EXPECT_TRUE(Read("ctorch\nfloat16\n.").members().empty());
  EXPECT_EQ(Read(PickleBytes().Global("torch", "device").Text("cuda").Raw("K\1\x86R").Finish())
                .class_name(),
            "torch.device");
}

TEST_F(PickleTest, StatesOfRandomGeneratorsAreData) {
  const std::string good = PickleBytes()
                               .Global("numpy._core.multiarray", "_reconstruct")
                               .Global("numpy", "ndarray")
                               .Raw("K\1\x85")
                               .Raw("C\1b\x87R(K\1K\2\x85")
                               .Global("numpy", "dtype")
                               .Text("u4")
                               .Raw("\x89\x88\x87R\x89")
                               .Raw("C\x08\1\2\3\4\5\6\7\x08tb")
                               .Finish("\x80\3");
  EXPECT_EQ(Read(good).class_name(), "numpy.ndarray");
  const PickleValue scalar = Read(PickleBytes()
                                      .Global("numpy.core.multiarray", "scalar")
                                      .Global("numpy", "dtype")
                                      .Text("f8")
                                      .Raw("\x89\x88\x87R")
                                      .Raw("C\x08\1\2\3\4\5\6\7\x08\x86R")
                                      .Finish("\x80\3"));
  EXPECT_EQ(scalar.kind(), Kind::kObject);
}

TEST_F(PickleTest, OtherNamesAreRefused) {
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                        {"posix", "system"},
                                                        {"builtins", "eval"},
                                                        {"builtins", "getattr.x"},
                                                        {"torch", "load"},
                                                        {"megatronx", "A"},
                                                        {"collections", "defaultdict"},
                                                        {"torch", "QInt8Storage"},
                                                        {"subprocess", "Popen"},
                                                        {"torch.storage", "_load_from_bytes"}}) {
    const std::string full = module + "." + name;
    ExpectFault(PickleBytes().Global(module, name).Text("rm -rf /").Raw("\x85R").Finish(), kRefused,
                "it names " + full + ",");
    ExpectFault(absl::StrCat("(S'x'\ni", module, "\n", name, "\n."), kRefused,
                "it names " + full + ",");
    ExpectFault(PickleBytes().Text(module).Text(name).Raw("\x93)R").Finish("\x80\4"), kRefused,
                "it names " + full + ",");
  }
  ExpectFault(PickleBytes().Global("os\x1b[2J", "x").Finish(), kRefused, "it names os\\033[2J.x");
  ExpectFault(PickleBytes().Global("megatron", std::string(600, 'x')).Finish(), kDamaged,
              "a name is too long");
}

// What is known is called in the known way only.
TEST_F(PickleTest, OtherCallsAreRefused) {
  const auto call = [&](const std::string& module, const std::string& name,
                        const std::string& arguments) {
    return PickleBytes().Global(module, name).Raw(arguments).Raw("R").Finish();
  };
  ExpectFault(call("torch", "FloatStorage", "K\1\x85"), kRefused, "it calls torch.FloatStorage");
  ExpectFault(call("torch", "Tensor", ")"), kRefused, "it calls torch.Tensor");
  ExpectFault(call("torch", "float16", ")"), kDamaged, "what is not a function");
  ExpectFault("]]R.", kDamaged, "what is not a function");
  ExpectFault("ccollections\nOrderedDict\nK\1R.", kDamaged, "what is not a function");
  ExpectFault(call("argparse", "Namespace", "K\1\x85"), kDamaged, "argparse.Namespace");
  ExpectFault(call("megatron.x", "E", "K\1K\2\x86"), kRefused, "megatron.x.E");
  ExpectFault(call("megatron.x", "E", "]\x85"), kRefused, "megatron.x.E");
  ExpectFault(PickleBytes()
                  .Global("builtins", "getattr")
                  .Global("torch", "Tensor")
                  .Text("x")
                  .Raw("\x86R")
                  .Finish(),
              kRefused, "something else than the member of an enum");
  ExpectFault(PickleBytes().Global("builtins", "getattr").Raw("]").Text("x").Raw("\x86R").Finish(),
              kRefused, "getattr");
  ExpectFault(PickleBytes()
                  .Global("copyreg", "_reconstructor")
                  .Global("torch", "Tensor")
                  .Raw("\x85R")
                  .Finish(),
              kRefused, "copyreg._reconstructor");
  ExpectFault(call("collections", "OrderedDict", "](K\1e\x85"), kDamaged,
              "collections.OrderedDict");
  ExpectFault(PickleBytes().Global("_codecs", "encode").Text("€").Raw("\x85R").Finish(), kDamaged,
              "_codecs.encode");
  ExpectFault(call("torch._utils", "_rebuild_parameter", "]\x85"), kDamaged, "_rebuild_parameter");
  ExpectFault("cargparse\nNamespace\n}b.", kRefused, "attributes of a class");
  ExpectFault("]}b.", kDamaged, "attributes of a plain value");
  ExpectFault("cargparse\nNamespace\n)}(S'a'\nK\1u\x92.", kRefused, "named arguments");
  for (const char* code : {"Pkey\n.", "\x82x.", "\x97.", "N\x98."})
    ExpectFault(code, kRefused, "is not supported");
  ExpectFault("\x80\6N.", kRefused, "protocol 6");
}

TEST_F(PickleTest, TensorsAreViewsOfStorages) {
  const PickleValue root = Read(PickleBytes()
                                    .Raw("}")
                                    .Text("w")
                                    .Tensor("HalfStorage", "7", 20, {2, {3, 4}, {1, 3}})
                                    .Raw("s")
                                    .Finish());
  const TorchTensor& tensor = root.Find("w")->tensor();
  EXPECT_EQ(tensor.dtype, "F16");
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(tensor.strides, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(tensor.offset, 2);
  EXPECT_FALSE(tensor.IsContiguous());
  ASSERT_EQ(arena_.storages.size(), 1u);
  EXPECT_EQ(*arena_.storages[0].key, "7");
  EXPECT_EQ(arena_.storages[0].elements, 20);
  // The oldest form has four arguments; parameters are their tensors.
  const PickleValue parameter = Read(PickleBytes()
                                         .Global("torch._utils", "_rebuild_parameter")
                                         .Global("torch._utils", "_rebuild_tensor")
                                         .Raw("(")
                                         .Storage("FloatStorage", "a", 6)
                                         .Integer(0)
                                         .Integers({2, 3})
                                         .Integers({3, 1})
                                         .Raw("tR\x88")
                                         .Global("collections", "OrderedDict")
                                         .Raw(")R\x87R")
                                         .Finish());
  ASSERT_EQ(parameter.kind(), Kind::kTensor);
  EXPECT_TRUE(parameter.tensor().IsContiguous());
  // A dtype without storages of its own.
  const PickleValue eight = Read(PickleBytes()
                                     .Global("torch._utils", "_rebuild_tensor_v3")
                                     .Raw("(")
                                     .Raw("(")
                                     .Text("storage")
                                     .Global("torch.storage", "UntypedStorage")
                                     .Text("b")
                                     .Text("cpu")
                                     .Integer(8)
                                     .Raw("tQ")
                                     .Integer(1)
                                     .Integers({3})
                                     .Integers({1})
                                     .Raw("\x89")
                                     .Global("collections", "OrderedDict")
                                     .Raw(")R")
                                     .Global("torch", "uint16")
                                     .Raw("tR")
                                     .Finish());
  EXPECT_EQ(eight.tensor().dtype, "U16");
  const PickleValue typed = Read(PickleBytes()
                                     .Global("torch._tensor", "_rebuild_from_type_v2")
                                     .Raw("(")
                                     .Global("torch._utils", "_rebuild_tensor_v2")
                                     .Global("torch", "Tensor")
                                     .Raw("(")
                                     .Storage("LongStorage", "c", 1)
                                     .Integer(0)
                                     .Raw("))\x89N")
                                     .Raw("t}tR")
                                     .Finish());
  EXPECT_EQ(typed.tensor().dtype, "I64");
}

TEST_F(PickleTest, TensorsStayInTheirStorages) {
  using View = PickleBytes::View;
  const int64_t huge = int64_t{1} << 62;
  const struct {
    View view;
    bool good;
  } cases[] = {
      {{0, {2, 3}, {3, 1}}, true},
      {{0, {2, 3}, {1, 2}}, true},
      {{0, {6}, {0}}, true},
      {{5, {}, {}}, true},
      {{9, {0, 3}, {3, 1}}, true},
      {{6, {}, {}}, false},
      {{1, {2, 3}, {3, 1}}, false},
      {{0, {2, 3}, {4, 1}}, false},
      {{0, {2, 4}, {3, 1}}, false},
      {{0, {huge, 4}, {0, 0}}, false},
      {{0, {2}, {huge}}, false},
      {{huge, {huge}, {2}}, false},
      {{-1, {2}, {1}}, false},
      {{0, {-2}, {1}}, false},
      {{0, {2}, {-1}}, false},
      {{0, {2, 3}, {1}}, false},
      {{0, {huge, huge, 0}, {1, 1, 1}}, false},
      {{0, {0}, {huge}}, true},
      {{0, std::vector<int64_t>(17, 1), std::vector<int64_t>(17, 1)}, false},
      {{INT64_MAX, {1}, {1}}, false},
  };
  for (const auto& item : cases) {
    const std::string pickle = PickleBytes().Tensor("FloatStorage", "0", 6, item.view).Finish();
    if (item.good) {
      EXPECT_EQ(Read(pickle).tensor().shape, item.view.shape);
    } else {
      ExpectFault(pickle, kDamaged, "");
    }
  }
}

TEST_F(PickleTest, OnlyStoragesLieOutside) {
  ExpectFault(PickleBytes().Raw("(").Text("module").Raw("NNNtQ").Finish(), kRefused,
              "it refers to a module outside");
  ExpectFault(PickleBytes().Text("storage").Raw("Q").Finish(), kDamaged, "the id of a storage");
  ExpectFault(PickleBytes().Raw(")Q").Finish(), kDamaged, "the id of a storage");
  ExpectFault(PickleBytes()
                  .Raw("(")
                  .Text("storage")
                  .Global("argparse", "Namespace")
                  .Text("0")
                  .Text("cpu")
                  .Raw("K\1tQ")
                  .Finish(),
              kDamaged, "the id of a storage");
  ExpectFault(PickleBytes().Storage("FloatStorage", "0", -1).Finish(), kDamaged,
              "the id of a storage");
  ExpectFault(PickleBytes().Storage("FloatStorage", "0", int64_t{1} << 62).Finish(), kDamaged,
              "the id of a storage");
  // Parts of storages, which torch 0.4 wrote.
  const auto part = [](int64_t begin, int64_t elements) {
    return PickleBytes()
        .Raw("(")
        .Text("storage")
        .Global("torch", "FloatStorage")
        .Text("0")
        .Text("cpu")
        .Integer(8)
        .Raw("(")
        .Text("1")
        .Integer(begin)
        .Integer(elements)
        .Raw("ttQ")
        .Finish();
  };
  EXPECT_EQ(Read(part(3, 5)).class_name(), "torch.FloatStorage");
  EXPECT_EQ(arena_.storages.back().view_begin, 3);
  EXPECT_EQ(arena_.storages.back().view_elements, 5);
  ExpectFault(part(4, 5), kDamaged, "the id of a storage");
  ExpectFault(part(9, 0), kDamaged, "the id of a storage");
}

TEST_F(PickleTest, StackAndMemo) {
  for (const char* bad :
       {".",      "(.",        "0.",       "(K\1a.", "K\1a.", "]a.",   "e.",    "](K\1",  "}(K\1u.",
        "}K\1s.", "K\1}K\2s.", "1.",       "(2.",    "\x87.", "t.",    "d.",    "(K\1d.", "o.",
        "(o.",    "R.",        "K\1\x93.", "Q.",     "b.",    "\x94.", "\xff.", ""}) {
    ExpectFault(bad, kDamaged, "of the pickle: ");
  }
  // Huge indices take no more memory than small ones.
  EXPECT_EQ(Read("K\1r\xff\xff\xff\xff"
                 "0j\xff\xff\xff\xff.")
                .integer(),
            1);
  EXPECT_EQ(Read("K\1p9223372036854775807\n0g9223372036854775807\n.").integer(), 1);
  ExpectFault("K\1p-1\n.", kDamaged, "a line is no index");
  ExpectFault("h\5.", kDamaged, "it refers to value 5, which it did not make");
  for (const std::string length :
       {"X\xff\xff\xff\xff", "\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "B\xff\xff\xff\xff",
        "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "\x8b\xff\xff\xff\xff", "C\5abc", "\x8c\5abc",
        "Vabc", "cos\n", "J\1", "G1234567"}) {
    ExpectFault(length, kDamaged, "it is truncated");
  }
}

// Nothing follows pointers from value to value.
TEST_F(PickleTest, DepthAndCirclesAreHarmless) {
  const int depth = 1000000;
  EXPECT_EQ(Read(std::string(depth, ']') + std::string(depth - 1, 'a') + ".").items().size(), 1u);
  EXPECT_EQ(Read(std::string(depth, '(') + "N" + std::string(depth, 't') + ".").items().size(), 1u);
  const PickleValue self = Read("]q\1h\1a.");
  EXPECT_EQ(self.items()[0].node(), self.node());
  const PickleValue map = Read(PickleBytes().Raw("}q\1").Text("me").Raw("h\1s").Finish());
  EXPECT_EQ(map.Find("me")->Find("me")->node(), map.node());
  const PickleValue object = Read("cargparse\nNamespace\n)Rq\1h\1b.");
  EXPECT_TRUE(object.members().empty());
  // A call whose arguments hold the call.
  ExpectFault(PickleBytes()
                  .Raw("]q\1")
                  .Global("torch._tensor", "_rebuild_from_type_v2")
                  .Raw("q\2a")
                  .Raw("NaNa0")
                  .Raw("h\2h\1R")
                  .Finish(),
              kDamaged, "_rebuild_from_type_v2");
  ExpectFault(PickleBytes()
                  .Raw("]q\1")
                  .Global("torch._tensor", "_rebuild_from_type_v2")
                  .Raw("q\2a")
                  .Raw("h\2ah\1a0")
                  .Raw("h\2h\1R")
                  .Finish(),
              kDamaged, "_rebuild_from_type_v2");
}

TEST_F(PickleTest, NoShortPickleMakesMuchMemory) {
  PickleBytes copies;
  copies.Raw("](");
  for (int i = 0; i < 5000; ++i) copies.Raw("](NNe");
  copies.Raw("eq\1").Global("collections", "OrderedDict").Raw("q\2");
  for (int i = 0; i < 10000; ++i) copies.Raw("h\2h\1\x85R");
  ExpectFault(copies.Finish(), kDamaged, "it copies more than it holds");
  PickleBytes texts;
  texts.Text(std::string(100000, 'x')).Raw("q\1").Global("_codecs", "encode").Raw("q\2");
  for (int i = 0; i < 10000; ++i) texts.Raw("h\2h\1\x85R");
  ExpectFault(texts.Finish(), kDamaged, "it copies more than it holds");
  const std::string large = PickleBytes().Text(std::string(kLargestPickle, ' ')).Finish();
  ExpectFault(large, kRefused, "it is larger than 64 MiB");
}

TEST_F(PickleTest, NoBytesCrash) {
  const uint32_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  const std::string good = PickleBytes()
                               .Raw("}(")
                               .Text("w")
                               .Tensor("FloatStorage", "0", 6, {0, {2, 3}, {3, 1}})
                               .Text("args")
                               .Global("argparse", "Namespace")
                               .Raw(")\x81}")
                               .Text("n")
                               .Raw("K\1sb")
                               .Text("list")
                               .Raw("](K\1K\2eu")
                               .Finish();
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    if (round % 4 == 0) bad.resize(random() % good.size());
    for (uint32_t i = 0; i <= random() % 3 && !bad.empty(); ++i) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    PickleArena arena;
    const auto result = ReadPickle(bad, &arena);
    refused += !result.ok();
    if (result.ok()) (void)result->root.Find("w");
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace tercio::checkpoint

// Files of torch.save: those that torch itself wrote (tests/torch/make_fixtures.py), and archives
// and streams with a fault in one place.
#include "checkpoint/torch/torch_file.h"

#include <cmath>
#include <fstream>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch/testing/torch_bytes.h"
#include "checkpoint/torch/zip_directory.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tercio::checkpoint {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Kind = PickleValue::Kind;

constexpr char kFixtures[] = "tests/torch/fixtures/";
constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
constexpr auto kDamaged = absl::StatusCode::kDataLoss;

// The bits of the tensor's elements row-major, in hexadecimal digits of each, lowest byte first.
std::vector<std::string> ElementsOf(const TorchTensor& tensor) {
  const auto size = static_cast<size_t>(DtypeBytes(tensor.dtype));
  std::vector<int64_t> places = {tensor.offset};
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    std::vector<int64_t> next;
    for (const int64_t place : places) {
      for (int64_t at = 0; at < tensor.shape[i]; ++at)
        next.push_back(place + at * tensor.strides[i]);
    }
    places = next;
  }
  std::vector<std::string> elements;
  for (const int64_t place : places) {
    std::string digits;
    for (const char byte : tensor.storage.substr(static_cast<size_t>(place) * size, size)) {
      absl::StrAppend(&digits, absl::Hex(static_cast<uint8_t>(byte), absl::kZeroPad2));
    }
    elements.push_back(digits);
  }
  return elements;
}

TEST(TorchFixtures, TensorsAreThoseOfTorch) {
  const Json expected = Json::parse(*ReadFile(absl::StrCat(kFixtures, "weights.json")));
  for (const char* name : {"archive.pt", "stream.pt", "protocol4.pt"}) {
    const auto file = TorchFile::Open(absl::StrCat(kFixtures, name));
    ASSERT_TRUE(file.ok()) << file.status();
    const PickleValue& root = (*file)->root();
    ASSERT_EQ(root.kind(), Kind::kMap);
    EXPECT_EQ(root.members().size(), expected.size());
    for (const auto& [tensor_name, item] : expected.items()) {
      const PickleValue* const found = root.Find(tensor_name);
      ASSERT_TRUE(found != nullptr && found->kind() == Kind::kTensor) << tensor_name;
      const TorchTensor& tensor = found->tensor();
      EXPECT_EQ(tensor.dtype, item["dtype"]) << tensor_name;
      EXPECT_EQ(tensor.shape, item["shape"].get<std::vector<int64_t>>()) << tensor_name;
      EXPECT_EQ(ElementsOf(tensor), item["elements"].get<std::vector<std::string>>())
          << tensor_name;
      EXPECT_EQ(tensor.IsContiguous(), item["contiguous"].get<bool>()) << tensor_name;
      if (tensor.IsContiguous()) {
        const auto size = static_cast<size_t>(DtypeBytes(tensor.dtype));
        EXPECT_EQ(tensor.bytes().size(), item["elements"].size() * size) << tensor_name;
      }
    }
    EXPECT_EQ((*file)->path(), absl::StrCat(kFixtures, name));
    EXPECT_EQ((*file)->content(), *ReadFile((*file)->path()));
  }
}

TEST(TorchFixtures, ArgumentsOfTrainingScriptsAreData) {
  for (const char* name : {"training.pt", "training_stream.pt"}) {
    const auto file = TorchFile::Open(absl::StrCat(kFixtures, name));
    ASSERT_TRUE(file.ok()) << file.status();
    const PickleValue& root = (*file)->root();
    const PickleValue* const arguments = root.Find("args");
    ASSERT_TRUE(arguments != nullptr && arguments->kind() == Kind::kObject);
    EXPECT_EQ(arguments->class_name(), "argparse.Namespace");
    EXPECT_EQ(arguments->Find("num_layers")->integer(), 2);
    EXPECT_EQ(arguments->Find("params_dtype")->class_name(), "torch.float16");
    EXPECT_EQ(arguments->Find("mask_type")->class_name(), "megatron.model.enums.AttnMaskType");
    EXPECT_EQ(arguments->Find("lr")->real(), 0.0015);
    EXPECT_EQ(root.Find("iteration")->integer(), 12);
    EXPECT_GT(root.Find("floating_point_operations")->real(), 1e21);
    const PickleValue& state = root.Find("rng_state")->items()[0];
    EXPECT_EQ(state.Find("torch_rng_state")->tensor().dtype, "U8");
    EXPECT_EQ(state.Find("random_rng_state")->items()[1].items().size(), 625u);
    EXPECT_EQ(state.Find("np_rng_state")->items()[1].class_name(), "numpy.ndarray");
    const PickleValue* const weight = root.Find("model")->Find("language_model")->Find("weight");
    EXPECT_EQ(weight->tensor().shape, (std::vector<int64_t>{2, 3}));
  }
}

TEST(TorchFixtures, AClassIsRefusedByName) {
  const auto file = TorchFile::Open(absl::StrCat(kFixtures, "whole_model.pt"));
  EXPECT_EQ(file.status().code(), kRefused);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("whole_model.pt: byte "));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("torch.nn.modules.linear.Linear"));
}

class TorchFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TorchFile>> Open(const std::string& content) {
    path_ = absl::StrCat(dir_.path(), "/", ++count_, ".pt");
    std::ofstream(path_, std::ios::binary) << content;
    return TorchFile::Open(path_);
  }
  void ExpectFault(const std::string& content, absl::StatusCode code, const std::string& what) {
    const auto file = Open(content);
    EXPECT_EQ(file.status().code(), code) << file.status();
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(what));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(path_));
  }

  // {"w": 2 x 3 numbers} and its archive.
  static std::string Pickle(int64_t elements = 6) {
    return PickleBytes()
        .Raw("}")
        .Text("w")
        .Tensor("FloatStorage", "0", elements, {0, {2, 3}, {3, 1}})
        .Raw("s")
        .Finish();
  }
  static std::string Numbers() {
    std::string bytes;
    for (int i = 0; i < 6; ++i) bytes += NumberBytes(static_cast<float>(i));
    return bytes;
  }
  static ZipBytes Archive() {
    return ZipBytes()
        .Add({"archive/data.pkl", Pickle()})
        .Add({"archive/byteorder", "little"})
        .Add({"archive/data/0", Numbers()})
        .Add({"archive/version", "3\n"});
  }
  void ExpectNumbers(const std::string& content) {
    const auto file = Open(content);
    ASSERT_TRUE(file.ok()) << file.status();
    const PickleValue* const found = (*file)->root().Find("w");
    ASSERT_NE(found, nullptr);
    EXPECT_TRUE(found->tensor().bytes() == Numbers());
  }

  TempDir dir_;
  std::string path_;
  int count_ = 0;
};

TEST_F(TorchFileTest, FormsOfArchives) {
  ExpectNumbers(Archive().Finish());
  ExpectNumbers(Archive().Finish(/*long_end=*/true));
  // Neither the order of bytes nor a version, in another folder; sizes in other places.
  for (const bool descriptor : {false, true}) {
    for (const bool long_sizes : {false, true}) {
      ExpectNumbers(ZipBytes()
                        .Add({"x/data.pkl", Pickle(), 0, 0, long_sizes, descriptor})
                        .Add({"x/data/0", Numbers(), 0x800, 0, long_sizes, descriptor})
                        .Finish());
    }
  }
  ExpectNumbers(StreamBytes(Pickle(), {{"0", 6, Numbers()}}));
}

TEST_F(TorchFileTest, ArchivesThatAreRefused) {
  ExpectFault(ZipBytes().Add({"a/data.pkl", Pickle(), 0, 8}).Finish(), kRefused,
              "a/data.pkl is compressed");
  ExpectFault(ZipBytes().Add({"a/data.pkl", Pickle(), 1}).Finish(), kRefused, "is encrypted");
  ExpectFault(Archive().Add({"archive/constants.pkl", ""}).Finish(), kRefused, "TorchScript");
  ExpectFault(ZipBytes().Add({"a/b/data.pkl", Pickle()}).Finish(), kRefused, "without data.pkl");
  ExpectFault(ZipBytes().Finish(), kRefused, "without data.pkl");
  ExpectFault(ZipBytes()
                  .Add({"a/data.pkl", Pickle()})
                  .Add({"a/byteorder", "big"})
                  .Add({"a/data/0", Numbers()})
                  .Finish(),
              kRefused, "its numbers are big-endian");
  ExpectFault(ZipBytes().Add({"a/data.pkl", Pickle()}).Add({"a/version", "11\n"}).Finish(),
              kRefused, "version 11 of the archive");
  ExpectFault(ZipBytes().Add({"a/data.pkl", Pickle()}).Add({"a/version", "x"}).Finish(), kDamaged,
              "its version");
  const std::string system =
      PickleBytes().Global("os", "system").Text("true").Raw("\x85R").Finish();
  ExpectFault(ZipBytes().Add({"a/data.pkl", system}).Finish(), kRefused,
              "byte 2 of the pickle: it names os.system, ");
  ExpectFault(StreamBytes(system, {}), kRefused, "it names os.system, ");
  ExpectFault("not of torch", kRefused, "not a file that torch.save wrote");
  ExpectFault("", kRefused, "not a file that torch.save wrote");
  ExpectFault("version https://git-lfs.github.com/spec/v1\noid sha256:1\n", kRefused,
              "git lfs pull");
  EXPECT_EQ(TorchFile::Open(dir_.path() + "/missing").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(TorchFileTest, StoragesAreThereInTheirSizes) {
  const auto with = [](const std::string& key, const std::string& numbers) {
    return ZipBytes().Add({"a/data.pkl", Pickle()}).Add({"a/data/" + key, numbers}).Finish();
  };
  ExpectFault(with("1", Numbers()), kDamaged, "the archive lacks storage 0");
  ExpectFault(with("0", Numbers() + "1234"), kDamaged, "has 28 bytes, but should have 24");
  ExpectFault(with("0", Numbers().substr(1)), kDamaged, "has 23 bytes, but should have 24");
}

TEST_F(TorchFileTest, TruncatedArchives) {
  const std::string good = Archive().Finish(true);
  for (size_t size = 4; size < good.size(); ++size) {
    ExpectFault(good.substr(0, size), kDamaged, "");
  }
  ExpectFault(good.substr(0, good.size() / 2), kDamaged, "the archive is truncated");
}

TEST_F(TorchFileTest, PlacesInArchivesAreChecked) {
  const std::string good = Archive().Finish();
  const size_t end = good.size() - 22;
  const auto changed = [&](size_t at, const std::string& bytes) {
    return good.substr(0, at) + bytes + good.substr(at + bytes.size());
  };
  ExpectFault(changed(end + 16, "\xff\xff\xff\x7f"), kDamaged, "its directory lies outside");
  ExpectFault(changed(end + 12, "\xff\xff\xff\x7f"), kDamaged, "its directory lies outside");
  ExpectFault(changed(end + 10, "\x05"), kDamaged, "has 4 entries, but should have 5");
  ExpectFault(changed(end + 4, "\x01"), kRefused, "several parts");
  const size_t entry = good.find("PK\x01\x02");
  ExpectFault(changed(entry, "X"), kDamaged, "an entry of its directory is truncated");
  ExpectFault(changed(entry + 20, "\x01"), kDamaged, "has two sizes");
  ExpectFault(changed(entry + 20, "\xff\xff\xff\x7f\xff\xff\xff\x7f"), kDamaged,
              "archive/data.pkl reaches beyond its end");
  ExpectFault(changed(entry + 28, "\xff\xff"), kDamaged, "an entry of its directory is truncated");
  ExpectFault(changed(entry + 42, "\x01"), kDamaged, "is not where its directory says");
  ExpectFault(changed(entry + 42, "\xff\xff\xff\x7f"), kDamaged, "is not where its directory says");
  ExpectFault(changed(entry + 42, "\xff\xff\xff\xff"), kDamaged, "is not where its directory says");
  ExpectFault(changed(26, "\xff\xff"), kDamaged, "reaches beyond its end");
  ExpectFault(ZipBytes().Add({"a/data.pkl", ""}).Add({"a/data.pkl", ""}).Finish(), kDamaged,
              "a/data.pkl is there twice");
  const std::string long_end = Archive().Finish(true);
  const size_t locator = long_end.size() - 42;
  ExpectFault(
      long_end.substr(0, locator + 8) + std::string(8, '\xff') + long_end.substr(locator + 16),
      kDamaged, "its ZIP64 record is not where it should be");
}

TEST_F(TorchFileTest, StreamsWithFaults) {
  ExpectFault(StreamBytes(Pickle(), {{"0", 5, Numbers()}}), kDamaged,
              "storage 0 has 5 elements, but should have 6");
  ExpectFault(StreamBytes(Pickle(), {{"0", -1, Numbers()}}), kDamaged, "storage 0 has -1 elements");
  ExpectFault(StreamBytes(Pickle(), {{"0", 6, Numbers().substr(4)}}), kDamaged,
              "of storage 0 only 20 of 24 bytes are there");
  ExpectFault(StreamBytes(Pickle(), {}), kDamaged, "the list of its storages lacks 0");
  ExpectFault(StreamBytes(Pickle(), {{"1", 6, Numbers()}}), kDamaged, "does not match its tensors");
  ExpectFault(StreamBytes(Pickle(), {{"0", 6, Numbers()}, {"0", 6, Numbers()}}), kDamaged,
              "does not match its tensors");
  ExpectFault(StreamBytes(Pickle(), {{"0", 6, Numbers()}}, /*little_endian=*/false), kRefused,
              "its numbers are big-endian");
  ExpectFault(StreamBytes(Pickle(int64_t{1} << 60), {{"0", int64_t{1} << 60, Numbers()}}), kDamaged,
              "are there");
  const std::string good = StreamBytes(Pickle(), {{"0", 6, Numbers()}});
  for (size_t size = 32; size < good.size(); ++size) {
    ExpectFault(good.substr(0, size), kDamaged, "");
  }
  // The pickle of the protocol's number stands behind the first.
  const size_t protocol = good.find("\xe9\x03");
  ExpectFault(good.substr(0, protocol) + "\xea" + good.substr(protocol + 1), kRefused,
              "its protocol is not supported");
}

TEST_F(TorchFileTest, NoBytesCrash) {
  const uint32_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  int refused = 0;
  uint64_t read = 0;
  for (const std::string& good :
       {Archive().Finish(), Archive().Finish(true), StreamBytes(Pickle(), {{"0", 6, Numbers()}})}) {
    for (int round = 0; round < 300; ++round) {
      std::string bad = good;
      for (uint32_t i = 0; i <= random() % 4; ++i) {
        bad[random() % bad.size()] = static_cast<char>(random());
      }
      const auto file = Open(bad);
      refused += !file.ok();
      if (!file.ok()) continue;
      // What is accepted can be read to its last byte.
      const PickleValue* const found = (*file)->root().Find("w");
      if (found == nullptr || found->kind() != Kind::kTensor) continue;
      const TorchTensor& tensor = found->tensor();
      if (!tensor.IsContiguous()) continue;
      for (const char byte : tensor.bytes()) read += static_cast<uint8_t>(byte);
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(read, 0u);
}

}  // namespace
}  // namespace tercio::checkpoint

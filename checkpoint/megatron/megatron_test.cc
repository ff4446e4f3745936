// Checkpoints of every version, degree and age of Megatron-LM give the same weights; exports come
// back; and what Megatron-LM's own code and torch have written is read, with transformers' logits
// (tests/megatron/make_fixtures.py wrote those fixtures).
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/export.h"
#include "checkpoint/huggingface/import.h"
#include "checkpoint/import_weights.h"
#include "checkpoint/megatron/directory.h"
#include "checkpoint/megatron/export.h"
#include "checkpoint/megatron/import.h"
#include "checkpoint/megatron/shards.h"
#include "checkpoint/megatron/testing/megatron_files.h"
#include "checkpoint/megatron/weights.h"
#include "checkpoint/model_description.h"
#include "checkpoint/reader.h"
#include "checkpoint/weight_source.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Degrees {
  int tensor;
  int pipeline;
  int chunks = 1;
};
constexpr Degrees kDegrees[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 4}, {1, 2, 2}, {2, 2, 2}};

// The weights and sizes of a directory are those of the source.
void ExpectSame(const WeightSource& source, const std::string& directory, const std::string& what) {
  const auto opened = OpenWeightSource(directory, DigestCheck::kEveryByte);
  ASSERT_TRUE(opened.ok()) << what << ": " << opened.status();
  v1::ModelSpec model = source.model();
  model.clear_label_names();  // Megatron-LM keeps none
  EXPECT_EQ((*opened)->model().DebugString(), model.DebugString()) << what;
  const auto described = DescribeModel(directory);
  ASSERT_TRUE(described.ok()) << what << ": " << described.status();
  EXPECT_EQ(described->DebugString(), model.DebugString()) << what;
  EXPECT_EQ(ReadAllTensors(**opened), ReadAllTensors(source)) << what;
}

// A checkpoint of ours with these weights, of a step.
std::string OurCheckpoint(const WeightSource& source, const std::string& path, int64_t step = 0) {
  const auto output = OutputDirectory::Create(path, FileDigests::kAll);
  EXPECT_TRUE(output.ok()) << output.status();
  Manifest manifest;
  EXPECT_TRUE(
      WriteImportedWeights(source, plan::ModelTensors(source.model()), {}, &manifest, output->get())
          .ok());
  manifest.step = step;
  EXPECT_TRUE(CommitImport({}, &manifest, output->get()).ok());
  return path;
}

TEST(Megatron, EveryVersionInEveryDegreeHasTheSameWeights) {
  const TempDir dir;
  int count = 0;
  for (const char* name : {"gpt", "bert"}) {
    const auto source = MadeUpWeights(SharedModels().at(name));
    for (int version = 0; version <= 3; ++version) {
      for (const Degrees& degrees : kDegrees) {
        const std::string what = absl::StrCat(name, " version ", version, ", ", degrees.tensor,
                                              " x ", degrees.pipeline, " x ", degrees.chunks);
        const std::string path = absl::StrCat(dir.path(), "/", ++count);
        WriteTestCheckpoint(CutAsMegatron(*source, {.version = version,
                                                    .tensor = degrees.tensor,
                                                    .pipeline = degrees.pipeline,
                                                    .chunks = degrees.chunks,
                                                    .names = version < 2 ? TestNames::kOldest
                                                                         : TestNames::kLegacy}),
                            path);
        ExpectSame(*source, path, what);
      }
    }
  }
}

TEST(Megatron, NamesOfEveryAge) {
  const TempDir dir;
  int count = 0;
  for (const auto& [name, model] : SharedModels()) {
    const auto source = MadeUpWeights(model);
    for (const TestNames names :
         {TestNames::kLegacy, TestNames::kNorm, TestNames::kCore, TestNames::kFused}) {
      for (const Degrees& degrees : {Degrees{1, 1}, Degrees{2, 2}, Degrees{1, 2, 2}}) {
        const std::string path = absl::StrCat(dir.path(), "/", ++count);
        WriteTestCheckpoint(CutAsMegatron(*source, {.tensor = degrees.tensor,
                                                    .pipeline = degrees.pipeline,
                                                    .chunks = degrees.chunks,
                                                    .names = names}),
                            path);
        ExpectSame(*source, path, absl::StrCat(name, ", names ", static_cast<int>(names)));
      }
    }
  }
}

// The runs of all ranks cover every canonical value once, in every order of heads.
TEST(Megatron, RanksTileTheModel) {
  for (const auto& [name, model] : SharedModels()) {
    for (const QkvOrder order :
         {QkvOrder::kPartHeadChannel, QkvOrder::kHeadChannelPart, QkvOrder::kHeadPartChannel}) {
      const MegatronSplit split{2, 48, order};
      if (!CheckMegatronSplit(model, split).ok()) {
        EXPECT_NE(model.kv_heads(), model.heads()) << name;
        continue;
      }
      std::map<std::string, std::vector<int>> covered;
      for (const plan::LogicalTensor& tensor : plan::ModelTensors(model)) {
        covered[tensor.name].resize(static_cast<size_t>(tensor.rows * tensor.columns));
      }
      for (const MegatronTensor& tensor : MegatronTensors(model)) {
        for (int rank = 0; rank < (tensor.cut == MegatronCut::kWhole ? 1 : 2); ++rank) {
          for (const MegatronRun& run : MegatronRuns(tensor, model, split, rank)) {
            std::vector<int>& counts = covered[tensor.parts[static_cast<size_t>(run.part)]];
            for (int64_t row = run.row; row < run.row + run.rows; ++row) {
              for (int64_t column = run.column; column < run.column + run.columns; ++column) {
                ++counts[static_cast<size_t>(row * tensor.columns + column)];
              }
            }
          }
        }
      }
      for (const auto& [part, counts] : covered) {
        EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name << " " << part;
      }
    }
  }
}

TEST(Megatron, SlicesArePartsOfTheWhole) {
  const TempDir dir;
  const auto source = MadeUpWeights(SharedModels().at("llama"));
  WriteTestCheckpoint(CutAsMegatron(*source, {.tensor = 2, .pipeline = 2}), dir.path());
  const auto model = MegatronModel::Open(dir.path());
  ASSERT_TRUE(model.ok()) << model.status();
  for (const plan::LogicalTensor& tensor : plan::ModelTensors((*model)->model())) {
    v1::TensorSlice slice;
    slice.set_tensor(tensor.name);
    slice.add_shape(tensor.rows);
    if (!tensor.is_vector) slice.add_shape(tensor.columns);
    slice.set_row_begin(tensor.rows / 3);
    slice.set_row_end(tensor.rows - 1);
    slice.set_column_begin(tensor.columns / 4);
    slice.set_column_end(tensor.columns);
    const auto size = static_cast<size_t>((slice.row_end() - slice.row_begin()) *
                                          (slice.column_end() - slice.column_begin()));
    std::vector<float> theirs(size), ours(size, NAN);
    ASSERT_TRUE(source->ReadSlice(slice, theirs.data()).ok());
    ASSERT_TRUE((*model)->ReadSlice(slice, ours.data()).ok());
    EXPECT_EQ(ours, theirs) << tensor.name;
    slice.set_row_end(tensor.rows + 1);
    EXPECT_FALSE((*model)->ReadSlice(slice, ours.data()).ok());
  }
  v1::TensorSlice missing;
  missing.set_tensor("adamw.m.final_norm.weight");
  EXPECT_EQ((*model)->ReadSlice(missing, nullptr).code(), absl::StatusCode::kNotFound);
}

// ---- where a checkpoint may lie ----

TEST(Megatron, FindsTheRanksOfADirectory) {
  const TempDir dir;
  const auto source = MadeUpWeights(SharedModels().at("gpt"));
  const std::vector<TestRank> ranks = CutAsMegatron(*source, {.tensor = 2});
  WriteTestCheckpoint(ranks, dir.path());
  ExpectSame(*source, dir.path(), "with its iteration file");
  ExpectSame(*source, dir.path() + "/iter_0000007", "the directory of the ranks");
  ASSERT_EQ(*FormatOfModel(dir.path()), ModelFormat::kMegatron);
  ASSERT_TRUE(RemoveTree(dir.path() + "/latest_checkpointed_iteration.txt").ok());
  ExpectSame(*source, dir.path(), "the only iteration");
  ASSERT_TRUE(RenamePath(dir.path() + "/iter_0000007", dir.path() + "/release").ok());
  ExpectSame(*source, dir.path(), "the only release");
  ASSERT_TRUE(
      WriteFileDurably(dir.path() + "/latest_checkpointed_iteration.txt", "release\n").ok());
  ExpectSame(*source, dir.path(), "a release");
  // A second iteration counts only where the file names it.
  for (const TestRank& rank : ranks) WriteTestRank(rank, dir.path() + "/iter_0000009");
  ExpectSame(*source, dir.path(), "a release beside an iteration");
  // Until 2023 a distributed optimizer had folders of its own, and the model another name.
  for (const char* rank : {"mp_rank_00", "mp_rank_01"}) {
    const std::string folder = absl::StrCat(dir.path(), "/release/", rank);
    ASSERT_TRUE(RenamePath(folder + "/model_optim_rng.pt", folder + "/model_rng.pt").ok());
    ASSERT_TRUE(MakeDirectories(folder + "_000_000").ok());
    ASSERT_TRUE(WriteFileDurably(folder + "_000_000/optim.pt", "x").ok());
  }
  ExpectSame(*source, dir.path(), "a model without its optimizer");
  EXPECT_THAT((*MegatronModel::Open(dir.path()))->NotesFor(source->model()),
              ElementsAre(HasSubstr("optimizer")));
}

TEST(Megatron, TheOptimizerIsLeftOutAndNoted) {
  const TempDir dir;
  const auto source = MadeUpWeights(SharedModels().at("bert"));
  std::vector<TestRank> ranks = CutAsMegatron(*source, {});
  WriteTestCheckpoint(ranks, dir.path() + "/plain");
  EXPECT_THAT((*MegatronModel::Open(dir.path() + "/plain"))->NotesFor(source->model()), IsEmpty());
  ranks[0].more.push_back({"optimizer", {TorchDict{}}});
  WriteTestCheckpoint(ranks, dir.path() + "/more");
  ExpectSame(*source, dir.path() + "/more", "with an optimizer");
  EXPECT_THAT((*MegatronModel::Open(dir.path() + "/more"))->NotesFor(source->model()),
              ElementsAre(HasSubstr("optimizer")));
}

// ---- sizes that the arguments do not say plainly ----

// 21 token ids, padded to 24 with one rank and to 32 with two.
TEST(Megatron, PaddingIsCutOffWhereItIsKnown) {
  const TempDir dir;
  const auto source = MadeUpWeights(SharedModels().at("bert"));
  std::vector<TestRank> ranks = CutAsMegatron(*source, {.tensor = 2, .pipeline = 2});
  const auto change = [&](const std::function<void(TestRank*)>& each) {
    for (TestRank& rank : ranks) each(&rank);
    EXPECT_TRUE(RemoveTree(dir.path() + "/iter_0000007").ok());
    WriteTestCheckpoint(ranks, dir.path());
  };
  change([](TestRank* rank) { rank->arg("vocab_size") = {}; });
  const auto kept = MegatronModel::Open(dir.path());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ((*kept)->model().vocab_size(), 32);
  EXPECT_THAT((*kept)->NotesFor((*kept)->model()),
              ElementsAre(HasSubstr("how many of the 32 token ids are padding")));
  const auto all = ReadAllTensors(**kept);
  EXPECT_EQ(all.at("embedding.token.weight").values.back(), 0.0f);
  EXPECT_EQ(all.at("head.bias").shape, std::vector<int64_t>{32});
  // Without a tokenizer the argument leaves out the token that ends a document.
  change([](TestRank* rank) {
    rank->arg("vocab_size") = {int64_t{20}};
    rank->arg("tokenizer_type") = {std::string("NullTokenizer")};
  });
  ExpectSame(*source, dir.path(), "a null tokenizer");
  // A tokenizer's own files say most.
  change([](TestRank* rank) { rank->arg("vocab_size") = {int64_t{3}}; });
  std::string lines;
  for (int i = 0; i < 21; ++i) absl::StrAppend(&lines, "token", i, "\n");
  ASSERT_TRUE(WriteFileDurably(dir.path() + "/vocab.txt", lines).ok());
  ExpectSame(*source, dir.path(), "vocab.txt");
  ASSERT_TRUE(WriteFileDurably(dir.path() + "/vocab.json", R"({"a": 3, "b": 20})").ok());
  ExpectSame(*source, dir.path(), "vocab.json");
  ASSERT_TRUE(WriteFileDurably(dir.path() + "/tokenizer.json",
                               R"({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 20}]})")
                  .ok());
  ExpectSame(*source, dir.path(), "tokenizer.json");
  for (const char* bad : {"{", R"({"model": {"vocab": {"a": -1}}})", R"({"model": {}})",
                          R"({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 40}]})"}) {
    ASSERT_TRUE(WriteFileDurably(dir.path() + "/tokenizer.json", bad).ok());
    EXPECT_EQ(MegatronModel::Open(dir.path()).status().code(), absl::StatusCode::kDataLoss) << bad;
  }
}

TEST(Megatron, ArgumentsOfOtherVersionsMeanTheSame) {
  const TempDir dir;
  const auto source = MadeUpWeights(SharedModels().at("llama"));
  std::vector<TestRank> ranks = CutAsMegatron(*source, {});
  TestRank& rank = ranks[0];
  rank.arg("layernorm_epsilon") = {};
  rank.arg("norm_epsilon") = {2e-5};
  rank.arg("position_embedding_type") = {};
  rank.arg("use_rotary_position_embeddings") = {true};
  rank.arg("add_bias_linear") = {};
  rank.arg("disable_bias_linear") = {true};
  rank.arg("kv_channels") = {int64_t{4}};
  rank.arg("rotary_percent") = {1.0};
  rank.arg("num_experts") = {};
  rank.arg("params_dtype") = {TorchDtype{}};
  WriteTestCheckpoint(ranks, dir.path());
  ExpectSame(*source, dir.path(), "other names");
  // Llama 3.1's rotary frequencies.
  rank.arg("use_rope_scaling") = {true};
  WriteTestRank(rank, dir.path() + "/iter_0000007");
  const auto scaled = DescribeModel(dir.path());
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_EQ(scaled->rope_scaling().factor(), 8);
  EXPECT_EQ(scaled->rope_scaling().high_freq_factor(), 4);
  EXPECT_EQ(scaled->rope_scaling().original_context(), 8192);
  rank.arg("rope_scaling_factor") = {32.0};
  WriteTestRank(rank, dir.path() + "/iter_0000007");
  EXPECT_EQ(DescribeModel(dir.path())->rope_scaling().factor(), 32);
}

// Their files hold no arguments, but their sizes are known.
TEST(Megatron, ModelsThatNvidiaPublishedIn2019) {
  const TempDir dir;
  TestRank rank;
  rank.folder = "mp_rank_00";
  auto& tensors = rank.chunks.emplace_back();
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
    tensors["language_model/" + name] = {{rows, columns},
                                         std::vector<float>(static_cast<size_t>(rows * columns))};
  };
  add("embedding/word_embeddings/weight", 16, 1024);
  add("embedding/position_embeddings/weight", 8, 1024);
  add("transformer/layers.23.attention.dense.weight", 1, 1);
  WriteTestCheckpoint({rank}, dir.path());
  const auto gpt = DescribeModel(dir.path());
  ASSERT_TRUE(gpt.ok()) << gpt.status();
  EXPECT_EQ(gpt->architecture(), v1::ARCHITECTURE_GPT2);
  EXPECT_EQ(gpt->layers(), 24);
  EXPECT_EQ(gpt->heads(), 16);
  EXPECT_EQ(gpt->ffn_hidden(), 4096);
  EXPECT_EQ(gpt->context(), 8);
  EXPECT_EQ(gpt->vocab_size(), 16);
  ASSERT_TRUE(WriteFileDurably(dir.path() + "/vocab.txt", "a\nb\nc").ok());
  EXPECT_EQ(DescribeModel(dir.path())->vocab_size(), 3);
  add("embedding/tokentype_embeddings/weight", 2, 1024);
  tensors["binary_head/weight"] = {{1}, {0}};
  WriteTestCheckpoint({rank}, dir.path());
  const auto bert = DescribeModel(dir.path());
  ASSERT_TRUE(bert.ok()) << bert.status();
  EXPECT_EQ(bert->architecture(), v1::ARCHITECTURE_BERT);
  EXPECT_EQ(bert->token_types(), 2);
  EXPECT_TRUE(bert->sentence_order());
}

TEST(Megatron, TheOtherFormOfGeluIsNoted) {
  const TempDir dir;
  for (const char* name : {"gpt", "bert"}) {
    const std::string path = absl::StrCat(dir.path(), "/", name);
    const auto source = MadeUpWeights(SharedModels().at(name));
    std::vector<TestRank> ranks = CutAsMegatron(*source, {});
    ranks[0].arg("bias_gelu_fusion") = {std::string(name) == "bert"};
    WriteTestCheckpoint(ranks, path);
    ExpectSame(*source, path, name);
    EXPECT_THAT((*MegatronModel::Open(path))->NotesFor(source->model()),
                ElementsAre(HasSubstr("bias_gelu_fusion")));
  }
}

// ---- exports ----

TEST(Megatron, ExportsComeBackInEveryDegree) {
  const TempDir dir;
  int count = 0;
  for (const auto& [name, model] : SharedModels()) {
    const auto source = MadeUpWeights(model);
    const std::string ours =
        OurCheckpoint(*source, absl::StrCat(dir.path(), "/ours-", ++count), 12);
    for (const MegatronLayout layout : {MegatronLayout::kLegacy, MegatronLayout::kCore}) {
      for (const Degrees& degrees : {Degrees{1, 1}, Degrees{2, 1}, Degrees{2, 2}, Degrees{1, 4}}) {
        const std::string what = absl::StrCat(name, ", layout ", static_cast<int>(layout), ", ",
                                              degrees.tensor, " x ", degrees.pipeline);
        const std::string path = absl::StrCat(dir.path(), "/", ++count);
        const auto exported = ExportMegatron(
            ours, path, {.tensor = degrees.tensor, .pipeline = degrees.pipeline, .layout = layout});
        ASSERT_TRUE(exported.ok()) << what << ": " << exported.status();
        EXPECT_EQ(exported->files.size(),
                  static_cast<size_t>(degrees.tensor * degrees.pipeline + 1));
        EXPECT_EQ(exported->step, 12);
        EXPECT_EQ(*ReadFile(path + "/latest_checkpointed_iteration.txt"), "12");
        EXPECT_TRUE(PathExists(path + (degrees.pipeline > 1 ? "/iter_0000012/mp_rank_00_000"
                                                            : "/iter_0000012/mp_rank_00")));
        ExpectSame(*source, path, what);
      }
    }
  }
}

TEST(Megatron, ImportAfterExportIsTheIdentity) {
  const TempDir dir;
  for (const char* name : {"gpt", "bert", "llama"}) {
    const std::string at = absl::StrCat(dir.path(), "/", name);
    const std::string ours = OurCheckpoint(*MadeUpWeights(SharedModels().at(name)), at);
    const auto exported = ExportMegatron(ours, at + ".megatron", {.tensor = 2, .pipeline = 2});
    ASSERT_TRUE(exported.ok()) << exported.status();
    EXPECT_THAT(exported->notes, IsEmpty());
    EXPECT_EQ(*ReadFile(at + ".megatron/latest_checkpointed_iteration.txt"), "release");
    const auto imported = ImportMegatron(at + ".megatron", at + ".again");
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_THAT(imported->notes, IsEmpty());
    EXPECT_EQ(imported->parameters, plan::ParameterCount(SharedModels().at(name)));
    for (const char* file : {"/weights.safetensors", "/manifest.json"}) {
      EXPECT_EQ(*ReadFile(at + ".again" + file), *ReadFile(ours + file)) << name << file;
    }
    EXPECT_EQ(VerifyCheckpoint(at + ".again")[0].problem, "");
  }
}

TEST(Megatron, HalfPrecision) {
  const TempDir dir;
  const auto source = MadeUpWeights(SharedModels().at("gpt"));
  const std::string ours = OurCheckpoint(*source, dir.path() + "/ours");
  for (const FloatFormat format : {FloatFormat::kBF16, FloatFormat::kF16}) {
    const std::string path = absl::StrCat(dir.path(), "/", static_cast<int>(format));
    ASSERT_TRUE(ExportMegatron(ours, path, {.tensor = 2, .dtype = format}).ok());
    ExpectSame(*source, path, "half");  // the weights are exact in both
    const auto rank = MegatronRank::Open(path + "/release/mp_rank_00/model_optim_rng.pt");
    ASSERT_TRUE(rank.ok()) << rank.status();
    for (const auto& [name, stored] : (*rank)->chunks()[0]) {
      EXPECT_EQ(stored.tensor->dtype, SafetensorsName(format)) << name;
    }
  }
}

TEST(Megatron, WhatMegatronHasBesideIsWrittenAsZeros) {
  const TempDir dir;
  v1::ModelSpec plain = SharedModels().at("gpt");
  plain.set_bias(false);
  const auto source = MadeUpWeights(plain);
  const std::string ours = OurCheckpoint(*source, dir.path() + "/plain");
  const auto exported = ExportMegatron(ours, dir.path() + "/gpt", {.tensor = 2, .pipeline = 2});
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_THAT(exported->notes, ElementsAre(HasSubstr("biases")));
  const auto all = ReadAllTensors(**OpenWeightSource(dir.path() + "/gpt", DigestCheck::kNone));
  EXPECT_EQ(all.at("layers.2.attention.key.bias").values, std::vector<float>(16, 0.0f));
  for (const auto& [name, tensor] : ReadAllTensors(*source))
    EXPECT_EQ(all.at(name), tensor) << name;

  v1::ModelSpec masked = SharedModels().at("bert");
  masked.set_sentence_order(false);
  const auto words = MadeUpWeights(masked);
  const auto bert =
      ExportMegatron(OurCheckpoint(*words, dir.path() + "/words"), dir.path() + "/bert", {});
  ASSERT_TRUE(bert.ok()) << bert.status();
  EXPECT_THAT(bert->notes, ElementsAre(HasSubstr("binary head")));
  const auto again = OpenWeightSource(dir.path() + "/bert", DigestCheck::kNone);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE((*again)->model().sentence_order());
  EXPECT_EQ(ReadAllTensors(**again).at("head.transform.weight"),
            ReadAllTensors(*words).at("head.transform.weight"));
}

// A row of zeros would have the logit 0, far above those of real tokens.
TEST(Megatron, PaddingRepeatsTheLastRow) {
  const TempDir dir;
  const auto source = MadeUpWeights(SharedModels().at("bert"));
  ASSERT_TRUE(ExportMegatron(OurCheckpoint(*source, dir.path() + "/ours"), dir.path() + "/out",
                             {.tensor = 2})
                  .ok());
  const auto rank = MegatronRank::Open(dir.path() + "/out/release/mp_rank_01/model_optim_rng.pt");
  ASSERT_TRUE(rank.ok()) << rank.status();
  const TorchTensor& rows = *(*rank)->chunks()[0].at("embedding.word_embeddings.weight").tensor;
  ASSERT_THAT(rows.shape, ElementsAre(128, 16));  // ids 128 to 255, all of them padding
  const TestTensor table = ReadAllTensors(*source).at("embedding.token.weight");
  const std::vector<float> last(table.values.end() - 16, table.values.end());
  for (int64_t row = 0; row < 128; ++row) {
    std::vector<float> values(16);
    WidenFloats(FloatFormat::kF32, rows.bytes().data() + row * 64, 16, values.data());
    ASSERT_EQ(values, last) << row;
  }
  const TorchTensor& bias = *(*rank)->chunks()[0].at("lm_head.bias").tensor;
  float value = 0;
  WidenFloats(FloatFormat::kF32, bias.bytes().data() + 127 * 4, 1, &value);
  EXPECT_EQ(value, ReadAllTensors(*source).at("head.bias").values.back());
}

TEST(Megatron, AnImportKeepsTheTokenizerThatItIsGiven) {
  const TempDir dir;
  WriteTestCheckpoint(CutAsMegatron(*MadeUpWeights(SharedModels().at("gpt")), {}),
                      dir.path() + "/megatron");
  const auto imported = ImportMegatron(dir.path() + "/megatron", dir.path() + "/ours",
                                       {.tokenizer_json = R"({"kind":"bytes"})"});
  ASSERT_TRUE(imported.ok()) << imported.status();
  const auto ours = OpenWeightSource(dir.path() + "/ours", DigestCheck::kEveryByte);
  ASSERT_TRUE(ours.ok()) << ours.status();
  EXPECT_EQ(*(*ours)->TokenizerJson(), R"({"kind":"bytes"})");
}

TEST(Megatron, ExportNamesWhatDoesNotFit) {
  const TempDir dir;
  int count = 0;
  const auto refused = [&](const v1::ModelSpec& model, const MegatronExportOptions& options) {
    const std::string at = absl::StrCat(dir.path(), "/", ++count);
    const auto exported =
        ExportMegatron(OurCheckpoint(*MadeUpWeights(model), at), at + ".out", options);
    EXPECT_EQ(exported.status().code(), absl::StatusCode::kInvalidArgument) << exported.status();
    EXPECT_FALSE(PathExists(at + ".out"));
    return std::string(exported.status().message());
  };
  const auto models = SharedModels();
  EXPECT_THAT(refused(models.at("gpt"), {.tensor = 3}), HasSubstr("4 heads"));
  EXPECT_THAT(refused(models.at("llama"), {.tensor = 4}), HasSubstr("2 kv_heads"));
  EXPECT_THAT(refused(models.at("gpt"), {.pipeline = 3}), HasSubstr("4 layers"));
  v1::ModelSpec model = models.at("bert");
  model.set_norm(v1::NORM_PLACEMENT_POST);
  EXPECT_THAT(refused(model, {}), HasSubstr("norm: post"));
  model = models.at("bert");
  model.set_token_types(3);
  EXPECT_THAT(refused(model, {}), HasSubstr("3 token types"));
  model = models.at("llama");
  model.mutable_rope_scaling()->set_factor(4);
  EXPECT_THAT(refused(model, {}), HasSubstr("rope_scaling"));
  model = models.at("gpt");
  model.set_ffn_hidden(25);
  EXPECT_THAT(refused(model, {.tensor = 2}), HasSubstr("25 ffn_hidden"));
}

}  // namespace
}  // namespace tercio::checkpoint

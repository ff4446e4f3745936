// Models that transformers saved: the same logits, the same files after import and export.
// tests/huggingface/make_fixtures.py wrote the fixtures.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "checkpoint/float_format.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/export.h"
#include "checkpoint/huggingface/import.h"
#include "checkpoint/huggingface/weights.h"
#include "checkpoint/model_description.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "common/checksum.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/model_tensors.h"
#include "plan/names.h"
#include "tests/huggingface/logits.h"
#include "tokenizer/export/huggingface_tokenizer.h"
#include "worker/inference/encoder_decoder.h"
#include "worker/inference/language_model.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr char kFixtures[] = "tests/huggingface/fixtures/";

struct Model {
  const char* name;
  v1::Architecture architecture;
};
constexpr Model kAllModels[] = {
    {"gpt2", v1::ARCHITECTURE_GPT2},
    {"llama", v1::ARCHITECTURE_LLAMA},
    {"llama_bf16", v1::ARCHITECTURE_LLAMA},
    {"bert", v1::ARCHITECTURE_BERT},
    {"megatron_bert", v1::ARCHITECTURE_BERT},
    {"bert_classes", v1::ARCHITECTURE_BERT},
    {"opt", v1::ARCHITECTURE_OPT},
    {"gptj", v1::ARCHITECTURE_GPT_J},
    {"gpt_neox", v1::ARCHITECTURE_GPT_NEOX},
    {"phi", v1::ARCHITECTURE_PHI},
    {"phi3", v1::ARCHITECTURE_PHI3},
    {"qwen2", v1::ARCHITECTURE_QWEN2},
    {"qwen3", v1::ARCHITECTURE_QWEN3},
    {"mistral", v1::ARCHITECTURE_MISTRAL},
    {"gemma2", v1::ARCHITECTURE_GEMMA2},
    {"t5", v1::ARCHITECTURE_T5},
    {"t5_gated", v1::ARCHITECTURE_T5},
};

// An architecture has its word as soon as the engine trains it; huggingface_forms_test.cc tests
// the others.
std::vector<const char*> TrainedModels() {
  std::vector<const char*> names;
  for (const Model& model : kAllModels) {
    if (plan::IsNamed(model.architecture)) names.push_back(model.name);
  }
  return names;
}
const std::vector<const char*>& kModels = *new std::vector<const char*>(TrainedModels());

std::string Fixture(const std::string& name) { return kFixtures + name; }

Json Expected(const std::string& name) {
  return Json::parse(*ReadFile(absl::StrCat(kFixtures, name, ".json")));
}

// The largest difference to transformers' logits, relative to the largest of them.
double LogitError(const std::string& directory, const std::string& name) {
  return LogitErrorOf(directory, Expected(name));
}

// The answers of a model with a decoder.
void ExpectAnswers(const std::string& directory, const Json& expected) {
  auto opened = inference::OpenModel(directory, std::nullopt);
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (const Json& generated : expected["generated"]) {
    const auto wanted = generated["tokens"].get<std::vector<int32_t>>();
    const auto tokens = static_cast<int64_t>(wanted.size());
    const auto model = inference::LoadEncoderDecoder(*opened, 1, {.decoder_context = tokens});
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<int32_t> ids;
    const std::vector<std::vector<int32_t>> prompts = {generated["prompt"]};
    const auto status =
        (*model)->Generate(prompts, {.tokens = tokens, .temperature = 0}, [&](size_t, int32_t id) {
          ids.push_back(id);
          return true;
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(ids, wanted);
  }
}

// The model of the directory computes what transformers' fixture does.
void ExpectOutputs(const std::string& directory, const std::string& name) {
  SCOPED_TRACE(directory);
  const Json expected = Expected(name);
  if (expected.contains("generated")) ExpectAnswers(directory, expected);
  // Scores that nothing scales make the logits of these fixtures less exact: transformers' own in
  // single precision differ by up to 8e-5 from those in double.
  const double bound = expected.contains("generated") ? 1e-4 : 1e-5;
  EXPECT_LT(LogitErrorOf(directory, expected), bound) << name;
}

v1::TensorSlice WholeSlice(const plan::LogicalTensor& tensor) {
  v1::TensorSlice slice;
  slice.set_tensor(tensor.name);
  slice.add_shape(tensor.rows);
  if (!tensor.is_vector) slice.add_shape(tensor.columns);
  slice.set_row_end(tensor.rows);
  slice.set_column_end(tensor.columns);
  return slice;
}

std::vector<float> ReadWhole(const WeightSource& source, const plan::LogicalTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.columns), NAN);
  const absl::Status status = source.ReadSlice(WholeSlice(tensor), values.data());
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

// Name -> content, of all files of a directory.
std::map<std::string, std::string> FilesOf(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const std::string& name : ListDirectory(directory)) {
    files[name] = *ReadFile(directory + "/" + name);
  }
  return files;
}

TEST(HuggingFace, OutputsAreThoseOfTransformers) {
  for (const char* name : kModels) ExpectOutputs(Fixture(name), name);
}

TEST(HuggingFace, GreedyTokensAreThoseOfTransformers) {
  for (const char* name : kModels) {
    const Json expected = Expected(name);
    if (!expected.contains("greedy")) continue;
    const auto model = inference::LanguageModel::Load(Fixture(name), 1);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto wanted = expected["greedy"].get<std::vector<int32_t>>();
    inference::GenerateOptions options;
    options.tokens = static_cast<int64_t>(wanted.size());
    options.temperature = 0;
    const std::vector<std::vector<int32_t>> prompts = {expected["tokens"]};
    std::vector<int32_t> ids;
    const auto status = (*model)->Generate(prompts, options, [&](size_t, int32_t id) {
      ids.push_back(id);
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(ids, wanted) << name;
  }
}

TEST(HuggingFace, SizesComeFromTheConfiguration) {
  const auto gpt2 = DescribeModel(Fixture("gpt2"));
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(gpt2->ffn_hidden(), 40);
  EXPECT_EQ(gpt2->context(), 16);
  EXPECT_EQ(gpt2->norm_eps(), 2e-5);
  EXPECT_TRUE(gpt2->bias());
  EXPECT_FALSE(gpt2->untied_head());
  const auto llama = DescribeModel(Fixture("llama"));
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->kv_heads(), 2);
  EXPECT_TRUE(llama->untied_head());
  EXPECT_EQ(llama->rope_theta(), 1000);
  EXPECT_EQ(llama->rope_scaling().original_context(), 30);
  EXPECT_EQ(llama->rope_scaling().low_freq_factor(), 0.8);
}

// The form that transformers 4 wrote: rope_theta beside rope_scaling.
TEST(HuggingFace, BothFormsOfRotaryParametersAreRead) {
  Json config = Json::parse(*ReadFile(Fixture("llama") + "/config.json"));
  const auto with = ModelOfHuggingFaceConfig(config.dump(), "config.json");
  ASSERT_TRUE(with.ok()) << with.status();
  config["rope_scaling"] = config["rope_parameters"];
  config["rope_scaling"].erase("rope_theta");
  config["rope_theta"] = 1000.0;
  config.erase("rope_parameters");
  const auto without = ModelOfHuggingFaceConfig(config.dump(), "config.json");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(with->SerializeAsString(), without->SerializeAsString());
}

// Any rectangle is that part of the whole: rows and columns of transposed and joined matrices too.
TEST(HuggingFace, SlicesArePartsOfTheWhole) {
  for (const char* name : kModels) {
    const auto model = HuggingFaceModel::Open(Fixture(name));
    ASSERT_TRUE(model.ok()) << model.status();
    for (const plan::LogicalTensor& tensor : plan::ModelTensors((*model)->model())) {
      const std::vector<float> whole = ReadWhole(**model, tensor);
      v1::TensorSlice slice = WholeSlice(tensor);
      slice.set_row_begin(tensor.rows / 3);
      slice.set_row_end(tensor.rows - 1);
      slice.set_column_begin(tensor.columns / 4);
      const int64_t width = slice.column_end() - slice.column_begin();
      std::vector<float> part(static_cast<size_t>((slice.row_end() - slice.row_begin()) * width));
      ASSERT_TRUE((*model)->ReadSlice(slice, part.data()).ok());
      for (size_t i = 0; i < part.size(); ++i) {
        const int64_t row = slice.row_begin() + static_cast<int64_t>(i) / width;
        const int64_t column = slice.column_begin() + static_cast<int64_t>(i) % width;
        ASSERT_EQ(part[i], whole[static_cast<size_t>(row * tensor.columns + column)])
            << name << " " << tensor.name;
      }
      slice.set_row_end(tensor.rows + 1);
      EXPECT_FALSE((*model)->ReadSlice(slice, part.data()).ok());
    }
    v1::TensorSlice missing;
    missing.set_tensor("adamw.m.final_norm.weight");
    EXPECT_EQ((*model)->ReadSlice(missing, nullptr).code(), absl::StatusCode::kNotFound);
  }
}

TEST(HuggingFace, ImportThenExportGivesTheSameBytes) {
  const TempDir dir;
  for (const char* name : kModels) {
    const std::string checkpoint = absl::StrCat(dir.path(), "/", name, ".checkpoint");
    const std::string again = absl::StrCat(dir.path(), "/", name, ".export");
    const auto imported = ImportHuggingFace(Fixture(name), checkpoint);
    ASSERT_TRUE(imported.ok()) << imported.status();
    const auto exported = ExportHuggingFace(checkpoint, again, {});
    ASSERT_TRUE(exported.ok()) << exported.status();
    EXPECT_EQ(FilesOf(again), FilesOf(Fixture(name))) << name;
    EXPECT_TRUE(exported->notes.empty());
    ExpectOutputs(checkpoint, name);
    EXPECT_EQ(ImportHuggingFace(Fixture(name), checkpoint).status().code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ExportHuggingFace(checkpoint, again, {}).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  for (const std::string& name : ListDirectory(dir.path())) {
    EXPECT_THAT(name, Not(HasSubstr("partial")));
  }
}

TEST(HuggingFace, SmallerShardsHoldTheSameTensors) {
  const TempDir dir;
  ASSERT_TRUE(ImportHuggingFace(Fixture("llama_bf16"), dir.path() + "/checkpoint").ok());
  ExportOptions options;
  options.max_shard_bytes = 6000;
  const auto result = ExportHuggingFace(dir.path() + "/checkpoint", dir.path() + "/out", options);
  ASSERT_TRUE(result.ok()) << result.status();
  const auto files = FilesOf(dir.path() + "/out");
  ASSERT_TRUE(files.contains(kHuggingFaceIndex));
  const Json index = Json::parse(files.at(kHuggingFaceIndex));
  int64_t total = 0;
  const auto shards = HuggingFaceModel::Open(dir.path() + "/out");
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_GT((*shards)->files().size(), 4u);
  for (const WeightFile& file : (*shards)->files()) {
    int64_t bytes = 0;
    for (const StoredTensor& tensor : file.tensors) {
      bytes += static_cast<int64_t>(tensor.bytes.size());
      EXPECT_EQ(tensor.dtype, "BF16");
    }
    EXPECT_LE(bytes, 6000);
    total += bytes;
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_LT(LogitError(dir.path() + "/out", "llama_bf16"), 1e-5);
}

// The bits of all tensors by name, and the dtype that all weights have.
std::map<std::string, std::string> TensorsOf(const std::string& directory,
                                             const std::string& dtype) {
  std::map<std::string, std::string> tensors;
  const auto model = HuggingFaceModel::Open(directory);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return tensors;
  for (const WeightFile& file : (*model)->files()) {
    for (const StoredTensor& tensor : file.tensors) {
      EXPECT_EQ(tensor.dtype, dtype) << tensor.name;
      tensors[tensor.name] = tensor.bytes;
    }
  }
  return tensors;
}

// Imports `from` and exports it in another dtype.
absl::Status ExportAs(FloatFormat format, const std::string& from, const std::string& to) {
  const TempDir dir;
  const auto imported = ImportHuggingFace(from, dir.path() + "/checkpoint");
  if (!imported.ok()) return imported.status();
  ExportOptions options;
  options.dtype = format;
  return ExportHuggingFace(dir.path() + "/checkpoint", to, options).status();
}

TEST(HuggingFace, WeightsAreExportedInAnotherDtype) {
  const TempDir dir;
  const std::string wide = dir.path() + "/wide";
  ASSERT_TRUE(ExportAs(FloatFormat::kF32, Fixture("llama_bf16"), wide).ok());
  EXPECT_LT(LogitError(wide, "llama_bf16"), 1e-5);
  EXPECT_EQ(Json::parse(*ReadFile(wide + "/config.json"))["dtype"], "float32");
  TensorsOf(wide, "F32");
  const std::string again = dir.path() + "/again";
  ASSERT_TRUE(ExportAs(FloatFormat::kBF16, wide, again).ok());
  EXPECT_EQ(TensorsOf(again, "BF16"), TensorsOf(Fixture("llama_bf16"), "BF16"));
  EXPECT_EQ(Json::parse(*ReadFile(again + "/config.json")),
            Json::parse(*ReadFile(Fixture("llama_bf16") + "/config.json")));

  for (const auto& [format, name, known, bound] :
       {std::tuple(FloatFormat::kF16, "F16", "float16", 2e-3),
        std::tuple(FloatFormat::kBF16, "BF16", "bfloat16", 2e-2)}) {
    const std::string narrow = absl::StrCat(dir.path(), "/", name);
    ASSERT_TRUE(ExportAs(format, Fixture("llama"), narrow).ok());
    EXPECT_EQ(Json::parse(*ReadFile(narrow + "/config.json"))["dtype"], known);
    const auto tensors = TensorsOf(narrow, name);
    const auto original = TensorsOf(Fixture("llama"), "F32");
    ASSERT_EQ(tensors.size(), original.size());
    for (const auto& [tensor, bytes] : original) {
      std::string expected(bytes.size() / 2, '\0');
      NarrowFloats(format, reinterpret_cast<const float*>(bytes.data()),
                   static_cast<int64_t>(bytes.size() / 4), expected.data());
      EXPECT_TRUE(tensors.at(tensor) == expected) << tensor;
    }
    const double error = LogitError(narrow, "llama");
    EXPECT_LT(error, bound);
    EXPECT_GT(error, 1e-5);
  }
}

TEST(HuggingFace, EveryDtypeComesBackUnchanged) {
  const TempDir dir;
  for (const char* name : kModels) {
    for (const auto format : {FloatFormat::kF32, FloatFormat::kF16, FloatFormat::kBF16}) {
      const std::string at = absl::StrCat(dir.path(), "/", name, static_cast<int>(format));
      const absl::Status made = ExportAs(format, Fixture(name), at);
      ASSERT_TRUE(made.ok()) << made;
      ASSERT_TRUE(ImportHuggingFace(at, at + ".checkpoint").ok());
      ASSERT_TRUE(ExportHuggingFace(at + ".checkpoint", at + ".export", {}).ok());
      EXPECT_EQ(FilesOf(at + ".export"), FilesOf(at)) << at;
    }
  }
}

TEST(HuggingFace, AWeightThatIsTooLargeIsRefused) {
  const TempDir dir;
  const std::string model = dir.path() + "/model";
  std::filesystem::copy(Fixture("gpt2"), model);
  std::string weights = *ReadFile(model + "/model.safetensors");
  const float large = 70000;
  std::memcpy(weights.data() + weights.size() - 4, &large, 4);
  ASSERT_TRUE(WriteFileDurably(model + "/model.safetensors", weights).ok());
  const absl::Status status = ExportAs(FloatFormat::kF16, model, dir.path() + "/half");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("70000, which fp16 cannot hold"));
  EXPECT_FALSE(PathExists(dir.path() + "/half"));
  EXPECT_TRUE(ExportAs(FloatFormat::kBF16, model, dir.path() + "/brain").ok());
}

// A checkpoint that was not imported: fp32, transformers' names, a config.json of Tercio's own.
class FreshExport : public ::testing::Test {
 protected:
  // The checkpoint of an import, without what was kept, with another model and a tokenizer.
  std::string Checkpoint(const std::string& fixture, const Json& model_changes,
                         const std::string& tokenizer) {
    const std::string imported = absl::StrCat(dir_.path(), "/", fixture, ++count_);
    EXPECT_TRUE(ImportHuggingFace(Fixture(fixture), imported).ok());
    Json manifest = Json::parse(*ReadFile(imported + "/manifest.json"));
    Json files = Json::object();
    for (const auto& [name, file] : manifest["files"].items()) {
      if (name.find('/') == std::string::npos) files[name] = file;
    }
    if (!tokenizer.empty()) {
      EXPECT_TRUE(WriteFileDurably(imported + "/tokenizer.json", tokenizer).ok());
      files["tokenizer.json"] = {{"bytes", tokenizer.size()}, {"xxh128", ChecksumHex(tokenizer)}};
    }
    manifest["version"] = 2;  // which has no digest of itself
    manifest["files"] = files;
    manifest["model"].update(model_changes);
    EXPECT_TRUE(WriteFileDurably(imported + "/manifest.json", manifest.dump()).ok());
    return imported;
  }

  TempDir dir_;
  int count_ = 0;
};

TEST_F(FreshExport, OutputsStayTheSame) {
  for (const char* name : kModels) {
    const std::string out = absl::StrCat(dir_.path(), "/", name, ".out");
    const auto result = ExportHuggingFace(Checkpoint(name, Json::object(), ""), out, {});
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->notes.size(), 1u);
    EXPECT_THAT(result->notes[0], HasSubstr("holds no tokenizer"));
    EXPECT_EQ(result->files, (std::vector<std::string>{"config.json", "model.safetensors"}));
    ExpectOutputs(out, name);
    EXPECT_TRUE(DifferencesOf(*DescribeModel(out), *DescribeModel(Fixture(name))).empty());
  }
}

TEST_F(FreshExport, TheOriginGivesItsConfiguration) {
  const Json from = {{"from", std::filesystem::absolute(Fixture("llama_bf16")).string()}};
  const std::string out = dir_.path() + "/out";
  const auto result = ExportHuggingFace(Checkpoint("llama_bf16", from, ""), out, {});
  ASSERT_TRUE(result.ok()) << result.status();
  Json expected = Json::parse(*ReadFile(Fixture("llama_bf16") + "/config.json"));
  EXPECT_EQ(expected["dtype"], "bfloat16");
  expected["dtype"] = "float32";
  EXPECT_EQ(Json::parse(*ReadFile(out + "/config.json")), expected);
  EXPECT_TRUE(PathExists(out + "/generation_config.json"));
  const auto gone = ExportHuggingFace(Checkpoint("llama_bf16", {{"from", "/not/there"}}, ""),
                                      dir_.path() + "/gone", {});
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_THAT(gone->notes[0], HasSubstr("can no longer be read"));
}

TEST_F(FreshExport, BytesAndCharactersBecomeTokenizers) {
  const std::string out = dir_.path() + "/out";
  const auto result = ExportHuggingFace(
      Checkpoint("gpt2", Json::object(), R"({"kind":"chars","characters":"\n aé","vocab_size":4})"),
      out, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->notes.empty());
  const Json chars = Json::parse(*ReadFile(out + "/tokenizer.json"));
  EXPECT_EQ(chars["model"]["vocab"], (Json{{"\n", 0}, {" ", 1}, {"a", 2}, {"é", 3}}));
  const auto files = tokenizer::HuggingFaceTokenizer(R"({"kind":"bytes","vocab_size":256})", {});
  ASSERT_TRUE(files.has_value());
  const Json bytes = Json::parse(files->at("tokenizer.json"));
  EXPECT_EQ(bytes["model"]["vocab"].size(), 256u);
  EXPECT_EQ(bytes["model"]["vocab"]["A"], 65);
  EXPECT_EQ(bytes["model"]["vocab"]["Ġ"], 32);
  EXPECT_FALSE(tokenizer::HuggingFaceTokenizer(R"({"kind":"other"})", {}).has_value());
}

TEST_F(FreshExport, ADtypeIsChosen) {
  const std::string out = dir_.path() + "/out";
  ExportOptions options;
  options.dtype = FloatFormat::kBF16;
  const auto result = ExportHuggingFace(Checkpoint("gpt2", Json::object(), ""), out, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(Json::parse(*ReadFile(out + "/config.json"))["torch_dtype"], "bfloat16");
  TensorsOf(out, "BF16");
  EXPECT_LT(LogitError(out, "gpt2"), 2e-2);
}

// The files of the directory that training started from count as long as they hold its tokenizer.
TEST_F(FreshExport, TheTokenizerIsTheOriginsOrTheCheckpoints) {
  const std::string origin = dir_.path() + "/origin";
  std::filesystem::copy(Fixture("gpt2"), origin);
  ASSERT_TRUE(WriteFileDurably(origin + "/vocab.json", R"({"a": 0, "b": 1})").ok());
  ASSERT_TRUE(WriteFileDurably(origin + "/merges.txt", "#version: 0.2\n").ok());
  for (const std::string second : {"b", "c"}) {
    const Json stored = {{"kind", "byte_level_bpe"}, {"vocab_size", 2},
                         {"pattern", "gpt2"},        {"vocabulary", {"a", second}},
                         {"merges", Json::array()},  {"added_tokens", Json::array()}};
    const std::string out = absl::StrCat(dir_.path(), "/", second);
    const auto result =
        ExportHuggingFace(Checkpoint("gpt2", {{"from", origin}}, stored.dump()), out, {});
    ASSERT_TRUE(result.ok()) << result.status();
    const auto files = FilesOf(out);
    EXPECT_EQ(files.contains("merges.txt"), second == "b");
    EXPECT_EQ(files.contains("vocab.json"), second == "b");
    EXPECT_EQ(files.contains("tokenizer.json"), second == "c");
  }
}

TEST_F(FreshExport, WhatTheFormatCannotSayIsRefused) {
  const auto result =
      ExportHuggingFace(Checkpoint("gpt2", {{"kv_heads", 2}}, ""), dir_.path() + "/out", {});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("as many key heads as query heads"));
  EXPECT_FALSE(PathExists(dir_.path() + "/out"));
  for (const Json& change : {Json{{"heads", 0}}, Json{{"layers", -1}}, Json{{"vocab_size", 0}},
                             Json{{"architecture", "t5"}}, Json{{"kv_heads", 3}}}) {
    const std::string bad = Checkpoint("gpt2", change, "");
    EXPECT_EQ(ExportHuggingFace(bad, dir_.path() + "/out", {}).status().code(),
              absl::StatusCode::kDataLoss)
        << change;
    EXPECT_EQ(OpenWeightSource(bad, DigestCheck::kNone).status().code(),
              absl::StatusCode::kDataLoss)
        << change;
    EXPECT_EQ(DescribeModel(bad).status().code(), absl::StatusCode::kDataLoss) << change;
  }
}

// A classifier may start from a model of another task, or of none: what it lacks stays as it was.
TEST(HuggingFace, ATaskOfItsOwn) {
  const auto classes = DescribeModel(Fixture("bert_classes"));
  ASSERT_TRUE(classes.ok()) << classes.status();
  EXPECT_EQ(classes->labels(), 3);
  EXPECT_EQ(classes->label_names(2), "good");
  const auto pretrained = DescribeModel(Fixture("bert"));
  ASSERT_TRUE(pretrained.ok()) << pretrained.status();
  EXPECT_TRUE(pretrained->sentence_order());
  EXPECT_TRUE(CheckStartsFrom(*classes, *pretrained).ok());
  EXPECT_FALSE(CheckStartsFrom(*classes, *DescribeModel(Fixture("megatron_bert"))).ok());
  const auto source = OpenWeightSource(Fixture("bert"), DigestCheck::kNone);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE((*source)->Has("pooler.weight"));
  EXPECT_FALSE((*source)->Has("classifier.weight"));
  // The same files under the name of a base model, without the tensors of the task.
  const TempDir dir;
  Json config = Json::parse(*ReadFile(Fixture("bert_classes") + "/config.json"));
  config["architectures"] = {"BertModel"};
  ASSERT_TRUE(WriteFileDurably(dir.path() + "/config.json", config.dump()).ok());
  const auto bytes = ReadFile(Fixture("bert_classes") + "/model.safetensors");
  const auto layout = ParseSafetensors(*bytes, static_cast<int64_t>(bytes->size()));
  ASSERT_TRUE(layout.ok()) << layout.status();
  std::vector<TensorEntry> kept;
  std::string values;
  for (const TensorEntry& entry : layout->tensors) {
    if (entry.name.rfind("classifier.", 0) == 0) continue;
    kept.push_back(entry);
    values += bytes->substr(static_cast<size_t>(layout->data_begin + entry.begin),
                            static_cast<size_t>(entry.end - entry.begin));
  }
  ASSERT_TRUE(
      WriteFileDurably(dir.path() + "/model.safetensors", SafetensorsHeader(&kept, "pt") + values)
          .ok());
  const auto base = OpenWeightSource(dir.path(), DigestCheck::kNone);
  ASSERT_TRUE(base.ok()) << base.status();
  EXPECT_FALSE((*base)->Has("head.bias"));
  EXPECT_TRUE((*base)->Has("pooler.bias"));
  config["architectures"] = {"BertForMaskedLM"};
  ASSERT_TRUE(WriteFileDurably(dir.path() + "/config.json", config.dump()).ok());
  EXPECT_THAT(std::string(OpenWeightSource(dir.path(), DigestCheck::kNone).status().message()),
              HasSubstr("tensor cls.predictions.transform.dense.weight is missing"));
}

TEST(HuggingFace, AShorterContextTakesTheFirstPositions) {
  const auto source = OpenWeightSource(Fixture("gpt2"), DigestCheck::kNone);
  ASSERT_TRUE(source.ok()) << source.status();
  v1::ModelSpec shorter = (*source)->model();
  shorter.set_context(5);
  EXPECT_TRUE(CheckStartsFrom(shorter, (*source)->model()).ok());
  const plan::LogicalTensor table = plan::ModelTensors(shorter)[1];
  ASSERT_EQ(table.name, "embedding.position.weight");
  std::vector<float> values(static_cast<size_t>(table.rows * table.columns));
  ASSERT_TRUE(ReadSliceFor(**source, WholeSlice(table), values.data()).ok());
  std::vector<float> whole = ReadWhole(**source, plan::ModelTensors((*source)->model())[1]);
  whole.resize(values.size());
  EXPECT_EQ(values, whole);
  const auto model = inference::LanguageModel::Load(Fixture("gpt2"), 1, {.context = 5});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->context(), 5);
  EXPECT_FALSE(inference::LanguageModel::Load(Fixture("gpt2"), 1, {.context = 17}).ok());
  shorter.set_context(17);
  EXPECT_THAT(std::string(CheckStartsFrom(shorter, (*source)->model()).message()),
              HasSubstr("model.context is 17, but it has only 16"));
}

TEST(FloatFormats, EveryNarrowNumberComesBack) {
  for (const FloatFormat format : {FloatFormat::kF16, FloatFormat::kBF16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto narrow = static_cast<uint16_t>(bits);
      float wide = 0;
      WidenFloats(format, reinterpret_cast<const char*>(&narrow), 1, &wide);
      uint16_t again = 0;
      NarrowFloats(format, &wide, 1, reinterpret_cast<char*>(&again));
      ASSERT_EQ(again, narrow);
    }
  }
}

// Only F64 is wider than what it is read into.
TEST(FloatFormats, DoublesAreRounded) {
  const double wide[] = {1.0 + 0x1p-24, 1.0 + 0x3p-24, -0x1p-149, 1e300};
  float read[4];
  WidenFloats(FloatFormat::kF64, reinterpret_cast<const char*>(wide), 4, read);
  EXPECT_EQ(read[0], 1.0f);  // tie, to even
  EXPECT_EQ(read[1], 1.0f + 0x1p-22f);
  EXPECT_EQ(read[2], -0x1p-149f);
  EXPECT_EQ(read[3], INFINITY);
  double again[3];
  NarrowFloats(FloatFormat::kF64, read, 3, reinterpret_cast<char*>(again));
  EXPECT_EQ(again[1], 1.0 + 0x1p-22);
  EXPECT_EQ(again[2], -0x1p-149);
}

TEST(FloatFormats, ValuesAndRounding) {
  const auto half = [](uint16_t bits) {
    float wide = 0;
    WidenFloats(FloatFormat::kF16, reinterpret_cast<const char*>(&bits), 1, &wide);
    return wide;
  };
  EXPECT_EQ(half(0x3c00), 1.0f);
  EXPECT_EQ(half(0xc000), -2.0f);
  EXPECT_EQ(half(0x0001), 0x1p-24f);
  EXPECT_EQ(half(0x7bff), 65504.0f);
  EXPECT_EQ(half(0x7c00), INFINITY);
  const auto narrow = [](FloatFormat format, float value) {
    uint16_t bits = 0;
    NarrowFloats(format, &value, 1, reinterpret_cast<char*>(&bits));
    return bits;
  };
  EXPECT_EQ(narrow(FloatFormat::kF16, 1.0f + 0x1p-11f), 0x3c00);    // tie, to even
  EXPECT_EQ(narrow(FloatFormat::kF16, 1.0f + 0x3p-11f), 0x3c02);    // tie, to even
  EXPECT_EQ(narrow(FloatFormat::kF16, 1.0f + 0x1.2p-11f), 0x3c01);  // above the tie
  EXPECT_EQ(narrow(FloatFormat::kF16, 65520.0f), 0x7c00);           // too large
  EXPECT_EQ(narrow(FloatFormat::kF16, 0x1.8p-25f), 0x0001);         // subnormal
  EXPECT_EQ(narrow(FloatFormat::kBF16, 1.0f + 0x1p-8f), 0x3f80);    // tie, to even
  EXPECT_EQ(narrow(FloatFormat::kBF16, 1.0f + 0x1.1p-8f), 0x3f81);  // above the tie
  EXPECT_EQ(narrow(FloatFormat::kBF16, 3.4e38f), 0x7f80);           // too large
  for (const FloatFormat format : {FloatFormat::kF16, FloatFormat::kBF16}) {
    const uint16_t infinite = narrow(format, INFINITY);
    EXPECT_EQ(narrow(format, BoundOf(format)), infinite);
    EXPECT_EQ(narrow(format, std::nextafter(BoundOf(format), 0.0f)), infinite - 1);
  }
}

}  // namespace
}  // namespace tercio::checkpoint

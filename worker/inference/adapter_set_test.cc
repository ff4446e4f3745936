#include "worker/inference/adapter_set.h"

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/peft_import.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/inference/language_model.h"

namespace tercio::inference {
namespace {

using ::testing::HasSubstr;

constexpr char kGpt2[] = "tests/huggingface/fixtures/gpt2";  // a context of 16, 32 channels
constexpr char kLora[] = "tests/huggingface/adapters/gpt2";  // rank 4, all products
constexpr char kIa3[] = "tests/huggingface/adapters/gpt2_ia3";

struct Written {
  std::string name;
  std::vector<int64_t> shape;
};

// An adapter of the kind of peft's, with random values, whose base is the fixture.
void WriteAdapter(const std::string& directory, nlohmann::json config,
                  const std::vector<Written>& tensors) {
  ASSERT_TRUE(MakeDirectories(directory).ok());
  config["peft_type"] = "LORA";
  config["base_model_name_or_path"] = kGpt2;
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const Written& tensor : tensors) {
    const size_t begin = data.size();
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    for (int64_t i = 0; i < elements; ++i) {
      // Any numbers of the size of weights.
      const float value =
          static_cast<float>((i * 7919 + static_cast<int64_t>(begin)) % 201 - 100) / 400;
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header["base_model.model." + tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::string content(sizeof(length), '\0');
  std::memcpy(content.data(), &length, sizeof(length));
  ASSERT_TRUE(
      WriteFileDurably(directory + "/adapter_model.safetensors", content + text + data).ok());
  ASSERT_TRUE(WriteFileDurably(directory + "/adapter_config.json", config.dump()).ok());
}

// Rank 2 beside the queries, keys and values only.
void WriteSmallAdapter(const std::string& directory) {
  std::vector<Written> tensors;
  for (const int layer : {0, 1}) {
    const std::string module = absl::StrCat("transformer.h.", layer, ".attn.c_attn");
    tensors.push_back({module + ".lora_A.weight", {2, 32}});
    tensors.push_back({module + ".lora_B.weight", {96, 2}});
  }
  WriteAdapter(directory, {{"r", 2}, {"lora_alpha", 6}}, tensors);
}

std::vector<float> LogitsOf(const ScoredId& scored) {
  std::vector<float> values = {static_cast<float>(scored.id)};
  for (const LogProbability& one : scored.likeliest) {
    values.push_back(static_cast<float>(one.id));
    values.push_back(static_cast<float>(one.value));
  }
  return values;
}

struct Asked {
  std::vector<int32_t> prompt;
  std::optional<size_t> adapter;
  size_t tokens = 0;
};

TextOptions OptionsOf(const Asked& asked, size_t i, int32_t vocabulary) {
  TextOptions options;
  options.sampling = {.temperature = i % 2 == 0 ? 0.0 : 0.9, .seed = 31 * i};
  options.likeliest = vocabulary;
  options.score_prompt = true;
  options.adapter = asked.adapter;
  return options;
}

// What each text becomes: its ids, with the probabilities of all others at each place.
using Texts = std::vector<std::vector<std::vector<float>>>;

// Texts join in the order of `order`, as slots become free.
Texts Together(TextBatch& batch, const std::vector<Asked>& asked, const std::vector<size_t>& order,
               int64_t prompt_rows) {
  Texts made(asked.size());
  std::map<TextBatch::Text, size_t> which;
  std::map<size_t, size_t> tokens;
  for (size_t next = 0; next < order.size() || !which.empty();) {
    for (; next < order.size() && batch.free_slots() > 0; ++next) {
      const size_t i = order[next];
      const auto text = batch.Add(asked[i].prompt, OptionsOf(asked[i], i, batch.vocab_size()));
      EXPECT_TRUE(text.ok()) << text.status();
      which[*text] = i;
    }
    for (const TextBatch::News& news : batch.Step(prompt_rows)) {
      EXPECT_TRUE(news.status.ok()) << news.status;
      const size_t i = which.at(news.text);
      for (const ScoredId& scored : news.prompt) made[i].push_back(LogitsOf(scored));
      if (!news.id.has_value()) continue;
      made[i].push_back(LogitsOf(*news.id));
      if (++tokens[i] < asked[i].tokens) continue;
      batch.Remove(news.text);
      which.erase(news.text);
    }
  }
  return made;
}

std::unique_ptr<LanguageModel> WithAdapters(const std::string& base,
                                            const std::vector<std::string>& directories,
                                            int64_t sequences) {
  auto opened = OpenModel(base, std::nullopt);
  EXPECT_TRUE(opened.ok()) << opened.status();
  for (const std::string& directory : directories) {
    const absl::Status added = AddAdapter(directory, &*opened);
    EXPECT_TRUE(added.ok()) << added;
  }
  auto model = LanguageModel::Load(*opened, 2, {.sequences = sequences});
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// Texts of the base and of its adapters, in one batch, against those of models with one adapter.
void ExpectTextsOfSingleModels(const std::string& base,
                               const std::vector<std::string>& directories) {
  const size_t choices = directories.size() + 1;
  std::vector<Asked> asked;
  for (size_t i = 0; i < 10; ++i) {
    const size_t choice = i % choices;
    // Prompts of different lengths; with the last texts windows slide.
    asked.push_back({{static_cast<int32_t>(3 + i), 5, 7},
                     choice == directories.size() ? std::nullopt : std::optional<size_t>(choice),
                     i < 8 ? 3 + i % 3 : 16});
    for (size_t more = 0; more < i; ++more) {
      asked.back().prompt.push_back(static_cast<int32_t>(20 + more));
    }
  }
  Texts alone(asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto model = LanguageModel::Load(
        asked[i].adapter.has_value() ? directories[*asked[i].adapter] : base, 1);
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<Asked> one = asked;
    one[i].adapter.reset();
    alone[i] = Together((*model)->texts(), one, {i}, 100)[i];
    EXPECT_EQ(alone[i].size(), asked[i].prompt.size() - 1 + asked[i].tokens);
  }
  const auto model = WithAdapters(base, directories, 6);
  for (const std::vector<size_t>& order : std::vector<std::vector<size_t>>{
           {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {9, 4, 3, 8, 2, 7, 1, 6, 0, 5}}) {
    for (const int64_t prompt_rows : {2, 100}) {
      EXPECT_EQ(Together(model->texts(), asked, order, prompt_rows), alone)
          << "in the order from " << order.front() << ", with prompts in parts of " << prompt_rows;
    }
  }
}

TEST(AdapterSet, TextsAreThoseOfModelsWithOneAdapter) {
  TempDir scratch;
  const std::string small = scratch.path() + "/small";
  WriteSmallAdapter(small);
  // The adapter of a checkpoint is the same as that of the directory it was imported from.
  const std::string imported = scratch.path() + "/imported";
  ASSERT_TRUE(checkpoint::ImportPeft(kLora, "", imported, {}).ok());
  ExpectTextsOfSingleModels(kGpt2, {kLora, kIa3, small, imported});
}

TEST(AdapterSet, TextsAreThoseOfModelsWhoseProductsAreAdaptedInParts) {
  // Queries, keys and values have an adapter each, beside one product.
  ExpectTextsOfSingleModels(
      "tests/huggingface/fixtures/llama_bf16",
      {"tests/huggingface/adapters/llama_bf16", "tests/huggingface/adapters/llama_bf16_ia3"});
}

TEST(AdapterSet, AdaptersDiffer) {
  const auto model = WithAdapters(kGpt2, {kLora, kIa3}, 3);
  const std::vector<int32_t> prompt = {1, 2, 3};
  const std::vector<Asked> asked = {{prompt, std::nullopt, 1}, {prompt, 0, 1}, {prompt, 1, 1}};
  const Texts made = Together(model->texts(), asked, {0, 1, 2}, 100);
  EXPECT_NE(made[0].front(), made[1].front());
  EXPECT_NE(made[0].front(), made[2].front());
  EXPECT_NE(made[1].front(), made[2].front());
  const absl::Status none = model->texts().Add(prompt, {.adapter = 2}).status();
  EXPECT_THAT(std::string(none.message()), HasSubstr("adapter 2 is none of the 2"));
}

TEST(AdapterSet, MemoryIsPlanned) {
  auto opened = OpenModel(kGpt2, std::nullopt);
  ASSERT_TRUE(opened.ok());
  const PassSize pass = {.sequences = 2};
  const auto none = PlanBytes(*opened, 1, pass);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->adapters, 0);
  ASSERT_TRUE(AddAdapter(kLora, &*opened).ok());
  const auto one = PlanBytes(*opened, 1, pass);
  ASSERT_TRUE(one.ok());
  // Rank 4, two layers: 32 -> 96, 32 -> 32, 32 -> 40, 40 -> 32, and scratch of 256 rows for A x.
  const int64_t tensors = 4 * 2 * (128 + 64 + 72 + 72) * int64_t{sizeof(float)};
  EXPECT_EQ(one->adapters, tensors + 256 * 4 * int64_t{sizeof(float)});
  EXPECT_EQ(one->total(), none->total() + one->adapters);
  // Inputs of IA3 need scratch for a whole pass, which several such adapters share.
  ASSERT_TRUE(AddAdapter(kIa3, &*opened).ok());
  const auto two = PlanBytes(*opened, 1, pass);
  ASSERT_TRUE(AddAdapter(kIa3, &*opened).ok());
  const auto three = PlanBytes(*opened, 1, pass);
  ASSERT_TRUE(two.ok() && three.ok());
  EXPECT_GT(three->adapters, two->adapters);
  EXPECT_LT(three->adapters - two->adapters, two->adapters - one->adapters);
  EXPECT_EQ(two->texts, one->texts);
}

std::string RefusalOf(const std::string& base, const std::string& adapter) {
  auto opened = OpenModel(base, std::nullopt);
  EXPECT_TRUE(opened.ok()) << opened.status();
  const absl::Status status = AddAdapter(adapter, &*opened);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(opened->adapters.empty());
  return std::string(status.message());
}

TEST(AdapterSet, RefusesWhatTextsCannotChoose) {
  TempDir scratch;
  EXPECT_THAT(RefusalOf(kGpt2, kGpt2), HasSubstr("is a model without an adapter"));
  EXPECT_THAT(RefusalOf(kLora, kIa3), HasSubstr("has an adapter already"));
  EXPECT_THAT(RefusalOf("tests/huggingface/fixtures/llama", kLora),
              HasSubstr("belongs to no product or module of the model"));
  EXPECT_THAT(RefusalOf(kGpt2, scratch.path()), HasSubstr(scratch.path()));
  // A checkpoint of another model.
  const std::string imported = scratch.path() + "/imported";
  ASSERT_TRUE(checkpoint::ImportPeft(kLora, "", imported, {}).ok());
  EXPECT_THAT(RefusalOf("tests/huggingface/fixtures/llama", imported),
              HasSubstr("is for another model: its architecture is gpt2, but this one has llama"));
  EXPECT_THAT(RefusalOf(imported, kIa3), HasSubstr("has an adapter already"));
  // Other weights, which the file of the digest tells.
  const std::string twin = scratch.path() + "/twin";
  WriteSmallAdapter(twin);
  ASSERT_TRUE(
      WriteFileDurably(twin + "/tercio_base.json", R"({"digest": "0123456789abcdef"})").ok());
  EXPECT_THAT(RefusalOf(kGpt2, twin), HasSubstr("was trained beside other weights"));
  // A tensor that was trained as a whole.
  const std::string saved = scratch.path() + "/saved";
  WriteAdapter(saved, {{"r", 2}},
               {{"transformer.h.0.attn.c_attn.lora_A.weight", {2, 32}},
                {"transformer.h.0.attn.c_attn.lora_B.weight", {96, 2}},
                {"transformer.h.1.attn.c_attn.lora_A.weight", {2, 32}},
                {"transformer.h.1.attn.c_attn.lora_B.weight", {96, 2}},
                {"transformer.ln_f.modules_to_save.weight", {32}}});
  EXPECT_THAT(RefusalOf(kGpt2, saved),
              HasSubstr("(final_norm.weight), of which there is one copy"));
}

}  // namespace
}  // namespace tercio::inference

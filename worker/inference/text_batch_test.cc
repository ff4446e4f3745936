#include "worker/inference/text_batch.h"

#include <cmath>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/inference/language_model.h"

namespace tercio::inference {
namespace {

using ::testing::HasSubstr;

constexpr char kGpt2[] = "tests/huggingface/fixtures/gpt2";  // a context of 16
constexpr char kLlama[] = "tests/huggingface/fixtures/llama";

std::unique_ptr<LanguageModel> Load(const char* directory, int64_t sequences) {
  auto model = LanguageModel::Load(directory, 1, {.sequences = sequences});
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

GenerateOptions Sampling(size_t i) {
  // One is greedy, the others draw.
  return {.temperature = i == 0 ? 0.0 : 0.7 + 0.1 * static_cast<double>(i),
          .top_k = i == 2 ? 5 : 0,
          .top_p = i == 1 ? 0.9 : 1.0,
          .seed = 17 * i};
}

// The ids of a text that grows alone.
std::vector<int32_t> Alone(LanguageModel& model, const std::vector<int32_t>& prompt,
                           GenerateOptions options, int64_t tokens) {
  options.tokens = tokens;
  std::vector<int32_t> ids;
  EXPECT_TRUE(model
                  .Generate({prompt}, options,
                            [&](size_t, int32_t id) {
                              ids.push_back(id);
                              return true;
                            })
                  .ok());
  return ids;
}

const std::vector<std::vector<int32_t>> kPrompts = {
    {1, 2, 3, 4, 5, 6, 7}, {9}, {11, 3}, {30, 31, 32, 33, 34, 35, 36, 37, 38}, {8, 8, 8}};

// All prompts grow in three slots: a new one joins as soon as a slot is free.
std::vector<std::vector<int32_t>> Together(TextBatch& texts, size_t tokens, int64_t prompt_rows) {
  std::vector<std::vector<int32_t>> made(kPrompts.size());
  std::map<TextBatch::Text, size_t> which;
  size_t next = 0;
  int step = 0;
  while (next < kPrompts.size() || !which.empty()) {
    // Texts join at different times, not all in the same pass.
    if (step++ % 2 == 0 && next < kPrompts.size() && texts.free_slots() > 0) {
      const auto text = texts.Add(kPrompts[next], {.sampling = Sampling(next)});
      EXPECT_TRUE(text.ok()) << text.status();
      which[*text] = next++;
    }
    for (const TextBatch::News& news : texts.Step(prompt_rows)) {
      EXPECT_TRUE(news.status.ok()) << news.status;
      if (!news.id.has_value()) continue;
      const size_t i = which.at(news.text);
      made[i].push_back(news.id->id);
      // Texts have lengths of their own.
      if (made[i].size() < tokens + i) continue;
      texts.Remove(news.text);
      which.erase(news.text);
    }
  }
  return made;
}

TEST(TextBatch, IdsDoNotDependOnTheTextsBesideThem) {
  for (const char* directory : {kGpt2, kLlama}) {
    const auto one = Load(directory, 1);
    const auto three = Load(directory, 3);
    // With 12 new ids windows slide.
    for (const size_t tokens : {3, 12}) {
      for (const int64_t prompt_rows : {1, 4, 1000}) {
        const auto together = Together(three->texts(), tokens, prompt_rows);
        for (size_t i = 0; i < kPrompts.size(); ++i) {
          EXPECT_EQ(together[i],
                    Alone(*one, kPrompts[i], Sampling(i), static_cast<int64_t>(tokens + i)))
              << directory << " " << i << " with prompts in parts of " << prompt_rows;
        }
      }
    }
    EXPECT_EQ(three->texts().free_slots(), 3);
  }
}

TEST(TextBatch, ALongPromptIsReadWhileOthersGrow) {
  const auto model = Load(kGpt2, 2);
  TextBatch& texts = model->texts();
  const auto early = texts.Add({1}, {});
  ASSERT_EQ(texts.Step(4).size(), 1u);
  const auto late = texts.Add(kPrompts[3], {});
  // Nine ids are read four at a time.
  for (int pass = 0; pass < 3; ++pass) {
    const auto news = texts.Step(4);
    ASSERT_EQ(news.size(), 2u);
    for (const TextBatch::News& one : news) {
      EXPECT_EQ(one.id.has_value(), one.text == *early || pass == 2);
    }
  }
  texts.Remove(*early);
  texts.Remove(*late);
  EXPECT_TRUE(texts.Step(4).empty());
}

TEST(TextBatch, ScoresAreTheModelsProbabilities) {
  const auto one = Load(kGpt2, 1);
  const auto model = Load(kGpt2, 2);
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5};
  for (const int64_t prompt_rows : {2, 100}) {
    TextOptions options = {.sampling = {.temperature = 0}, .likeliest = 3, .score_prompt = true};
    const auto text = model->texts().Add(prompt, options);
    std::vector<ScoredId> scored;
    for (bool done = false; !done;) {
      for (const TextBatch::News& news : model->texts().Step(prompt_rows)) {
        scored.insert(scored.end(), news.prompt.begin(), news.prompt.end());
        done = news.id.has_value();
        if (done) scored.push_back(*news.id);
      }
    }
    model->texts().Remove(*text);
    ASSERT_EQ(scored.size(), prompt.size());
    for (size_t i = 0; i < scored.size(); ++i) {
      const auto seen = absl::MakeConstSpan(prompt).subspan(0, i + 1);
      const auto predicted = one->Predict(seen, {scored[i].id});
      ASSERT_TRUE(predicted.ok()) << predicted.status();
      EXPECT_EQ(scored[i].log_probability, -predicted->loss);
      ASSERT_EQ(scored[i].likeliest.size(), 3u);
      EXPECT_GE(scored[i].likeliest[0].value, scored[i].likeliest[1].value);
      EXPECT_EQ(scored[i].likeliest[0].id == scored[i].id, predicted->likeliest);
      if (i + 1 < prompt.size()) {
        EXPECT_EQ(scored[i].id, prompt[i + 1]);
      }
    }
    // The greedy id is the likeliest one.
    EXPECT_EQ(scored.back().likeliest[0].id, scored.back().id);
    EXPECT_DOUBLE_EQ(scored.back().likeliest[0].value, scored.back().log_probability);
  }
}

TEST(TextBatch, MemoryIsKnownBeforeTheModelIsLoaded) {
  const auto opened = OpenModel(kGpt2, std::nullopt);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto two = PlanBytes(*opened, 1, {.sequences = 2});
  const auto four = PlanBytes(*opened, 1, {.sequences = 4});
  const auto shorter = PlanBytes(*opened, 1, {.sequences = 4, .context = 8});
  ASSERT_TRUE(two.ok() && four.ok() && shorter.ok());
  // The weights of the file, each tensor from a border of 256 bytes on at most.
  EXPECT_GE(two->weights, 63296);
  EXPECT_LT(two->weights, 63296 + 32 * 256);
  EXPECT_EQ(four->weights, two->weights);
  EXPECT_NEAR(static_cast<double>(four->texts) / static_cast<double>(two->texts), 2, 0.2);
  EXPECT_LT(shorter->texts, four->texts);
  EXPECT_EQ(four->total(), four->weights + four->texts + four->workspace);
  EXPECT_FALSE(PlanBytes(*opened, 1, {.context = 17}).ok());
}

TEST(TextBatch, RefusesWhatCannotGrow) {
  const auto model = Load(kGpt2, 1);
  TextBatch& texts = model->texts();
  EXPECT_THAT(std::string(texts.Add({}, {}).status().message()), HasSubstr("prompt is empty"));
  EXPECT_THAT(std::string(texts.Add({4000}, {}).status().message()), HasSubstr("4000 is outside"));
  ASSERT_TRUE(texts.Add({1}, {}).ok());
  EXPECT_EQ(texts.Add({1}, {}).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tercio::inference

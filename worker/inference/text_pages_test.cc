// Texts in a cache that is smaller than their contexts: each has the ids that it has alone, all
// end, and pages come back.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/inference/key_cache.h"
#include "worker/inference/language_model.h"
#include "worker/inference/text_batch.h"

namespace tercio::inference {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kContext = 256;  // four pages
constexpr int64_t kPages = 6;      // a text and a half
constexpr int64_t kPageTokens = 64;
constexpr size_t kTexts = 12;

using Ids = std::vector<int32_t>;

class TextPagesTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSeed = 20261129;

  // The fixture's weights do not depend on the context, whose positions are rotations.
  void SetUp() override {
    RecordProperty("seed", std::to_string(kSeed));
    const std::string from = "tests/huggingface/fixtures/llama/";
    for (const char* name :
         {"config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors",
          "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"}) {
      auto content = ReadFile(from + name);
      ASSERT_TRUE(content.ok()) << content.status();
      absl::StrReplaceAll({{"\"max_position_embeddings\": 64", "\"max_position_embeddings\": 256"}},
                          &*content);
      ASSERT_TRUE(WriteFileDurably(directory_.path() + "/" + name, *content).ok());
    }
    one_ = Load({.sequences = 1});
    ASSERT_EQ(one_->context(), kContext);
    for (size_t i = 0; i < kTexts; ++i) {
      prompts_.push_back(Random(i % 4 == 3 ? 150 : 1 + random_() % 40));
    }
  }

  std::unique_ptr<LanguageModel> Load(PassSize pass) {
    auto model = LanguageModel::Load(directory_.path(), 1, pass);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  std::unique_ptr<LanguageModel> LoadSmall() {
    return Load({.sequences = 6, .cache_tokens = kPages * kPageTokens});
  }

  Ids Random(size_t count) {
    Ids ids(count);
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random_() % static_cast<uint64_t>(one_->vocab_size()));
    }
    return ids;
  }

  static GenerateOptions Sampling(size_t i) {
    return {.temperature = i % 3 == 0 ? 0.0 : 1.0, .seed = i};
  }

  // The ids of a text that grows alone, in a cache for all of it.
  Ids Alone(const Ids& prompt, size_t i, int64_t tokens) {
    GenerateOptions options = Sampling(i);
    options.tokens = tokens;
    Ids ids;
    EXPECT_TRUE(one_->Generate({prompt}, options,
                               [&](size_t, int32_t id) {
                                 ids.push_back(id);
                                 return true;
                               })
                    .ok());
    return ids;
  }

  std::mt19937_64 random_{kSeed};
  TempDir directory_;
  std::unique_ptr<LanguageModel> one_;
  std::vector<Ids> prompts_;
};

// Most texts come to need three pages.
int64_t TokensOf(size_t i) { return i % 4 == 3 ? 90 : 130 + static_cast<int64_t>(i); }

TEST_F(TextPagesTest, AllTextsEndWithTheirOwnIds) {
  const auto model = LoadSmall();
  TextBatch& texts = model->texts();
  std::map<TextBatch::Text, size_t> which;
  std::vector<Ids> made(kTexts);
  std::vector<Ids> scored(kTexts);
  size_t most = 0;
  for (size_t next = 0; next < kTexts || !which.empty();) {
    for (; next < kTexts && texts.HasRoomFor(prompts_[next], {}); ++next) {
      const auto text =
          texts.Add(prompts_[next], {.sampling = Sampling(next), .score_prompt = next % 2 == 1});
      ASSERT_TRUE(text.ok()) << text.status();
      which[*text] = next;
    }
    most = std::max(most, which.size());
    const auto news = texts.Step(48);
    ASSERT_FALSE(news.empty());  // the oldest text never waits
    for (const TextBatch::News& one : news) {
      ASSERT_TRUE(one.status.ok()) << one.status;
      const size_t i = which.at(one.text);
      for (const ScoredId& id : one.prompt) scored[i].push_back(id.id);
      if (!one.id.has_value()) continue;
      made[i].push_back(one.id->id);
      if (static_cast<int64_t>(made[i].size()) < TokensOf(i)) continue;
      texts.Remove(one.text);
      which.erase(one.text);
    }
    ASSERT_EQ(texts.cache_use().pages, kPages);
    ASSERT_LE(texts.cache_use().used_pages, kPages);
  }
  for (size_t i = 0; i < kTexts; ++i) {
    EXPECT_EQ(made[i], Alone(prompts_[i], i, TokensOf(i))) << i;
    // Each id once, also where the text was read again.
    EXPECT_EQ(scored[i], i % 2 == 0 ? Ids{} : Ids(prompts_[i].begin() + 1, prompts_[i].end())) << i;
  }
  EXPECT_GT(most, 1u);  // whole contexts of two have no room
  EXPECT_GT(texts.cache_use().evictions, 0);
  EXPECT_EQ(texts.cache_use().used_pages, 0);
  EXPECT_EQ(texts.free_slots(), 6);
}

TEST_F(TextPagesTest, TextsThatDoNotWaitForRoomEndToo) {
  const auto model = LoadSmall();
  TextBatch& texts = model->texts();
  std::map<TextBatch::Text, size_t> which;
  std::vector<Ids> made(6);
  for (size_t i = 0; i < made.size(); ++i) {
    which[*texts.Add(prompts_[3], {.sampling = Sampling(i)})] = i;  // three pages each
  }
  EXPECT_FALSE(texts.HasRoomFor({1}, {}));
  int passes = 0;
  while (!which.empty()) {
    ASSERT_LT(++passes, 10000);
    for (const TextBatch::News& one : texts.Step(1000)) {
      if (!one.id.has_value()) continue;
      const size_t i = which.at(one.text);
      made[i].push_back(one.id->id);
      if (made[i].size() < 100) continue;
      texts.Remove(one.text);
      which.erase(one.text);
    }
  }
  for (size_t i = 0; i < made.size(); ++i) EXPECT_EQ(made[i], Alone(prompts_[3], i, 100)) << i;
}

TEST_F(TextPagesTest, PromptsThatAPassHasNoRowsForAreReadInParts) {
  const auto model = Load({.sequences = 8});
  const std::vector<Ids> prompts = {Random(200), Random(210), Random(190), Random(3), Random(220)};
  GenerateOptions options = Sampling(1);
  options.tokens = 9;
  std::vector<Ids> made(prompts.size());
  ASSERT_TRUE(model
                  ->Generate(prompts, options,
                             [&](size_t prompt, int32_t id) {
                               made[prompt].push_back(id);
                               return true;
                             })
                  .ok());
  for (size_t i = 0; i < made.size(); ++i) EXPECT_EQ(made[i], Alone(prompts[i], 1, 9)) << i;
}

TEST_F(TextPagesTest, TextsThatSlideHaveTheirOwnPages) {
  const auto model = LoadSmall();
  TextBatch& texts = model->texts();
  const Ids prompt = Random(250);
  std::map<TextBatch::Text, size_t> which;
  std::vector<Ids> made(2);
  for (size_t i = 0; i < 2; ++i) which[*texts.Add(prompt, {.sampling = Sampling(i)})] = i;
  while (!which.empty()) {
    for (const TextBatch::News& one : texts.Step(300)) {
      if (!one.id.has_value()) continue;
      const size_t i = which.at(one.text);
      made[i].push_back(one.id->id);
      if (made[i].size() < 12) continue;
      texts.Remove(one.text);
      which.erase(one.text);
    }
  }
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(made[i], Alone(prompt, i, 12)) << i;
  EXPECT_EQ(texts.cache_use().used_pages, 0);
}

TEST_F(TextPagesTest, RemovedTextsReturnTheirPages) {
  const auto model = LoadSmall();
  TextBatch& texts = model->texts();
  const auto gone = texts.Add(prompts_[3], {});
  ASSERT_EQ(texts.Step(100).size(), 1u);
  EXPECT_EQ(texts.cache_use().used_pages, 2);
  const auto other = texts.Add({1}, {});
  ASSERT_EQ(texts.Step(100).size(), 2u);
  EXPECT_EQ(texts.cache_use().used_pages, 4);
  texts.Remove(*gone);
  EXPECT_EQ(texts.cache_use().used_pages, 1);
  texts.Remove(*other);
  EXPECT_EQ(texts.cache_use().used_pages, 0);
}

TEST_F(TextPagesTest, EqualBeginningsArePagesOfBoth) {
  const auto model = LoadSmall();
  TextBatch& texts = model->texts();
  const Ids prompt = prompts_[3];
  Ids longer = prompt;
  longer.push_back(5);
  const auto next = [&](TextBatch::Text text) {
    Ids ids;
    for (const TextBatch::News& one : texts.Step(1000)) {
      if (one.text == text && one.id.has_value()) ids.push_back(one.id->id);
    }
    return ids;
  };
  const auto first = texts.Add(prompt, {.sampling = Sampling(0)});
  EXPECT_EQ(next(*first), Alone(prompt, 0, 1));
  EXPECT_EQ(texts.cache_use().reused_tokens, 0);
  const auto second = texts.Add(longer, {.sampling = Sampling(0)});
  EXPECT_EQ(next(*second), Alone(longer, 0, 1));
  EXPECT_EQ(texts.cache_use().reused_tokens, 2 * kPageTokens);
  EXPECT_EQ(texts.cache_use().used_pages, 4);  // two of both, and one of each
  // What is left of texts that have gone is found as well, but not where scores are wanted.
  texts.Remove(*first);
  texts.Remove(*second);
  const auto third =
      texts.Add(prompt, {.sampling = Sampling(0), .likeliest = 0, .score_prompt = true});
  const auto news = texts.Step(1000);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].prompt.size(), prompt.size() - 1);
  EXPECT_EQ(texts.cache_use().reused_tokens, 2 * kPageTokens);
  texts.Remove(*third);
  // The last id of a prompt that fills its pages is read: its row predicts.
  const Ids full(prompt.begin(), prompt.begin() + 2 * kPageTokens);
  const auto fourth = texts.Add(full, {.sampling = Sampling(1)});
  EXPECT_EQ(next(*fourth), Alone(full, 1, 1));
  EXPECT_EQ(texts.cache_use().reused_tokens, 3 * kPageTokens);
}

TEST_F(TextPagesTest, TheCacheIsPlanned) {
  const auto opened = OpenModel(directory_.path(), std::nullopt);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto whole = PlanBytes(*opened, 1, {.sequences = 6});
  const auto small = PlanBytes(*opened, 1, {.sequences = 6, .cache_tokens = 257});
  const auto large = PlanBytes(*opened, 1, {.sequences = 6, .cache_tokens = 1 << 20});
  ASSERT_TRUE(whole.ok() && small.ok() && large.ok());
  EXPECT_EQ(whole->cache_tokens, 6 * kContext);
  EXPECT_EQ(small->cache_tokens, 320);  // whole pages
  EXPECT_EQ(small->cache * 6 * kContext, whole->cache * 320);
  EXPECT_EQ(small->total() - small->cache, whole->total() - whole->cache);
  EXPECT_EQ(large->cache, whole->cache);  // more is never used
  const auto least = PlanBytes(*opened, 1, {.sequences = 6, .cache_tokens = 255});
  EXPECT_THAT(std::string(least.status().message()), HasSubstr("no room for a text"));
  EXPECT_EQ(least.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tercio::inference

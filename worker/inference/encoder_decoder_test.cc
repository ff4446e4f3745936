// Answers of a model with a decoder are transformers' greedy ones
// (tests/huggingface/make_fixtures.py).
#include "worker/inference/encoder_decoder.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/inference/language_model.h"

namespace tercio::inference {
namespace {

using ::testing::HasSubstr;

constexpr char kFixtures[] = "tests/huggingface/fixtures/";

struct Fixture {
  OpenedModel opened;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> answers;
};

Fixture Read(const std::string& name) {
  Fixture fixture;
  auto opened = OpenModel(kFixtures + name, std::nullopt);
  EXPECT_TRUE(opened.ok()) << opened.status();
  if (opened.ok()) fixture.opened = *std::move(opened);
  const auto json = nlohmann::json::parse(*ReadFile(absl::StrCat(kFixtures, name, ".json")));
  for (const auto& generated : json.value("generated", nlohmann::json::array())) {
    fixture.prompts.push_back(generated["prompt"]);
    fixture.answers.push_back(generated["tokens"]);
  }
  return fixture;
}

using Answers = std::map<size_t, std::vector<int32_t>>;

absl::StatusOr<Answers> Answer(const Fixture& fixture, int64_t at_once, GenerateOptions options) {
  const auto model = LoadEncoderDecoder(
      fixture.opened, 1,
      {.sequences = at_once, .decoder_context = static_cast<int64_t>(options.tokens)});
  if (!model.ok()) return model.status();
  Answers answers;
  const absl::Status status =
      (*model)->Generate(fixture.prompts, options, [&](size_t prompt, int32_t id) {
        answers[prompt].push_back(id);
        return true;
      });
  if (!status.ok()) return status;
  return answers;
}

TEST(EncoderDecoder, AnswersAreTransformersGreedyOnes) {
  for (const char* name : {"t5", "t5_gated"}) {
    const Fixture fixture = Read(name);
    ASSERT_GE(fixture.prompts.size(), 2u);
    const auto tokens = static_cast<int64_t>(fixture.answers.front().size());
    // One after the other, and together, beside shorter and longer ones.
    for (const int64_t at_once : {1, 2, 8}) {
      const auto answers = Answer(fixture, at_once, {.tokens = tokens, .temperature = 0});
      ASSERT_TRUE(answers.ok()) << answers.status();
      for (size_t i = 0; i < fixture.prompts.size(); ++i) {
        EXPECT_EQ(answers->at(i), fixture.answers[i]) << name << " " << i << " of " << at_once;
      }
    }
  }
}

TEST(EncoderDecoder, AnAnswerEndsBeforeItsEnd) {
  const Fixture fixture = Read("t5");
  const std::vector<int32_t>& whole = fixture.answers.front();
  const int32_t end = whole[3];
  const auto answers = Answer(fixture, 2, {.tokens = 12, .temperature = 0, .end = end});
  ASSERT_TRUE(answers.ok()) << answers.status();
  const auto first = std::find(whole.begin(), whole.end(), end);
  EXPECT_EQ(answers->at(0), std::vector<int32_t>(whole.begin(), first));
}

TEST(EncoderDecoder, Faults) {
  Fixture fixture = Read("t5");
  fixture.prompts = {{1, 2}, {}};
  EXPECT_THAT(std::string(Answer(fixture, 1, {.tokens = 2}).status().message()),
              HasSubstr("the prompt is empty"));
  fixture.prompts = {{1, 40}};
  EXPECT_THAT(std::string(Answer(fixture, 1, {.tokens = 2}).status().message()),
              HasSubstr("token id 40 is outside the model's vocabulary of 40"));
  fixture.prompts = {{1}};
  EXPECT_THAT(std::string(Answer(fixture, 1, {.tokens = 2, .start = 99}).status().message()),
              HasSubstr("token id 99"));
  EXPECT_THAT(std::string(Answer(Read("gpt2"), 1, {.tokens = 2}).status().message()),
              HasSubstr("has no decoder"));
  const auto text = LanguageModel::Load(absl::StrCat(kFixtures, "t5"), 1);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("answers prompts with a decoder"));
}

}  // namespace
}  // namespace tercio::inference

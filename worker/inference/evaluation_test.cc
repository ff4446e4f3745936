#include "worker/inference/evaluation.h"

#include <cmath>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::inference {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ClassificationReport, TwoClassesReportTheSecond) {
  // 6 of class 0, one of them missed; 4 of class 1, one of them missed.
  const ClassificationReport report = ReportOf({{5, 1}, {1, 3}});
  EXPECT_EQ(report.examples, 10);
  EXPECT_DOUBLE_EQ(report.accuracy, 0.8);
  EXPECT_DOUBLE_EQ(report.overall.precision, 0.75);
  EXPECT_DOUBLE_EQ(report.overall.recall, 0.75);
  EXPECT_DOUBLE_EQ(report.overall.f1, 0.75);
  EXPECT_EQ(report.classes[0].support, 6);
  EXPECT_DOUBLE_EQ(report.classes[0].precision, 5.0 / 6);
}

TEST(ClassificationReport, SeveralClassesReportTheMean) {
  const ClassificationReport report = ReportOf({{2, 0, 0}, {1, 1, 0}, {0, 0, 0}});
  EXPECT_DOUBLE_EQ(report.accuracy, 0.75);
  EXPECT_DOUBLE_EQ(report.overall.precision, (2.0 / 3 + 1 + 0) / 3);
  EXPECT_DOUBLE_EQ(report.overall.recall, (1 + 0.5 + 0) / 3);
  EXPECT_DOUBLE_EQ(report.overall.f1, (0.8 + 2.0 / 3 + 0) / 3);
  EXPECT_EQ(report.classes[2].support, 0);
  EXPECT_EQ(report.classes[2].f1, 0);
}

constexpr char kGpt2[] = "tests/huggingface/fixtures/gpt2";

std::vector<int32_t> Ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * i + 3 * i) % 40));
  return ids;
}

data::TokenDataset DatasetOf(const std::vector<int32_t>& ids) {
  auto owner = std::make_shared<std::vector<int32_t>>(ids);
  return {owner, owner->data(), data::TokenType::kInt32, static_cast<int64_t>(ids.size())};
}

// The loss of ids[at] after up to `seen` ids before it, from NextLogits.
double LossAt(LanguageModel& model, const std::vector<int32_t>& ids, size_t at, size_t seen) {
  const auto logits = model.NextLogits(absl::MakeConstSpan(ids).subspan(at - seen, seen));
  EXPECT_TRUE(logits.ok()) << logits.status();
  double sum = 0;
  for (const float logit : *logits) sum += std::exp(static_cast<double>(logit));
  return std::log(sum) - (*logits)[static_cast<size_t>(ids[at])];
}

TEST(Evaluation, WindowsOverlapByTheStride) {
  const auto model = LanguageModel::Load(kGpt2, 1);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto context = static_cast<size_t>((*model)->context());
  ASSERT_EQ(context, 16u);
  const std::vector<int32_t> ids = Ids(41);
  for (const int64_t stride : {1, 5, 16}) {
    const auto result = (*model)->Evaluate(DatasetOf(ids), stride);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->tokens, 40);
    double sum = 0;
    for (size_t at = 1; at < ids.size(); ++at) {
      // The first window that has the id among its targets.
      size_t begin = 0;
      while (at > begin + context) begin += static_cast<size_t>(stride);
      sum += LossAt(**model, ids, at, at - begin);
    }
    EXPECT_NEAR(result->loss, sum / 40, 1e-5) << stride;
  }
}

TEST(Evaluation, AContinuationIsForeseenTokenByToken) {
  const auto model = LanguageModel::Load(kGpt2, 1);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<int32_t> ids = Ids(20);
  const auto all = absl::MakeConstSpan(ids);
  const auto prediction = (*model)->Predict(all.subspan(0, 17), all.subspan(17));
  ASSERT_TRUE(prediction.ok()) << prediction.status();
  double sum = 0;
  for (size_t at = 17; at < 20; ++at) sum += LossAt(**model, ids, at, at - 3);
  EXPECT_NEAR(prediction->loss, sum, 1e-4);
  EXPECT_FALSE(prediction->likeliest);
  // What the model itself would say is what it foresees.
  std::vector<int32_t> said;
  GenerateOptions greedy;
  greedy.temperature = 0;
  greedy.tokens = 3;
  ASSERT_TRUE((*model)
                  ->Generate({1, 2, 3}, greedy,
                             [&](int32_t id) {
                               said.push_back(id);
                               return true;
                             })
                  .ok());
  const auto own = (*model)->Predict(std::vector<int32_t>{1, 2, 3}, said);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_TRUE(own->likeliest);
  EXPECT_FALSE((*model)->Predict({}, said).ok());
  EXPECT_FALSE((*model)->Predict(said, Ids(17)).ok());
}

TEST(Evaluation, ModelsWithoutWhatAMetricNeedsSayIt) {
  const auto model = LanguageModel::Load(kGpt2, 1);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(std::string(EvaluateLastWords(**model, "x.txt").status().message()),
              AllOf(HasSubstr("no tokenizer"), HasSubstr("--tokenizer PATH")));
  EXPECT_THAT(std::string(EncoderModel::Load(kGpt2, 1).status().message()),
              HasSubstr("holds a gpt2, but a bert is needed"));
}

TEST(Evaluation, AGivenTokenizerStandsInForTheModels) {
  const TempDir directory;
  const std::string passages = directory.path() + "/passages.txt";
  ASSERT_TRUE(WriteFileDurably(passages, "ab cd\n").ok());
  const auto chars = tokenizer::Tokenizer::CharsOf({"abcd "});
  ASSERT_TRUE(chars.ok()) << chars.status();
  const auto model = LanguageModel::Load(kGpt2, 1, 0, *chars);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_NE((*model)->tokenizer(), nullptr);
  EXPECT_TRUE(*(*model)->tokenizer() == *chars);
  const auto words = EvaluateLastWords(**model, passages);
  ASSERT_TRUE(words.ok()) << words.status();
  EXPECT_EQ(words->passages, 1);
  EXPECT_EQ(words->tokens, 3);  // a space and two letters
}

}  // namespace
}  // namespace tercio::inference

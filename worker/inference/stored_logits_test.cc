#include "worker/inference/stored_logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "checkpoint/logits/reader.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "data/sample_sources.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/inference/language_model.h"
#include "worker/inference/teacher_pass.h"

namespace tercio::inference {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGpt2[] = "tests/huggingface/fixtures/gpt2";  // a context of 16
constexpr int kContext = 8;
constexpr int64_t kTopK = 5;

TEST(FindLargestTest, TheLargestComeFirstAndOfEqualOnesTheSmallerId) {
  const std::vector<float> row = {1, 3, -2, 3, 0.5, 7};
  std::vector<int32_t> ids(4);
  std::vector<float> logits(4);
  ASSERT_TRUE(FindLargest(row, 4, ids.data(), logits.data()).ok());
  EXPECT_THAT(ids, ElementsAre(5, 1, 3, 0));
  EXPECT_THAT(logits, ElementsAre(7, 3, 3, 1));
  ids.resize(6);
  logits.resize(6);
  ASSERT_TRUE(FindLargest(row, 6, ids.data(), logits.data()).ok());
  EXPECT_THAT(ids, ElementsAre(5, 1, 3, 0, 4, 2));
}

TEST(FindLargestTest, WhatIsNoNumberIsAFault) {
  int32_t id;
  float logit;
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(FindLargest({1, bad, 2}, 1, &id, &logit).code(), absl::StatusCode::kDataLoss);
  }
}

class StoredLogitsOfJobTest : public ::testing::Test {
 protected:
  StoredLogitsOfJobTest() {
    auto opened = OpenModel(kGpt2, std::nullopt);
    EXPECT_TRUE(opened.ok()) << opened.status();
    teacher_ = std::make_unique<OpenedModel>(*std::move(opened));
    // Token files have no tokenizer: any vocabulary can be learnt from.
    v1::ModelSpec& model = *job_.mutable_model();
    model = teacher_->spec();
    model.set_context(kContext);
    job_.mutable_training()->set_global_batch(2);
    job_.mutable_training()->mutable_distillation()->set_logits(directory_);
    job_.mutable_training()->mutable_distillation()->set_top_k(kTopK);
    TakeTokens(100);
  }

  // A text of that many tokens.
  void TakeTokens(int64_t tokens) {
    auto ids = std::make_shared<std::vector<int32_t>>();
    for (int64_t i = 0; i < tokens; ++i) {
      ids->push_back(static_cast<int32_t>((i * 7 + i * i) % job_.model().vocab_size()));
    }
    data_ = {};
    data_.vocab_size = job_.model().vocab_size();
    data_.digest = absl::StrCat("digest of ", tokens);
    const data::TokenDataset dataset(ids, ids->data(), data::TokenType::kInt32, tokens);
    data_.train = data::BlendedDataset({dataset}, *data::Blend::Create({1.0}));
    data_.numbered = {dataset.Samples(kContext)};
  }

  absl::StatusOr<LogitsReport> Write(int64_t k = kTopK) {
    return WriteLogits(*teacher_, job_, data_, {.directory = directory_, .k = k});
  }

  // The digest changes, and the data stays as it is for the next check.
  absl::Status Check() const {
    data::PreparedData data = data_;
    absl::Status status = CheckStoredLogits(job_, &data);
    EXPECT_EQ(status.ok(), data.digest != data_.digest);
    return status;
  }

  const TempDir scratch_;
  const std::string directory_ = scratch_.path() + "/logits";
  std::unique_ptr<OpenedModel> teacher_;
  v1::JobSpec job_;
  data::PreparedData data_;
};

TEST_F(StoredLogitsOfJobTest, AreTheLargestOfTheModel) {
  const auto report = Write();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->samples, 12);
  EXPECT_EQ(report->rows, 12 * kContext);
  const absl::Status checked = Check();
  EXPECT_TRUE(checked.ok()) << checked;
  const auto stored =
      checkpoint::StoredLogits::Open(directory_, checkpoint::DigestCheck::kEveryByte);
  ASSERT_TRUE(stored.ok()) << stored.status();
  // One text at a time, one position at a time.
  const auto model = LanguageModel::Load(*teacher_, 1, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto source = data::MakeSampleSource(data_, job_);
  data::Sample sample(kContext);
  std::vector<int32_t> ids;
  std::vector<float> logits;
  for (const int64_t number : {0, 5, 11}) {
    source->NumberedSample(number, &sample);
    (*stored)->Read(number, &ids, &logits);
    ASSERT_EQ(ids.size(), kContext * kTopK);
    for (size_t row = 0; row < kContext; ++row) {
      const auto all = (*model)->NextLogits(absl::MakeConstSpan(sample.inputs).first(row + 1));
      ASSERT_TRUE(all.ok());
      std::vector<float> sorted(all->begin(), all->end());
      std::sort(sorted.rbegin(), sorted.rend());
      for (size_t i = 0; i < kTopK; ++i) {
        const size_t at = row * kTopK + i;
        EXPECT_EQ(logits[at], sorted[i]) << "sample " << number << " row " << row;
        EXPECT_EQ((*all)[static_cast<size_t>(ids[at])], logits[at]);
      }
    }
  }
}

TEST_F(StoredLogitsOfJobTest, OtherSamplesAreRefusedByName) {
  ASSERT_TRUE(Write().ok());
  TakeTokens(101);
  const absl::Status other = Check();
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(other.message(), HasSubstr(directory_ + "/logits.json"));
  TakeTokens(100);
  job_.mutable_training()->mutable_distillation()->set_top_k(kTopK + 1);
  EXPECT_THAT(Check().message(), HasSubstr("has 5 logits of each token"));
}

TEST_F(StoredLogitsOfJobTest, SamplesWithoutNumbersAreRefused) {
  data_.numbered.clear();
  EXPECT_EQ(Check().code(), absl::StatusCode::kInvalidArgument);
  job_.mutable_data()->mutable_chat()->set_packing(true);
  EXPECT_THAT(Check().message(), HasSubstr("data.packing"));
}

TEST_F(StoredLogitsOfJobTest, ATeacherThatDoesNotFitIsRefused) {
  EXPECT_THAT(Write(job_.model().vocab_size() + 1).status().message(),
              HasSubstr("is above the vocabulary"));
  job_.mutable_model()->set_context(17);
  EXPECT_THAT(Write().status().message(), HasSubstr("has a context of 16, the job one of 17"));
  job_.mutable_model()->set_context(kContext);
  data_.vocab_size += 1;
  EXPECT_THAT(Write().status().message(), HasSubstr("has a vocabulary of"));
  EXPECT_FALSE(PathExists(directory_));
}

TEST_F(StoredLogitsOfJobTest, APlaceThatIsTakenIsAConflict) {
  ASSERT_TRUE(Write().ok());
  EXPECT_EQ(Write().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tercio::inference

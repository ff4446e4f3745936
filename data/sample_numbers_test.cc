// The numbers of samples: the same whenever a sample is read, in every order and batch.
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "data/prepared_data.h"
#include "data/sample_sources.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

constexpr int kContext = 12;

class SampleNumbersTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = absl::StrCat(scratch_.path(), "/", name);
    EXPECT_TRUE(WriteFileDurably(path, content).ok());
    return path;
  }

  // Words that no other text has.
  std::string TextOf(char letter, int words) {
    std::string text;
    for (int i = 0; i < words; ++i) absl::StrAppend(&text, std::string(1, letter), i, " ");
    return text;
  }

  v1::JobSpec Job() {
    v1::JobSpec job;
    job.mutable_model()->set_architecture(v1::ARCHITECTURE_GPT2);
    job.mutable_model()->set_context(kContext);
    job.mutable_data()->set_tokenizer("bytes");
    job.mutable_training()->set_global_batch(4);
    job.mutable_training()->set_seed(3);
    return job;
  }

  // Two texts with weights for training, of which a part is validated, and a test.
  v1::JobSpec TextJob() {
    v1::JobSpec job = Job();
    for (const char letter : {'a', 'b'}) {
      v1::WeightedData& data = *job.mutable_data()->add_train_blend();
      data.add_paths(
          Write(std::string(1, letter) + ".txt", TextOf(letter, letter == 'a' ? 60 : 90)));
      data.set_weight(letter == 'a' ? 3 : 1);
    }
    job.mutable_data()->set_validation_fraction(0.25);
    job.mutable_data()->set_test_path(Write("c.txt", TextOf('c', 20)));
    return job;
  }

  std::unique_ptr<SampleSource> SourceOf(const v1::JobSpec& job) {
    auto prepared = PrepareData(job.data(), job.model(), scratch_.path());
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    counts_ = prepared->numbered;
    return MakeSampleSource(*std::move(prepared), job);
  }

  static void ExpectSame(const Sample& sample, SampleSource& source) {
    Sample again(kContext);
    source.NumberedSample(sample.number, &again);
    EXPECT_EQ(again.number, sample.number);
    EXPECT_EQ(again.inputs, sample.inputs);
    EXPECT_EQ(again.targets, sample.targets);
    EXPECT_EQ(again.length, sample.length);
  }

  // The numbers that steps and evaluations read.
  static std::set<int64_t> NumbersIn(SampleSource& source, int64_t steps, int64_t batch) {
    std::set<int64_t> numbers;
    Sample sample(kContext);
    for (int64_t step = 1; step <= steps; ++step) {
      for (int64_t i = 0; i < batch; ++i) {
        source.TrainingSample(step, i, &sample);
        ExpectSame(sample, source);
        numbers.insert(sample.number);
      }
    }
    for (const HeldOut set : {HeldOut::kValidation, HeldOut::kTest}) {
      for (int64_t i = 0; i < source.held_out_samples(set); ++i) {
        source.HeldOutSample(set, i, &sample);
        ExpectSame(sample, source);
        EXPECT_TRUE(numbers.insert(sample.number).second) << "of a training sample";
      }
    }
    return numbers;
  }

  TempDir scratch_;
  std::vector<int64_t> counts_;
};

TEST_F(SampleNumbersTest, PiecesOfATextHaveOneNumberInAllEpochs) {
  const auto source = SourceOf(TextJob());
  ASSERT_EQ(counts_.size(), 5u);
  int64_t sum = 0;
  for (const int64_t count : counts_) sum += count;
  EXPECT_EQ(source->numbered_samples(), sum);
  // Many epochs of the first text.
  const std::set<int64_t> numbers = NumbersIn(*source, 60, 4);
  EXPECT_EQ(*numbers.begin(), 0);
  EXPECT_EQ(*numbers.rbegin(), sum - 1);
  // A blend validates the samples before one of its texts would begin again.
  EXPECT_GE(numbers.size(), static_cast<size_t>(counts_[0] + counts_[1]));
}

TEST_F(SampleNumbersTest, NeitherTheBatchNorTheSeedChangesThem) {
  v1::JobSpec job = TextJob();
  const auto first = SourceOf(job);
  job.mutable_training()->set_seed(4);
  job.mutable_training()->set_global_batch(6);
  const auto second = SourceOf(job);
  ASSERT_EQ(first->numbered_samples(), second->numbered_samples());
  Sample sample(kContext);
  for (int64_t i = 0; i < first->numbered_samples(); ++i) {
    first->NumberedSample(i, &sample);
    ExpectSame(sample, *second);
  }
}

TEST_F(SampleNumbersTest, ConversationsHaveThemWithoutPacking) {
  std::string lines;
  for (int i = 0; i < 9; ++i) {
    absl::StrAppend(&lines, R"({"prompt": "Is it?", "completion": "yes )", i, "\"}\n");
  }
  v1::JobSpec job = Job();
  job.mutable_data()->set_train(Write("a.jsonl", lines));
  job.mutable_data()->set_validation_fraction(0.25);
  job.mutable_data()->mutable_chat()->set_template_("chatml");
  job.mutable_model()->set_context(80);
  const auto source = SourceOf(job);
  EXPECT_EQ(source->numbered_samples(), 9);
  EXPECT_EQ(NumbersIn(*source, 10, 4).size(), 9u);
  job.mutable_data()->mutable_chat()->set_packing(true);
  EXPECT_EQ(SourceOf(job)->numbered_samples(), 0);
}

}  // namespace
}  // namespace tercio::data

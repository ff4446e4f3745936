// The quality of a classifier is the same in every layout, and what its predictions say.
#include "plan/quality.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

constexpr int kClasses = 3;

// The class of a sequence is told by its second token, so that there is something to learn.
class LabelledSource : public SyntheticEncoderSource {
 public:
  explicit LabelledSource(const v1::ModelSpec& model) : SyntheticEncoderSource(model) {}
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    SyntheticEncoderSource::TrainingSample(step, sequence, out);
    Label(out);
  }
  void HeldOutSample(data::HeldOut set, int64_t index, data::Sample* out) override {
    SyntheticEncoderSource::HeldOutSample(set, index, out);
    Label(out);
  }

 private:
  static void Label(data::Sample* out) {
    std::fill(out->targets.begin(), out->targets.end(), data::kNoTarget);
    out->label = out->inputs[1] % kClasses;
    out->inputs[0] = 10 + out->label;
  }
};

struct Layout {
  int tensor, pipeline, data, micro_batch;
  int virtual_pipeline = 1;
  bool sequence_parallel = false;
};

v1::JobSpec In(v1::JobSpec spec, const Layout& layout) {
  v1::ParallelismSpec& parallelism = *spec.mutable_parallelism();
  parallelism.set_tensor(layout.tensor);
  parallelism.set_pipeline(layout.pipeline);
  parallelism.set_data(layout.data);
  parallelism.set_virtual_pipeline(layout.virtual_pipeline);
  parallelism.set_schedule(layout.virtual_pipeline > 1 ? kInterleaved : k1f1b);
  parallelism.set_sequence_parallel(layout.sequence_parallel);
  spec.mutable_resources()->set_ranks(layout.tensor * layout.pipeline * layout.data);
  spec.mutable_training()->set_micro_batch(layout.micro_batch);
  return spec;
}

RunResult Train(const v1::JobSpec& spec, int64_t steps) {
  LabelledSource source(spec.model());
  RunOptions options;
  options.steps = steps;
  options.source = &source;
  options.evaluate = true;
  options.evaluate_test = true;
  absl::StatusOr<RunResult> result = TrainWithThreads(spec, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : RunResult();
}

std::vector<int64_t> CountsOf(const v1::Evaluation& evaluation) {
  return {evaluation.confusion().counts().begin(), evaluation.confusion().counts().end()};
}

TEST(Quality, IsTheSameInEveryLayout) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec spec = SmallClassifier();
    spec.mutable_training()->set_precision(precision);
    const RunResult one = Train(In(spec, {1, 1, 1, 8}), 12);
    ASSERT_EQ(CountsOf(one.test).size(), 9u);
    for (const Layout& layout :
         {Layout{1, 1, 1, 1}, Layout{1, 2, 1, 2}, Layout{1, 4, 2, 1}, Layout{1, 1, 8, 1},
          Layout{1, 2, 2, 1, 2}, Layout{2, 1, 1, 8}, Layout{2, 2, 2, 2},
          Layout{2, 1, 2, 2, 1, true}, Layout{2, 2, 1, 1, 2, true}}) {
      SCOPED_TRACE(absl::StrCat("tensor ", layout.tensor, " pipeline ", layout.pipeline, " data ",
                                layout.data, " micro_batch ", layout.micro_batch));
      const RunResult other = Train(In(spec, layout), 12);
      EXPECT_EQ(CountsOf(other.validation), CountsOf(one.validation));
      EXPECT_EQ(CountsOf(other.test), CountsOf(one.test));
      if (layout.tensor > 1) continue;
      EXPECT_EQ(other.validation.loss(), one.validation.loss());
      EXPECT_EQ(other.test.loss(), one.test.loss());
    }
  }
}

// Sequences that only fill up the last batch are not among them, and a limit of batches is one of
// validation data.
TEST(Quality, CountsEveryExampleOnce) {
  v1::JobSpec spec = In(SmallClassifier(), {1, 2, 2, 2});
  spec.mutable_training()->set_global_batch(4);
  spec.mutable_training()->mutable_evaluate()->set_batches(1);
  const RunResult result = Train(spec, 2);
  LabelledSource source(spec.model());
  const auto expect = [&](data::HeldOut set, int64_t samples, const v1::Evaluation& evaluation) {
    std::vector<int64_t> labels(kClasses);
    data::Sample sample(spec.model().context());
    for (int64_t i = 0; i < samples; ++i) {
      source.HeldOutSample(set, i, &sample);
      ++labels[static_cast<size_t>(sample.label)];
    }
    const plan::Quality quality = plan::QualityOf(evaluation.confusion());
    for (size_t i = 0; i < kClasses; ++i) EXPECT_EQ(quality.classes[i].support, labels[i]) << i;
  };
  expect(data::HeldOut::kValidation, 4, result.validation);
  expect(data::HeldOut::kTest, 19, result.test);
}

TEST(Quality, RisesAsTheModelLearns) {
  v1::JobSpec spec = In(SmallClassifier(), {1, 1, 2, 4});
  spec.mutable_model()->set_dropout(0);
  spec.mutable_training()->mutable_schedule()->set_decay_steps(60);
  const plan::Quality before = plan::QualityOf(Train(spec, 1).test.confusion());
  const plan::Quality after = plan::QualityOf(Train(spec, 60).test.confusion());
  EXPECT_LT(before.accuracy, 0.8);
  EXPECT_EQ(after.accuracy, 1);
  EXPECT_EQ(after.overall.f1, 1);
}

TEST(Quality, OtherModelsHaveALossOnly) {
  const v1::JobSpec spec = In(SmallJob(), {1, 1, 1, 8});
  RunOptions options;
  options.evaluate = true;
  options.evaluate_test = true;
  const auto result = TrainWithThreads(spec, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->test.has_confusion());
  EXPECT_GT(result->test.loss(), 1);
  EXPECT_NE(result->test.loss(), result->validation.loss());
  // Pairs of sentences have two classes, but the model is no classifier.
  const auto bert = TrainWithThreads(In(SmallBert(kPost), {1, 1, 1, 8}), options);
  ASSERT_TRUE(bert.ok()) << bert.status();
  EXPECT_FALSE(bert->validation.has_confusion());
}

}  // namespace
}  // namespace tercio::testing

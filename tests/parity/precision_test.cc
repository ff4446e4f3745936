// bf16, fp16 and steps that are skipped: equal bits in every layout and after an interruption, a
// curve near that of fp32, and what becomes of a step whose numbers are not finite.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <future>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/bf16_products.h"
#include "plan/names.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

using ::testing::HasSubstr;
using State = std::map<std::string, std::vector<float>>;

struct Layout {
  int tensor = 1;
  int pipeline = 1;
  int data = 1;
  int micro_batch = 8;
  v1::Recompute recompute = kNone;
  int virtual_pipeline = 1;
  int threads = 1;
  bool sequence_parallel = false;
};

v1::JobSpec InLayout(v1::JobSpec spec, const Layout& layout) {
  v1::ParallelismSpec* parallelism = spec.mutable_parallelism();
  parallelism->set_tensor(layout.tensor);
  parallelism->set_pipeline(layout.pipeline);
  parallelism->set_data(layout.data);
  parallelism->set_virtual_pipeline(layout.virtual_pipeline);
  parallelism->set_schedule(layout.virtual_pipeline > 1 ? kInterleaved : k1f1b);
  parallelism->set_recompute(layout.recompute);
  parallelism->set_sequence_parallel(layout.sequence_parallel);
  spec.mutable_resources()->set_ranks(layout.tensor * layout.pipeline * layout.data);
  spec.mutable_training()->set_micro_batch(layout.micro_batch);
  return spec;
}

RunResult Train(const v1::JobSpec& spec, const Layout& layout, RunOptions options) {
  options.threads_per_rank = layout.threads;
  absl::StatusOr<RunResult> result = TrainWithThreads(InLayout(spec, layout), options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : RunResult{};
}

v1::JobSpec With(v1::JobSpec spec, v1::Precision precision, v1::OnNan on_nan = v1::ON_NAN_STOP) {
  spec.mutable_training()->set_precision(precision);
  spec.mutable_fault_tolerance()->set_on_nan(on_nan);
  return spec;
}

RunOptions Steps(int64_t steps) {
  RunOptions options;
  options.steps = steps;
  return options;
}

int64_t Skipped(const RunResult& run) {
  return std::count_if(run.steps.begin(), run.steps.end(),
                       [](const engine::StepResult& step) { return step.skipped; });
}

// The same value; any NaN is as good as another.
void ExpectSameNumber(double expected, double actual, const std::string& what) {
  if (std::isnan(expected) && std::isnan(actual)) return;
  EXPECT_EQ(expected, actual) << what;
}

void ExpectSameBits(const RunResult& expected, const RunResult& actual) {
  ASSERT_EQ(expected.steps.size(), actual.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    const std::string step = absl::StrCat("step ", i + 1);
    ExpectSameNumber(expected.steps[i].loss, actual.steps[i].loss, step);
    ExpectSameNumber(expected.steps[i].grad_norm, actual.steps[i].grad_norm, step);
    EXPECT_EQ(expected.steps[i].skipped, actual.steps[i].skipped) << step;
    EXPECT_EQ(expected.steps[i].loss_scale, actual.steps[i].loss_scale) << step;
  }
  ASSERT_EQ(expected.state.size(), actual.state.size());
  for (const auto& [name, values] : expected.state) {
    const std::vector<float>& other = actual.state.at(name);
    ASSERT_EQ(values.size(), other.size()) << name;
    EXPECT_EQ(std::memcmp(values.data(), other.data(), values.size() * sizeof(float)), 0) << name;
  }
}

double MeanLoss(const RunResult& run, size_t first, size_t end) {
  double sum = 0;
  for (size_t i = first; i < end; ++i) sum += run.steps[i].loss;
  return sum / static_cast<double>(end - first);
}

double LargestDeviation(const RunResult& expected, const RunResult& actual) {
  double largest = 0;
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    largest = std::max(largest, std::abs(actual.steps.at(i).loss / expected.steps[i].loss - 1));
  }
  return largest;
}

// The state before the first step, with a loss scale that needs no search.
State InitialState(const v1::JobSpec& spec, float scale) {
  State state = Train(spec, {}, Steps(0)).state;
  state[engine::kGuardTensor] = {scale, 0, 2, 0, 0};
  return state;
}

TEST(Precision, ThreeHundredStepsStayNearFp32) {
  for (const v1::JobSpec& small : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallT5()}) {
    SCOPED_TRACE(plan::TextOf(small.model().architecture()));
    v1::JobSpec spec = small;
    spec.mutable_model()->set_dropout(0);
    spec.mutable_training()->mutable_optimizer()->set_learning_rate(3e-3);
    spec.mutable_training()->mutable_schedule()->set_decay_steps(300);
    RunOptions scaled = Steps(300);
    const State state = InitialState(With(spec, v1::PRECISION_FP16), 65536);
    scaled.state = &state;
    const auto start = [&](v1::Precision precision, const RunOptions& options) {
      return std::async(std::launch::async,
                        [=] { return Train(With(spec, precision), {}, options); });
    };
    std::future<RunResult> runs[] = {
        start(v1::PRECISION_FP32, Steps(300)), start(v1::PRECISION_BF16, Steps(300)),
        start(v1::PRECISION_FP16, scaled), start(v1::PRECISION_FP16, Steps(300))};
    const RunResult fp32 = runs[0].get();
    const RunResult bf16 = runs[1].get();
    EXPECT_LT(LargestDeviation(fp32, bf16), 0.01);
    EXPECT_GT(LargestDeviation(fp32, bf16), 1e-4);  // it is another precision
    const RunResult fp16 = runs[2].get();
    EXPECT_EQ(Skipped(fp16), 0);
    EXPECT_LT(LargestDeviation(fp32, fp16), 0.01);
    EXPECT_GT(LargestDeviation(fp32, fp16), 1e-5);

    // With the search for a scale, whose steps are lost at the start.
    const RunResult searching = runs[3].get();
    const int64_t skipped = Skipped(searching);
    EXPECT_GT(skipped, 5);
    EXPECT_LT(skipped, 25);
    EXPECT_EQ(searching.state.at(engine::kGuardTensor)[3], static_cast<float>(skipped));
    EXPECT_TRUE(searching.steps.front().skipped);
    EXPECT_EQ(searching.steps.front().loss_scale, 4294967296.0);
    EXPECT_NEAR(MeanLoss(searching, 200, 300) / MeanLoss(fp32, 200, 300), 1, 0.01);
    std::printf("%s: largest deviation bf16 %.2g, fp16 %.2g; %d steps skipped, then %.2g\n",
                plan::TextOf(small.model().architecture()).c_str(), LargestDeviation(fp32, bf16),
                LargestDeviation(fp32, fp16), static_cast<int>(skipped),
                MeanLoss(searching, 200, 300) / MeanLoss(fp32, 200, 300) - 1);
  }
}

// fp16 starts with a scale that is too large at first.
void ExpectSameGrid(const v1::JobSpec& spec, const std::vector<Layout>& layouts) {
  const bool scales = spec.training().precision() == v1::PRECISION_FP16;
  RunOptions options = Steps(scales ? 7 : 3);
  State state = InitialState(spec, 0x1p22f);
  state[engine::kGuardTensor][2] = 1;  // the first overflow halves it
  if (scales) options.state = &state;
  const RunResult reference = Train(spec, layouts.front(), options);
  EXPECT_EQ(Skipped(reference) > 0, scales);
  EXPECT_LT(Skipped(reference), options.steps - 1);
  for (size_t i = 1; i < layouts.size(); ++i) {
    SCOPED_TRACE(absl::StrCat(plan::TextOf(spec.model().architecture()), " ",
                              plan::TextOf(spec.training().precision()), " layout ", i));
    ExpectSameBits(reference, Train(spec, layouts[i], options));
  }
}

TEST(Precision, EqualBitsInEveryLayout) {
  for (const v1::JobSpec& small :
       {SmallJob(), SmallLlama(), SmallBert(kPost), SmallBert(kPre), SmallClassifier()}) {
    for (const v1::Precision precision : {v1::PRECISION_BF16, v1::PRECISION_FP16}) {
      const v1::JobSpec spec = With(small, precision);
      ExpectSameGrid(spec, {{1, 1, 1, 8},
                            {1, 1, 1, 2, kSelective},
                            {1, 2, 2, 1, kFull},
                            {1, 2, 1, 2, kSelective, 2, 2},
                            {1, 1, 4, 1}});
      ExpectSameGrid(spec, {{2, 1, 1, 8}, {2, 2, 2, 2, kFull}});
      ExpectSameGrid(spec, {{2, 1, 1, 2, kNone, 1, 1, true}, {2, 2, 2, 2, kSelective, 1, 1, true}});
    }
  }
}

// Products that the model calls bf16 are computed from the upper halves of their factors: had one
// of them more digits, or fell a denormal number under another rule, losses and weights would
// differ.
TEST(Precision, PairsOfBf16HaveTheBitsOfFp32Arithmetic) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallBert(kPre),
                           SmallClassifier(), SmallT5()}) {
    spec = With(spec, v1::PRECISION_BF16);
    for (const double dropout : {0.0, 0.1}) {
      spec.mutable_model()->set_dropout(dropout);
      for (const Layout& layout : {Layout{1, 1, 1, 2, kNone, 1, 2}, Layout{1, 2, 1, 2, kFull},
                                   Layout{2, 1, 1, 2, kSelective, 1, 1, true}}) {
        SCOPED_TRACE(absl::StrCat(plan::TextOf(spec.model().architecture()), " dropout ", dropout));
        kernels::SetBf16MethodForTest(kernels::Bf16Method::kFloat);
        const RunResult as_float = Train(spec, layout, Steps(2));
        kernels::SetBf16MethodForTest(kernels::Bf16Method::kPairs);
        ExpectSameBits(as_float, Train(spec, layout, Steps(2)));
        kernels::ResetBf16MethodForTest();
      }
    }
  }
}

TEST(Precision, TensorDegreesAndSequenceParallelStayNear) {
  for (const v1::JobSpec& small : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallT5()}) {
    const v1::JobSpec spec = With(small, v1::PRECISION_BF16);
    const RunResult one = Train(spec, {}, Steps(10));
    EXPECT_LT(LargestDeviation(one, Train(spec, {2, 1, 1, 4}, Steps(10))), 0.01);
    EXPECT_LT(LargestDeviation(one, Train(spec, {2, 1, 1, 4, kNone, 1, 1, true}, Steps(10))), 0.01);
  }
}

// Interrupted while the scale is being found, and resumed in another layout.
TEST(Precision, ResumedWithTheStateOfItsScale) {
  for (const v1::Precision precision : {v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    SCOPED_TRACE(plan::TextOf(precision));
    const v1::JobSpec spec = With(SmallLlama(), precision, v1::ON_NAN_SKIP);
    const RunResult whole = Train(spec, {}, Steps(20));
    for (const int64_t cut : {1, 7, 18}) {
      const RunResult before = Train(spec, {1, 2, 2, 2}, Steps(cut));
      RunOptions rest = Steps(20 - cut);
      rest.first_step = cut + 1;
      rest.state = &before.state;
      const RunResult after = Train(spec, {1, 4, 1, 1, kFull}, rest);
      EXPECT_TRUE(after.state == whole.state) << "cut after step " << cut;
      EXPECT_EQ(after.steps.back().loss, whole.steps.back().loss);
      EXPECT_EQ(after.steps.back().learning_rate, whole.steps.back().learning_rate);
    }
  }
}

// Weights are fp32 in a checkpoint, whatever the model computes in; jobs change their precision.
TEST(Precision, ResumedInAnotherPrecision) {
  const RunResult fp32 = Train(SmallJob(), {}, Steps(3));
  EXPECT_FALSE(fp32.state.contains(engine::kGuardTensor));
  RunOptions on = Steps(16);
  on.first_step = 4;
  on.state = &fp32.state;
  const RunResult fp16 = Train(With(SmallJob(), v1::PRECISION_FP16), {}, on);
  EXPECT_EQ(fp16.steps.front().loss_scale, 4294967296.0);
  EXPECT_FALSE(fp16.steps.back().skipped);
  EXPECT_NEAR(fp16.steps.front().loss / Train(SmallJob(), {}, on).steps.front().loss, 1, 1e-3);
  on.first_step = 20;
  on.steps = 1;
  on.state = &fp16.state;
  const RunResult back = Train(With(SmallJob(), v1::PRECISION_BF16), {}, on);
  EXPECT_FALSE(back.state.contains(engine::kGuardTensor));
  EXPECT_EQ(back.steps.front().loss_scale, 0);
}

TEST(Precision, MasterWeightsKeepWhatTheModelCannotSee) {
  v1::JobSpec spec = With(SmallJob(), v1::PRECISION_BF16);
  spec.mutable_training()->mutable_optimizer()->set_learning_rate(1e-5);
  spec.mutable_training()->mutable_schedule()->set_min_learning_rate(1e-5);
  const RunResult before = Train(spec, {}, Steps(0));
  const RunResult after = Train(spec, {}, Steps(1));
  const std::vector<float>& old = before.state.at("layers.0.attention_norm.weight");
  const std::vector<float>& now = after.state.at("layers.0.attention_norm.weight");
  for (size_t i = 0; i < old.size(); ++i) {
    EXPECT_NE(old[i], now[i]);
    EXPECT_NEAR(old[i], now[i], 1e-4);  // bf16 has 1 - 2^-8 next to 1
  }
}

// SyntheticSource without one token, which sequence kSequence of the chosen steps begins with.
class TokenAtSteps : public data::CausalSource {
 public:
  static constexpr int kToken = 60;
  static constexpr int64_t kSequence = 5;
  TokenAtSteps(const v1::JobSpec& spec, std::vector<int64_t> steps)
      : inner_(kToken, spec.model().context()), steps_(std::move(steps)) {}
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    inner_.ReadTraining(step, sequence, out);
    const bool chosen = std::find(steps_.begin(), steps_.end(), step) != steps_.end();
    if (chosen && sequence == kSequence) out[0] = kToken;
  }
  int64_t held_out_samples(data::HeldOut set) const override {
    return inner_.held_out_samples(set);
  }
  void ReadHeldOut(data::HeldOut set, int64_t index, int32_t* out) override {
    inner_.ReadHeldOut(set, index, out);
  }

 private:
  SyntheticSource inner_;
  std::vector<int64_t> steps_;
};

// Weights in which that token is not a number.
State PoisonedState(const v1::JobSpec& spec) {
  State state = Train(spec, {}, Steps(0)).state;
  const auto width = static_cast<size_t>(spec.model().hidden());
  state.at("embedding.token.weight")[TokenAtSteps::kToken * width] =
      std::numeric_limits<float>::quiet_NaN();
  return state;
}

TEST(OnNan, StopNamesStepSequenceAndRank) {
  const v1::JobSpec spec = With(SmallLlama(), v1::PRECISION_FP32);
  const State state = PoisonedState(spec);
  TokenAtSteps source(spec, {3});
  RunOptions options = Steps(5);
  options.state = &state;
  options.source = &source;
  const Layout layout{2, 2, 2, 2};
  const auto result = TrainWithThreads(InLayout(spec, layout), options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("step 3: the loss of sequence 5 is nan (rank 6)"));
}

TEST(OnNan, SkipLeavesWeightsAndMomentsAndGoesOn) {
  for (const v1::Precision precision :
       {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    SCOPED_TRACE(plan::TextOf(precision));
    const v1::JobSpec spec = With(SmallLlama(), precision, v1::ON_NAN_SKIP);
    State state = PoisonedState(spec);
    state[engine::kGuardTensor] = {65536, 0, 2, 0, 0};
    TokenAtSteps source(spec, {3});
    RunOptions options = Steps(5);
    options.state = &state;
    options.source = &source;
    const RunResult run = Train(spec, {1, 2, 2, 2}, options);
    ASSERT_EQ(run.steps.size(), 5u);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(run.steps[static_cast<size_t>(i)].skipped, i == 2) << i + 1;
    }
    EXPECT_TRUE(std::isnan(run.steps[2].loss));
    EXPECT_THAT(run.steps[2].reason, HasSubstr("step 3: the loss of sequence 5 is nan"));
    // The schedule goes by the steps that were taken.
    EXPECT_EQ(run.steps[2].learning_rate, run.steps[3].learning_rate);
    // The scale is not to blame.
    EXPECT_EQ(run.state.at(engine::kGuardTensor)[2], 2);
    EXPECT_EQ(run.state.at(engine::kGuardTensor)[3], 1);
    EXPECT_EQ(run.state.at(engine::kGuardTensor)[4], 0);

    options.steps = 2;
    const RunResult before = Train(spec, {1, 2, 2, 2}, options);
    options.steps = 3;
    const RunResult skipped = Train(spec, {1, 2, 2, 2}, options);
    for (const auto& [name, values] : before.state) {
      if (name == engine::kGuardTensor) continue;
      EXPECT_EQ(std::memcmp(values.data(), skipped.state.at(name).data(), values.size() * 4), 0)
          << name;
    }
  }
}

TEST(OnNan, SkipEndsAfterAHundredStepsInARow) {
  const v1::JobSpec spec = With(SmallLlama(), v1::PRECISION_BF16, v1::ON_NAN_SKIP);
  const State state = PoisonedState(spec);
  std::vector<int64_t> steps;
  for (int64_t step = 3; step < 150; ++step) steps.push_back(step);
  TokenAtSteps source(spec, steps);
  RunOptions options = Steps(150);
  options.state = &state;
  options.source = &source;
  const auto result = TrainWithThreads(InLayout(spec, {}), options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("step 102: "));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("100 steps in a row"));
}

TEST(OnNan, Fp16StopsWhereTheLeastScaleOverflows) {
  const v1::JobSpec spec = With(SmallLlama(), v1::PRECISION_FP16);
  State state = InitialState(spec, 1);
  state[engine::kGuardTensor][2] = 1;
  // Logits that fp16 can hold, with gradients that it cannot: the last norm multiplies these by up
  // to 1000 where its input is small.
  for (float& value : state.at("head.weight")) value *= 1e5f;
  for (float& value : state.at("embedding.token.weight")) value *= 1e-4f;
  RunOptions options = Steps(1);
  options.state = &state;
  const auto result = TrainWithThreads(InLayout(spec, {1, 2, 1, 4}), options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("step 1: the gradient of layers.2.mlp.down.weight is not finite (rank 1) "
                        "at loss scale 1: the gradients overflow fp16 even at the lowest"));
}

}  // namespace
}  // namespace tercio::testing

// The loss scale over scripted overflows, what becomes of a step, and what is said about it.
#include "worker/engine/step_guard.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/model_tensors.h"
#include "worker/engine/bad_numbers.h"

namespace tercio::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

v1::JobSpec Job(v1::Precision precision, v1::OnNan on_nan) {
  v1::JobSpec job;
  job.mutable_training()->set_precision(precision);
  job.mutable_fault_tolerance()->set_on_nan(on_nan);
  return job;
}

// "x" is an overflow, "." a step without, "w" a whole window without.
void Play(const std::string& script, LossScaler* scaler) {
  for (const char c : script) {
    if (c == 'x') scaler->Update(LossScaler::Outcome::kOverflow);
    for (int i = 0; i < (c == 'w' ? LossScaler::kWindow : c == '.' ? 1 : 0); ++i) {
      scaler->Update(LossScaler::Outcome::kFinite);
    }
  }
}

TEST(LossScaler, FollowsItsRules) {
  struct Case {
    const char* script;
    double scale;  // parts of the initial one
    int good_steps;
    int chances;
  };
  const Case cases[] = {
      {"", 1, 0, 2},
      {".", 1, 1, 2},
      {"x", 1, 0, 1},            // the first overflow costs a chance
      {"xx", 0.5, 0, 0},         // the second the scale
      {"xxxx", 0.125, 0, -2},    // and every further one
      {"x..x", 0.5, 0, 0},       // good steps do not give the chance back
      {"xx...x", 0.25, 0, -1},   //
      {"...x..", 1, 2, 1},       // an overflow starts the window again
      {"w", 2, 0, 2},            // a whole window doubles
      {"wwww", 16, 0, 2},        //
      {"xw", 2, 0, 2},           // and gives the chances back
      {"xxxw", 0.5, 0, 2},       //
      {"xxxwx", 0.5, 0, 1},      // so that the next overflow costs a chance only
      {"xxxw.x.x", 0.25, 0, 0},  //
  };
  for (const Case& c : cases) {
    LossScaler scaler;
    Play(c.script, &scaler);
    EXPECT_EQ(scaler.scale(), c.scale * LossScaler::kInitialScale) << c.script;
    EXPECT_EQ(scaler.good_steps(), c.good_steps) << c.script;
    EXPECT_EQ(scaler.chances(), c.chances) << c.script;
  }
}

TEST(LossScaler, OneStepLessThanAWindowChangesNothing) {
  LossScaler scaler;
  for (int i = 1; i < LossScaler::kWindow; ++i) scaler.Update(LossScaler::Outcome::kFinite);
  EXPECT_EQ(scaler.scale(), LossScaler::kInitialScale);
  scaler.Update(LossScaler::Outcome::kFinite);
  EXPECT_EQ(scaler.scale(), 2 * LossScaler::kInitialScale);
}

TEST(LossScaler, EndsAtTheLeastScale) {
  LossScaler scaler(4, 0, 2);
  Play("xxx", &scaler);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_TRUE(scaler.exhausted());
  Play("x", &scaler);
  EXPECT_EQ(scaler.scale(), 1);
  Play("w", &scaler);
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_FALSE(scaler.exhausted());
}

TEST(StepGuard, WhatBecomesOfAStep) {
  struct Case {
    v1::Precision precision;
    v1::OnNan on_nan;
    bool good_loss, good_gradients;
    const char* outcome;
  };
  const Case cases[] = {
      {v1::PRECISION_FP32, v1::ON_NAN_STOP, true, true, "update"},
      {v1::PRECISION_FP32, v1::ON_NAN_STOP, false, false, "stop"},
      {v1::PRECISION_FP32, v1::ON_NAN_STOP, true, false, "stop"},
      {v1::PRECISION_FP32, v1::ON_NAN_SKIP, true, false, "skip"},
      {v1::PRECISION_BF16, v1::ON_NAN_SKIP, false, false, "skip"},
      {v1::PRECISION_BF16, v1::ON_NAN_STOP, true, false, "stop"},
      {v1::PRECISION_FP16, v1::ON_NAN_STOP, true, true, "update"},
      {v1::PRECISION_FP16, v1::ON_NAN_STOP, true, false, "skip"},
      {v1::PRECISION_FP16, v1::ON_NAN_STOP, false, false, "stop"},
      {v1::PRECISION_FP16, v1::ON_NAN_SKIP, false, false, "skip"},
      {v1::PRECISION_FP16, v1::ON_NAN_SKIP, true, false, "skip"},
  };
  for (const Case& c : cases) {
    StepGuard guard(Job(c.precision, c.on_nan));
    const auto taken =
        guard.Judge(c.good_loss ? 1 : kNan, c.good_gradients ? 1 : kNan, "step 7: bad");
    const std::string outcome = !taken.ok() ? "stop" : taken->taken ? "update" : "skip";
    EXPECT_EQ(outcome, c.outcome) << c.precision << " " << c.on_nan;
    EXPECT_EQ(guard.TakenStep(10), outcome == "skip" ? 9 : 10);
    if (taken.ok()) continue;
    EXPECT_EQ(taken.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(taken.status().message()), HasSubstr("step 7: bad"));
  }
}

TEST(StepGuard, ScaleIsOneUnlessFp16) {
  EXPECT_EQ(StepGuard(Job(v1::PRECISION_FP32, v1::ON_NAN_SKIP)).loss_scale(), 1);
  EXPECT_EQ(StepGuard(Job(v1::PRECISION_BF16, v1::ON_NAN_STOP)).loss_scale(), 1);
  EXPECT_EQ(StepGuard(Job(v1::PRECISION_FP16, v1::ON_NAN_STOP)).loss_scale(),
            LossScaler::kInitialScale);
}

TEST(StepGuard, ABadLossIsNotTheScalesFault) {
  StepGuard guard(Job(v1::PRECISION_FP16, v1::ON_NAN_SKIP));
  for (int i = 0; i < 5; ++i) ASSERT_FALSE(guard.Judge(kNan, kNan, "")->taken);
  EXPECT_THAT(guard.state(), ElementsAre(LossScaler::kInitialScale, 0, 2, 5, 5));
}

TEST(StepGuard, ManySkipsInARowEndTheJobUnlessTheScaleFalls) {
  StepGuard guard(Job(v1::PRECISION_FP32, v1::ON_NAN_SKIP));
  for (int i = 1; i < StepGuard::kMostSkipped; ++i) ASSERT_FALSE(guard.Judge(1, kNan, "")->taken);
  ASSERT_TRUE(guard.Judge(1, 1, "")->taken);
  for (int i = 1; i < StepGuard::kMostSkipped; ++i) ASSERT_FALSE(guard.Judge(1, kNan, "")->taken);
  EXPECT_FALSE(guard.Judge(1, kNan, "").ok());

  StepGuard scaled(Job(v1::PRECISION_FP16, v1::ON_NAN_STOP));
  int skipped = 0;
  while (true) {
    const auto taken = scaled.Judge(1, kNan, "step 40: x");
    if (!taken.ok()) {
      EXPECT_THAT(std::string(taken.status().message()), HasSubstr("lowest loss scale 1"));
      break;
    }
    ASSERT_LT(++skipped, 100);
  }
  EXPECT_EQ(skipped, 33);  // 2^32 to 1, and one chance before the first
}

TEST(StepGuard, StateRoundTripAndDamage) {
  StepGuard guard(Job(v1::PRECISION_FP16, v1::ON_NAN_STOP));
  for (int i = 0; i < 4; ++i) ASSERT_FALSE(guard.Judge(1, kNan, "")->taken);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(guard.Judge(1, 1, "")->taken);
  const StepGuard::State state = guard.state();
  EXPECT_THAT(state, ElementsAre(LossScaler::kInitialScale / 8, 3, -2, 4, 0));
  StepGuard other(Job(v1::PRECISION_FP16, v1::ON_NAN_STOP));
  ASSERT_TRUE(other.Restore(state).ok());
  EXPECT_EQ(other.state(), state);
  for (size_t i = 0; i < state.size(); ++i) {
    for (const float bad : {-5e9f, 0.5f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      StepGuard::State damaged = state;
      damaged[i] = bad;
      EXPECT_FALSE(other.Restore(damaged).ok()) << i << " " << bad;
    }
  }
  EXPECT_FALSE(other.Restore(absl::MakeConstSpan(state).subspan(1)).ok());
  EXPECT_EQ(other.state(), state);
}

v1::RankPlan Plan(int tensor, int pipeline, int data) {
  v1::RankPlan plan;
  v1::ModelSpec* model = plan.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(2);
  model->set_hidden(8);
  model->set_heads(2);
  model->set_ffn_hidden(32);
  model->set_context(4);
  model->set_vocab_size(17);
  plan.mutable_layout()->set_tensor(tensor);
  plan.mutable_layout()->set_pipeline(pipeline);
  plan.mutable_layout()->set_data(data);
  plan.mutable_layout()->set_virtual_pipeline(1);
  plan.mutable_layout()->set_micro_batch(2);  // of a global batch of eight
  plan.mutable_layout()->set_micro_batches(4 / data);
  return plan;
}

TEST(BadNumbers, NamesTheFirstSequence) {
  const std::vector<double> losses = {1, 2, 3, 4, 5, kNan, kNan, 8};
  EXPECT_EQ(DescribeBadNumbers(losses, {1.0}, Plan(1, 1, 1)),
            "the loss of sequence 5 is nan (rank 0)");
  // Ranks of the last stage are 4 to 7: sequences 4 to 7 are computed by data rank 1.
  EXPECT_EQ(DescribeBadNumbers(losses, {1.0}, Plan(2, 2, 2)),
            "the loss of sequence 5 is nan (rank 6)");
}

TEST(BadNumbers, NamesTheTensorThatGradientsReachFirst) {
  const v1::RankPlan plan = Plan(2, 2, 2);
  const auto tensors = plan::ModelTensors(plan.model());
  std::vector<double> not_finite(tensors.size());
  for (const auto& tensor : tensors) {
    if (tensor.name.rfind("layers.0.", 0) == 0) {
      not_finite[static_cast<size_t>(tensor.index)] = 100;
    }
    if (tensor.name == "layers.1.mlp.up.weight") {
      not_finite[static_cast<size_t>(tensor.index)] = 1;
    }
  }
  EXPECT_EQ(DescribeBadNumbers({1, 2}, not_finite, plan),
            "the gradient of layers.1.mlp.up.weight is not finite (ranks 4 to 5, summed over 2 "
            "data ranks)");
  std::fill(not_finite.begin(), not_finite.end(), 0);
  for (const auto& tensor : tensors) {
    // Every tensor rank holds all of it.
    if (tensor.name == "layers.1.mlp_norm.weight") {
      not_finite[static_cast<size_t>(tensor.index)] = 2;
    }
  }
  EXPECT_THAT(DescribeBadNumbers({1, 2}, not_finite, plan), HasSubstr("is not finite (rank 4,"));
  std::fill(not_finite.begin(), not_finite.end(), 0);
  not_finite[0] = 3;  // the tied embedding counts where it is looked up
  EXPECT_THAT(DescribeBadNumbers({1, 2}, not_finite, plan),
              HasSubstr("embedding.token.weight is not finite (ranks 0 to 1"));
}

}  // namespace
}  // namespace tercio::engine

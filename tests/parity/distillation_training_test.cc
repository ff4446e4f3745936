// A student that learns from a teacher of another architecture, with ranks as threads: equal bits
// in many layouts, also where the two are cut otherwise, memory as planned, and evaluations.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/distillation.h"
#include "plan/teacher_memory.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"
#include "worker/engine/memory_use.h"

namespace tercio::testing {
namespace {

using State = std::map<std::string, std::vector<float>>;
using ::testing::HasSubstr;

constexpr Case kOneRank = {1, 1, 1, 8, 1, k1f1b};

// A llama of six layers, which is larger than the student.
v1::ModelSpec TeacherModel() {
  v1::ModelSpec model = SmallLlama().model();
  model.set_layers(6);
  model.set_hidden(48);
  model.set_heads(6);
  model.set_dropout(0);
  model.set_context(40);
  return model;
}

// `spec`: the student's.
v1::JobSpec Distilled(v1::JobSpec spec, v1::DistillationDirection direction) {
  v1::TrainingSpec* training = spec.mutable_training();
  training->set_objective(v1::TRAINING_OBJECTIVE_DISTILL);
  v1::DistillationSpec* distillation = training->mutable_distillation();
  distillation->set_teacher("teacher");
  *distillation->mutable_model() = TeacherModel();
  distillation->set_temperature(2);
  distillation->set_weight(0.6);
  distillation->set_direction(direction);
  return spec;
}

// Weights that are larger than those of a new model, so that distributions are not flat.
const State& TeacherWeights() {
  static const State* const weights = [] {
    v1::JobSpec spec = SmallLlama();
    *spec.mutable_model() = TeacherModel();
    spec.mutable_model()->set_context(24);
    auto* state = new State(Train(spec, kOneRank, {.steps = 0}).state);
    for (float& value : state->at("head.weight")) value *= 10;
    return state;
  }();
  return *weights;
}

// The same global batch in each step.
class RepeatedSource : public SyntheticSource {
 public:
  using SyntheticSource::SyntheticSource;
  void ReadTraining(int64_t, int64_t sequence, int32_t* out) override {
    SyntheticSource::ReadTraining(1, sequence, out);
  }
};

RunResult TrainDistilled(const v1::JobSpec& spec, const Case& c, RunOptions options) {
  options.teacher = &TeacherWeights();
  return Train(spec, c, options);
}

void ExpectSameFigures(const RunResult& expected, const RunResult& actual) {
  ASSERT_EQ(expected.steps.size(), actual.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(expected.steps[i].figures->SerializeAsString(),
              actual.steps[i].figures->SerializeAsString());
  }
  EXPECT_EQ(expected.validation.figures().SerializeAsString(),
            actual.validation.figures().SerializeAsString());
}

Case With(Case c, int zero_stage, std::vector<int> stage_layers = {}) {
  c.zero_stage = zero_stage;
  c.stage_layers = std::move(stage_layers);
  return c;
}

// Sums over a tensor group, and over divided sequences, have orders of their own: the layouts of a
// table are compared with each other. The teacher's layers are cut by its own number of them.
std::vector<std::vector<Case>> Tables() {
  return {{kOneRank,
           {1, 1, 1, 2, 1, k1f1b},
           {1, 2, 1, 2, 1, k1f1b},
           {1, 3, 1, 1, 1, k1f1b},
           {1, 1, 2, 4, 1, kGpipe},
           With({1, 2, 2, 2, 1, k1f1b, kFull}, 0, {1, 3}),
           {1, 2, 1, 2, 1, kInterleaved, kNone, 2},
           With({1, 1, 2, 1, 1, k1f1b, kSelective}, 1),
           With({1, 2, 2, 1, 1, k1f1b}, 2),
           With({1, 1, 4, 1, 1, k1f1b}, 3)},
          {{2, 1, 1, 8, 1, k1f1b}, {2, 2, 2, 2, 1, k1f1b}, {2, 1, 2, 2, 2, kGpipe, kFull}},
          {{2, 1, 1, 2, 1, k1f1b, kNone, 1, true}, {2, 2, 2, 2, 1, k1f1b, kFull, 1, true}}};
}

TEST(DistillationTraining, LayoutsHaveTheSameBits) {
  for (const auto direction :
       {v1::DISTILLATION_DIRECTION_FORWARD, v1::DISTILLATION_DIRECTION_REVERSE}) {
    const v1::JobSpec spec = Distilled(SmallJob(), direction);
    std::vector<double> losses;
    for (const std::vector<Case>& table : Tables()) {
      const RunOptions options = {.steps = 3, .evaluate = true};
      const RunResult first = TrainDistilled(spec, table.front(), options);
      ASSERT_EQ(first.steps.size(), 3);
      losses.push_back(first.steps.back().loss);
      EXPECT_NEAR(losses.back(), losses.front(), 1e-4);
      for (size_t i = 1; i < table.size(); ++i) {
        SCOPED_TRACE(NameOf(table[i]));
        const RunResult other = TrainDistilled(spec, table[i], options);
        ExpectSameBits(first, other);
        ExpectSameFigures(first, other);
      }
    }
  }
}

// Samples that choose their targets: those of the synthetic source at every `step`-th position.
class ChosenSource : public data::SampleSource {
 public:
  ChosenSource(int64_t context, int64_t step)
      : source_(61, static_cast<int>(context)), step_(step) {}
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    source_.TrainingSample(step, sequence, out);
    for (size_t i = 0; i < out->targets.size(); ++i) {
      if (static_cast<int64_t>(i) % step_ != 0) out->targets[i] = data::kNoTarget;
    }
  }
  int64_t held_out_samples(data::HeldOut set) const override { return SyntheticSamples(set); }
  void HeldOutSample(data::HeldOut set, int64_t index, data::Sample* out) override {
    TrainingSample(StepOf(set), index, out);
  }

 private:
  SyntheticSource source_;
  const int64_t step_;
};

TEST(DistillationTraining, OnlyChosenTokensAreCompared) {
  const v1::JobSpec text = Distilled(SmallJob(), v1::DISTILLATION_DIRECTION_FORWARD);
  v1::JobSpec chat = text;
  chat.mutable_data()->mutable_chat();
  const RunOptions plain = {.steps = 2, .evaluate = true};
  const RunResult all = TrainDistilled(text, kOneRank, plain);
  ASSERT_EQ(all.steps.size(), 2);
  for (const int64_t step : {1, 3}) {
    ChosenSource source(24, step);
    RunOptions options = plain;
    options.source = &source;
    const RunResult chosen = TrainDistilled(chat, kOneRank, options);
    ASSERT_EQ(chosen.steps.size(), 2);
    for (size_t i = 0; i < chosen.steps.size(); ++i) {
      const v1::ObjectiveFigures& figures = *chosen.steps[i].figures;
      EXPECT_EQ(chosen.steps[i].loss,
                plan::DistillationLoss(chat.training().distillation(),
                                       {figures.cross_entropy(), figures.teacher_divergence()}));
      if (step > 1) continue;
      // All of them were chosen.
      EXPECT_NEAR(figures.cross_entropy(), all.steps[i].figures->cross_entropy(), 1e-5);
      EXPECT_NEAR(figures.teacher_divergence(), all.steps[i].figures->teacher_divergence(), 1e-5);
    }
    for (const Case& c : {Case{1, 2, 2, 2, 1, k1f1b}, With({1, 1, 4, 1, 1, k1f1b}, 3)}) {
      SCOPED_TRACE(NameOf(c));
      const RunResult other = TrainDistilled(chat, c, options);
      ExpectSameBits(chosen, other);
      ExpectSameFigures(chosen, other);
    }
  }
}

TEST(DistillationTraining, AStudentComesNearerToItsTeacher) {
  v1::JobSpec spec = Distilled(SmallJob(), v1::DISTILLATION_DIRECTION_FORWARD);
  spec.mutable_training()->mutable_distillation()->set_weight(1);
  spec.mutable_model()->set_dropout(0);
  RepeatedSource source(61, 24);
  const RunResult result =
      TrainDistilled(spec, kOneRank, {.steps = 30, .evaluate = true, .source = &source});
  ASSERT_EQ(result.steps.size(), 30);
  const double first = result.steps.front().figures->teacher_divergence();
  const double last = result.steps.back().figures->teacher_divergence();
  EXPECT_GT(first, 0.05);
  EXPECT_LT(last, 0.75 * first);
  const auto loss_of = [&](const v1::ObjectiveFigures& figures) {
    return plan::DistillationLoss(spec.training().distillation(),
                                  {figures.cross_entropy(), figures.teacher_divergence()});
  };
  for (const engine::StepResult& step : result.steps) {
    EXPECT_EQ(step.loss, loss_of(*step.figures));
  }
  EXPECT_EQ(result.validation.loss(), loss_of(result.validation.figures()));
}

// A model that learns from itself has nothing to learn from it.
TEST(DistillationTraining, AModelIsAtNoDistanceFromItself) {
  v1::JobSpec spec = Distilled(SmallJob(), v1::DISTILLATION_DIRECTION_FORWARD);
  spec.mutable_model()->set_dropout(0);
  *spec.mutable_training()->mutable_distillation()->mutable_model() = spec.model();
  const State start = TrainDistilled(SmallJob(), kOneRank, {.steps = 0}).state;
  RunOptions options = {.steps = 1, .teacher = &start};
  const RunResult result = Train(spec, {1, 2, 1, 2, 1, k1f1b}, options);
  ASSERT_EQ(result.steps.size(), 1);
  EXPECT_NEAR(result.steps[0].figures->teacher_divergence(), 0, 1e-6);
}

TEST(DistillationTraining, UsesTheMemoryThatIsPlanned) {
  const v1::JobSpec spec = Distilled(SmallJob(), v1::DISTILLATION_DIRECTION_FORWARD);
  for (const Case& c : {kOneRank, Case{2, 2, 1, 2, 1, k1f1b}}) {
    SCOPED_TRACE(NameOf(c));
    const RunResult result =
        TrainDistilled(spec, c, {.steps = 2, .evaluate = true, .fill_pattern = true});
    ASSERT_FALSE(result.memory.empty());
    for (const auto& [stage, buffers] : UseOfStages(result)) {
      EXPECT_EQ(engine::UnusedText(buffers), "") << "stage " << stage;
      EXPECT_TRUE(std::any_of(buffers.begin(), buffers.end(), [](const engine::BufferUse& buffer) {
        return buffer.name.rfind(plan::kTeacherPrefix, 0) == 0 && buffer.high_water_bytes > 0;
      }));
    }
  }
}

std::string FaultOf(const v1::JobSpec& spec) {
  return std::string(TrainWithThreads(spec, {.teacher = &TeacherWeights()}).status().message());
}

TEST(DistillationTraining, WhatCannotBeComparedIsRefused) {
  const v1::JobSpec spec = Distilled(SmallJob(), v1::DISTILLATION_DIRECTION_FORWARD);
  v1::JobSpec other = spec;
  other.mutable_training()->mutable_distillation()->mutable_model()->set_vocab_size(62);
  EXPECT_THAT(FaultOf(other), HasSubstr("has another vocabulary, of 62 tokens"));
  other = spec;
  other.mutable_training()->mutable_distillation()->mutable_model()->set_context(20);
  EXPECT_THAT(FaultOf(other), HasSubstr("reads at most 20 tokens"));
  other = spec;
  *other.mutable_training()->mutable_distillation()->mutable_model() = SmallBert(kPost).model();
  EXPECT_THAT(FaultOf(other), HasSubstr("gives no distribution over the next token"));
  other = spec;
  other.mutable_parallelism()->set_pipeline(4);
  other.mutable_training()->mutable_distillation()->mutable_model()->set_layers(3);
  other.mutable_resources()->set_ranks(4);
  EXPECT_THAT(FaultOf(other), HasSubstr("the teacher of training.distillation: "));
}

}  // namespace
}  // namespace tercio::testing

// Distillation on emulated GPUs against the CPU (cuda_ranks.h).
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/parity/cuda_ranks.h"

namespace tercio::testing {
namespace {

using State = std::map<std::string, std::vector<float>>;

// The emulation computes each product element by element.
v1::JobSpec Small(v1::JobSpec spec, int layers, int hidden) {
  spec.mutable_model()->set_layers(layers);
  spec.mutable_model()->set_hidden(hidden);
  spec.mutable_model()->set_ffn_hidden(2 * hidden);
  return WithoutDropout(spec);
}

v1::JobSpec Distilled(v1::DistillationDirection direction, const v1::ModelSpec& teacher) {
  v1::JobSpec spec = Small(SmallJob(), 2, 16);
  v1::TrainingSpec* training = spec.mutable_training();
  training->set_objective(v1::TRAINING_OBJECTIVE_DISTILL);
  v1::DistillationSpec* distillation = training->mutable_distillation();
  distillation->set_teacher("teacher");
  *distillation->mutable_model() = teacher;
  distillation->set_temperature(2);
  distillation->set_weight(0.6);
  distillation->set_direction(direction);
  return spec;
}

class DistillationOnGpus : public CudaParity {
 protected:
  // The weights of the seed, with a sharper head.
  DistillationOnGpus() : teacher_(Small(SmallLlama(), 3, 24)) {
    RunOptions none;
    none.steps = 0;
    weights_ = TrainWithThreads(In(teacher_, {1, 1, 1, 4}), none)->state;
    for (float& value : weights_.at("head.weight")) value *= 10;
    options_.teacher = &weights_;
  }
  void Compare(v1::DistillationDirection direction, const Layout& layout, v1::Precision precision,
               double tolerance) {
    v1::JobSpec spec = With(In(Distilled(direction, teacher_.model()), layout), precision);
    spec.mutable_resources()->set_ranks(layout.tensor * layout.pipeline * layout.data);
    const RunResult gpu = OnGpus(spec, options_);
    const RunResult cpu = OnCpu(spec, options_);
    ExpectClose(gpu, cpu, tolerance);
    ASSERT_EQ(gpu.steps.size(), 3);
    for (size_t i = 0; i < gpu.steps.size(); ++i) {
      EXPECT_NEAR(gpu.steps[i].figures->teacher_divergence(),
                  cpu.steps[i].figures->teacher_divergence(), tolerance);
    }
  }

  const v1::JobSpec teacher_;
  State weights_;
  RunOptions options_;
};

TEST_F(DistillationOnGpus, IsNearTheCpus) {
  Compare(v1::DISTILLATION_DIRECTION_FORWARD, {1, 1, 1, 4}, v1::PRECISION_FP32, 1e-4);
  Compare(v1::DISTILLATION_DIRECTION_REVERSE, {2, 2, 2}, v1::PRECISION_FP32, 1e-4);
  Compare(v1::DISTILLATION_DIRECTION_FORWARD, {1, 2, 1}, v1::PRECISION_BF16, 1e-2);
}

TEST_F(DistillationOnGpus, ProductsOfBothModelsAreKnownBefore) {
  ExpectShapesKnown(
      With(In(Distilled(v1::DISTILLATION_DIRECTION_FORWARD, teacher_.model()), {1, 2, 1}),
           v1::PRECISION_BF16),
      options_);
}

}  // namespace
}  // namespace tercio::testing

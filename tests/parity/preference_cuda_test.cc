// Objectives dpo, orpo and kto on emulated GPUs against the CPU (cuda_ranks.h).
#include <string>

#include "gtest/gtest.h"
#include "plan/names.h"
#include "tests/parity/cuda_ranks.h"
#include "tests/parity/preference_example.h"

namespace tercio::testing {
namespace {

TEST_F(CudaParity, Preferences) {
  for (const char* objective : {"dpo", "orpo", "kto"}) {
    // The emulation computes each product element by element.
    const PreferenceExample example(
        {std::string("training.objective=") + objective, "model.hidden=16", "model.heads=2"});
    for (const Layout& layout : {Layout{1, 1, 1, 4}, Layout{2, 2, 2}}) {
      SCOPED_TRACE(std::string(objective) + " tensor " + std::to_string(layout.tensor));
      v1::JobSpec spec = With(In(example.spec, layout), v1::PRECISION_FP32);
      spec.mutable_resources()->set_ranks(layout.tensor * layout.pipeline * layout.data);
      RunOptions options;
      options.source = example.source.get();
      const RunResult gpu = OnGpus(spec, options);
      const RunResult cpu = OnCpu(spec, options);
      ExpectClose(gpu, cpu, 1e-4);
      ASSERT_EQ(gpu.steps.size(), 3);
      for (size_t i = 0; i < gpu.steps.size(); ++i) {
        EXPECT_NEAR(gpu.steps[i].figures->margin(), cpu.steps[i].figures->margin(), 1e-4);
        EXPECT_NEAR(gpu.steps[i].figures->divergence(), cpu.steps[i].figures->divergence(), 1e-4);
      }
      EXPECT_NEAR(gpu.validation.figures().chosen_reward(),
                  cpu.validation.figures().chosen_reward(), 1e-4);
    }
  }
}

}  // namespace
}  // namespace tercio::testing

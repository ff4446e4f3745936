#include "worker/engine/state_parts.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "plan/fp8.h"
#include "worker/engine/state_slices.h"

namespace tercio::engine {
namespace {

v1::RankPlan PlanOf(int data_index) {
  v1::RankPlan plan;
  plan.mutable_placement()->set_data_index(data_index);
  plan.mutable_stage()->add_layers(4);
  plan.mutable_stage()->add_layers(5);
  return plan;
}

v1::JobSpec Job() {
  v1::JobSpec job;
  job.mutable_training()->set_precision(v1::PRECISION_FP16);
  job.mutable_training()->set_fp8(true);
  job.mutable_fault_tolerance()->set_on_spike(v1::ON_SPIKE_SKIP);
  return job;
}

TEST(StateParts, AreThoseOfTheJob) {
  const v1::RankPlan plan = PlanOf(0);
  StepGuard guard(Job());
  blocks::Fp8Scaling scaling(2);
  EXPECT_TRUE(StatePartsOf(v1::JobSpec(), plan, guard, scaling).empty());
  std::vector<std::string> tensors;
  for (const auto& part : StatePartsOf(Job(), plan, guard, scaling)) {
    tensors.push_back(part->tensor());
    EXPECT_TRUE(part->IsSaved());
    EXPECT_TRUE(IsOptionalState(part->tensor()));
    int64_t elements = 1;
    for (const int64_t extent : part->shape()) elements *= extent;
    EXPECT_EQ(static_cast<int64_t>(part->Values().size()), elements) << part->tensor();
  }
  EXPECT_EQ(tensors, (std::vector<std::string>{kGuardTensor, kSpikeTensor, blocks::Fp8Tensor(4),
                                               blocks::Fp8Tensor(5)}));
}

TEST(StateParts, OneOfTheRanksThatHaveThemSavesThem) {
  const v1::RankPlan plan = PlanOf(1);
  StepGuard guard(Job());
  blocks::Fp8Scaling scaling(2);
  for (const auto& part : StatePartsOf(Job(), plan, guard, scaling)) EXPECT_FALSE(part->IsSaved());
}

TEST(StateParts, AreRestored) {
  const v1::RankPlan plan = PlanOf(0);
  StepGuard guard(Job());
  blocks::Fp8Scaling scaling(2);
  std::vector<float> largest(static_cast<size_t>(scaling.slots()), 2.0f);
  scaling.Record(largest);
  StepGuard other_guard(Job());
  blocks::Fp8Scaling other_scaling(2);
  const auto from = StatePartsOf(Job(), plan, guard, scaling);
  const auto to = StatePartsOf(Job(), plan, other_guard, other_scaling);
  for (size_t i = 0; i < from.size(); ++i) {
    const std::vector<float> values = from[i]->Values();
    EXPECT_TRUE(to[i]->Restore(values).ok()) << from[i]->tensor();
    EXPECT_EQ(to[i]->Values(), values);
  }
  EXPECT_TRUE(other_scaling.Knows(0));
}

}  // namespace
}  // namespace tercio::engine

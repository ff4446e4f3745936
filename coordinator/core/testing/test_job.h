// The job that the tests of the core run, small enough to be planned immediately.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/core.h"
#include "plan/plan_builder.h"

namespace tercio::coordinator {

inline constexpr char kJob[] = "job-1";

// Data-parallel over `data` ranks.
inline v1::JobSpec SmallSpec(int data) {
  v1::JobSpec spec;
  spec.set_name("test");
  v1::ModelSpec* model = spec.mutable_model();
  model->set_layers(2);
  model->set_hidden(16);
  model->set_heads(2);
  model->set_ffn_hidden(64);
  model->set_context(8);
  spec.mutable_training()->set_steps(100);
  spec.mutable_training()->set_global_batch(8);
  spec.mutable_parallelism()->set_tensor(1);
  spec.mutable_parallelism()->set_pipeline(1);
  spec.mutable_parallelism()->set_data(data);
  spec.mutable_resources()->set_ranks(data);
  spec.mutable_checkpoint()->set_keep_last(2);
  spec.mutable_fault_tolerance()->set_max_restarts(10);
  return spec;
}

inline v1::RunId RunWith(int attempt) {
  v1::RunId run;
  run.set_job_id(kJob);
  run.set_attempt(attempt);
  return run;
}

// Settings that plan any job, without checking memory.
inline Settings PlanningSettings() {
  Settings settings;
  settings.make_plan = [](const v1::JobSpec& spec, const std::vector<plan::DeviceSlot>& slots,
                          const RankShare& share) -> absl::StatusOr<v1::Plan> {
    const absl::StatusOr<v1::Layout> layout = plan::LayoutOfJob(spec);
    if (!layout.ok()) return layout.status();
    return plan::BuildPlan(spec, *layout, slots, share.threads);
  };
  return settings;
}

}  // namespace tercio::coordinator

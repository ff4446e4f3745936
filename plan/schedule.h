// A pipeline schedule as data: the list of actions of each stage. Pure; walked by the trainer and
// by the simulator alike.
//
// A stage holds `chunks` runs of layers (1, but for the interleaved schedule): chunk c of stage s
// is number c * stages + s along the model. For each chunk all kinds run micro-batches in ascending
// order, forward and backward, so gradients are summed in the same order whatever the schedule
// (docs/numerics.md).
//
// gpipe: Huang et al. 2019. 1f1b: Narayanan et al. 2021 (PipeDream-Flush). interleaved: Narayanan
// et al. 2021, "Efficient Large-Scale Language Model Training", section 2.2.2.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

struct ScheduleShape {
  v1::PipelineSchedule kind = v1::PIPELINE_SCHEDULE_1F1B;
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;  // chunks of a stage; above 1 only for interleaved
};
ScheduleShape ShapeOfSchedule(const v1::Layout& layout);

// The actions of `stage` (0-based) for one step, ending with REDUCE_GRADIENTS and OPTIMIZER_STEP.
// Receives are started one micro-batch ahead where a slot is free. REQUIRES: 0 <= stage < stages,
// micro_batches >= 1; for interleaved micro_batches a multiple of stages.
std::vector<v1::Action> StageActions(const ScheduleShape& shape, int stage);

// The passes among these, in their order.
struct StagePass {
  bool forward = true;
  int micro_batch = 0;
  int chunk = 0;
};
std::vector<StagePass> PassesOfStage(const ScheduleShape& shape, int stage);

// Most (micro-batch, chunk) pairs of `stage` between the start of their forward and the end of
// their backward. gpipe: micro_batches; 1f1b: min(stages - stage, micro_batches).
int ActivationSlots(const ScheduleShape& shape, int stage);

// The measurements of CheckSchedule, for one forward of a whole stage costing 1 and one backward
// costing 2 time units.
struct ScheduleReport {
  double bubble_ratio = 0;         // idle time / ideal time of the busiest stage
  std::vector<int> max_in_flight;  // per stage
};

// Simulates all stages' lists against each other: every send meets its receive, messages between
// two stages arrive in the order of their receives, forward before backward, each micro-batch once
// in every chunk, slots never hold two of them, no deadlock. Error: INTERNAL with a description.
absl::StatusOr<ScheduleReport> CheckSchedule(const std::vector<std::vector<v1::Action>>& stages,
                                             const ScheduleShape& shape);

}  // namespace tercio::plan

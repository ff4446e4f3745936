// A pipeline schedule as data: the list of actions of each stage. Pure; walked by the trainer and
// by the simulator alike.
//
// Both kinds run micro-batches in ascending order, forward and backward, so gradients are summed in
// the same order whatever the schedule (docs/numerics.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

enum class ScheduleKind { kGpipe, kOneForwardOneBackward };

absl::StatusOr<ScheduleKind> ParseScheduleKind(std::string_view name);  // "gpipe" | "1f1b"

// The actions of `stage` (0-based) of `stages` for one step of `micro_batches`, ending with
// REDUCE_GRADIENTS and OPTIMIZER_STEP. Receives are started one micro-batch ahead where a slot is
// free. REQUIRES: 0 <= stage < stages, micro_batches >= 1.
std::vector<v1::Action> StageActions(ScheduleKind kind, int stages, int stage, int micro_batches);

// Most micro-batches of `stage` between the start of their forward and the end of their backward:
// gpipe: micro_batches; 1f1b: min(stages - stage, micro_batches).
int ActivationSlots(ScheduleKind kind, int stages, int stage, int micro_batches);

// What CheckSchedule measured, for one forward costing 1 and one backward costing 2 time units.
struct ScheduleReport {
  double bubble_ratio = 0;         // idle time / ideal time of the busiest stage
  std::vector<int> max_in_flight;  // per stage
};

// Simulates all stages' lists against each other: every send meets its receive, forward before
// backward, each micro-batch once, slots never hold two micro-batches, no deadlock. Error: INTERNAL
// with the story.
absl::StatusOr<ScheduleReport> CheckSchedule(const std::vector<std::vector<v1::Action>>& stages,
                                             int micro_batches);

}  // namespace tercio::plan

// One step of a planned layout as spans of time: what each stage does when. Pure.
//
// All ranks of a stage do the same at the same time; a row stands for each of them. Passes are
// played from the action lists, all of them, so that the length is that of plan/planner/cost's
// prediction but for what that leaves out of long pipelines (0.2 %).
#pragma once

#include <vector>

#include "plan/planner/cost/step_cost.h"
#include "plan/schedule.h"

namespace tercio::plan::simulator {

enum class SpanKind {
  kForward,
  kRecompute,  // the part of a backward pass that computes activations again
  kBackward,   // the rest of it
  kWaitActivation,
  kWaitGradient,
  kSendActivation,  // where the stage waits for its message
  kSendGradient,
  kHeadGradient,  // of the head's matrix, behind the last pass
  kExchange,      // gradients and weights between data ranks, as far as nothing hides it
  kTiedTable,     // gradient of a tied table, between first and last stage
  kOptimizer,
  kOther,  // the host's
};

struct TimelineSpan {
  SpanKind kind = SpanKind::kForward;
  int micro_batch = -1;  // -1: of none
  int chunk = 0;
  double begin = 0;
  double seconds = 0;
};

struct StepTimeline {
  ScheduleShape shape;
  std::vector<std::vector<TimelineSpan>> stages;  // of each: ascending, without overlaps
  double seconds = 0;                             // the end of the last span
};

StepTimeline TimelineOfStep(const cost::StepTiming& timing);

}  // namespace tercio::plan::simulator

// Finds the part of a program that is enqueued alike in every step, so that a device may record
// them once and launch them as one (Stream::RecordGraph), and the step in which it does.
//
// Threads: any.
#pragma once

#include <cstdint>

#include "plan/program.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::engine {

// How many first steps of the program, in whole passes, exchange nothing with other ranks and do
// not depend on the training step except through buffers. Recording more would cost the device more
// memory than it saves time.
int RepeatedSteps(const v1::JobSpec& job, const v1::Layout& layout, const plan::Program& program);

// Whether they are recorded in this step, the process's `steps`-th. The first steps are
// enqueued one by one: libraries examine shapes that are new to them. `is_ready` is what
// Ops::ReadyToRecord returns; if it stays false for kMostStepsBeforeGraph steps, recording is given
// up with a warning, and *repeated becomes 0.
inline constexpr int64_t kStepsBeforeGraph = 2;
inline constexpr int64_t kMostStepsBeforeGraph = 200;
bool RecordsNow(int64_t steps, bool is_ready, int* repeated);

}  // namespace tercio::engine

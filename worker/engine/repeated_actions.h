// Finds the actions of a step that are enqueued alike in every step, so that a device may record
// them once and launch them as one (Stream::RecordGraph). Pure.
#pragma once

#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::engine {

// The number of the stage's first actions that exchange nothing with other ranks and do not depend
// on the step except through buffers. Recording more would cost the device more memory than it
// saves time.
int RepeatedActions(const v1::JobSpec& job, const v1::RankPlan& plan);

}  // namespace tercio::engine

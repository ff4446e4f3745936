// Which of a step's actions are enqueued alike in every step, so that a device may record them once
// and launch them as one (Stream::RecordGraph). Pure.
#pragma once

#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio {

// The first so many of the stage's actions: they talk to no other rank, and nothing in them depends
// on the step but what lies in buffers. Recording more would cost the device more memory than it
// saves time.
int RepeatedActions(const v1::JobSpec& job, const v1::RankPlan& plan);

}  // namespace tercio

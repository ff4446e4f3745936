// From what the coordinator keeps to what people are shown.
#pragma once

#include "coordinator/service/coordinator.h"
#include "proto/tercio/v1/job_service.pb.h"
#include "proto/tercio/v1/state.pb.h"

namespace tercio::coordinator {

v1::JobStatus StatusOf(const Coordinator::JobView& view);
// The same with the layout alone of the plan, which would grow with the ranks.
v1::JobStatus BriefStatusOf(const Coordinator::JobView& view);
// Where the time has gone up to `now`.
v1::Goodput GoodputOf(const v1::JobRecord& record, double now);
v1::JobState PublishedState(const v1::JobRecord& record);

}  // namespace tercio::coordinator

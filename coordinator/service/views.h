// From what the coordinator keeps to what people are shown.
#pragma once

#include "proto/tercio/v1/job_service.pb.h"
#include "proto/tercio/v1/state.pb.h"

namespace tercio::coordinator {

v1::JobStatus StatusOf(const v1::JobRecord& record);
v1::JobState PublishedState(const v1::JobRecord& record);

}  // namespace tercio::coordinator

// Drills: deliberate faults in a running job, with the time that it took to detect and to recover.
//
// Threads: any; a call lasts until the job trains again.
#pragma once

#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/service/coordinator.h"
#include "proto/tercio/v1/job_service.pb.h"

namespace tercio::coordinator {

// `cancelled` is asked now and then. PERMISSION_DENIED where drills are not allowed; NOT_FOUND |
// FAILED_PRECONDITION (not running, ended meanwhile) | INVALID_ARGUMENT (no such fault or rank);
// DEADLINE_EXCEEDED when the job has not recovered in time, with what was detected until then.
absl::StatusOr<v1::DrillResponse> RunDrill(Coordinator& coordinator,
                                           const v1::DrillRequest& request,
                                           const std::function<bool()>& cancelled);

// True where an event of kind `event` is the detection of `fault`, and not one of its consequences.
bool DrillDetectedBy(std::string_view fault, std::string_view event);

}  // namespace tercio::coordinator

// Converts the coordinator's records to the messages that users see.
#pragma once

#include <vector>

#include "coordinator/service/coordinator.h"
#include "proto/tercio/v1/job_service.pb.h"
#include "proto/tercio/v1/state.pb.h"

namespace tercio::coordinator {

v1::JobStatus StatusOf(const Coordinator::JobView& view);
// The same with the layout alone of the plan, which would grow with the ranks, and without the
// classes of evaluations.
v1::JobStatus BriefStatusOf(const Coordinator::JobView& view);
// Adds the ranks of the plan, with their figures where they are known: of ranks that have ended
// from `exits` (of the present attempt), of the others from the view.
void AddRanks(const Coordinator::JobView& view, const v1::Plan& plan,
              const std::vector<v1::ExitRecord>& exits, v1::JobStatus* status);
// Adds the last words of the rank at fault; `exits` are of the attempt that broke.
void AddLastLines(const v1::JobRecord& record, const std::vector<v1::ExitRecord>& exits,
                  const v1::Plan* plan, v1::JobStatus* status);
// The uses of the job's time up to `now`.
v1::Goodput GoodputOf(const v1::JobRecord& record, double now);
v1::JobState PublishedState(const v1::JobRecord& record);

}  // namespace tercio::coordinator

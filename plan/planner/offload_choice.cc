#include "plan/planner/offload_choice.h"

#include "plan/combinations.h"
#include "plan/offload.h"
#include "plan/precision.h"

namespace tercio::plan {
namespace {

// Nothing is named in the job's offload section: a tier of `none` is a choice as well.
bool LeavesTierOpen(const v1::JobSpec& job) {
  const v1::OffloadSpec& offload = job.offload();
  return job.parallelism().automatic() && offload.optimizer() == v1::OFFLOAD_TIER_UNSPECIFIED &&
         !IsOffloaded(offload.parameters()) && !IsOffloaded(offload.activations()) &&
         !offload.has_share();
}

}  // namespace

OffloadChoice::OffloadChoice(const v1::JobSpec& job)
    : job_(job), chooses_share_(OnGpu(job) && ChoosesOffloadShare(job)) {
  if (!OnGpu(job) || !LeavesTierOpen(job)) return;
  job_.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
  chooses_tier_ = BrokenBy(job_).empty();
}

bool OffloadChoice::IsOpen(const v1::Layout& layout) const {
  if (chooses_share_) return layout.offload_share() == kLeastShare;
  // The rule of plan/combinations.h about several data ranks.
  return chooses_tier_ && !layout.has_offload_share() &&
         (layout.data() == 1 || layout.zero_stage() >= 1);
}

v1::Layout OffloadChoice::With(v1::Layout layout, int parts) {
  layout.set_offload_share(static_cast<double>(parts) / kOffloadParts);
  return layout;
}

int OffloadChoice::Fewest(const std::function<bool(int)>& fits) {
  if (!fits(kOffloadParts)) return 0;
  int low = 0;
  int high = kOffloadParts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace tercio::plan

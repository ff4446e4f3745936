#include "plan/planner/cost/offload_time.h"

#include <algorithm>

#include "plan/offload.h"
#include "plan/precision.h"
#include "plan/state_shards.h"

namespace tercio::plan::cost {
namespace {

constexpr double kWeightBytes = 4;
constexpr double kMomentBytes = 8;  // both moments
// A kernel on the host reads gradient, weight and moments in fp32 and writes the last three, and
// the weight in 16 bits for the device.
constexpr double kHostUpdateBytes = 30;
// A checkpoint is copied aside in a file of its own where the state is in one: weight and moments.
constexpr double kSnapshotBytes = 12;
// The kernel keeps pages of files as long as it has memory for them: half of a node's, beside what
// processes have.
constexpr double kShareOfPages = 0.5;
// Bytes a second of one rank in pages that are in memory: checksums before and after the update,
// and the faults of pages that were written behind. Measured (docs/planner.md).
constexpr double kPageRate = 2e9;

}  // namespace

OffloadTime::OffloadTime(const v1::JobSpec& job, const v1::Layout& layout,
                         const ClusterModel& cluster, const Recipe& recipe, int ranks,
                         const RankState& state)
    : host_(cluster.host),
      state_(state),
      recipe_(recipe),
      ranks_of_node_(std::max(1, std::min(cluster.devices_per_node, ranks))) {
  const v1::OffloadSpec& offload = job.offload();
  const v1::OffloadTier tier = OptimizerTierOf(job, layout);
  if (IsElsewhere(job, tier)) {
    moments_ = layout.has_offload_share() ? layout.offload_share() : kWholeShare;
  }
  if (OffloadsParameters(job)) {
    master_ = kWholeShare;
    fetches_ = true;
  } else if (OptimizerHasMasterWeights(job, layout)) {
    master_ = moments_;
  }
  on_disk_ = tier == v1::OFFLOAD_TIER_NVME || offload.parameters() == v1::OFFLOAD_TIER_NVME;
  activations_on_disk_ = offload.activations() == v1::OFFLOAD_TIER_NVME;
  value_bytes_ = static_cast<double>(PrecisionOf(job).bytes());
}

double OffloadTime::state_bytes() const { return kMomentBytes * moments_ + kWeightBytes * master_; }

double OffloadTime::Link(double bytes) const { return bytes / host_.link_bytes_per_second; }
double OffloadTime::HostMemory(double bytes) const {
  return bytes * ranks_of_node_ / host_.memory_bytes_per_second;
}
double OffloadTime::Disk(double bytes) const {
  return bytes * ranks_of_node_ / host_.disk_bytes_per_second;
}

bool OffloadTime::keeps_pages() const {
  double bytes = 0;
  if (on_disk_) bytes += state_.elements * (state_bytes() + kSnapshotBytes);
  if (activations_on_disk_) bytes += state_.activation_bytes;
  return ranks_of_node_ * bytes <= kShareOfPages * host_.memory_bytes;
}

double OffloadTime::Update(double seconds, double beside) const {
  if (state_bytes() == 0) return 0;
  if (on_disk_) return UpdateInFile(beside);
  // What lies elsewhere is updated there, and the rest in the device's memory.
  const double saved = std::max(moments_, master_) * seconds;
  return std::max(0.0, (recipe_.updates_on_host ? UpdateByHost() : UpdateByDevice()) - saved);
}

// The link carries both directions at once; the host's memory has one rate for all.
double OffloadTime::UpdateByDevice() const {
  const double each_way = state_.elements * state_bytes();
  return std::max(Link(each_way), HostMemory(2 * each_way));
}

// Gradients that are sent while passes run cost nothing.
double OffloadTime::UpdateByHost() const {
  const double part = std::max(moments_, master_) * state_.elements;
  const double gradients = recipe_.overlaps_gradients ? 0 : Link(part * recipe_.gradient_bytes);
  return gradients + HostMemory(part * kHostUpdateBytes) + Link(part * value_bytes_);
}

double OffloadTime::UpdateInFile(double beside) const {
  const double each_way = state_.elements * state_bytes();
  const double pages = 2 * each_way / kPageRate;
  // One piece is read and another written while a third is checked and updated.
  if (!keeps_pages()) return std::max(pages, Disk(2 * each_way));
  // Pages are written while the next step runs.
  return pages + std::max(0.0, Disk(each_way) - beside);
}

double OffloadTime::Fetch(double elements) const {
  if (!fetches_) return 0;
  const double bytes = kWeightBytes * elements;
  if (!on_disk_) return std::max(Link(bytes), HostMemory(bytes));
  return keeps_pages() ? 0 : Disk(bytes);
}

double OffloadTime::Activations(double bytes) const {
  return activations_on_disk_ && !keeps_pages() ? Disk(bytes) : 0;
}

}  // namespace tercio::plan::cost

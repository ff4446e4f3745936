#include "plan/gpu_reserve.h"

#include <algorithm>

#include "plan/model_tensors.h"
#include "plan/precision.h"
#include "plan/rank_layout.h"
#include "plan/reproducibility.h"
#include "plan/state_shards.h"

namespace tercio::plan {
namespace {

int EdgesOfStage(int stages, const NcclCommunicators& communicators) {
  if (stages == 1) return 0;
  // A neighbour costs two edges: activations go one way, gradients the other.
  const int inner = 2 * 2;
  const int outer = 2 + (communicators.closes_ring ? 2 : 0) + (communicators.is_tied ? 2 : 0);
  return stages == 2 ? outer : std::max(inner, outer);
}

}  // namespace

NcclCommunicators CommunicatorsOf(const v1::ModelSpec& model, const v1::Layout& layout) {
  const int world = WorldSize(layout);
  NcclCommunicators found;
  if (world == 1) return found;
  found.wide_world = layout.tensor() == world || layout.data() == world;
  found.closes_ring = layout.pipeline() > 1 && layout.virtual_pipeline() > 1;
  found.is_tied = layout.pipeline() > 1 && IsTied(model);
  found.wide = (layout.tensor() > 1 ? 1 : 0) + (layout.data() > 1 ? 1 : 0);
  // Those of data ranks that divide the state in groups (plan/rank_layout.h).
  if (ShardRanks(layout) > 1 && ReplicasOf(layout) > 1) found.wide += 2;
  if (SecondaryRanks(layout) > 0) ++found.wide;
  found.narrow = found.wide_world ? 0 : 1;
  found.edges = EdgesOfStage(layout.pipeline(), found);
  return found;
}

int64_t NcclBytes(const v1::JobSpec& job, const v1::Layout& layout) {
  const bool over_host = OrderIsFixed(job) || job.resources().collectives() == v1::COLLECTIVES_HOST;
  if (!OnGpu(job) || over_host) return 0;
  const NcclCommunicators found = CommunicatorsOf(job.model(), layout);
  return found.wide * kWideCommunicatorBytes + found.narrow * kNarrowCommunicatorBytes +
         found.edges * kEdgeBytes;
}

int64_t GpuReserveBytes(const v1::JobSpec& job, const v1::Layout& layout) {
  return kGpuContextBytes + NcclBytes(job, layout);
}

}  // namespace tercio::plan

#include "cli/commands/local_cluster.h"

#include <algorithm>
#include <cstdint>

#include "common/gpus/gpus.h"
#include "common/machine.h"
#include "common/status_macros.h"
#include "plan/gpu_figures.h"
#include "plan/precision.h"

namespace tercio::cli {

absl::StatusOr<coordinator::Cluster> ClusterHere(const v1::JobSpec& spec, int ranks) {
  coordinator::Cluster cluster = coordinator::LocalCluster(
      ranks, MachineCores(), MachineMemoryBytes(), spec.resources().threads_per_rank());
  if (!plan::OnGpu(spec)) return cluster;
  TERCIO_ASSIGN_OR_RETURN(const Gpus gpus, FindGpus());
  cluster.memory_bytes = coordinator::Cluster().memory_bytes;
  const auto count = static_cast<int>(gpus.list.size());
  for (const Gpu& gpu : gpus.list) {
    const int sharing = (ranks + count - 1) / count;
    cluster.memory_bytes =
        std::min(cluster.memory_bytes, (gpu.memory_bytes - plan::kGpuReserveBytes) / sharing);
  }
  coordinator::UseGpus(gpus.list.empty() ? "" : gpus.list.front().model, spec.training(), &cluster);
  return cluster;
}

}  // namespace tercio::cli

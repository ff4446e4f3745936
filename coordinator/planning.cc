#include "coordinator/planning.h"

#include <string>
#include <vector>

#include "plan/planner/cluster.h"
#include "plan/planner/elastic.h"
#include "plan/planner/planner.h"

namespace tercio::coordinator {
namespace {

void UseDevices(const std::string& gpu, const v1::MachineFigures& figures, double cores,
                plan::Cluster* cluster) {
  if (gpu.empty()) {
    plan::UseCpus(figures, cores, cluster);
  } else {
    plan::UseGpus(figures, gpu, cluster);
  }
}

absl::StatusOr<v1::Plan> MakePlan(const v1::JobSpec& spec,
                                  const std::vector<plan::DeviceSlot>& slots,
                                  const RankShare& share) {
  // The ranks run in step, so the share of the worst node stands for all (ShareOfRanks), but for
  // how many layers each stage gets.
  plan::Cluster cluster;
  cluster.threads_per_rank = share.threads;
  cluster.memory_bytes = share.memory_bytes;
  cluster.shares_gpus = share.shares_gpus;
  UseDevices(share.gpu, share.figures, share.cores, &cluster);
  for (const KindShare& kind_share : share.kinds) {
    plan::Cluster& kind = cluster.kinds.emplace_back();
    kind.ranks = kind_share.ranks;
    kind.ranks_per_node = kind_share.ranks_per_node;
    UseDevices(kind_share.gpu, kind_share.figures, kind_share.cores, &kind);
  }
  return plan::MakePlan(spec, slots, cluster);
}

absl::StatusOr<v1::ParallelismSpec> SmallerLayout(const v1::JobSpec& spec, int least, int most,
                                                  const RankShare& share, int* ranks) {
  // Only memory limits how few ranks can hold the model; speed is not asked here.
  plan::Cluster cluster;
  cluster.memory_bytes = share.memory_bytes;
  cluster.shares_gpus = share.shares_gpus;
  return plan::SmallerLayout(spec, least, most, cluster, ranks);
}

}  // namespace

void UsePlanner(Settings* settings) {
  settings->make_plan = MakePlan;
  settings->smaller_layout = SmallerLayout;
}

}  // namespace tercio::coordinator

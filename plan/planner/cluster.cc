#include "plan/planner/cluster.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "plan/gpu_figures.h"
#include "plan/planner/cost/measured.h"
#include "plan/planner/cost/node_groups.h"
#include "plan/precision.h"

namespace tercio::plan {
namespace {

// The network of a node, where no cluster file describes it: an interface of 200 Gb/s for
// each GPU, as nodes with eight GPUs have them since Ampere.
constexpr double kAssumedInterface = 25e9;
constexpr int kAssumedGpusPerNode = 8;
constexpr char kCpu[] = "cpu";  // v1::MachineFigures.device

const cost::Recipe& GpuRecipe() { return *cost::FindRecipe("tercio"); }

// Nothing is known of the network between kinds of nodes: it is taken to be as fast as the slower
// one of their own.
cost::ClusterModel DevicesOfKinds(const Cluster& cluster) {
  std::vector<cost::ClusterModel> groups;
  cost::Link joining;
  int interfaces = 1;
  for (const Cluster& kind : cluster.kinds) {
    cost::ClusterModel& group = groups.emplace_back(DevicesOf(kind, kind.ranks));
    if (kind.gpu == nullptr && group.shared_devices > 0) {
      group = cost::MeasuredCluster(kind.figures, group.nodes, group.devices_per_node,
                                    kind.cores_per_rank, cost::Cores::kFixedParts);
    }
    const double rate = group.between.bytes_per_second * group.interfaces_per_node;
    if (joining.bytes_per_second > 0 && rate >= joining.bytes_per_second * interfaces) continue;
    joining = group.between;
    interfaces = group.interfaces_per_node;
  }
  return cost::JoinGroups(std::move(groups), joining, interfaces);
}

}  // namespace

Cluster::Cluster() { UseCpus({}, /*cores_per_rank=*/1, this); }

cost::ClusterModel DevicesOf(const Cluster& cluster, int ranks) {
  if (!cluster.kinds.empty() && ranks == cluster.ranks) return DevicesOfKinds(cluster);
  const int most = cluster.ranks_per_node > 0 ? cluster.ranks_per_node : ranks;
  const int per_node = std::max(1, std::min(most, ranks));
  const int nodes = (ranks + per_node - 1) / per_node;
  if (cluster.gpu == nullptr) {
    cost::ClusterModel devices =
        cost::MeasuredCluster(cluster.figures, nodes, per_node, cluster.cores_per_rank);
    // On GPUs it is the devices' own.
    const bool is_host = cluster.figures.device() == kCpu;
    if (is_host && cluster.memory_bytes < kUnknownMemoryBytes) {
      devices.host.memory_bytes = static_cast<double>(cluster.memory_bytes) * per_node;
    }
    return devices;
  }
  return cost::MakeCluster(*cluster.gpu, per_node, nodes, per_node, kAssumedInterface);
}

Cluster LocalCluster(int ranks, int cores, int64_t memory_bytes, int threads_per_rank) {
  Cluster cluster;
  cluster.ranks = ranks;
  cluster.threads_per_rank = threads_per_rank > 0 ? threads_per_rank : std::max(1, cores / ranks);
  // More ranks than cores share them.
  UseCpus({}, std::min<double>(cluster.threads_per_rank, static_cast<double>(cores) / ranks),
          &cluster);
  cluster.memory_bytes = memory_bytes / ranks;
  return cluster;
}

void UseCpus(const v1::MachineFigures& figures, double cores_per_rank, Cluster* cluster) {
  cluster->figures = figures.products().empty() ? cost::AssumedCpuFigures() : figures;
  cluster->cores_per_rank = cores_per_rank;
  cluster->gpu = nullptr;
  cluster->recipe = cost::CpuRecipe();
}

void UseGpus(const v1::MachineFigures& figures, std::string_view model, Cluster* cluster) {
  if (cluster->ranks_per_node == 0) cluster->ranks_per_node = kAssumedGpusPerNode;
  cluster->figures = figures;
  cluster->recipe = GpuRecipe();
  cluster->gpu = nullptr;
  if (!figures.products().empty()) return;
  cluster->gpu = cost::FindDriverName(model);
  if (cluster->gpu == nullptr) cluster->gpu = cost::FindDriverName(kAssumedGpu);
}

double PeakOf(const cost::Accelerator& accelerator, const v1::TrainingSpec& training) {
  if (training.fp8() && accelerator.flops_8 > 0) return accelerator.flops_8;
  if (FormatOf(training) != kernels::Format::kFloat32) return accelerator.flops_16;
  return training.tf32() ? accelerator.flops_tf32 : accelerator.flops_fp32;
}

}  // namespace tercio::plan

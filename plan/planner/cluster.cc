#include "plan/planner/cluster.h"

#include <algorithm>
#include <string>

#include "plan/gpu_figures.h"
#include "plan/planner/cost/measured.h"
#include "plan/precision.h"

namespace tercio::plan {
namespace {

// The network of a node, where no cluster file describes it: an interface of 200 Gb/s for
// each GPU, as nodes with eight GPUs have them since Ampere.
constexpr double kAssumedInterface = 25e9;
constexpr int kAssumedGpusPerNode = 8;

const cost::Recipe& GpuRecipe() { return *cost::FindRecipe("tercio"); }

}  // namespace

Cluster::Cluster() : recipe(cost::CpuRecipe()) { UseCpus({}, /*cores_per_rank=*/1, this); }

cost::ClusterModel DevicesOf(const Cluster& cluster, int ranks) {
  cost::ClusterModel devices = cluster.devices;
  const int per_node = cluster.ranks_per_node > 0 ? std::min(cluster.ranks_per_node, ranks) : ranks;
  devices.devices_per_node = std::max(1, per_node);
  devices.nodes = (ranks + devices.devices_per_node - 1) / devices.devices_per_node;
  return devices;
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
  const v1::MachineFigures assumed =
      figures.products().empty() ? cost::AssumedCpuFigures() : v1::MachineFigures();
  cluster->devices = cost::MeasuredCluster(figures.products().empty() ? assumed : figures,
                                           /*nodes=*/1, /*ranks_per_node=*/1, cores_per_rank);
  cluster->constants = cost::CpuConstants();
  cluster->recipe = cost::CpuRecipe();
}

void UseGpus(std::string_view model, Cluster* cluster) {
  const cost::Accelerator* found = cost::FindDriverName(model);
  if (found == nullptr) found = cost::FindDriverName(kAssumedGpu);
  if (cluster->ranks_per_node == 0) cluster->ranks_per_node = kAssumedGpusPerNode;
  cluster->devices = cost::MakeCluster(*found, cluster->ranks_per_node, /*nodes=*/1,
                                       cluster->ranks_per_node, kAssumedInterface);
  cluster->constants = {};
  cluster->recipe = GpuRecipe();
}

double PeakOf(const cost::Accelerator& accelerator, const v1::TrainingSpec& training) {
  if (training.fp8() && accelerator.flops_8 > 0) return accelerator.flops_8;
  if (FormatOf(training) != kernels::Format::kFloat32) return accelerator.flops_16;
  return training.tf32() ? accelerator.flops_tf32 : accelerator.flops_fp32;
}

}  // namespace tercio::plan

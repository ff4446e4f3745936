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

Cluster::Cluster() { UseCpus({}, /*cores_per_rank=*/1, this); }

cost::ClusterModel DevicesOf(const Cluster& cluster, int ranks) {
  const int most = cluster.ranks_per_node > 0 ? cluster.ranks_per_node : ranks;
  const int per_node = std::max(1, std::min(most, ranks));
  const int nodes = (ranks + per_node - 1) / per_node;
  if (cluster.gpu == nullptr) {
    return cost::MeasuredCluster(cluster.figures, nodes, per_node, cluster.cores_per_rank);
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

// What the ranks of a job run on, as the planner sees it: figures of the devices and links that
// time follows from (plan/planner/cost/), and the memory that plans must fit into. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/planner/cost/hardware.h"
#include "plan/planner/cost/recipe.h"
#include "proto/tercio/v1/figures.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// Memory that nobody has measured: every model fits.
inline constexpr int64_t kUnknownMemoryBytes = int64_t{1} << 62;

// Ranks on devices that are alike, or of several kinds. Until UseCpus or UseGpus: on a core each of
// one node.
struct Cluster {
  Cluster();

  int ranks = 1;
  int threads_per_rank = 1;
  int ranks_per_node = 0;                      // 0: all are on one node
  int64_t memory_bytes = kUnknownMemoryBytes;  // memory of one rank, without a GPU's context
  bool shares_gpus = false;                    // several ranks on one GPU, which NCCL refuses

  // Set by UseCpus and UseGpus: what the trainer does on such devices, and what DevicesOf makes
  // them from: figures that were measured or are assumed, or a GPU of the catalogue.
  cost::Recipe recipe;
  v1::MachineFigures figures;
  double cores_per_rank = 1;
  const cost::Accelerator* gpu = nullptr;

  // Kinds of nodes in the order of the ranks, each with its own ranks, where there are several;
  // what is above says then what the slowest and smallest of them have.
  std::vector<Cluster> kinds;
};

// The devices of as many ranks: whole nodes, or a part of one. Kinds of nodes are those of all
// ranks of the cluster; fewer ranks are on devices like the slowest.
cost::ClusterModel DevicesOf(const Cluster& cluster, int ranks);

// This machine, shared by `ranks` ranks, with assumed figures.
Cluster LocalCluster(int ranks, int cores, int64_t memory_bytes, int threads_per_rank);

// Its ranks compute on this many cores each, less than one where ranks share them. `figures`: what
// was measured of such machines (cost::CheckFigures); the default instance: figures are assumed.
void UseCpus(const v1::MachineFigures& figures, double cores_per_rank, Cluster* cluster);

// Its ranks are on GPUs of this model (as the driver names it), or on plan::kAssumedGpu where that
// is not known: what matters for a choice is how rates compare. `figures` as in UseCpus.
void UseGpus(const v1::MachineFigures& figures, std::string_view model, Cluster* cluster);

// The most products of an accelerator in the job's precision; 0: not known.
double PeakOf(const cost::Accelerator& accelerator, const v1::TrainingSpec& training);

}  // namespace tercio::plan

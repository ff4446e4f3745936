// Which layout a job gets, and why: enumerates the legal layouts, predicts memory (from the
// trainer's own table) and time (a roofline), and chooses. Pure.
//
// Time of a step (reference machine figures in Cluster):
//   compute  = 6 * weights * tokens / (flop rate * ranks), without recompute (Narayanan et al.
//              2021, equation 3)
//   bubble   = compute * (p - 1) / m (the same, section 2.2)
//   tensor   = 4 all-reduces a layer and micro-batch of 2 (t-1)/t * b s h * 4 bytes (section 3.2)
//   data     = 2 (d-1)/d * 4 bytes of gradients of a rank, hidden behind half of the backward
//   pipeline = 2 messages a micro-batch of b s h * 4 bytes
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/plan_builder.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// The size assumed for a vocabulary that is not known.
inline constexpr int kUnknownVocabulary = 256;
// Memory that nobody has measured: every model fits.
inline constexpr int64_t kUnknownMemoryBytes = int64_t{1} << 62;

// Devices that are alike.
struct Cluster {
  int ranks = 1;
  int threads_per_rank = 1;
  double flops_per_second = 100e9;   // rate of one rank in large products
  double peak_flops_per_second = 0;  // peak of its device, the unit of utilisation; 0: the same
  double bytes_per_second = 1e9;     // rate of one rank's link
  double seconds_per_message = 1e-3;
  int64_t memory_bytes = kUnknownMemoryBytes;  // memory of one rank, without a GPU's context
  bool shares_gpus = false;                    // several ranks on one GPU, which NCCL refuses
};

// Every layout of the cluster's ranks, rejected ones with the reason; `chosen` is the fastest that
// fits beside the communicators of NCCL that it needs (plan/gpu_reserve.h). Where the job names its
// layout that is the only candidate. A micro-batch that the job leaves to the planner is halved
// until it fits. vocab_size 0 counts as kUnknownVocabulary.
v1::PlanReport PlanLayouts(const v1::JobSpec& job, const Cluster& cluster);

// Adds to a report of PlanLayouts what the state of the chosen layout, or of the only one, takes
// with each zero_stage, and what its ranks send.
void AddDivisions(const v1::JobSpec& job, const Cluster& cluster, v1::PlanReport* report);

// The layout that the job gets. INVALID_ARGUMENT: impossible; RESOURCE_EXHAUSTED: fits in no layout
// (the message holds the memory table).
absl::StatusOr<v1::Layout> ChooseLayout(const v1::JobSpec& job, const Cluster& cluster);

// For the coordinator: the plan of the chosen layout on these slots.
// `cluster.ranks` is ignored.
absl::StatusOr<v1::Plan> MakePlan(const v1::JobSpec& job,
                                  const std::vector<plan::DeviceSlot>& slots, Cluster cluster);

// Whether the job can ever run with this much memory for each rank: values that this version
// supports, a possible layout. INVALID_ARGUMENT (where it does not fit, with its memory table).
absl::Status AdmitJob(const v1::JobSpec& job, int64_t memory_bytes, bool shares_gpus = false);

// Bytes of the tensors in one checkpoint: weights and two moments, fp32.
int64_t CheckpointBytes(const v1::JobSpec& job);

// This machine, shared by `ranks` ranks.
Cluster LocalCluster(int ranks, int cores, int64_t memory_bytes, int threads_per_rank);

// Its ranks compute on this many cores each, less than one where ranks share them.
void UseCpus(double cores_per_rank, Cluster* cluster);

// Its ranks are on GPUs of this model (as the driver names it; plan/gpu_figures.h).
void UseGpus(const std::string& model, const v1::TrainingSpec& training, Cluster* cluster);

}  // namespace tercio::plan

// Layouts that are compared: what each one takes, whether it fits, and which of those with the same
// degrees a job gets that leaves the rest to the planner. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/planner/cluster.h"
#include "plan/planner/cost/hardware.h"
#include "plan/planner/cost/pipeline_time.h"
#include "plan/planner/cost/step_cost.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Not for several threads. REQUIRES of all: a job whose vocabulary is known, which outlives it.
class Candidates {
 public:
  Candidates(const v1::JobSpec& job, const Cluster& cluster);

  // Time (plan/planner/cost/step_cost.h) and memory (plan/memory_map.h) of a layout that
  // CheckLayout accepts for `job`, on the cluster's devices.
  v1::Prediction Predict(const v1::JobSpec& job, const v1::Layout& layout);

  // One layout: rejected where it breaks a rule or does not fit; in the latter case with its
  // prediction, which names the need.
  v1::LayoutCandidate Judge(const v1::Layout& layout);
  // The same for a layout that the job names. What it leaves open is chosen: on nodes of several
  // kinds the layers of stages; a micro-batch, which
  // becomes smaller until it fits, and a share of the optimizer's state that lies elsewhere.
  v1::LayoutCandidate JudgeNamed(const v1::Layout& layout);
  // For a job that leaves its layout to the planner: the fastest layout with these degrees that
  // fits, over micro-batches, chunks and layers of stages and sequence parallelism. Where none
  // does, the state is divided further, or passes are recomputed, and again the fastest counts; the
  // least share of the optimizer's state lies elsewhere. Nothing fits: the one that lacks least.
  v1::LayoutCandidate BestWith(const v1::Layout& degrees);
  // Everything that BestWith chooses from and that fits, without more division of the state; where
  // nothing does, what it chooses, if that fits.
  std::vector<v1::LayoutCandidate> AllWith(const v1::Layout& degrees);

 private:
  // Why a tensor group would be on devices that differ; empty: none would.
  std::string MixedTensorGroup(const v1::Layout& layout) const;
  std::optional<v1::Layout> FasterDivision(v1::Layout layout);
  v1::LayoutCandidate FirstThatFits(const std::vector<v1::Layout>& layouts);
  v1::LayoutCandidate AtLeastShare(std::vector<v1::Layout> layouts);

  const v1::JobSpec& job_;
  const Cluster cluster_;
  const cost::ClusterModel devices_;  // of the cluster's ranks
  cost::StepCosts costs_;
  cost::PipelineWalks walks_;
};

// Sets the size of micro-batches, in sequences, and their number in a step.
void SetMicroBatch(const v1::JobSpec& job, int64_t micro_batch, v1::Layout* layout);
// The micro-batch that the job names, else the largest one that the planner may choose.
int64_t MicroBatchOf(const v1::JobSpec& job, const v1::Layout& layout);

}  // namespace tercio::plan

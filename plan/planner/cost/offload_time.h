// Seconds that a step takes longer because parts of the state lie on the host or in a scratch file
// (plan/offload.h). Pure. docs/planner.md has the formulas and what they assume.
//
// What Tercio's trainer does: on GPUs the kernel of the update reads and writes the host's pinned
// memory over the device's link, and weights of a shard are read over it when a layer is gathered.
// On CPUs the update walks through a mapped file in pieces (worker/engine/paged_update.h), and
// layers are read from it when they are gathered.
#pragma once

#include "plan/planner/cost/hardware.h"
#include "plan/planner/cost/recipe.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan::cost {

// What each rank of a stage has.
struct RankState {
  double elements = 0;          // that it updates
  double activation_bytes = 0;  // all micro-batches that it holds at a time
};

class OffloadTime {
 public:
  // `ranks`: of all nodes; `state`: of the rank that has most. REQUIRES: CheckCluster(cluster), a
  // job that plan::BrokenBy accepts. `recipe` must outlive it.
  OffloadTime(const v1::JobSpec& job, const v1::Layout& layout, const ClusterModel& cluster,
              const Recipe& recipe, int ranks, const RankState& state);

  // What the update takes longer that takes so many seconds in the device's memory. `beside`:
  // seconds of the step in which pages are written that nothing waits for.
  double Update(double seconds, double beside) const;
  // Reading so many weights of a shard for a gather; 0: they are in the device's memory.
  double Fetch(double elements) const;
  // Writing or reading so many bytes of what forward passes leave.
  double Activations(double bytes) const;

  // Bytes of a parameter of the rank's shard that lie elsewhere, which an update reads and writes.
  double state_bytes() const;
  // Whether passes read or write anything that lies elsewhere.
  bool slows_passes() const { return fetches_ || activations_on_disk_; }
  // Whether what lies in scratch files stays in the memory of the node as well, so that none of it
  // is read from the disk again.
  bool keeps_pages() const;

 private:
  // Seconds to read or write so many bytes, while all ranks of the node do the same.
  double Link(double bytes) const;
  double HostMemory(double bytes) const;
  double Disk(double bytes) const;

  double UpdateByDevice() const;
  double UpdateByHost() const;
  double UpdateInFile(double beside) const;

  const Host host_;
  const RankState state_;
  const Recipe& recipe_;
  double ranks_of_node_ = 1;
  bool on_disk_ = false;  // what lies elsewhere; else on the host
  bool activations_on_disk_ = false;
  double moments_ = 0;  // the fraction of a shard's moments that lies elsewhere
  double master_ = 0;   // the same for its fp32 weights
  bool fetches_ = false;
  double value_bytes_ = 4;  // bytes of a weight that the model reads
};

}  // namespace tercio::plan::cost

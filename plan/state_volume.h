// What data ranks send each other in a step for the sake of the training state: gradients to where
// they are summed, and weights to where they are read (plan/state_shards.h). Pure.
#pragma once

#include <vector>

#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Bytes, mean over the ranks of a stage: those of our own collectives (collective/communicator.h);
// NCCL's rings send as many.
struct StateVolume {
  double gathered = 0;  // weights
  double reduced = 0;   // gradients

  double sum() const { return gathered + reduced; }
};
StateVolume VolumeOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage);

// How many times each layer of a stage is gathered in a step, with the other ranks that divide the
// state or, after the first time, with the neighbours that keep it. 0: layers are not gathered.
struct LayerGathers {
  int whole = 0;
  int kept = 0;
};
std::vector<LayerGathers> GathersOfLayers(const v1::JobSpec& job, const v1::Layout& layout,
                                          int stage);

}  // namespace tercio::plan

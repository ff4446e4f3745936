// Where data ranks divide the state (plan/state_shards.h), each updates the weights of its shard:
// here all get those of the others, beside whatever the rank computes. After an update all of them,
// unit by unit in the order in which the forward pass reads them; or, where ranks keep weights of
// their shards only, what is no layer then, and a layer before each pass through it, into one of
// two places, while the layer before it is computed in the other one.
//
// Threads: that of the engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/values.h"
#include "plan/state_shards.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/step_trace.h"
#include "worker/progress/whereabouts.h"

namespace tercio::engine {

class WeightGather {
 public:
  // Weights travel on the second stream.
  struct Streams {
    device::Stream& compute;
    device::Stream& communication;
    device::Event& updated;
    // One for each place of layers.
    std::array<device::Event*, 2> gathered;
  };
  // `weights`: those that the model reads, StateUnit::model_offset; `master`: the fp32 weights of
  // the shard, where the model does not read them (RankShards::divides_weights). All of it outlives
  // the object.
  WeightGather(const plan::RankShards& shards, const plan::StageTensors& tensors,
               kernels::Values weights, const float* master, collective::Communicator& data,
               Streams streams, StepTrace& trace, progress::Whereabouts& where);

  // The weights of this rank's shard have changed where the compute stream is: they have to reach
  // the others before the next pass.
  void OnUpdate() {
    is_current_ = false;
    there_ = {-1, -1};
  }
  // Starts sending them, if they have changed. Collective over the data ranks.
  void Begin();
  // All weights, but for those of layers that are gathered before each pass, are complete where the
  // compute stream is after this; if Begin was called.
  void Await();

  // Before a pass through a layer, counted on the stage: its weights are complete where the compute
  // stream is after this, until the next call for a layer of the same place. Starts to gather
  // `next`, the layer that the pass comes to after it; or the same one. Collective as Begin.
  // REQUIRES: divides_weights.
  void Use(size_t layer, size_t next);

 private:
  void Gather(const plan::StateUnit& unit);
  void Fetch(size_t layer);
  // The communication stream waits for what has been computed so far.
  void Follow();

  const plan::RankShards& shards_;
  const plan::StageTensors& tensors_;
  const kernels::Values weights_;
  const float* const master_;
  collective::Communicator& data_;
  const Streams streams_;
  StepTrace& trace_;
  progress::Whereabouts& where_;
  std::vector<std::vector<const plan::StateUnit*>> layers_;  // units of each
  std::array<int64_t, 2> there_ = {-1, -1};                  // the layer in each place; -1: none
  bool is_current_ = false;  // ranks start, and load, with their shards
  bool under_way_ = false;
};

}  // namespace tercio::engine

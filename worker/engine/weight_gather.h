// Where data ranks divide the state (plan/state_shards.h), each updates the weights of its shard:
// here all get those of the others, unit by unit in the order in which the forward pass reads them,
// beside whatever the rank does until then.
//
// Threads: that of the engine.
#pragma once

#include <cstddef>
#include <cstdint>

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
  };
  // `weights`: those that the model reads, in the layout of plan/model_tensors.h, of
  // `element_bytes` each. All of it outlives the object.
  WeightGather(const plan::RankShards& shards, std::byte* weights, int64_t element_bytes,
               collective::Communicator& data, Streams streams, StepTrace& trace,
               progress::Whereabouts& where);

  // The weights of this rank's shard have changed where the compute stream is: they have to reach
  // the others before the next pass.
  void OnUpdate() { is_current_ = false; }
  // Starts sending them, if they have changed. Collective over the data ranks.
  void Begin();
  // The weights are complete where the compute stream is after this; if Begin was called.
  void Await();

 private:
  const plan::RankShards& shards_;
  std::byte* const weights_;
  const int64_t element_bytes_;
  collective::Communicator& data_;
  const Streams streams_;
  StepTrace& trace_;
  progress::Whereabouts& where_;
  bool is_current_ = false;  // ranks start, and load, with their shards
  bool under_way_ = false;
};

}  // namespace tercio::engine

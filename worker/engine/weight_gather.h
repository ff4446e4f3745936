// Where data ranks divide the state (plan/state_shards.h), each updates the weights of its shard:
// here all get those of the others, beside whatever the rank computes. After an update all of them,
// unit by unit in the order in which the forward pass reads them; or, where weights are gathered
// (plan::GathersWeights), what is no layer then, and a layer before each pass through it, into one
// of a few places, while layers before it are computed in the others. Neighbours may keep a
// gathered layer, each its part of it, and have it from each other until the next update. Where
// weights have a block format, what the model reads is made here in every layout.
//
// Threads: that of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/values.h"
#include "plan/program.h"
#include "plan/state_shards.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/packed_exchange.h"
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
    // One for each place of layers, or, where these are not gathered for each pass, EventsOf.
    std::vector<device::Event*> gathered;
  };
  // `of_model`: those that the model reads, StateUnit::model_offset; `master`: the fp32 weights of
  // the shard, or of the stage where it is not divided; `near`: those of units that are near, where
  // they are split (RankShards::splits_master); `frozen`: RankShards::frozen_buffer; `kept`: this
  // rank's parts of gathered layers, StateUnit::secondary_offset.
  struct Weights {
    kernels::Values of_model;
    const float* master;
    const float* near;
    kernels::ConstValues frozen;
    kernels::Values kept;
  };
  // Ranks that divide the state, and neighbours that keep gathered layers; null: none do.
  struct Groups {
    collective::Communicator& shard;
    collective::Communicator* secondary;
  };
  // All of it outlives the object.
  WeightGather(const plan::RankShards& shards, Weights weights, Groups groups,
               PackedExchange& packed, Arena& arena, Streams streams, StepTrace& trace,
               progress::Whereabouts& where);

  // Events that it needs: one for each place, or for the embedding, each layer and the head.
  static size_t EventsOf(const plan::RankShards& shards);

  // Whether there is anything to do: the model does not read what this rank updates.
  bool IsNeeded() const {
    return shards_.divided() || shards_.gathers_weights || packed_.packs_weights();
  }

  // The weights of this rank's shard have changed where the compute stream is: they have to reach
  // the others before the next pass.
  void OnUpdate() { is_current_ = false; }
  // Starts sending them, if they have changed. Collective over the ranks that divide the state.
  void Begin();
  // The same by steps of a program, which publishes what an update has changed of its units, in
  // their order.
  void BeginPublishing();
  void Publish(int unit) { Publish(unit, /*frozen=*/false); }
  // All weights, but for those of layers that are gathered before each pass, are complete where the
  // compute stream is after this; if Begin was called.
  void Await();

  // Gathers a layer of the stage into its place, for all passes until another one is gathered
  // there: from the ranks that divide the state, or, once that was done since the last update, from
  // the neighbours that keep it. REQUIRES: layers are gathered (plan/program.h says when).
  // Collective.
  void GatherLayer(size_t layer, bool kept);

  // The weights that a unit of the stage (plan/program.h) reads are complete where the compute
  // stream is after this.
  void AwaitUnit(int unit);

 private:
  size_t RunOf(int unit) const { return static_cast<size_t>(unit + first_layer_); }
  // `frozen`: with what is frozen.
  void Publish(int unit, bool frozen);
  void Gather(const plan::StateUnit& unit);
  void GatherKept(const plan::StateUnit& unit);
  void Keep(const plan::StateUnit& unit);
  // What Begin has sent last up to the event of this index.
  void AwaitUpTo(size_t event);
  // Enqueues work; where the step is traced, its time becomes an event.
  void Traced(const std::string& what, absl::FunctionRef<void()> enqueue);
  // The communication stream waits for what has been computed so far.
  void Follow();
  // This rank's part of a unit in what its weights are made of.
  kernels::ConstValues MasterOf(const plan::StateUnit& unit) const;
  // Runs `wait`, which makes the compute stream wait for weights.
  void Waited(absl::FunctionRef<void()> wait);

  const plan::RankShards& shards_;
  const Weights weights_;
  const Groups groups_;
  PackedExchange& packed_;
  Arena& arena_;
  const Streams streams_;
  StepTrace& trace_;
  progress::Whereabouts& where_;
  using Units = std::vector<const plan::StateUnit*>;
  std::vector<Units> layers_;  // of each that is gathered
  std::vector<Units> runs_;    // of the embedding, each layer, the head
  int first_layer_ = 0;        // its index there
  bool is_current_ = false;    // ranks start, and load, with their shards
  bool under_way_ = false;
  size_t awaited_ = 0;  // events of this gathering that were waited for
};

}  // namespace tercio::engine

// Weights and sums of gradients as they travel in a block format between the ranks that divide the
// state (plan/packed_units.h): packed by their sender, and unpacked where they arrive. What is
// packed is what the format makes of a number, so that nothing is lost on the way, and a rank alone
// computes the same.
//
// Threads: that of the engine; the work is enqueued on the stream of the exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "plan/model_tensors.h"
#include "plan/packed_units.h"
#include "plan/state_shards.h"
#include "plan/sum_tree.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"

namespace tercio::engine {

class PackedExchange {
 public:
  // `ranks`: those that divide the state; `sums`: the same, for gradients. They outlive the object,
  // as does the arena's memory.
  // Without a format for the weights, or the gradients, their methods must not be called.
  PackedExchange(const plan::RankShards& shards, const plan::StageTensors& tensors,
                 kernels::BlockFormat weights, kernels::BlockFormat gradients, Arena& arena,
                 collective::Communicator& ranks, collective::Communicator& sums);

  bool packs_weights() const { return !weights_.empty(); }
  bool packs_gradients() const { return !gradients_.empty(); }

  // The unit at `place`, as the model reads it, from the master weights of this rank's part, whose
  // first element is `own`. With one rank that has all of them nothing is sent. Collective.
  void Gather(device::Stream& stream, size_t unit, const float* own, kernels::Values place);

  // In a round of the step, this rank's part of the unit's gradients becomes the sum over ranks of
  // what the format makes of theirs, added as a tree. Collective.
  void Reduce(device::Stream& stream, size_t unit, int round, float* gradients);

 private:
  struct Buffers {
    std::byte* weights;
    std::byte* gradients;
    std::byte* received;
    float* floats;
  };

  const plan::RankShards& shards_;
  std::vector<plan::PackedUnit> weights_;    // by unit; empty: no format
  std::vector<plan::PackedUnit> gradients_;  // by unit; empty: no format
  const Buffers buffers_;
  collective::Communicator& ranks_;
  collective::Communicator& sums_;
  const plan::SumTree tree_;
};

}  // namespace tercio::engine

// Fills an engine with its state from storage. The slices that it needs are cut into pieces; each
// of them is read by one rank of the data-parallel group, all ranks of which need the same, and
// broadcast to the others: the number of bytes read does not grow with the group, and its ranks
// read at the same time. Where the ranks divide the state, each reads its shard.
//
// Threads: the engine's; the loader reads ahead in one of its own. Errors: a piece that could not
// be read ends the loading of the whole group, on every rank with the error of the one that has
// read; else those of the collectives and of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/load_target.h"
#include "worker/trainer/state_source.h"

namespace tercio::trainer {

// Consecutive values of a slice.
struct StatePiece {
  size_t slice = 0;  // index in the engine's NeededSlices, or InitialSlices
  v1::TensorSlice part;
  int64_t offset = 0;  // place of its first value in the slice
  int64_t elements = 0;
  int reader = 0;  // rank in the group
};

// In loading order, for a group of `ranks` ranks; each reads about as many bytes. Pure.
std::vector<StatePiece> PiecesOf(const std::vector<v1::TensorSlice>& slices,
                                 const StateSource& source, int ranks);

// The data-parallel group, and what its collectives need. Not owned.
struct LoadGroup {
  collective::Communicator& data;
  device::Device& device;
  device::Stream& stream;
  bool divides_state = false;  // ranks need slices of their own (plan/state_shards.h)
};

// Called from any thread whenever bytes arrive: with those that this rank has read, of its share.
using LoadedBytes = std::function<void(int64_t bytes, int64_t total)>;

// Where values are read to. Directly into the engine is fastest; through buffers, a reading thread
// that hangs and is abandoned cannot write into an engine that is used again after an error.
enum class LoadPath { kDirect, kThroughBuffers };

absl::Status LoadState(std::shared_ptr<StateSource> source, const LoadGroup& group,
                       const LoadedBytes& loaded, engine::LoadTarget& engine,
                       LoadPath path = LoadPath::kDirect);

}  // namespace tercio::trainer

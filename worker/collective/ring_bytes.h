// Bytes that a rank sends to its neighbour in collectives over a ring of all ranks (Patarasuk and
// Yuan 2009), which moves the least possible. Pure.
//
// NCCL also uses trees and switches, and reports no bytes: these figures say what has to move,
// whichever way it takes. REQUIRES: at least one rank, and that 2 * ranks * bytes fits into 64
// bits.
#pragma once

#include <cstdint>

namespace tercio::collective {

// Every rank ends with the sum of `bytes`: they go around the ring twice, except for a rank's own
// part.
inline int64_t RingAllReduceBytes(int64_t bytes, int ranks) {
  return 2 * (ranks - 1) * bytes / ranks;
}

// One of two halves of the above, by the bytes of each rank's block.
inline int64_t RingReduceScatterBytes(int64_t block_bytes, int ranks) {
  return (ranks - 1) * block_bytes;
}
inline int64_t RingAllGatherBytes(int64_t block_bytes, int ranks) {
  return (ranks - 1) * block_bytes;
}

// Each rank passes them on, except for the one before the root.
inline int64_t RingBroadcastBytes(int64_t bytes, int rank, int root, int ranks) {
  return (rank + 1) % ranks == root ? 0 : bytes;
}

}  // namespace tercio::collective

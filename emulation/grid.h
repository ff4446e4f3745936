// Runs the grid of one kernel on the host. The threads of a block are fibers; blocks come one after
// the other. A barrier waits for all threads of the block, a warp operation for the lanes of its
// mask. Ends the program, with kernel, block, threads and both places in the source, where
//   - some threads of a block wait at one barrier or warp operation, and others wait at another one
//     or have returned;
//   - a lane calls an operation that its mask does not name, names a lane that the block does not
//     have, or reads from a lane that takes no part;
//   - memory past the end of the dynamic shared memory was written.
// A GPU may do anything in these cases.
//
// Threads: a grid runs on the thread that calls RunGrid, any number of threads have theirs.
#pragma once

#include <cstdint>
#include <functional>

#include "emulation/orders.h"
#include "emulation/vector_types.h"

// The indices of the running thread, by CUDA's names. Not to be written by kernels.
extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;

namespace tercio::emulation {

inline constexpr int kWarpLanes = 32;
inline constexpr unsigned int kMaxThreadsPerBlock = 1024;

// One launch.
struct Grid {
  const void* kernel;  // its address, for its name
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;              // dynamic shared memory of a block
  const std::function<void()>* thread;  // what every thread runs
};

void RunGrid(const Grid& grid, const Orders& orders);

// "Scale<float>", or the address where the program has no symbols.
const char* KernelName(const void* kernel);

// The place of a call in the source, as a default argument. (Clang 14, whose clang-tidy reads this,
// lacks the standard's type for it.)
struct Place {
  const char* file = "";
  int line = 0;
  static constexpr Place Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// Below: functions that threads of a kernel call, through device_functions.h.

// fmaxf, without a call of a library: NaN loses against any number.
inline float LargerOf(float x, float y) {
  if (x != x) return y;
  return y > x ? y : x;
}

void* DynamicSharedMemory();

enum class BarrierKind { kPlain, kOr, kAnd, kCount };
int Barrier(BarrierKind kind, bool predicate, Place where);

enum class WarpOperation {
  kSync,
  kBallot,
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kSum,
  kLargest
};
// Result of a shuffle: the `value` of the source lane. kBallot: the lanes whose value is not 0.
// operand: the lane, the distance or the bits to change; width: that of CUDA's shuffles. kSum,
// kLargest: of floats, by all lanes of a whole warp, in the order of a butterfly of shuffles.
uint64_t WarpExchange(WarpOperation operation, uint32_t mask, uint64_t value, int operand,
                      int width, Place where);

}  // namespace tercio::emulation

// How long work takes on a stream, where one of several ways to compute the same is chosen.
//
// Threads: the calling thread, which waits for the stream.
#pragma once

#include <cuda_runtime.h>

#include <limits>

namespace tercio::kernels::cuda {

inline constexpr int kWarmUps = 2;
inline constexpr int kTimedRuns = 8;
// What is measured is faster only if it takes less time by this share.
inline constexpr float kTimingNoise = 0.02f;

// Milliseconds of kTimedRuns calls of run(), which enqueues work on the stream and returns whether
// it could. Infinity if it, or the measurement, fails.
template <typename Run>
float TimeRuns(cudaStream_t stream, const Run& run) {
  const auto repeat = [&run](int count) {
    for (int i = 0; i < count; ++i) {
      if (!run()) return false;
    }
    return true;
  };
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  float milliseconds = std::numeric_limits<float>::infinity();
  if (cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess &&
      // The events lie around the timed runs only, since the first runs load the kernels.
      repeat(kWarmUps) && cudaEventRecord(begin, stream) == cudaSuccess && repeat(kTimedRuns) &&
      cudaEventRecord(end, stream) == cudaSuccess && cudaEventSynchronize(end) == cudaSuccess) {
    cudaEventElapsedTime(&milliseconds, begin, end);
  }
  if (begin != nullptr) cudaEventDestroy(begin);
  if (end != nullptr) cudaEventDestroy(end);
  return milliseconds;
}

}  // namespace tercio::kernels::cuda

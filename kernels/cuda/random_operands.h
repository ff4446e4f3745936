// Operands for timing. A GPU under full load lowers its clocks until it keeps to its power limit,
// and the power of a product depends on how many bits change from value to value: with constant
// operands a GPU would be faster than in training.
//
// Threads: thread-compatible.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/values.h"

namespace tercio::kernels::cuda {

class RandomOperands {
 public:
  // The object outlives what it enqueues.
  explicit RandomOperands(cudaStream_t stream) : stream_(stream) {}

  // Fills `bytes` of the device with normal numbers of mean 0 and deviation 1 in the stored format:
  // always the same ones, which repeat after kPeriod. Returns the first error.
  cudaError_t Fill(Values to, int64_t bytes);

  static constexpr int64_t kPeriod = int64_t{1} << 18;  // elements

 private:
  struct FreePinned {
    void operator()(std::byte* memory) const { cudaFreeHost(memory); }
  };
  using Pinned = std::unique_ptr<std::byte[], FreePinned>;

  // Null: the error is `error`.
  static Pinned MakePeriod(Format format, cudaError_t* error);

  const cudaStream_t stream_;
  std::map<Format, Pinned> periods_;
};

}  // namespace tercio::kernels::cuda

// Kernels over a list of tensors: each block of a launch has a piece of one of them. Lists go with
// the launch, as its parameter; longer ones take several launches.
#pragma once

#include <cstdint>

namespace tercio::kernels::cuda {

// The assignment of a launch's blocks to tensors.
template <int kMost>
struct BlocksOfTensors {
  int first[kMost + 1] = {};  // first block of each tensor, and the end of the last one
  int tensors = 0;

  // REQUIRES: tensors < kMost.
  void Add(int64_t blocks) {
    first[tensors + 1] = first[tensors] + static_cast<int>(blocks);
    ++tensors;
  }
  int blocks() const { return first[tensors]; }

  // The tensor of a block; `piece` becomes the block's number within it.
  __device__ __forceinline__ int Find(int block, int* piece) const {
    int low = 0;
    int high = tensors;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    *piece = block - first[low];
    return low;
  }
};

}  // namespace tercio::kernels::cuda

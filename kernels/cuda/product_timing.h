// Chooses algorithms of products by timing them, before anything else is on the device.
//
// Threads: the calling thread, which must be the device's.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/product_algorithms.h"

namespace tercio::kernels::cuda {

// Bytes of device memory that timing these shapes takes, beside a workspace.
int64_t BytesForTiming(const std::vector<ProductShape>& shapes);

struct TimingMemory {
  std::byte* operands = nullptr;  // BytesForTiming, at a multiple of 256
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Adds to the table an algorithm for each shape that it does not have: the fastest that the library
// offers within the workspace. For a shape whose epilogue the library lacks, one for the product
// without. The factors are garbage.
void TimeProducts(const std::vector<ProductShape>& shapes, const TimingMemory& memory,
                  cudaStream_t stream, ProductAlgorithms* table, OperationErrors* errors);

}  // namespace tercio::kernels::cuda

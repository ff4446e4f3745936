// Chooses algorithms of products, and which operations are fused with them, by timing, before
// anything else is on the device.
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

// Bytes of a workspace that all algorithms fit into which products have in a job, and all kernels
// of our own that an epilogue is compared with.
int64_t WorkspaceForTiming(const std::vector<ProductShape>& shapes);

struct TimingMemory {
  std::byte* operands = nullptr;  // BytesForTiming, at a multiple of 256
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Adds to the table an algorithm for each shape that it does not have: the fastest that the library
// offers within the workspace. For a shape with an epilogue also one for the product without; where
// the library lacks the epilogue, or is slower with it than our own kernel behind the product, the
// table says that both are computed separately. The factors are random numbers, the same each time.
void TimeProducts(const std::vector<ProductShape>& shapes, const TimingMemory& memory,
                  cudaStream_t stream, ProductAlgorithms* table, OperationErrors* errors);

}  // namespace tercio::kernels::cuda

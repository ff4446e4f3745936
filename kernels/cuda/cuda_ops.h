// kernels/ops.h on CUDA. Values are stored in their format: bf16 and fp16 in 16 bits. All scratch
// is the workspace. It makes none of Promises: sums over rows have a fixed order that depends on
// their number, as the bits of a product's rows may, and products of bf16 values keep denormal
// numbers. The bits of our own kernels do not depend on the alignment of their operands.
//
// Threads: one thread feeds an Ops. Ownership: stream, workspace, errors, algorithms and notes are
// the caller's and outlive it. Errors: an operation that cannot be started is recorded in `errors`;
// from then on no operation does anything. An error while it runs is returned by the next
// synchronization of the stream, and noticed here at the next operation.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/notes.h"
#include "kernels/cuda/product_algorithms.h"
#include "kernels/ops.h"

namespace tercio::kernels::cuda {

// kAuto: cuDNN if it is there and accepts the call (attention_cudnn.h), else our own kernel.
enum class AttentionKernel { kAuto, kOwn };

struct CudaOpsOptions {
  cudaStream_t stream = nullptr;
  // At least CudaScratchBytes (scratch.h), at a multiple of 256. It decides which algorithms
  // products may have.
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
  OperationErrors* errors = nullptr;
  // Algorithms of products: known ones are used, chosen ones are added. Null: none are kept.
  ProductAlgorithms* algorithms = nullptr;
  AttentionKernel attention = AttentionKernel::kAuto;
  // Receives notes about how operations are computed. Null: they are dropped.
  OperationNotes* notes = nullptr;
  bool tf32 = false;  // products of fp32 factors may round them to TF32
  bool fuses =
      true;  // RunChain joins operations in one pass; else each has its own, for comparison
};

std::unique_ptr<Ops> CreateCudaOps(const CudaOpsOptions& options);

}  // namespace tercio::kernels::cuda

// Operations on buffers without shape, on a CUDA stream: the formulas and bits of kernels/ops.h. T,
// From and To are float, __nv_bfloat16 or __half; starts need only the alignment of an element.
// Sums do not depend on the device: their order is the contract's, without atomic operations.
//
// Errors: launch.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace tercio::kernels::cuda {

// a[i] = a[i] + b[i], added in fp32 and rounded to T.
template <typename T>
void Add(T* a, const T* b, int64_t count, cudaStream_t stream);
// a[i] = a[i] * factor, multiplied in fp32 and rounded to T.
template <typename T>
void MultiplyBy(T* a, float factor, int64_t count, cudaStream_t stream);
template <typename T>
void Zero(T* a, int64_t count, cudaStream_t stream);
// to[i] = from[i], rounded where To has fewer bits. Values of one type may stay where they are.
template <typename To, typename From>
void Convert(To* to, const From* from, int64_t count, cudaStream_t stream);
template <typename T>
void Copy(T* to, const T* from, int64_t count, cudaStream_t stream) {
  Convert(to, from, count, stream);
}

// *digest as Ops::Digest; the bits of 16-bit elements count as numbers of 16 bits.
struct DigestMemory {
  uint64_t* scratch;  // DigestBytes (scratch.h)
  uint64_t* digest;
};
// The numbers of elements, as DigestArgs has them.
struct ElementNumbers {
  int64_t columns;
  int64_t first;
  int64_t stride;
};
template <typename T>
void Digest(const T* a, int64_t count, const ElementNumbers& numbers, const DigestMemory& memory,
            cudaStream_t stream);

}  // namespace tercio::kernels::cuda

// CUDA's operations, one function each, split into files by topic. CudaOps (cuda_ops.h) calls them;
// contracts are in kernels/ops.h. Each enqueues its kernels on the stream and returns; none
// allocates. Values are stored in their format.
//
// Errors: launch.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "common/check.h"
#include "kernels/ops.h"

namespace tercio::kernels::cuda {

struct CudaContext {
  cudaStream_t stream = nullptr;
  // Operations of the stream share it; aligned to 256 bytes. Sizes: scratch.h.
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
  // The most that a launch may ask for, for a block.
  int64_t shared_bytes = 0;

  template <typename T>
  T* Scratch(int64_t bytes) const {
    TERCIO_CHECK_LE(bytes, workspace_bytes);
    return reinterpret_cast<T*>(workspace);
  }
};

// With `residual` its sum comes first, and is what is normalized. Returns whether the result has
// been rounded as `quantize` says, too, for which there is a kernel of values of bf16, in rows at
// multiples of 16 bytes; never if that is null.
bool LayerNormCuda(const LayerNormArgs& args, const ResidualArgs* residual,
                   const QuantizeArgs* quantize, const CudaContext& context);
void LayerNormBackwardCuda(const LayerNormBackwardArgs& args, const CudaContext& context);

void HeadNormCuda(const HeadNormArgs& args, const CudaContext& context);
void HeadNormBackwardCuda(const HeadNormBackwardArgs& args, const CudaContext& context);

void ResidualCuda(const ResidualArgs& args, const CudaContext& context);
void ResidualBackwardCuda(const ResidualBackwardArgs& args, const CudaContext& context);
void ColumnsCuda(const ColumnsArgs& args, const CudaContext& context);
// out[c] = or += the sum of value[row, c].
struct ColumnSumsArgs {
  ConstValues value;  // (rows, columns)
  float* out;         // (columns)
  int64_t rows, columns;
  bool accumulate;
};
void ColumnSumsCuda(const ColumnSumsArgs& args, const CudaContext& context);

// The block format is not kNone.
void RoundBlocksCuda(Values to, const float* from, int64_t count, BlockFormat format,
                     const CudaContext& context);
void PackBlocksCuda(std::byte* packed, const float* from, int64_t count, BlockFormat format,
                    const CudaContext& context);
void UnpackBlocksCuda(Values to, const std::byte* packed, int64_t count, BlockFormat format,
                      const CudaContext& context);

void DequantizeBlocksCuda(const DequantizeBlocksArgs& args, const CudaContext& context);

void ChooseScaleCuda(const ChooseScaleArgs& args, const CudaContext& context);
void QuantizeCuda(const QuantizeArgs& args, const CudaContext& context);

void ActivateCuda(const ActivationArgs& args, const CudaContext& context);
void ActivateBackwardCuda(const ActivationBackwardArgs& args, const CudaContext& context);
// The result, rounded as `to` says in the same pass, where there is a kernel for that, as above.
// False: there is none, and nothing has happened.
bool ActivateQuantizeCuda(const ActivationArgs& args, const QuantizeArgs& to,
                          const CudaContext& context);
bool GatedQuantizeCuda(const GatedArgs& args, const QuantizeArgs& to, const CudaContext& context);
bool ActivateBackwardQuantizeCuda(const ActivationBackwardArgs& args, const QuantizeArgs& to,
                                  const CudaContext& context);
void GatedCuda(const GatedArgs& args, const CudaContext& context);
void GatedBackwardCuda(const GatedBackwardArgs& args, const CudaContext& context);
void BiasTanhCuda(const BiasTanhArgs& args, const CudaContext& context);
void TanhBackwardCuda(const TanhBackwardArgs& args, const CudaContext& context);
void RotaryCuda(const RotaryArgs& args, const CudaContext& context);

// With `wanted`, a word of the device: if that is 0 when the kernels run, they write nothing.
void AttentionCuda(const AttentionArgs& args, const CudaContext& context,
                   const uint32_t* wanted = nullptr);
void AttentionBackwardCuda(const AttentionBackwardArgs& args, const CudaContext& context,
                           const uint32_t* wanted = nullptr);

// Dropout of attention (ops.h) as a matrix of 16 bits: 1 where a weight is kept, 0 where it is
// dropped, either where the query does not see the key.
struct AttentionMaskArgs {
  Values mask;     // (sequences, heads, tokens, stride)
  int64_t stride;  // at least the tokens; a multiple of 8
  int64_t sequences, tokens, heads;
  int64_t first_head;
  bool causal;
  const int32_t* lengths;
  Dropout dropout;
};
void AttentionMaskCuda(const AttentionMaskArgs& args, const CudaContext& context);
// dk = dv = 0 in the rows behind each sequence's length.
void ZeroPaddingCuda(const AttentionBackwardArgs& args, const CudaContext& context);

void EmbeddingCuda(const EmbeddingArgs& args, const CudaContext& context);
void EmbeddingBackwardCuda(const EmbeddingBackwardArgs& args, const CudaContext& context);
void PositionEmbeddingCuda(const PositionEmbeddingArgs& args, const CudaContext& context);
void PositionEmbeddingBackwardCuda(const PositionEmbeddingBackwardArgs& args,
                                   const CudaContext& context);
void GatherCuda(const GatherArgs& args, const CudaContext& context);
void ScatterAddCuda(const ScatterAddArgs& args, const CudaContext& context);

void SoftCapCuda(const SoftCapArgs& args, const CudaContext& context);
void CrossEntropyLocalCuda(const CrossEntropyLocalArgs& args, const CudaContext& context);
void CrossEntropyCombineCuda(const CrossEntropyCombineArgs& args, const CudaContext& context);
void CrossEntropyBackwardCuda(const CrossEntropyBackwardArgs& args, const CudaContext& context);
// Statistics, losses and gradients in one pass over the logits, then AddLossesCuda.
void CrossEntropyCuda(const CrossEntropyArgs& args, const CudaContext& context);
void AddLossesCuda(const AddLossesArgs& args, const CudaContext& context);

void DistillationLocalCuda(const DistillationLocalArgs& args, const CudaContext& context);
void DistillationCombineCuda(const DistillationCombineArgs& args, const CudaContext& context);
void DistillationBackwardCuda(const DistillationBackwardArgs& args, const CudaContext& context);
void SpreadLogitsCuda(const SpreadLogitsArgs& args, const CudaContext& context);

void AdamWCuda(const AdamWArgs& args, const CudaContext& context);
void SumsOfSquaresCuda(const SumsOfSquaresArgs& args, const CudaContext& context);

}  // namespace tercio::kernels::cuda

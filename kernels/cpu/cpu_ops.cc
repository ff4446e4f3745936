#include "kernels/cpu/cpu_ops.h"

#include <cstring>

#include "common/check.h"
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/eight_bits.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/thread_pool.h"

namespace tercio::kernels {
namespace {

class CpuOps : public Ops {
 public:
  explicit CpuOps(int threads) : pool_(threads) {}

  Promises promises() const override {
    return {.defined_products = true, .independent_rows = true, .leaf_sums = true};
  }
  void RunChain(const Chain& chain) override {
    if (!chain.residual || !chain.norm) return Ops::RunChain(chain);
    // Both in one pass, while a row is in the cache.
    ResidualCpu(*chain.residual, &*chain.norm, pool_);
    Chain rest = chain;
    rest.residual.reset();
    rest.norm.reset();
    Ops::RunChain(rest);
  }
  void Matmul(const MatmulArgs& a) override {
    Multiply({.a = a.x,
              .a_row_stride = a.k,
              .a_column_stride = 1,
              .b = a.w,
              .b_row_stride = 1,
              .b_column_stride = a.k,
              .c = a.y,
              .bias = a.bias,
              .m = a.m,
              .n = a.n,
              .k = a.k,
              .leaf = a.k,
              .accumulate = a.accumulate,
              .operands = a.x.format(),
              .result = a.y.format()});
  }
  void MatmulBackwardInput(const MatmulBackwardInputArgs& a) override {
    Multiply({.a = a.dy,
              .a_row_stride = a.n,
              .a_column_stride = 1,
              .b = a.w,
              .b_row_stride = a.k,
              .b_column_stride = 1,
              .c = a.dx,
              .bias = nullptr,
              .m = a.m,
              .n = a.k,
              .k = a.n,
              .leaf = a.n,
              .accumulate = a.accumulate,
              .operands = a.dy.format(),
              .result = a.dx.format()});
  }
  void MatmulBackwardWeight(const MatmulBackwardWeightArgs& a) override {
    if (a.dw == nullptr) {
      // The bias alone.
    } else if (a.m > 0) {
      Multiply({.a = a.dy,
                .a_row_stride = 1,
                .a_column_stride = a.n,
                .b = a.x,
                .b_row_stride = a.k,
                .b_column_stride = 1,
                .c = a.dw,
                .bias = nullptr,
                .m = a.n,
                .n = a.k,
                .k = a.m,
                .leaf = a.rows_per_leaf,
                .accumulate = a.accumulate,
                .operands = a.dy.format()});
    } else if (!a.accumulate) {
      // A rank without rows has a gradient of zero, and a product over nothing would write none.
      Zero(a.dw, a.n * a.k);
    }
    if (a.dbias == nullptr) return;
    // ColumnLeafSums only ever adds.
    if (!a.accumulate) Zero(a.dbias, a.n);
    ColumnLeafSums({.value = a.dy,
                    .out = a.dbias,
                    .rows = a.m,
                    .columns = a.n,
                    .rows_per_leaf = a.rows_per_leaf},
                   pool_);
  }
  void ChooseScale(const ChooseScaleArgs& a) override {
    *a.scale = ScaleFor(a.format, LargestMagnitude(a.x, a.count));
  }
  void Quantize(const QuantizeArgs& a) override { QuantizeCpu(a); }
  void ScaledMatmul(const ScaledMatmulArgs& a) override {
    ScaledMatmulCpu(a, pool_);
    // The function leaves sums in fp32; the contract wants the stored value.
    Round(a.c, a.m * a.n);
  }
  void LayerNorm(const LayerNormArgs& a) override { LayerNormCpu(a, pool_); }
  void LayerNormBackward(const LayerNormBackwardArgs& a) override {
    LayerNormBackwardCpu(a, pool_);
    // Kernels that read a row several times leave its rounding to the end.
    Round(a.dx, a.rows * a.columns);
  }
  void HeadNorm(const HeadNormArgs& a) override { HeadNormCpu(a, pool_); }
  void HeadNormBackward(const HeadNormBackwardArgs& a) override {
    HeadNormBackwardCpu(a, pool_);
    RoundRowsCpu({.x = a.dx, .rows = a.rows, .columns = a.heads * a.head_dim, .stride = a.stride},
                 pool_);
  }
  void Residual(const ResidualArgs& a) override { ResidualCpu(a, nullptr, pool_); }
  void ResidualBackward(const ResidualBackwardArgs& a) override {
    ResidualBackwardCpu(a, pool_);
    // Without dropout the gradient of the branch is that of the sum, and nothing was written.
    if (a.dropout.probability > 0) Round(a.dbranch, a.rows * a.columns);
  }
  void Columns(const ColumnsArgs& a) override { ColumnsCpu(a, pool_); }
  void Activate(const ActivationArgs& a) override { ActivateCpu(a, pool_); }
  void ActivateBackward(const ActivationBackwardArgs& a) override {
    ActivateBackwardCpu(a, pool_);
    Round(a.dh, a.rows * a.columns);
  }
  void Gated(const GatedArgs& a) override { GatedCpu(a, pool_); }
  void GatedBackward(const GatedBackwardArgs& a) override {
    GatedBackwardCpu(a, pool_);
    Round(a.dh, a.rows * 2 * a.columns);
  }
  void Rotary(const RotaryArgs& a) override {
    RotaryCpu(a, pool_);
    // Heads are a part of wider rows, whose rest is not this operation's.
    RoundRowsCpu({.x = a.x, .rows = a.rows, .columns = a.heads * a.head_dim, .stride = a.stride},
                 pool_);
  }
  void Attention(const AttentionArgs& a) override {
    const int64_t columns = a.heads * a.head_dim;
    if (a.pages != nullptr) {
      PagedAttentionCpu(a, pool_);
      for (int64_t i = 0; i < a.pages->count; ++i) {
        const PagedText& text = a.pages->texts[i];
        Round(a.out + text.first_row * columns, text.rows * columns);
      }
      return;
    }
    AttentionCpu(a, pool_);
    for (int64_t i = 0; i < a.sequences; ++i) {
      // Rows before first_query stay as they are, also their bits.
      Round(a.out + (i * a.tokens + a.first_query) * columns, (a.tokens - a.first_query) * columns);
    }
  }
  void AttentionBackward(const AttentionBackwardArgs& a) override {
    AttentionBackwardCpu(a, pool_);
    RoundRowsCpu({.x = a.dq,
                  .rows = a.sequences * a.tokens,
                  .columns = a.heads * a.head_dim,
                  .stride = a.stride},
                 pool_);
    for (const Values gradient : {a.dk, a.dv}) {
      RoundRowsCpu({.x = gradient,
                    .rows = a.sequences * KeyTokensOf(a),
                    .columns = a.heads / a.group * a.head_dim,
                    .stride = KeyStrideOf(a)},
                   pool_);
    }
  }
  void Embedding(const EmbeddingArgs& a) override {
    EmbeddingCpu(a, pool_);
    // Rows that are copied in their own format are rounded already.
    if (a.out.format() != a.weight.format() || a.scale != 1) Round(a.out, a.count * a.columns);
  }
  void EmbeddingBackward(const EmbeddingBackwardArgs& a) override {
    EmbeddingBackwardCpu(a, pool_);
  }
  void PositionEmbedding(const PositionEmbeddingArgs& a) override {
    PositionEmbeddingCpu(a, pool_);
    Round(a.x, a.rows * a.columns);
  }
  void PositionEmbeddingBackward(const PositionEmbeddingBackwardArgs& a) override {
    PositionEmbeddingBackwardCpu(a, pool_);
    Round(a.dx, a.rows * a.columns);
  }
  void Gather(const GatherArgs& a) override {
    GatherCpu(a, pool_);
    if (a.out.format() != a.x.format()) Round(a.out, a.count * a.columns);
  }
  void ScatterAdd(const ScatterAddArgs& a) override {
    ScatterAddCpu(a, pool_);
    if (a.to.format() == Format::kFloat32) return;
    // Only the rows that were added to have changed.
    for (int64_t i = 0; i < a.count; ++i) Round(a.to + a.index[i] * a.columns, a.columns);
  }
  void BiasTanh(const BiasTanhArgs& a) override {
    BiasTanhCpu(a, pool_);
    Round(a.y, a.rows * a.columns);
  }
  void TanhBackward(const TanhBackwardArgs& a) override {
    TanhBackwardCpu(a, pool_);
    Round(a.dx, a.count);
  }
  void SoftCap(const SoftCapArgs& a) override {
    SoftCapCpu(a, pool_);
    Round(a.x, a.count);
  }
  void CrossEntropyLocal(const CrossEntropyLocalArgs& a) override {
    CrossEntropyLocalCpu(a, pool_);
  }
  void CrossEntropyCombine(const CrossEntropyCombineArgs& a) override { CrossEntropyCombineCpu(a); }
  void CrossEntropyBackward(const CrossEntropyBackwardArgs& a) override {
    CrossEntropyBackwardCpu(a, pool_);
    // The stride counts padded columns, which the operation sets to zero.
    Round(a.logits, a.rows * a.stride);
  }
  void AddLosses(const AddLossesArgs& a) override {
    // The sums go in the order of the rows, whatever the threads do.
    for (int64_t i = 0; i < a.rows; ++i) a.sums[(a.first_row + i) / a.rows_per_sum] += a.loss[i];
  }
  void DistillationLocal(const DistillationLocalArgs& a) override {
    DistillationLocalCpu(a, pool_);
  }
  void DistillationCombine(const DistillationCombineArgs& a) override { DistillationCombineCpu(a); }
  void DistillationBackward(const DistillationBackwardArgs& a) override {
    DistillationBackwardCpu(a, pool_);
    Round(a.student, a.rows * a.stride);
  }
  void SpreadLogits(const SpreadLogitsArgs& a) override {
    SpreadLogitsCpu(a, pool_);
    Round(a.out, a.rows * a.stride);
  }
  void AdamW(const AdamWArgs& a) override {
    for (int64_t i = 0; i < a.tensor_count; ++i) {
      const AdamWTensor& tensor = a.tensors[i];
      AdamWCpu(a, tensor, pool_);
      // The working copy is made at once, while the values are in the cache.
      if (tensor.rounded != nullptr) Copy(tensor.rounded, tensor.parameter, tensor.count);
    }
  }
  void Add(Values a, ConstValues b, int64_t count) override {
    AddCpu(a, b, count, pool_);
    Round(a, count);
  }
  void Scale(Values a, float factor, int64_t count) override {
    ScaleCpu(a, factor, count, pool_);
    Round(a, count);
  }
  void Zero(Values a, int64_t count) override {
    // All bits zero are the number 0.
    std::memset(a.floats(), 0, static_cast<size_t>(count) * sizeof(float));
  }
  void Copy(Values to, ConstValues from, int64_t count) override {
    // Callers may copy a buffer to itself to round it, where memcpy must not be called.
    if (to.floats() != from.floats()) {
      std::memcpy(to.floats(), from.floats(), static_cast<size_t>(count) * sizeof(float));
    }
    if (to.format() != from.format()) Round(to, count);
  }
  void RoundBlocks(Values to, const float* from, int64_t count, BlockFormat format) override {
    if (format == BlockFormat::kNone) return Copy(to, from, count);
    RoundBlocksCpu(to, from, count, format, pool_);
  }
  void PackBlocks(std::byte* packed, const float* from, int64_t count,
                  BlockFormat format) override {
    if (format == BlockFormat::kNone) return Copy(reinterpret_cast<float*>(packed), from, count);
    PackBlocksCpu(packed, from, count, format, pool_);
  }
  void UnpackBlocks(Values to, const std::byte* packed, int64_t count,
                    BlockFormat format) override {
    if (format == BlockFormat::kNone) {
      return Copy(to, reinterpret_cast<const float*>(packed), count);
    }
    UnpackBlocksCpu(to, packed, count, format, pool_);
  }
  void DequantizeBlocks(const DequantizeBlocksArgs& a) override { DequantizeBlocksCpu(a, pool_); }
  void SumsOfSquares(const SumsOfSquaresArgs& a) override { SumsOfSquaresCpu(a, pool_); }
  void Digest(const DigestArgs& a) override { *a.digest = DigestCpu(a, pool_); }

 private:
  // Rounds the results of an operation that does not round by itself.
  void Round(Values x, int64_t count) { RoundCpu(x, count, x.format(), pool_); }

  void Multiply(GemmArgs args) {
    // Streams that never multiply (communication) never pay for the scratch.
    if (scratch_ == nullptr) {
      scratch_ = hwy::AllocateAligned<float>(static_cast<size_t>(GemmScratch(pool_.threads())));
      TERCIO_CHECK(scratch_ != nullptr);
    }
    if (args.operands == Format::kBfloat16) args.method = Bf16MethodOfProcess();
    Gemm(args, pool_, scratch_.get());
  }

  ThreadPool pool_;
  hwy::AlignedFreeUniquePtr<float[]> scratch_;
};

}  // namespace

std::unique_ptr<Ops> CreateCpuOps(int threads) { return std::make_unique<CpuOps>(threads); }

}  // namespace tercio::kernels

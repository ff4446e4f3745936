#include "kernels/cpu/cpu_ops.h"

#include <cstring>

#include "common/check.h"
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/thread_pool.h"

namespace tercio::kernels {
namespace {

class CpuOps : public Ops {
 public:
  explicit CpuOps(int threads) : pool_(threads) {}

  void Matmul(const MatmulArgs& a) override {
    Multiply({a.x, a.k, 1, a.w, 1, a.k, a.y, a.bias, a.m, a.n, a.k, a.k, a.accumulate, a.operands,
              a.result});
  }
  void MatmulBackwardInput(const MatmulBackwardInputArgs& a) override {
    Multiply({a.dy, a.n, 1, a.w, a.k, 1, a.dx, nullptr, a.m, a.k, a.n, a.n, a.accumulate,
              a.operands, a.result});
  }
  void MatmulBackwardWeight(const MatmulBackwardWeightArgs& a) override {
    Multiply({a.dy, 1, a.n, a.x, a.k, 1, a.dw, nullptr, a.n, a.k, a.m, a.rows_per_leaf,
              a.accumulate, a.operands});
    if (a.dbias == nullptr) return;
    if (!a.accumulate) Zero(a.dbias, a.n);
    ColumnLeafSums(a.dy, a.m, a.n, a.rows_per_leaf, a.dbias, pool_);
  }
  void LayerNorm(const LayerNormArgs& a) override { LayerNormCpu(a, pool_); }
  void LayerNormBackward(const LayerNormBackwardArgs& a) override {
    LayerNormBackwardCpu(a, pool_);
  }
  void Residual(const ResidualArgs& a) override { ResidualCpu(a, nullptr, pool_); }
  void ResidualLayerNorm(const ResidualArgs& a, const LayerNormArgs& norm) override {
    ResidualCpu(a, &norm, pool_);
  }
  void ResidualBackward(const ResidualBackwardArgs& a) override { ResidualBackwardCpu(a, pool_); }
  void BiasGelu(const BiasGeluArgs& a) override { BiasGeluCpu(a, pool_); }
  void BiasGeluBackward(const BiasGeluBackwardArgs& a) override { BiasGeluBackwardCpu(a, pool_); }
  void Swiglu(const SwigluArgs& a) override { SwigluCpu(a, pool_); }
  void SwigluBackward(const SwigluBackwardArgs& a) override { SwigluBackwardCpu(a, pool_); }
  void Rotary(const RotaryArgs& a) override { RotaryCpu(a, pool_); }
  void Attention(const AttentionArgs& a) override { AttentionCpu(a, pool_); }
  void AttentionBackward(const AttentionBackwardArgs& a) override {
    AttentionBackwardCpu(a, pool_);
  }
  void Embedding(const EmbeddingArgs& a) override { EmbeddingCpu(a, pool_); }
  void EmbeddingBackward(const EmbeddingBackwardArgs& a) override {
    EmbeddingBackwardCpu(a, pool_);
  }
  void PositionEmbedding(const PositionEmbeddingArgs& a) override {
    PositionEmbeddingCpu(a, pool_);
  }
  void PositionEmbeddingBackward(const PositionEmbeddingBackwardArgs& a) override {
    PositionEmbeddingBackwardCpu(a, pool_);
  }
  void Gather(const GatherArgs& a) override { GatherCpu(a, pool_); }
  void ScatterAdd(const ScatterAddArgs& a) override { ScatterAddCpu(a, pool_); }
  void BiasTanh(const BiasTanhArgs& a) override { BiasTanhCpu(a, pool_); }
  void TanhBackward(const TanhBackwardArgs& a) override { TanhBackwardCpu(a, pool_); }
  void CrossEntropyLocal(const CrossEntropyLocalArgs& a) override {
    CrossEntropyLocalCpu(a, pool_);
  }
  void CrossEntropyCombine(const CrossEntropyCombineArgs& a) override { CrossEntropyCombineCpu(a); }
  void CrossEntropyBackward(const CrossEntropyBackwardArgs& a) override {
    CrossEntropyBackwardCpu(a, pool_);
  }
  void AdamW(const AdamWArgs& a) override { AdamWCpu(a, pool_); }
  void Add(float* a, const float* b, int64_t count) override { AddCpu(a, b, count, pool_); }
  void Zero(float* a, int64_t count) override {
    std::memset(a, 0, static_cast<size_t>(count) * sizeof(float));
  }
  void Copy(float* to, const float* from, int64_t count) override {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  }
  void Round(float* x, int64_t count, Format format) override { RoundCpu(x, count, format, pool_); }
  void SumOfSquares(const float* a, int64_t count, double* sum) override {
    *sum = SumOfSquaresCpu(a, count, pool_);
  }
  void Digest(const float* a, int64_t count, uint64_t* digest) override {
    *digest = DigestCpu(a, count, pool_);
  }

 private:
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

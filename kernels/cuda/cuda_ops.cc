#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <memory>
#include <string>

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/launch.h"
#include "kernels/cuda/scratch.h"

namespace tercio::kernels::cuda {
namespace {

// Values carry a format at run time; kernels are compiled for each type.
template <typename T>
T* Elements(Values values) {
  return reinterpret_cast<T*>(values.data());
}
template <typename T>
const T* Elements(ConstValues values) {
  return reinterpret_cast<const T*>(values.data());
}

template <typename T>
void CopyTo(Values to, ConstValues from, int64_t count, cudaStream_t stream) {
  // Equal formats are a plain copy, whichever they are.
  if (from.stored() == to.stored()) {
    return Convert(Elements<T>(to), Elements<T>(from), count, stream);
  }
  if (from.stored() == Format::kFloat32) {
    return Convert(Elements<T>(to), Elements<float>(from), count, stream);
  }
  // Between two formats of 16 bits nothing is ever copied, so one side is fp32 here.
  TERCIO_CHECK(to.stored() == Format::kFloat32);
  if (from.stored() == Format::kBfloat16) {
    return Convert(Elements<float>(to), Elements<__nv_bfloat16>(from), count, stream);
  }
  Convert(Elements<float>(to), Elements<__half>(from), count, stream);
}

class CudaOps : public Ops {
 public:
  explicit CudaOps(const CudaOpsOptions& options)
      : errors_(*options.errors),
        fuses_(options.fuses),
        // The context is complete before any member that keeps a copy of it.
        context_{options.stream, options.workspace, options.workspace_bytes, SharedBytes()},
        products_({options.tf32, false},
                  options.algorithms == nullptr ? &algorithms_ : options.algorithms, &errors_,
                  options.notes) {
    // cuBLASLt's workspace has to begin at a multiple of 256.
    TERCIO_CHECK_EQ(reinterpret_cast<uintptr_t>(options.workspace) % 256, 0);
    if (options.attention == AttentionKernel::kAuto) {
      // Where the caller asks for our own kernel alone, the library is not even loaded.
      cudnn_ = std::make_unique<CudnnAttention>(context_, options.notes, &errors_);
    }
  }

  Promises promises() const override { return {}; }

  void RunChain(const Chain& c) override {
    if (!fuses_) return Ops::RunChain(c);
    const bool multiplies = c.product || c.scaled_product || c.input_gradient;
    const QuantizeArgs* quantize = c.quantize ? &*c.quantize : nullptr;
    // Rounding belongs to the operation that makes what is rounded.
    const bool ends_with_norm = !multiplies && !c.activation && !c.gated && !c.activation_gradient;
    bool quantized = false;
    if (c.norm) {
      quantized = Norm(*c.norm, c.residual ? &*c.residual : nullptr,
                       ends_with_norm && !c.gated_gradient ? quantize : nullptr);
    } else if (c.residual) {
      Residual(*c.residual);
    }
    const bool activated = RunProduct(c);
    if (!activated) quantized = RunActivation(c, quantize) || quantized;
    if (quantize != nullptr && !quantized) Quantize(*quantize);
  }

  void Matmul(const MatmulArgs& a) override {
    Run("Matmul", [&] {
      // The library refuses empty matrices, while a rank may well have no rows.
      if (a.m > 0 && a.n > 0) products_.Matmul(a, context_);
    });
  }
  void MatmulBackwardInput(const MatmulBackwardInputArgs& a) override {
    Run("MatmulBackwardInput", [&] {
      if (a.m > 0 && a.k > 0) products_.MatmulBackwardInput(a, context_);
    });
  }
  void MatmulBackwardWeight(const MatmulBackwardWeightArgs& a) override {
    Run("MatmulBackwardWeight", [&] {
      // `all` says that the product has made the gradient of the bias, too.
      const bool has_product = a.m > 0 && a.dw != nullptr;
      const bool all = has_product && products_.MatmulBackwardWeight(a, context_);
      // No rows mean a gradient of zero, unless it is added to an earlier one.
      if (a.m == 0 && a.dw != nullptr && !a.accumulate)
        SetZero("MatmulBackwardWeight", a.dw, a.n * a.k * 4);
      if (a.dbias == nullptr || all) return;
      ColumnSumsCuda(
          {.value = a.dy, .out = a.dbias, .rows = a.m, .columns = a.n, .accumulate = a.accumulate},
          context_);
    });
  }
  void ChooseScale(const ChooseScaleArgs& a) override {
    Run("ChooseScale", [&] { ChooseScaleCuda(a, context_); });
  }
  void Quantize(const QuantizeArgs& a) override {
    Run("Quantize", [&] { QuantizeCuda(a, context_); });
  }
  void ScaledMatmul(const ScaledMatmulArgs& a) override {
    Run("ScaledMatmul", [&] {
      if (a.m > 0 && a.n > 0) products_.ScaledMatmul(a, context_);
    });
  }
  void LayerNorm(const LayerNormArgs& a) override { Norm(a, nullptr, nullptr); }
  void LayerNormBackward(const LayerNormBackwardArgs& a) override {
    Run("LayerNormBackward", [&] { LayerNormBackwardCuda(a, context_); });
  }
  void HeadNorm(const HeadNormArgs& a) override {
    Run("HeadNorm", [&] { HeadNormCuda(a, context_); });
  }
  void HeadNormBackward(const HeadNormBackwardArgs& a) override {
    Run("HeadNormBackward", [&] { HeadNormBackwardCuda(a, context_); });
  }
  void Residual(const ResidualArgs& a) override {
    Run("Residual", [&] { ResidualCuda(a, context_); });
  }
  void ResidualBackward(const ResidualBackwardArgs& a) override {
    Run("ResidualBackward", [&] { ResidualBackwardCuda(a, context_); });
  }
  void Columns(const ColumnsArgs& a) override {
    Run("Columns", [&] { ColumnsCuda(a, context_); });
  }
  void Activate(const ActivationArgs& a) override {
    Run("Activate", [&] { ActivateCuda(a, context_); });
  }
  void ActivateBackward(const ActivationBackwardArgs& a) override {
    Run("ActivateBackward", [&] { ActivateBackwardCuda(a, context_); });
  }
  void Gated(const GatedArgs& a) override {
    Run("Gated", [&] { GatedCuda(a, context_); });
  }
  void GatedBackward(const GatedBackwardArgs& a) override {
    Run("GatedBackward", [&] { GatedBackwardCuda(a, context_); });
  }
  void Rotary(const RotaryArgs& a) override {
    Run("Rotary", [&] { RotaryCuda(a, context_); });
  }
  void Attention(const AttentionArgs& a) override {
    TERCIO_CHECK(a.pages == nullptr);  // texts grow on CPUs only
    Run("Attention", [&] {
      // cuDNN refuses calls that its graph cannot express, and those go to our own kernel.
      if (cudnn_ == nullptr || !cudnn_->Attention(a)) AttentionCuda(a, context_);
    });
  }
  void AttentionBackward(const AttentionBackwardArgs& a) override {
    Run("AttentionBackward", [&] {
      if (cudnn_ == nullptr || !cudnn_->AttentionBackward(a)) AttentionBackwardCuda(a, context_);
    });
  }
  void Embedding(const EmbeddingArgs& a) override {
    Run("Embedding", [&] { EmbeddingCuda(a, context_); });
  }
  void EmbeddingBackward(const EmbeddingBackwardArgs& a) override {
    Run("EmbeddingBackward", [&] { EmbeddingBackwardCuda(a, context_); });
  }
  void PositionEmbedding(const PositionEmbeddingArgs& a) override {
    Run("PositionEmbedding", [&] { PositionEmbeddingCuda(a, context_); });
  }
  void PositionEmbeddingBackward(const PositionEmbeddingBackwardArgs& a) override {
    Run("PositionEmbeddingBackward", [&] { PositionEmbeddingBackwardCuda(a, context_); });
  }
  void Gather(const GatherArgs& a) override {
    Run("Gather", [&] { GatherCuda(a, context_); });
  }
  void ScatterAdd(const ScatterAddArgs& a) override {
    Run("ScatterAdd", [&] { ScatterAddCuda(a, context_); });
  }
  void BiasTanh(const BiasTanhArgs& a) override {
    Run("BiasTanh", [&] { BiasTanhCuda(a, context_); });
  }
  void TanhBackward(const TanhBackwardArgs& a) override {
    Run("TanhBackward", [&] { TanhBackwardCuda(a, context_); });
  }
  void SoftCap(const SoftCapArgs& a) override {
    Run("SoftCap", [&] { SoftCapCuda(a, context_); });
  }
  void CrossEntropyLocal(const CrossEntropyLocalArgs& a) override {
    Run("CrossEntropyLocal", [&] { CrossEntropyLocalCuda(a, context_); });
  }
  void CrossEntropyCombine(const CrossEntropyCombineArgs& a) override {
    Run("CrossEntropyCombine", [&] { CrossEntropyCombineCuda(a, context_); });
  }
  void CrossEntropyBackward(const CrossEntropyBackwardArgs& a) override {
    Run("CrossEntropyBackward", [&] { CrossEntropyBackwardCuda(a, context_); });
  }
  void AddLosses(const AddLossesArgs& a) override {
    Run("AddLosses", [&] { AddLossesCuda(a, context_); });
  }
  void CrossEntropy(const CrossEntropyArgs& a) override {
    Run("CrossEntropy", [&] { CrossEntropyCuda(a, context_); });
  }
  void DistillationLocal(const DistillationLocalArgs& a) override {
    Run("DistillationLocal", [&] { DistillationLocalCuda(a, context_); });
  }
  void DistillationCombine(const DistillationCombineArgs& a) override {
    Run("DistillationCombine", [&] { DistillationCombineCuda(a, context_); });
  }
  void DistillationBackward(const DistillationBackwardArgs& a) override {
    Run("DistillationBackward", [&] { DistillationBackwardCuda(a, context_); });
  }
  void SpreadLogits(const SpreadLogitsArgs& a) override {
    Run("SpreadLogits", [&] { SpreadLogitsCuda(a, context_); });
  }
  void AdamW(const AdamWArgs& a) override {
    Run("AdamW", [&] { AdamWCuda(a, context_); });
  }

  void Add(Values a, ConstValues b, int64_t count) override {
    // Adding across formats would hide a conversion, which is an operation of its own.
    TERCIO_CHECK(a.stored() == b.stored());
    Run("Add", [&] {
      switch (a.stored()) {
        case Format::kFloat32:
          return cuda::Add(Elements<float>(a), Elements<float>(b), count, context_.stream);
        case Format::kBfloat16:
          return cuda::Add(Elements<__nv_bfloat16>(a), Elements<__nv_bfloat16>(b), count,
                           context_.stream);
        case Format::kFloat16:
          return cuda::Add(Elements<__half>(a), Elements<__half>(b), count, context_.stream);
        case Format::kE4m3:
        case Format::kE5m2:
          // Numbers of 8 bits only ever enter products, and are not added or copied.
          TERCIO_CHECK(false);
      }
    });
  }
  void Scale(Values a, float factor, int64_t count) override {
    Run("Scale", [&] {
      switch (a.stored()) {
        case Format::kFloat32:
          return MultiplyBy(Elements<float>(a), factor, count, context_.stream);
        case Format::kBfloat16:
          return MultiplyBy(Elements<__nv_bfloat16>(a), factor, count, context_.stream);
        case Format::kFloat16:
          return MultiplyBy(Elements<__half>(a), factor, count, context_.stream);
        case Format::kE4m3:
        case Format::kE5m2:
          // What has 8 bits was scaled before it was rounded, and has its factor beside it.
          TERCIO_CHECK(false);
      }
    });
  }
  void Zero(Values a, int64_t count) override {
    Run("Zero", [&] { SetZero("Zero", a.data(), a.BytesFor(count)); });
  }
  void Copy(Values to, ConstValues from, int64_t count) override {
    Run("Copy", [&] {
      switch (to.stored()) {
        case Format::kFloat32:
          return CopyTo<float>(to, from, count, context_.stream);
        case Format::kBfloat16:
          return CopyTo<__nv_bfloat16>(to, from, count, context_.stream);
        case Format::kFloat16:
          return CopyTo<__half>(to, from, count, context_.stream);
        case Format::kE4m3:
        case Format::kE5m2:
          TERCIO_CHECK(false);
      }
    });
  }
  void RoundBlocks(Values to, const float* from, int64_t count, BlockFormat format) override {
    if (format == BlockFormat::kNone) return Copy(to, from, count);
    Run("RoundBlocks", [&] { RoundBlocksCuda(to, from, count, format, context_); });
  }
  void PackBlocks(std::byte* packed, const float* from, int64_t count,
                  BlockFormat format) override {
    if (format == BlockFormat::kNone) return Copy(reinterpret_cast<float*>(packed), from, count);
    Run("PackBlocks", [&] { PackBlocksCuda(packed, from, count, format, context_); });
  }
  void UnpackBlocks(Values to, const std::byte* packed, int64_t count,
                    BlockFormat format) override {
    if (format == BlockFormat::kNone) {
      return Copy(to, reinterpret_cast<const float*>(packed), count);
    }
    Run("UnpackBlocks", [&] { UnpackBlocksCuda(to, packed, count, format, context_); });
  }
  void DequantizeBlocks(const DequantizeBlocksArgs& args) override {
    Run("DequantizeBlocks", [&] { DequantizeBlocksCuda(args, context_); });
  }
  void SumsOfSquares(const SumsOfSquaresArgs& args) override {
    Run("SumsOfSquares", [&] { SumsOfSquaresCuda(args, context_); });
  }
  void Digest(const DigestArgs& a) override {
    Run("Digest", [&] {
      const int64_t count = a.rows * a.columns;
      cuda::Digest(a.values, count, {.columns = a.columns, .first = a.first, .stride = a.stride},
                   // The digests of blocks go to the workspace, which is free between operations.
                   {.scratch = context_.Scratch<uint64_t>(DigestBytes(count)), .digest = a.digest},
                   context_.stream);
    });
  }
  bool ReadyToRecord() override { return cudnn_ == nullptr || cudnn_->HasVerdicts(); }

 private:
  // Each operation reports under its own name, which a failed kernel does not know.
  template <typename Body>
  void Run(const char* operation, const Body& body) {
    // After the first error the device's state is unknown, and more work would only bury the cause.
    if (errors_.first()) return;
    body();
    // The runtime's last error may be that of any other call of this thread, which would then fail
    // the job in this operation's name.
    const cudaError_t error = TakeLaunchError();
    if (error == cudaSuccess) return;
    errors_.Report(operation,
                   std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error));
  }

  bool Norm(const LayerNormArgs& a, const ResidualArgs* residual, const QuantizeArgs* quantize) {
    bool quantized = false;
    Run(residual == nullptr ? "LayerNorm" : "Residual, LayerNorm",
        [&] { quantized = LayerNormCuda(a, residual, quantize, context_); });
    return quantized;
  }

  // The chain's product. Returns whether it has done what follows it, in the library's pass.
  bool RunProduct(const Chain& c) {
    bool activated = false;
    if (c.product && c.activation && c.product->m > 0 && c.product->n > 0) {
      Run("Matmul, Gelu",
          [&] { activated = products_.MatmulGelu(*c.product, *c.activation, context_); });
    } else if (c.input_gradient && c.activation_gradient && c.input_gradient->m > 0 &&
               c.input_gradient->k > 0) {
      Run("MatmulBackwardInput, GeluBackward", [&] {
        activated =
            products_.MatmulGeluBackward(*c.input_gradient, *c.activation_gradient, context_);
      });
    }
    if (activated) return true;
    // Where the library lacks the epilogue, two operations give the same result.
    if (c.product) Matmul(*c.product);
    if (c.scaled_product) ScaledMatmul(*c.scaled_product);
    if (c.input_gradient) MatmulBackwardInput(*c.input_gradient);
    return false;
  }

  // What follows the product. Returns whether it has rounded its result as well.
  bool RunActivation(const Chain& c, const QuantizeArgs* quantize) {
    bool quantized = false;
    const auto with = [&](const char* operation, const auto& function, const auto& args) {
      if (quantize == nullptr) return false;
      Run(operation, [&] { quantized = function(args, *quantize, context_); });
      return quantized;
    };
    if (c.activation && !with("Activate, Quantize", ActivateQuantizeCuda, *c.activation))
      Activate(*c.activation);
    if (c.gated && !with("Gated, Quantize", GatedQuantizeCuda, *c.gated)) Gated(*c.gated);
    if (c.activation_gradient &&
        !with("ActivateBackward, Quantize", ActivateBackwardQuantizeCuda, *c.activation_gradient)) {
      ActivateBackward(*c.activation_gradient);
    }
    if (c.gated_gradient) GatedBackward(*c.gated_gradient);
    return quantized;
  }

  void SetZero(const char* operation, void* data, int64_t bytes) {
    const cudaError_t error = cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), context_.stream);
    if (error != cudaSuccess) errors_.Report(operation, cudaGetErrorName(error));
  }

  // The shared memory that the current device grants to a block, less that which kernels declare
  // themselves.
  int64_t SharedBytes() {
    int device = 0;
    int bytes = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
      // This limit is larger than the usual one; kernels that need it ask for it by an attribute.
      error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
    if (error != cudaSuccess) errors_.Report("CreateCudaOps", cudaGetErrorName(error));
    // The error is reported already, and a negative size would do more harm than none.
    return std::max<int64_t>(0, bytes - static_cast<int64_t>(kDeclaredSharedBytes));
  }

  OperationErrors& errors_;
  const bool fuses_;
  const CudaContext context_;
  // The table is declared before the products, which keep a reference to it.
  ProductAlgorithms algorithms_;  // if the caller has none
  Products products_;
  std::unique_ptr<CudnnAttention> cudnn_;  // null: our own kernel alone
};

}  // namespace

std::unique_ptr<Ops> CreateCudaOps(const CudaOpsOptions& options) {
  // Errors have no other way out: the operations return nothing.
  TERCIO_CHECK(options.errors != nullptr);
  return std::make_unique<CudaOps>(options);
}

}  // namespace tercio::kernels::cuda

#include "kernels/cuda/product_timing.h"

#include <algorithm>

#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/launch.h"
#include "kernels/cuda/random_operands.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/stream_timer.h"

namespace tercio::kernels::cuda {
namespace {

// Operands begin at multiples of 256 bytes, as those of cudaMalloc do.
constexpr int64_t kUnit = 256;

// Bytes of x or dy (m x n or k), w or x, the result, and the operand beside it (GELU's result or
// input, or the scale of both factors).
struct Sizes {
  int64_t first, second, result, beside, bias;

  int64_t total() const { return first + second + result + beside + bias; }
};

int64_t Bytes(int64_t elements, Format format) {
  return (elements * BytesOf(format) + kUnit - 1) / kUnit * kUnit;
}

Sizes SizesOf(const ProductShape& s) {
  if (IsScaled(s.kind)) {
    // Factors of 8 bits come with their scales, which lie in memory of the device.
    return {Bytes(s.m * s.k, s.operands), Bytes(s.n * s.k, Format::kE4m3),
            Bytes(s.m * s.n, s.result), Bytes(sizeof(Scale), Format::kE4m3), Bytes(s.n, s.result)};
  }
  const bool weight = s.kind == ProductKind::kWeightGradient;
  const bool forward = s.kind == ProductKind::kForward;
  const bool gelu =
      s.epilogue == ProductEpilogue::kGelu || s.epilogue == ProductEpilogue::kGeluGradient;
  const int64_t result = weight ? s.n * s.k : s.m * (forward ? s.n : s.k);
  // The product decides which sides the matrices have; the bytes follow in the order of the
  // operation.
  return {Bytes(s.m * (forward ? s.k : s.n), s.operands),
          Bytes(weight ? s.m * s.k : s.n * s.k, s.operands), Bytes(result, s.result),
          gelu ? Bytes(result, s.result) : 0, Bytes(s.n, Format::kFloat32)};
}

// The buffers of a timed product, one behind the other.
struct TimedBuffers {
  Values first, second, result, beside, bias;
};

TimedBuffers BuffersAt(std::byte* memory, const ProductShape& s) {
  const Sizes sizes = SizesOf(s);
  std::byte* at = memory;
  const auto take = [&at](int64_t bytes, Format format) {
    const Values values(at, format, format);
    at += bytes;
    return values;
  };
  TimedBuffers buffers;
  buffers.first = take(sizes.first, s.operands);
  buffers.second = take(sizes.second, s.operands);
  buffers.result = take(sizes.result, s.result);
  buffers.beside = take(sizes.beside, s.result);
  buffers.bias = take(sizes.bias, s.result);
  return buffers;
}

cudaError_t FillWithNumbers(const ProductShape& s, const TimedBuffers& buffers,
                            RandomOperands& random) {
  const Sizes sizes = SizesOf(s);
  cudaError_t error = cudaSuccess;
  const auto fill = [&](const Values& to, Format format, int64_t bytes) {
    if (error != cudaSuccess || bytes == 0) return;
    error = random.Fill(Values(to.data(), format, format), bytes);
  };
  const bool scaled = IsScaled(s.kind);
  fill(buffers.first, s.operands, sizes.first);
  fill(buffers.second, scaled ? Format::kE4m3 : s.operands, sizes.second);
  fill(buffers.result, s.result, sizes.result);
  // Scales are floats.
  fill(buffers.beside, scaled ? Format::kFloat32 : s.result, sizes.beside);
  fill(buffers.bias, s.result, sizes.bias);
  return error;
}

// The operation of a shape, and the two that it consists of where it has an epilogue.
class TimedOperation {
 public:
  TimedOperation(const ProductShape& shape, std::byte* memory, const CudaContext& context,
                 Products& products)
      : s_(shape), buffers_(BuffersAt(memory, shape)), context_(context), products_(products) {}

  const TimedBuffers& buffers() const { return buffers_; }

  // In one pass. False: the library lacks the epilogue.
  bool Fused() {
    switch (s_.kind) {
      case ProductKind::kForward:
        if (s_.epilogue == ProductEpilogue::kGelu) {
          return products_.MatmulGelu(ForwardArgs(), OfGelu(), context_);
        }
        products_.Matmul(ForwardArgs(), context_);
        return true;
      case ProductKind::kInputGradient:
        if (s_.epilogue == ProductEpilogue::kGeluGradient) {
          return products_.MatmulGeluBackward(InputGradientArgs(), OfGeluGradient(), context_);
        }
        products_.MatmulBackwardInput(InputGradientArgs(), context_);
        return true;
      case ProductKind::kWeightGradient:
        return products_.MatmulBackwardWeight(
            WeightGradientArgs(s_.epilogue == ProductEpilogue::kBiasGradient), context_);
      case ProductKind::kScaled:
      case ProductKind::kScaledFast:
        products_.ScaledMatmul(ScaledArgs(), context_);
        return true;
    }
    return true;
  }

  // The product, and then our own kernel.
  void Separate() {
    switch (s_.epilogue) {
      case ProductEpilogue::kNone:
        return;
      case ProductEpilogue::kGelu:
        products_.Matmul(ForwardArgs(), context_);
        return ActivateCuda(OfGelu(), context_);
      case ProductEpilogue::kGeluGradient:
        products_.MatmulBackwardInput(InputGradientArgs(), context_);
        return ActivateBackwardCuda(OfGeluGradient(), context_);
      case ProductEpilogue::kBiasGradient:
        products_.MatmulBackwardWeight(WeightGradientArgs(false), context_);
        return ColumnSumsCuda({.value = buffers_.first,
                               .out = buffers_.bias,
                               .rows = s_.m,
                               .columns = s_.n,
                               .accumulate = s_.accumulate},
                              context_);
    }
  }

 private:
  MatmulArgs ForwardArgs() const {
    return {.x = buffers_.first,
            .w = buffers_.second,
            .bias = s_.bias ? ConstValues(buffers_.bias) : nullptr,
            .y = buffers_.result,
            .m = s_.m,
            .n = s_.n,
            .k = s_.k,
            .accumulate = s_.accumulate};
  }
  ActivationArgs OfGelu() const {
    return {.h = buffers_.result, .g = buffers_.beside, .rows = s_.m, .columns = s_.n};
  }
  MatmulBackwardInputArgs InputGradientArgs() const {
    return {.dy = buffers_.first,
            .w = buffers_.second,
            .dx = buffers_.result,
            .m = s_.m,
            .n = s_.n,
            .k = s_.k,
            .accumulate = s_.accumulate};
  }
  ActivationBackwardArgs OfGeluGradient() const {
    return {.dg = buffers_.result,
            .h = buffers_.beside,
            .dh = buffers_.result,
            .rows = s_.m,
            .columns = s_.k};
  }
  MatmulBackwardWeightArgs WeightGradientArgs(bool with_bias) const {
    return {.dy = buffers_.first,
            .x = buffers_.second,
            .dw = buffers_.result,
            .dbias = with_bias ? buffers_.bias.floats() : nullptr,
            .m = s_.m,
            .n = s_.n,
            .k = s_.k,
            .rows_per_leaf = s_.m,
            .accumulate = s_.accumulate};
  }
  ScaledMatmulArgs ScaledArgs() const {
    const auto* scale = reinterpret_cast<const Scale*>(buffers_.beside.data());
    return {.a = buffers_.first,
            .b = Values(buffers_.second.data(), Format::kE4m3, Format::kE4m3),
            .a_scale = scale,
            .b_scale = scale,
            .bias = s_.bias ? ConstValues(buffers_.bias) : nullptr,
            .c = buffers_.result,
            .m = s_.m,
            .n = s_.n,
            .k = s_.k,
            .accumulate = s_.accumulate,
            .fast_accumulation = s_.kind == ProductKind::kScaledFast};
  }

  const ProductShape s_;
  const TimedBuffers buffers_;
  const CudaContext context_;
  Products& products_;
};

// Chooses the algorithm of the shape's product, and of the product without its epilogue, and then
// the faster way to compute both.
void Choose(const ProductShape& shape, TimedOperation& operation, cudaStream_t stream,
            ProductAlgorithms* table) {
  const bool is_fused = operation.Fused();
  if (shape.epilogue == ProductEpilogue::kNone) return;
  operation.Separate();
  // What the library lacks it has noted in the table by itself.
  if (!is_fused) return;
  const float fused = TimeRuns(stream, [&] { return operation.Fused(); });
  const float separate = TimeRuns(stream, [&] {
    operation.Separate();
    return true;
  });
  // In doubt one pass is taken, which needs less of the memory's time in a whole step.
  if (separate < fused * (1 - kTimingNoise)) (*table)[shape] = kSeparateEpilogue;
}

}  // namespace

int64_t BytesForTiming(const std::vector<ProductShape>& shapes) {
  int64_t most = 0;
  // The shapes are timed one after the other in the same memory.
  for (const ProductShape& shape : shapes) most = std::max(most, SizesOf(shape).total());
  return most;
}

int64_t WorkspaceForTiming(const std::vector<ProductShape>& shapes) {
  int64_t most = kProductWorkspaceBytes;
  for (const ProductShape& shape : shapes) {
    if (shape.epilogue != ProductEpilogue::kBiasGradient) continue;
    most = std::max(most, ColumnSumBytes(shape.m, shape.n));
  }
  return most;
}

void TimeProducts(const std::vector<ProductShape>& shapes, const TimingMemory& memory,
                  cudaStream_t stream, ProductAlgorithms* table, OperationErrors* errors) {
  const auto check = [errors](cudaError_t error) {
    if (error != cudaSuccess) errors->Report("TimeProducts", cudaGetErrorName(error));
  };
  const CudaContext context{.stream = stream,
                            .workspace = memory.workspace,
                            .workspace_bytes = memory.workspace_bytes,
                            .shared_bytes = 0};
  RandomOperands random(stream);
  // TF32 belongs to the products and not to a shape, so there is one pass for each.
  for (const bool tf32 : {false, true}) {
    Products products({tf32, true}, table, errors, nullptr);
    for (const ProductShape& shape : shapes) {
      if (shape.tf32 != tf32 || table->contains(shape) || errors->first()) continue;
      TimedOperation operation(shape, memory.operands, context, products);
      check(FillWithNumbers(shape, operation.buffers(), random));
      Choose(shape, operation, stream, table);
      check(TakeLaunchError());
    }
  }
  check(cudaStreamSynchronize(stream));
}

}  // namespace tercio::kernels::cuda

#include "kernels/cuda/product_timing.h"

#include <algorithm>

#include "kernels/cuda/gemm_cublaslt.h"

namespace tercio::kernels::cuda {
namespace {

// Operands begin at multiples of 256 bytes, as those of cudaMalloc do.
constexpr int64_t kUnit = 256;
// A byte of which all formats make ordinary numbers, other than zero, which costs less power.
constexpr int kFill = 0x3c;

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
  // The product decides which sides the matrices have; the bytes follow in the order of Perform.
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

void PerformScaled(const ProductShape& s, const TimedBuffers& buffers, const CudaContext& context,
                   Products& products) {
  const auto* scale = reinterpret_cast<const Scale*>(buffers.beside.data());
  products.ScaledMatmul({.a = buffers.first,
                         .b = Values(buffers.second.data(), Format::kE4m3, Format::kE4m3),
                         .a_scale = scale,
                         .b_scale = scale,
                         .bias = s.bias ? ConstValues(buffers.bias) : nullptr,
                         .c = buffers.result,
                         .m = s.m,
                         .n = s.n,
                         .k = s.k,
                         .accumulate = s.accumulate,
                         .fast_accumulation = s.kind == ProductKind::kScaledFast},
                        context);
}

// Calls the operation whose product has this shape.
void Perform(const ProductShape& s, std::byte* memory, const CudaContext& context,
             Products& products) {
  const TimedBuffers buffers = BuffersAt(memory, s);
  const auto& [first, second, result, beside, bias] = buffers;
  switch (s.kind) {
    case ProductKind::kForward: {
      const MatmulArgs args{.x = first,
                            .w = second,
                            .bias = s.bias ? ConstValues(bias) : nullptr,
                            .y = result,
                            .m = s.m,
                            .n = s.n,
                            .k = s.k,
                            .accumulate = s.accumulate};
      // A shape whose epilogue the library lacks is timed without it, as it will be used.
      if (s.epilogue != ProductEpilogue::kGelu ||
          !products.MatmulGelu(args, {.h = result, .g = beside, .rows = s.m, .columns = s.n},
                               context)) {
        products.Matmul(args, context);
      }
      return;
    }
    case ProductKind::kInputGradient: {
      const MatmulBackwardInputArgs args{.dy = first,
                                         .w = second,
                                         .dx = result,
                                         .m = s.m,
                                         .n = s.n,
                                         .k = s.k,
                                         .accumulate = s.accumulate};
      if (s.epilogue != ProductEpilogue::kGeluGradient ||
          !products.MatmulGeluBackward(
              args, {.dg = result, .h = beside, .dh = result, .rows = s.m, .columns = s.k},
              context)) {
        products.MatmulBackwardInput(args, context);
      }
      return;
    }
    case ProductKind::kWeightGradient:
      products.MatmulBackwardWeight({.dy = first,
                                     .x = second,
                                     .dw = reinterpret_cast<float*>(result.data()),
                                     .dbias = s.epilogue == ProductEpilogue::kBiasGradient
                                                  ? reinterpret_cast<float*>(bias.data())
                                                  : nullptr,
                                     .m = s.m,
                                     .n = s.n,
                                     .k = s.k,
                                     .rows_per_leaf = s.m,
                                     .accumulate = s.accumulate},
                                    context);
      return;
    case ProductKind::kScaled:
    case ProductKind::kScaledFast:
      return PerformScaled(s, buffers, context, products);
  }
}

}  // namespace

int64_t BytesForTiming(const std::vector<ProductShape>& shapes) {
  int64_t most = 0;
  // The shapes are timed one after the other in the same memory.
  for (const ProductShape& shape : shapes) most = std::max(most, SizesOf(shape).total());
  return most;
}

void TimeProducts(const std::vector<ProductShape>& shapes, const TimingMemory& memory,
                  cudaStream_t stream, ProductAlgorithms* table, OperationErrors* errors) {
  const auto check = [errors](cudaError_t error) {
    if (error != cudaSuccess) errors->Report("TimeProducts", cudaGetErrorName(error));
  };
  check(
      // One filling serves all shapes, whose operands begin at the same place.
      cudaMemsetAsync(memory.operands, kFill, static_cast<size_t>(BytesForTiming(shapes)), stream));
  const CudaContext context{.stream = stream,
                            .workspace = memory.workspace,
                            .workspace_bytes = memory.workspace_bytes,
                            .shared_bytes = 0};
  // TF32 belongs to the products and not to a shape, so there is one pass for each.
  for (const bool tf32 : {false, true}) {
    Products products({tf32, true}, table, errors, nullptr);
    for (const ProductShape& shape : shapes) {
      if (shape.tf32 != tf32 || table->contains(shape) || errors->first()) continue;
      Perform(shape, memory.operands, context, products);
    }
  }
  check(cudaStreamSynchronize(stream));
}

}  // namespace tercio::kernels::cuda

#include "kernels/cuda/product_timing.h"

#include <algorithm>

#include "kernels/cuda/gemm_cublaslt.h"

namespace tercio::kernels::cuda {
namespace {

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
  if (s.kind == ProductKind::kScaled) {
    return {Bytes(s.m * s.k, s.operands), Bytes(s.n * s.k, Format::kE4m3),
            Bytes(s.m * s.n, s.result), Bytes(sizeof(Scale), Format::kE4m3), Bytes(s.n, s.result)};
  }
  const bool weight = s.kind == ProductKind::kWeightGradient;
  const bool forward = s.kind == ProductKind::kForward;
  const bool gelu =
      s.epilogue == ProductEpilogue::kGelu || s.epilogue == ProductEpilogue::kGeluGradient;
  const int64_t result = weight ? s.n * s.k : s.m * (forward ? s.n : s.k);
  return {Bytes(s.m * (forward ? s.k : s.n), s.operands),
          Bytes(weight ? s.m * s.k : s.n * s.k, s.operands), Bytes(result, s.result),
          gelu ? Bytes(result, s.result) : 0, Bytes(s.n, Format::kFloat32)};
}

// Calls the operation whose product has this shape.
void Perform(const ProductShape& s, std::byte* memory, const CudaContext& context,
             Products& products) {
  const Sizes sizes = SizesOf(s);
  std::byte* at = memory;
  const auto take = [&at](int64_t bytes, Format format) {
    const Values values(at, format, format);
    at += bytes;
    return values;
  };
  const Values first = take(sizes.first, s.operands);
  const Values second = take(sizes.second, s.operands);
  const Values result = take(sizes.result, s.result);
  const Values beside = take(sizes.beside, s.result);
  const Values bias = take(sizes.bias, s.result);
  switch (s.kind) {
    case ProductKind::kForward: {
      const MatmulArgs args{
          first, second, s.bias ? ConstValues(bias) : nullptr, result, s.m, s.n, s.k, s.accumulate};
      if (s.epilogue != ProductEpilogue::kGelu ||
          !products.MatmulGelu(args, {result, beside, s.m, s.n}, context)) {
        products.Matmul(args, context);
      }
      return;
    }
    case ProductKind::kInputGradient: {
      const MatmulBackwardInputArgs args{first, second, result, s.m, s.n, s.k, s.accumulate};
      if (s.epilogue != ProductEpilogue::kGeluGradient ||
          !products.MatmulGeluBackward(args, {result, beside, result, s.m, s.k}, context)) {
        products.MatmulBackwardInput(args, context);
      }
      return;
    }
    case ProductKind::kWeightGradient:
      products.MatmulBackwardWeight(
          {first, second, reinterpret_cast<float*>(result.data()),
           s.epilogue == ProductEpilogue::kBiasGradient ? reinterpret_cast<float*>(bias.data())
                                                        : nullptr,
           s.m, s.n, s.k, s.m, s.accumulate},
          context);
      return;
    case ProductKind::kScaled: {
      const auto* scale = reinterpret_cast<const Scale*>(beside.data());
      products.ScaledMatmul(
          {first, Values(second.data(), Format::kE4m3, Format::kE4m3), scale, scale,
           s.bias ? ConstValues(bias) : nullptr, result, s.m, s.n, s.k, s.accumulate},
          context);
      return;
    }
  }
}

}  // namespace

int64_t BytesForTiming(const std::vector<ProductShape>& shapes) {
  int64_t most = 0;
  for (const ProductShape& shape : shapes) most = std::max(most, SizesOf(shape).total());
  return most;
}

void TimeProducts(const std::vector<ProductShape>& shapes, const TimingMemory& memory,
                  cudaStream_t stream, ProductAlgorithms* table, OperationErrors* errors) {
  const auto check = [errors](cudaError_t error) {
    if (error != cudaSuccess) errors->Report("TimeProducts", cudaGetErrorName(error));
  };
  check(
      cudaMemsetAsync(memory.operands, kFill, static_cast<size_t>(BytesForTiming(shapes)), stream));
  const CudaContext context{stream, memory.workspace, memory.workspace_bytes, 0};
  for (const bool tf32 : {false, true}) {
    Products products({tf32, true}, table, errors);
    for (const ProductShape& shape : shapes) {
      if (shape.tf32 != tf32 || table->contains(shape) || errors->first()) continue;
      Perform(shape, memory.operands, context, products);
    }
  }
  check(cudaStreamSynchronize(stream));
}

}  // namespace tercio::kernels::cuda

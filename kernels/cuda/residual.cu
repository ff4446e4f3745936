// Residual additions with bias and dropout, their gradients, and plain sums of columns.
//
// Launch geometry: primitives/rows.cuh; a lane has a group of 16 bytes.
// Bytes for each element, B = 2 or 4: Residual 3 B; backward with dropout 2 B, its bias gradient in
// the same pass; without dropout B, for the bias gradient alone. Bound by memory.
#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/dropout.cuh"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

template <typename T>
struct AddResidual {
  static constexpr int kWidth = kGroup<T>;
  const T* residual;
  const T* branch;
  const T* bias;
  T* out;
  int64_t columns;
  DropoutBits dropout;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    const int64_t at = row * columns + column;
    float sum[kWidth], value[kWidth];
    LoadGroup<kAligned>(branch + at, count, value);
    if (bias != nullptr) {
      float b[kWidth];
      LoadGroup<kAligned>(bias + column, count, b);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] += b[j];
    }
    DropGroup(dropout, row, column, value);
    LoadGroup<kAligned>(residual + at, count, sum);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] += value[j];
    StoreGroup<kAligned>(sum, count, out + at);
  }
};

// Values after dropout: written where `out` is not null, and summed where there are sums.
template <typename T>
struct DropAndSum {
  static constexpr int kWidth = kGroup<T>;
  static constexpr int kSums = 1;
  template <bool kAligned>
  static constexpr int kLeastBlocks = 5;
  const T* from;
  T* out;
  int64_t columns;
  DropoutBits dropout;

  template <bool kAligned>
  __device__ __forceinline__ void Values(int64_t row, int64_t column, int64_t count,
                                         float (&value)[kWidth]) const {
    const int64_t at = row * columns + column;
    LoadGroup<kAligned>(from + at, count, value);
    DropGroup(dropout, row, column, value);
    if (out != nullptr) StoreGroup<kAligned>(value, count, out + at);
  }
  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    float value[kWidth];
    Values<kAligned>(row, column, count, value);
  }
  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count,
                                      float (&sums)[kSums][kWidth]) const {
    float value[kWidth];
    Values<kAligned>(row, column, count, value);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[0][j] += value[j];
  }
};

}  // namespace

void ResidualCuda(const ResidualArgs& a, const CudaContext& context) {
  ByStorage(a.out.stored(), [&]<typename T>() {
    const AddResidual<T> operation{As<T>(a.residual), As<T>(a.branch), As<T>(a.bias),
                                   As<T>(a.out),      a.columns,       MakeDropoutBits(a.dropout)};
    LaunchRows(operation, a.rows, a.columns,
               Aligned({operation.residual, operation.branch, operation.bias, operation.out},
                       a.columns, sizeof(T)),
               context.stream);
  });
}

void ResidualBackwardCuda(const ResidualBackwardArgs& a, const CudaContext& context) {
  const bool dropping = a.dropout.probability > 0;
  ByStorage(a.dout.stored(), [&]<typename T>() {
    const DropAndSum<T> operation{As<T>(a.dout), dropping ? As<T>(a.dbranch) : nullptr, a.columns,
                                  MakeDropoutBits(a.dropout)};
    const bool aligned = Aligned({operation.from, operation.out}, a.columns, sizeof(T));
    if (a.dbias != nullptr) {
      auto* parts = context.Scratch<float>(ColumnSumBytes(a.rows, a.columns));
      LaunchColumnSums(operation, a.rows, a.columns, aligned, parts, {a.dbias}, SumTarget::kAdd,
                       context.stream);
    } else if (dropping) {
      LaunchRows(operation, a.rows, a.columns, aligned, context.stream);
    }
  });
}

void ColumnSumsCuda(const ColumnSumsArgs& a, const CudaContext& context) {
  ByStorage(a.value.stored(), [&]<typename T>() {
    const DropAndSum<T> operation{As<T>(a.value), nullptr, a.columns, {}};
    auto* parts = context.Scratch<float>(ColumnSumBytes(a.rows, a.columns));
    const bool aligned = Aligned({operation.from}, a.columns, sizeof(T));
    LaunchColumnSums(operation, a.rows, a.columns, aligned, parts, {a.out},
                     a.accumulate ? SumTarget::kAdd : SumTarget::kReplace, context.stream);
  });
}

}  // namespace tercio::kernels::cuda

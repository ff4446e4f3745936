// LayerNorm and RMSNorm, with the residual addition before them, and their gradients.
//
// LayerNorm's result can be written in E4M3 as well, for the product that reads it.
//
// Launch geometry: a block has whole rows; a thread has groups t, t + threads, ... of each row, by
// the number of columns alone, so that sums over a row have the same bits in every call. Forward: a
// row for each block, kept as floats in shared memory, of which a thread reads only what it wrote:
// one pass over memory. Backward: a block walks its rows in ascending order; a thread adds dweight
// and dbias of its columns, and the sums of all blocks are added afterwards, both in one launch.
// Rows of up to two groups for each thread stay in registers: everything that a row needs is loaded
// before its barriers, with one group two rows at a time. Rows that are too long for that (4,096
// columns of 16 bits) have twice the threads, so that as many bytes of them are in flight; longer
// than twice as long, or not aligned, they and their sums are in shared memory. No bit depends on
// which of them it is.
//
// Bytes for each element, B = 2 or 4: forward 2 B; with the residual 4 B; 1 for E4M3; backward 3 B
// (4 B where it accumulates), and for each block of rows 16 for each column. Bound by memory.
#include <algorithm>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/dropout.cuh"
#include "kernels/cuda/primitives/eight_bits.cuh"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kLongRowThreads = 512;  // in the gradient, of rows of more than two groups a thread
// Threads for the columns of a row; a function of their number.
template <typename T>
unsigned ThreadsFor(int64_t columns) {
  const int64_t groups = (columns + kGroup<T> - 1) / kGroup<T>;
  const int64_t threads = (groups + kWarpThreads - 1) / kWarpThreads * kWarpThreads;
  return static_cast<unsigned>(std::clamp<int64_t>(threads, kWarpThreads, kMaxThreads));
}

template <typename T>
unsigned ThreadsForGradient(int64_t columns) {
  return columns > 2 * kMaxThreads * kGroup<T> ? kLongRowThreads : ThreadsFor<T>(columns);
}

int64_t PaddedColumns(int64_t columns) { return (columns + 7) / 8 * 8; }

template <typename T>
struct Norm {
  const T* x;  // where there is no residual
  const T* weight;
  const T* bias;
  T* y;
  float* mean;
  float* rstd;
  int64_t columns;
  float eps;
  bool rms;
  bool unit_offset;
  bool cached;  // a row fits into shared memory; else it is read again
};

// What a norm multiplies with. Without an offset the weight keeps its bits.
__device__ __forceinline__ float Factor(float weight, bool unit_offset) {
  return unit_offset ? weight + 1.0f : weight;
}

template <typename T>
struct ResidualSum {
  const T* residual;
  const T* branch;
  const T* bias;
  T* out;
  DropoutBits dropout;
};

// residual + dropout(branch + bias), as written to out.
template <bool kAligned, typename T>
__device__ __forceinline__ void SumGroup(const ResidualSum<T>& r, int64_t columns, int64_t row,
                                         int64_t column, int64_t count,
                                         float (&values)[kGroup<T>]) {
  constexpr int kWidth = kGroup<T>;
  const int64_t at = row * columns + column;
  float branch[kWidth];
  LoadGroup<kAligned>(r.branch + at, count, branch);
  if (r.bias != nullptr) {
    float bias[kWidth];
    LoadGroup<kAligned>(r.bias + column, count, bias);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) branch[j] += bias[j];
  }
  DropGroup(r.dropout, row, column, branch);
  LoadGroup<kAligned>(r.residual + at, count, values);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] += branch[j];
  RoundGroup<T>(values);
  StoreGroup<kAligned>(values, count, r.out + at);
}

// Calls body(column, count, values) for the thread's groups of the row.
template <bool kAligned, typename T, typename Body>
__device__ __forceinline__ void ForOwnGroups(const T* row, const float* cache, int64_t columns,
                                             const Body& body) {
  constexpr int kWidth = kGroup<T>;
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kWidth; column < columns;
       column += static_cast<int64_t>(blockDim.x) * kWidth) {
    const int64_t count = columns - column < kWidth ? columns - column : kWidth;
    float values[kWidth];
    if (cache != nullptr) {
      LoadGroup<true>(cache + column, kWidth, values);
    } else {
      LoadGroup<kAligned>(row + column, count, values);
    }
    body(column, count, values);
  }
}

// The norm's result in E4M3, beside the one in the job's format.
struct EightBitCopy {
  uint8_t* y;
  const Scale* scale;
  float* largest;
};

// Rounds a group as it was written, and notes its largest magnitude. A group of 16 bits has 8
// bytes.
template <typename T>
__device__ __forceinline__ void StoreEightBits(const EightBitCopy& copy, float multiplier,
                                               int64_t at, float (&values)[kGroup<T>],
                                               float* largest) {
  static_assert(kGroup<T> == 8);
  RoundGroup<T>(values);
  uint32_t words[2] = {};
#pragma unroll
  for (int j = 0; j < kGroup<T>; ++j) {
    *largest = fmaxf(*largest, fabsf(values[j]));
    words[j / 4] |= static_cast<uint32_t>(EightBits<Format::kE4m3>(values[j] * multiplier))
                    << j % 4 * 8;
  }
  *reinterpret_cast<uint2*>(copy.y + at) = make_uint2(words[0], words[1]);
}

// kEightBits: rows have whole groups.
template <bool kAligned, bool kResidual, bool kEightBits, typename T>
__global__ void __launch_bounds__(kMaxThreads)
    NormKernel(const __grid_constant__ Norm<T> n, const __grid_constant__ ResidualSum<T> r,
               const __grid_constant__ EightBitCopy copy) {
  constexpr int kWidth = kGroup<T>;
  float* cache = n.cached ? DynamicShared<float>() : nullptr;
  const int64_t row = blockIdx.x;
  const T* from = (kResidual ? r.out : n.x) + row * n.columns;
  float sum = 0;
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kWidth; column < n.columns;
       column += static_cast<int64_t>(blockDim.x) * kWidth) {
    const int64_t count = n.columns - column < kWidth ? n.columns - column : kWidth;
    float values[kWidth];
    if constexpr (kResidual) {
      SumGroup<kAligned>(r, n.columns, row, column, count, values);
    } else {
      LoadGroup<kAligned>(from + column, count, values);
    }
    if (cache != nullptr) StoreGroup<true>(values, kWidth, cache + column);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum += j < count ? values[j] : 0.0f;
  }
  const float columns = static_cast<float>(n.columns);
  const float mean = n.rms ? 0.0f : BlockSum(sum) / columns;
  float squares = 0;
  ForOwnGroups<kAligned>(from, cache, n.columns, [&](int64_t, int64_t count, auto& values) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float distance = j < count ? values[j] - mean : 0.0f;
      squares = fmaf(distance, distance, squares);
    }
  });
  const float rstd = 1.0f / sqrtf(BlockSum(squares) / columns + n.eps);
  if (threadIdx.x == 0) {
    n.mean[row] = mean;
    n.rstd[row] = rstd;
  }
  T* y = n.y + row * n.columns;
  [[maybe_unused]] float multiplier = 1;
  [[maybe_unused]] float largest = 0;
  if constexpr (kEightBits) multiplier = copy.scale->multiplier;
  ForOwnGroups<kAligned>(from, cache, n.columns, [&](int64_t column, int64_t count, auto& values) {
    float weight[kWidth];
    float bias[kWidth] = {};
    LoadGroup<kAligned>(n.weight + column, count, weight);
    if (n.bias != nullptr) LoadGroup<kAligned>(n.bias + column, count, bias);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values[j] = (values[j] - mean) * rstd * Factor(weight[j], n.unit_offset) + bias[j];
    }
    StoreGroup<kAligned>(values, count, y + column);
    if constexpr (kEightBits) {
      StoreEightBits<T>(copy, multiplier, row * n.columns + column, values, &largest);
    }
  });
  if constexpr (kEightBits) MeetInLargest(largest, copy.largest);
}

template <bool kResidual, typename T>
void LaunchNormKernel(const LaunchShape& shape, bool aligned, const Norm<T>& n,
                      const ResidualSum<T>& sum, const QuantizeArgs* quantize,
                      cudaStream_t stream) {
  if constexpr (kFormatOf<T> == Format::kBfloat16) {
    if (quantize != nullptr) {
      const EightBitCopy copy{reinterpret_cast<uint8_t*>(quantize->plain.data()), quantize->scale,
                              quantize->largest};
      return Launch(NormKernel<true, kResidual, true, T>, shape, stream, n, sum, copy);
    }
  }
  TERCIO_CHECK(quantize == nullptr);
  const EightBitCopy none{};
  return aligned ? Launch(NormKernel<true, kResidual, false, T>, shape, stream, n, sum, none)
                 : Launch(NormKernel<false, kResidual, false, T>, shape, stream, n, sum, none);
}

// Whether the kernel can round its result to 8 bits, for rows that are aligned.
bool WritesEightBits(const LayerNormArgs& a, const QuantizeArgs& q) {
  return a.y.stored() == Format::kBfloat16 && q.x.data() == ConstValues(a.y).data() &&
         q.plain != nullptr && q.plain.format() == Format::kE4m3 && q.transposed == nullptr &&
         q.largest != nullptr && a.columns % kGroup<__nv_bfloat16> == 0 &&
         Aligned({q.plain.data()}, a.columns, 1);
}

template <typename T>
bool LaunchNorm(const LayerNormArgs& a, const ResidualArgs* r, const QuantizeArgs* quantize,
                const CudaContext& context) {
  if (a.rows == 0) return false;
  const cudaStream_t stream = context.stream;
  const int64_t cache_bytes = PaddedColumns(a.columns) * 4;
  Norm<T> n{r == nullptr ? As<T>(a.x) : nullptr,
            As<T>(a.weight),
            As<T>(a.bias),
            As<T>(a.y),
            a.mean,
            a.rstd,
            a.columns,
            a.eps,
            a.rms,
            a.unit_offset,
            cache_bytes <= context.shared_bytes};
  const LaunchShape shape{dim3(static_cast<unsigned>(a.rows)), dim3(ThreadsFor<T>(a.columns)),
                          n.cached ? static_cast<size_t>(cache_bytes) : 0};
  ResidualSum<T> sum{};
  bool aligned = Aligned({n.x, n.weight, n.bias, n.y}, a.columns, sizeof(T));
  if (r != nullptr) {
    sum = {As<T>(r->residual), As<T>(r->branch), As<T>(r->bias), As<T>(r->out),
           MakeDropoutBits(r->dropout)};
    aligned =
        aligned && Aligned({sum.residual, sum.branch, sum.bias, sum.out}, a.columns, sizeof(T));
  }
  if (quantize != nullptr && !(aligned && WritesEightBits(a, *quantize))) quantize = nullptr;
  if (r == nullptr) {
    LaunchNormKernel<false>(shape, aligned, n, sum, quantize, stream);
  } else {
    LaunchNormKernel<true>(shape, aligned, n, sum, quantize, stream);
  }
  return quantize != nullptr;
}

template <typename T>
struct NormBackward {
  const T* dy;
  const T* x;
  const T* weight;
  const float* mean;
  const float* rstd;
  T* dx;
  float* parts;  // (2, blocks, columns): dweight, dbias
  int64_t rows;
  int64_t columns;
  int64_t rows_per_block;
  bool accumulate;
  bool rms;
  bool unit_offset;
  bool cached;  // h and n of a row fit into shared memory beside the sums
};

// The thread's elements of shared memory, floats by column.
struct BackwardRows {
  float* dweight;
  float* dbias;
  float* h;
  float* n;
};

// h = dy * weight and n = (x - mean) * rstd of a group, and dy itself.
template <bool kAligned, typename T>
__device__ __forceinline__ void LoadBackward(const NormBackward<T>& a, int64_t row, int64_t column,
                                             int64_t count, float (&dy)[kGroup<T>],
                                             float (&h)[kGroup<T>], float (&n)[kGroup<T>]) {
  const float mean = a.mean[row];
  const float rstd = a.rstd[row];
  LoadGroup<kAligned>(a.dy + row * a.columns + column, count, dy);
  LoadGroup<kAligned>(a.x + row * a.columns + column, count, n);
  LoadGroup<kAligned>(a.weight + column, count, h);
#pragma unroll
  for (int j = 0; j < kGroup<T>; ++j) {
    h[j] = dy[j] * Factor(h[j], a.unit_offset);
    n[j] = j < count ? (n[j] - mean) * rstd : 0.0f;
  }
}

template <bool kAligned, typename T>
__device__ __forceinline__ void BackwardOfRow(const NormBackward<T>& a, int64_t row,
                                              const BackwardRows& own) {
  constexpr int kWidth = kGroup<T>;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kWidth;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  float sum_h = 0;
  float sum_hn = 0;
  for (int64_t column = first; column < a.columns; column += step) {
    const int64_t count = a.columns - column < kWidth ? a.columns - column : kWidth;
    float dy[kWidth], h[kWidth], n[kWidth];
    LoadBackward<kAligned>(a, row, column, count, dy, h, n);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sum_h += h[j];
      sum_hn = fmaf(h[j], n[j], sum_hn);
      own.dweight[column + j] = fmaf(dy[j], n[j], own.dweight[column + j]);
      own.dbias[column + j] += dy[j];
    }
    if (!a.cached) continue;
    StoreGroup<true>(h, kWidth, own.h + column);
    StoreGroup<true>(n, kWidth, own.n + column);
  }
  BlockSums(sum_h, sum_hn);
  const float mean_h = a.rms ? 0.0f : sum_h / static_cast<float>(a.columns);
  const float mean_hn = sum_hn / static_cast<float>(a.columns);
  const float rstd = a.rstd[row];
  for (int64_t column = first; column < a.columns; column += step) {
    const int64_t count = a.columns - column < kWidth ? a.columns - column : kWidth;
    float dy[kWidth], h[kWidth], n[kWidth], dx[kWidth] = {};
    if (a.cached) {
      LoadGroup<true>(own.h + column, kWidth, h);
      LoadGroup<true>(own.n + column, kWidth, n);
    } else {
      LoadBackward<kAligned>(a, row, column, count, dy, h, n);
    }
    T* to = a.dx + row * a.columns + column;
    if (a.accumulate) LoadGroup<kAligned>(to, count, dx);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) dx[j] += rstd * fmaf(-n[j], mean_hn, h[j] - mean_h);
    StoreGroup<kAligned>(dx, count, to);
  }
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kLongRowThreads, 2)
    NormBackwardKernel(const __grid_constant__ NormBackward<T> a) {
  constexpr int kWidth = kGroup<T>;
  const int64_t padded = (a.columns + 7) / 8 * 8;
  auto* shared = DynamicShared<float>();
  const BackwardRows own{shared, shared + padded, shared + 2 * padded, shared + 3 * padded};
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kWidth;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  for (int64_t column = first; column < a.columns; column += step) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      own.dweight[column + j] = 0;
      own.dbias[column + j] = 0;
    }
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * a.rows_per_block;
  const int64_t end = begin + a.rows_per_block < a.rows ? begin + a.rows_per_block : a.rows;
  for (int64_t row = begin; row < end; ++row) BackwardOfRow<kAligned>(a, row, own);
  float* dweight = a.parts + blockIdx.x * a.columns;
  float* dbias = dweight + gridDim.x * a.columns;
  for (int64_t column = first; column < a.columns; column += step) {
    const int64_t count = a.columns - column < kWidth ? a.columns - column : kWidth;
    for (int64_t j = 0; j < count; ++j) {
      dweight[column + j] = own.dweight[column + j];
      dbias[column + j] = own.dbias[column + j];
    }
  }
}

// What a thread has of the rows that are in flight, as stored.
template <int kRows, int kGroups, typename T>
struct LoadedRows {
  Elements<T, kGroup<T>> dy[kRows][kGroups];
  Elements<T, kGroup<T>> x[kRows][kGroups];
  Elements<T, kGroup<T>> dx[kRows][kGroups];  // where it accumulates
  float mean[kRows];
  float rstd[kRows];
};

// What a thread has of the columns, for all rows of its block.
template <int kGroups, typename T>
struct OwnColumns {
  int64_t column[kGroups];
  int64_t count[kGroups];  // 0 or less: none
  Elements<T, kGroup<T>> weight[kGroups];
  float dweight[kGroups][kGroup<T>];
  float dbias[kGroups][kGroup<T>];
};

template <bool kAligned, int kRows, int kGroups, typename T>
__device__ __forceinline__ void LoadRows(const NormBackward<T>& a, int64_t first, int64_t end,
                                         const OwnColumns<kGroups, T>& own,
                                         LoadedRows<kRows, kGroups, T>& rows) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r >= end) return;
    rows.mean[r] = a.mean[first + r];
    rows.rstd[r] = a.rstd[first + r];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t at = (first + r) * a.columns + own.column[g];
      LoadElements<kAligned>(a.dy + at, own.count[g], rows.dy[r][g]);
      LoadElements<kAligned>(a.x + at, own.count[g], rows.x[r][g]);
      if (a.accumulate) LoadElements<kAligned>(a.dx + at, own.count[g], rows.dx[r][g]);
    }
  }
}

// As LoadBackward, of what is loaded.
template <int kRows, int kGroups, typename T>
__device__ __forceinline__ void FactorsOf(const LoadedRows<kRows, kGroups, T>& rows, int r, int g,
                                          const OwnColumns<kGroups, T>& own, bool unit_offset,
                                          float (&dy)[kGroup<T>], float (&h)[kGroup<T>],
                                          float (&n)[kGroup<T>]) {
  ToFloats(rows.dy[r][g], dy);
  ToFloats(rows.x[r][g], n);
  ToFloats(own.weight[g], h);
#pragma unroll
  for (int j = 0; j < kGroup<T>; ++j) {
    h[j] = dy[j] * Factor(h[j], unit_offset);
    n[j] = j < own.count[g] ? (n[j] - rows.mean[r]) * rows.rstd[r] : 0.0f;
  }
}

// The thread's sums of h and h * n of each row, and what the row adds to those of the columns.
template <int kRows, int kGroups, typename T>
__device__ __forceinline__ void SumRows(const LoadedRows<kRows, kGroups, T>& rows, int present,
                                        bool unit_offset, OwnColumns<kGroups, T>& own,
                                        float (&sums)[2 * kRows]) {
  constexpr int kWidth = kGroup<T>;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= present) return;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float dy[kWidth], h[kWidth], n[kWidth];
      FactorsOf(rows, r, g, own, unit_offset, dy, h, n);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sums[2 * r] += h[j];
        sums[2 * r + 1] = fmaf(h[j], n[j], sums[2 * r + 1]);
        own.dweight[g][j] = fmaf(dy[j], n[j], own.dweight[g][j]);
        own.dbias[g][j] += dy[j];
      }
    }
  }
}

template <bool kAligned, int kRows, int kGroups, typename T>
__device__ __forceinline__ void StoreRows(const NormBackward<T>& a, int64_t first, int present,
                                          const LoadedRows<kRows, kGroups, T>& rows,
                                          const OwnColumns<kGroups, T>& own,
                                          const float (&sums)[2 * kRows]) {
  constexpr int kWidth = kGroup<T>;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= present) return;
    const float mean_h = a.rms ? 0.0f : sums[2 * r] / static_cast<float>(a.columns);
    const float mean_hn = sums[2 * r + 1] / static_cast<float>(a.columns);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float dy[kWidth], h[kWidth], n[kWidth], dx[kWidth] = {};
      FactorsOf(rows, r, g, own, a.unit_offset, dy, h, n);
      if (a.accumulate) ToFloats(rows.dx[r][g], dx);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        dx[j] += rows.rstd[r] * fmaf(-n[j], mean_hn, h[j] - mean_h);
      }
      StoreGroup<kAligned>(dx, own.count[g], a.dx + (first + r) * a.columns + own.column[g]);
    }
  }
}

template <bool kAligned, int kRows, int kGroups, int kMostThreads, typename T>
__global__ void __launch_bounds__(kMostThreads)
    NormBackwardInRegistersKernel(const __grid_constant__ NormBackward<T> a) {
  constexpr int kWidth = kGroup<T>;
  OwnColumns<kGroups, T> own;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    own.column[g] = (static_cast<int64_t>(threadIdx.x) + g * static_cast<int>(blockDim.x)) * kWidth;
    own.count[g] = a.columns - own.column[g] < kWidth ? a.columns - own.column[g] : kWidth;
    LoadElements<kAligned>(a.weight + own.column[g], own.count[g], own.weight[g]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) own.dweight[g][j] = own.dbias[g][j] = 0;
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * a.rows_per_block;
  const int64_t end = begin + a.rows_per_block < a.rows ? begin + a.rows_per_block : a.rows;
  for (int64_t row = begin; row < end; row += kRows) {
    const int present = end - row < kRows ? static_cast<int>(end - row) : kRows;
    LoadedRows<kRows, kGroups, T> rows;
    float sums[2 * kRows] = {};
    LoadRows<kAligned>(a, row, end, own, rows);
    SumRows(rows, present, a.unit_offset, own, sums);
    BlockSums(sums);
    StoreRows<kAligned>(a, row, present, rows, own, sums);
  }
  float* dweight = a.parts + blockIdx.x * a.columns;
  float* dbias = dweight + gridDim.x * a.columns;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    StoreGroup<false>(own.dweight[g], own.count[g], dweight + own.column[g]);
    StoreGroup<false>(own.dbias[g], own.count[g], dbias + own.column[g]);
  }
}

template <bool kAligned, typename T>
void LaunchRowsOfNorm(const NormBackward<T>& n, LaunchShape shape, int64_t shared_limit,
                      cudaStream_t stream) {
  const int64_t columns_of_block = int64_t{shape.threads.x} * kGroup<T>;
  if (n.columns <= columns_of_block && shape.threads.x <= kMaxThreads) {
    return Launch(NormBackwardInRegistersKernel<kAligned, 2, 1, kMaxThreads, T>, shape, stream, n);
  }
  if (n.columns <= 2 * columns_of_block && shape.threads.x <= kMaxThreads) {
    return Launch(NormBackwardInRegistersKernel<kAligned, 1, 2, kMaxThreads, T>, shape, stream, n);
  }
  if constexpr (kAligned) {
    // Rows that are not aligned need more registers than so many threads have.
    if (n.columns <= 2 * columns_of_block) {
      return Launch(NormBackwardInRegistersKernel<true, 1, 2, kLongRowThreads, T>, shape, stream,
                    n);
    }
  }
  const int64_t row_bytes = PaddedColumns(n.columns) * 4;
  NormBackward<T> in_shared = n;
  in_shared.cached = 4 * row_bytes <= shared_limit;
  shape.shared_bytes = static_cast<size_t>((in_shared.cached ? 4 : 2) * row_bytes);
  // With 160 KiB: 20,480 columns.
  TERCIO_CHECK_LE(static_cast<int64_t>(shape.shared_bytes), shared_limit);
  Launch(NormBackwardKernel<kAligned, T>, shape, stream, in_shared);
}

template <typename T>
void LaunchNormBackward(const LayerNormBackwardArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  const RowBlocks cut = CutRows(a.rows, kLeastRowsOfNorm);
  auto* parts = context.Scratch<float>(NormBackwardBytes(a.rows, a.columns));
  const NormBackward<T> n{As<T>(a.dy),  As<T>(a.x), As<T>(a.weight), a.mean,    a.rstd,
                          As<T>(a.dx),  parts,      a.rows,          a.columns, cut.rows_per_block,
                          a.accumulate, a.rms,      a.unit_offset,   false};
  const LaunchShape shape{dim3(static_cast<unsigned>(cut.blocks)),
                          dim3(ThreadsForGradient<T>(a.columns))};
  if (Aligned({n.dy, n.x, n.weight, n.dx}, a.columns, sizeof(T))) {
    LaunchRowsOfNorm<true>(n, shape, context.shared_bytes, context.stream);
  } else {
    LaunchRowsOfNorm<false>(n, shape, context.shared_bytes, context.stream);
  }
  AddParts(parts, cut.blocks, a.columns, SumTarget::kAdd, {{a.dweight, a.dbias}}, context.stream);
}

}  // namespace

bool LayerNormCuda(const LayerNormArgs& args, const ResidualArgs* residual,
                   const QuantizeArgs* quantize, const CudaContext& context) {
  TERCIO_CHECK(residual == nullptr ||
               (residual->rows == args.rows && residual->columns == args.columns));
  bool quantized = false;
  ByStorage(args.y.stored(),
            [&]<typename T>() { quantized = LaunchNorm<T>(args, residual, quantize, context); });
  return quantized;
}

void LayerNormBackwardCuda(const LayerNormBackwardArgs& args, const CudaContext& context) {
  ByStorage(args.dx.stored(), [&]<typename T>() { LaunchNormBackward<T>(args, context); });
}

}  // namespace tercio::kernels::cuda

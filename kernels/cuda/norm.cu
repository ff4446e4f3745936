// LayerNorm and RMSNorm, with the residual addition before them, and their gradients.
//
// Launch geometry: a block has whole rows; a thread has groups t, t + threads, ... of each row, by
// the number of columns alone, so that sums over a row have the same bits in every call. Forward: a
// row for each block, kept as floats in shared memory, of which a thread reads only what it wrote:
// one pass over memory. Backward: a block walks its rows in ascending order; a thread adds dweight
// and dbias of its columns in shared memory, and the sums of all blocks are added afterwards.
//
// Bytes for each element, B = 2 or 4: forward 2 B; with the residual 4 B; backward 3 B (4 B where
// it accumulates), and for each block of rows 16 for each column. Bound by memory.
#include <algorithm>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/dropout.cuh"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

constexpr int kMaxThreads = 256;
// Threads for the columns of a row; a function of their number.
template <typename T>
unsigned ThreadsFor(int64_t columns) {
  const int64_t groups = (columns + kGroup<T> - 1) / kGroup<T>;
  const int64_t threads = (groups + kWarpThreads - 1) / kWarpThreads * kWarpThreads;
  return static_cast<unsigned>(std::clamp<int64_t>(threads, kWarpThreads, kMaxThreads));
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
  bool cached;  // a row fits into shared memory; else it is read again
};

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

template <bool kAligned, bool kResidual, typename T>
__global__ void __launch_bounds__(kMaxThreads) NormKernel(Norm<T> n, ResidualSum<T> r) {
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
  ForOwnGroups<kAligned>(from, cache, n.columns, [&](int64_t column, int64_t count, auto& values) {
    float weight[kWidth];
    float bias[kWidth] = {};
    LoadGroup<kAligned>(n.weight + column, count, weight);
    if (n.bias != nullptr) LoadGroup<kAligned>(n.bias + column, count, bias);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values[j] = (values[j] - mean) * rstd * weight[j] + bias[j];
    }
    StoreGroup<kAligned>(values, count, y + column);
  });
}

template <typename T>
void LaunchNorm(const LayerNormArgs& a, const ResidualArgs* r, const CudaContext& context) {
  if (a.rows == 0) return;
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
            cache_bytes <= context.shared_bytes};
  const LaunchShape shape{dim3(static_cast<unsigned>(a.rows)), dim3(ThreadsFor<T>(a.columns)),
                          n.cached ? static_cast<size_t>(cache_bytes) : 0};
  ResidualSum<T> sum{};
  if (r == nullptr) {
    const bool aligned = Aligned({n.x, n.weight, n.bias, n.y}, a.columns, sizeof(T));
    return aligned ? Launch(NormKernel<true, false, T>, shape, stream, n, sum)
                   : Launch(NormKernel<false, false, T>, shape, stream, n, sum);
  }
  sum = {As<T>(r->residual), As<T>(r->branch), As<T>(r->bias), As<T>(r->out),
         MakeDropoutBits(r->dropout)};
  const bool aligned = Aligned({sum.residual, sum.branch, sum.bias, sum.out, n.weight, n.bias, n.y},
                               a.columns, sizeof(T));
  return aligned ? Launch(NormKernel<true, true, T>, shape, stream, n, sum)
                 : Launch(NormKernel<false, true, T>, shape, stream, n, sum);
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
    h[j] = dy[j] * h[j];
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
__global__ void __launch_bounds__(kMaxThreads) NormBackwardKernel(NormBackward<T> a) {
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

template <typename T>
void LaunchNormBackward(const LayerNormBackwardArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  const RowBlocks cut = CutRows(a.rows, kLeastRowsOfNorm);
  auto* parts = context.Scratch<float>(NormBackwardBytes(a.rows, a.columns));
  const int64_t row_bytes = PaddedColumns(a.columns) * 4;
  NormBackward<T> n{As<T>(a.dy),
                    As<T>(a.x),
                    As<T>(a.weight),
                    a.mean,
                    a.rstd,
                    As<T>(a.dx),
                    parts,
                    a.rows,
                    a.columns,
                    cut.rows_per_block,
                    a.accumulate,
                    a.rms,
                    4 * row_bytes <= context.shared_bytes};
  const int64_t shared_bytes = (n.cached ? 4 : 2) * row_bytes;
  TERCIO_CHECK_LE(shared_bytes, context.shared_bytes);  // with 160 KiB: 20,480 columns
  const LaunchShape shape{dim3(static_cast<unsigned>(cut.blocks)), dim3(ThreadsFor<T>(a.columns)),
                          static_cast<size_t>(shared_bytes)};
  if (Aligned({n.dy, n.x, n.weight, n.dx}, a.columns, sizeof(T))) {
    Launch(NormBackwardKernel<true, T>, shape, context.stream, n);
  } else {
    Launch(NormBackwardKernel<false, T>, shape, context.stream, n);
  }
  AddParts(parts, cut.blocks, a.columns, SumTarget::kAdd, a.dweight, context.stream);
  if (a.dbias == nullptr) return;
  AddParts(parts + cut.blocks * a.columns, cut.blocks, a.columns, SumTarget::kAdd, a.dbias,
           context.stream);
}

}  // namespace

void LayerNormCuda(const LayerNormArgs& args, const CudaContext& context) {
  ByStorage(args.y.stored(), [&]<typename T>() { LaunchNorm<T>(args, nullptr, context); });
}

void ResidualLayerNormCuda(const ResidualArgs& residual, const LayerNormArgs& norm,
                           const CudaContext& context) {
  TERCIO_CHECK(residual.rows == norm.rows && residual.columns == norm.columns);
  ByStorage(norm.y.stored(), [&]<typename T>() { LaunchNorm<T>(norm, &residual, context); });
}

void LayerNormBackwardCuda(const LayerNormBackwardArgs& args, const CudaContext& context) {
  ByStorage(args.dx.stored(), [&]<typename T>() { LaunchNormBackward<T>(args, context); });
}

}  // namespace tercio::kernels::cuda

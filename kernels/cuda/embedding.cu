// Token, position and type embeddings, and rows by index.
//
// Launch geometry: forward as primitives/rows.cuh, a lane has a group of 16 bytes. Sums by index: a
// block for each item and 512 columns; the block of the first item of a row of the result is its
// owner and adds all of them, in ascending order, the others end. The search reads the indices that
// come before, from the cache: count^2 / 2 words in all where they all differ. Gradient of
// positions: a lane has a group of one position and adds the rows of that position, ascending.
//
// Bytes for each element, B = 2 or 4: rows by index 2 B; position embedding 2 B (B more for each
// weight that is not in cache); sums by index B and 8 for each element of the result (2 B where it
// is of the same storage); gradient of positions with dropout 2 B. Bound by memory.
#include <algorithm>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/dropout.cuh"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

constexpr int kSumThreads = 128;
constexpr int kSumWidth = 4;  // columns of a thread

// out[i] = from[index[i] - begin], zeros where that is not one of `rows`.
template <typename T>
struct CopyByIndex {
  static constexpr int kWidth = kGroup<T>;
  const T* from;
  const int32_t* index;
  T* out;
  int64_t columns, begin, rows;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t i, int64_t column, int64_t count) const {
    const int64_t row = index[i] - begin;
    float values[kWidth] = {};
    if (row >= 0 && row < rows) LoadGroup<kAligned>(from + row * columns + column, count, values);
    StoreGroup<kAligned>(values, count, out + i * columns + column);
  }
};

template <typename T>
struct AddPositions {
  static constexpr int kWidth = kGroup<T>;
  T* x;
  const T* weight;
  const T* type_weight;
  const int32_t* types;
  int64_t columns, tokens, first_row;
  DropoutBits dropout;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    T* at = x + row * columns + column;
    float values[kWidth], w[kWidth];
    LoadGroup<kAligned>(at, count, values);
    if (weight != nullptr) {
      LoadGroup<kAligned>(weight + (first_row + row) % tokens * columns + column, count, w);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[j] += w[j];
    }
    if (type_weight != nullptr) {
      LoadGroup<kAligned>(type_weight + types[row] * columns + column, count, w);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[j] += w[j];
    }
    DropGroup(dropout, row, column, values);
    StoreGroup<kAligned>(values, count, at);
  }
};

// Sums the gradients of the `slot`th position: rows slot, slot + tokens, ... of the call, all of
// position (first_row + slot) mod tokens.
template <typename T>
struct PositionGradient {
  static constexpr int kWidth = kGroup<T>;
  T* dx;
  float* dweight;  // or null
  int64_t rows, columns, tokens, first_row;
  DropoutBits dropout;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t slot, int64_t column, int64_t count) const {
    float* to = dweight + (first_row + slot) % tokens * columns + column;
    float sum[kWidth] = {};
    if (dweight != nullptr) LoadGroup<false>(to, count, sum);
    for (int64_t row = slot; row < rows; row += tokens) {
      T* at = dx + row * columns + column;
      float values[kWidth];
      LoadGroup<kAligned>(at, count, values);
      DropGroup(dropout, row, column, values);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += values[j];
      if (dropout.on) StoreGroup<kAligned>(values, count, at);
    }
    if (dweight != nullptr) StoreGroup<false>(sum, count, to);
  }
};

// to[index[i] - begin] += dropout(from[i]), i ascending; others than `rows` are skipped.
template <typename To, typename From>
struct SumByIndex {
  const From* from;
  const int32_t* index;
  To* to;
  int64_t count, columns, begin, rows;
  DropoutBits dropout;
};

template <bool kAligned, typename To, typename From>
__global__ void __launch_bounds__(kSumThreads) SumByIndexKernel(SumByIndex<To, From> s) {
  __shared__ int32_t tile[kSumThreads];
  const int64_t item = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t mine = s.index[item];
  const int64_t row = mine - s.begin;
  if (row < 0 || row >= s.rows) return;
  // Nearest items first: a frequent index finds another one soon.
  for (int64_t end = item; end > 0; end -= kSumThreads) {
    const int64_t other = end - 1 - thread;
    if (__syncthreads_or(other >= 0 && s.index[other] == mine)) return;
  }
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kSumThreads + thread) * kSumWidth;
  const int64_t width = s.columns - column < kSumWidth ? s.columns - column : kSumWidth;
  float sum[kSumWidth] = {};
  To* to = s.to + row * s.columns + column;
  if (width > 0) LoadGroup<kAligned>(to, width, sum);
  for (int64_t first = item; first < s.count; first += kSumThreads) {
    if (first + thread < s.count) tile[thread] = s.index[first + thread];
    __syncthreads();
    const int64_t rest = s.count - first;
    const int size = static_cast<int>(rest < kSumThreads ? rest : kSumThreads);
    for (int i = 0; i < size && width > 0; ++i) {
      if (tile[i] != mine) continue;
      float values[kSumWidth];
      LoadGroup<kAligned>(s.from + (first + i) * s.columns + column, width, values);
      DropGroup(s.dropout, first + i, column, values);
#pragma unroll
      for (int j = 0; j < kSumWidth; ++j) sum[j] += values[j];
    }
    __syncthreads();
  }
  if (width > 0) StoreGroup<kAligned>(sum, width, to);
}

template <typename To, typename From>
void LaunchSumByIndex(const SumByIndex<To, From>& s, cudaStream_t stream) {
  if (s.count == 0 || s.columns == 0) return;
  constexpr int64_t kColumnsOfBlock = kSumThreads * kSumWidth;
  const LaunchShape shape{
      dim3(static_cast<unsigned>(s.count),
           static_cast<unsigned>((s.columns + kColumnsOfBlock - 1) / kColumnsOfBlock)),
      dim3(kSumThreads)};
  if (Aligned({s.from}, s.columns, sizeof(From)) && Aligned({s.to}, s.columns, sizeof(To))) {
    Launch(SumByIndexKernel<true, To, From>, shape, stream, s);
  } else {
    Launch(SumByIndexKernel<false, To, From>, shape, stream, s);
  }
}

constexpr int64_t kAllRows = INT64_MAX;

}  // namespace

void EmbeddingCuda(const EmbeddingArgs& a, const CudaContext& context) {
  ByStorage(a.out.stored(), [&]<typename T>() {
    const CopyByIndex<T> operation{As<T>(a.weight), a.tokens,           As<T>(a.out),
                                   a.columns,       a.vocabulary_begin, a.vocabulary_rows};
    LaunchRows(operation, a.count, a.columns,
               Aligned({operation.from, operation.out}, a.columns, sizeof(T)), context.stream);
  });
}

void EmbeddingBackwardCuda(const EmbeddingBackwardArgs& a, const CudaContext& context) {
  ByStorage(a.dx.stored(), [&]<typename T>() {
    LaunchSumByIndex(SumByIndex<float, T>{As<T>(a.dx),
                                          a.tokens,
                                          a.dweight,
                                          a.count,
                                          a.columns,
                                          a.vocabulary_begin,
                                          a.vocabulary_rows,
                                          {}},
                     context.stream);
  });
}

void PositionEmbeddingCuda(const PositionEmbeddingArgs& a, const CudaContext& context) {
  ByStorage(a.x.stored(), [&]<typename T>() {
    const AddPositions<T> operation{
        As<T>(a.x), As<T>(a.weight), As<T>(a.type_weight), a.types,
        a.columns,  a.tokens,        a.first_row,          MakeDropoutBits(a.dropout)};
    LaunchRows(
        operation, a.rows, a.columns,
        Aligned({operation.x, operation.weight, operation.type_weight}, a.columns, sizeof(T)),
        context.stream);
  });
}

void PositionEmbeddingBackwardCuda(const PositionEmbeddingBackwardArgs& a,
                                   const CudaContext& context) {
  ByStorage(a.dx.stored(), [&]<typename T>() {
    const DropoutBits dropout = MakeDropoutBits(a.dropout);
    // First, since the second one overwrites dx.
    if (a.dtype_weight != nullptr) {
      LaunchSumByIndex(SumByIndex<float, T>{As<T>(a.dx), a.types, a.dtype_weight, a.rows, a.columns,
                                            0, kAllRows, dropout},
                       context.stream);
    }
    if (a.dweight == nullptr && !dropout.on) return;
    const PositionGradient<T> operation{As<T>(a.dx), a.dweight,   a.rows, a.columns,
                                        a.tokens,    a.first_row, dropout};
    LaunchRows(operation, std::min(a.rows, a.tokens), a.columns,
               Aligned({operation.dx}, a.columns, sizeof(T)), context.stream);
  });
}

void GatherCuda(const GatherArgs& a, const CudaContext& context) {
  ByStorage(a.out.stored(), [&]<typename T>() {
    const CopyByIndex<T> operation{As<T>(a.x), a.index, As<T>(a.out), a.columns, 0, kAllRows};
    LaunchRows(operation, a.count, a.columns,
               Aligned({operation.from, operation.out}, a.columns, sizeof(T)), context.stream);
  });
}

void ScatterAddCuda(const ScatterAddArgs& a, const CudaContext& context) {
  ByStorage(a.to.stored(), [&]<typename T>() {
    LaunchSumByIndex(
        SumByIndex<T, T>{As<T>(a.from), a.index, As<T>(a.to), a.count, a.columns, 0, kAllRows, {}},
        context.stream);
  });
}

}  // namespace tercio::kernels::cuda

// Token, position and type embeddings, and rows by index.
//
// Launch geometry: forward as primitives/rows.cuh, a lane has a group of 16 bytes. Sums by index: a
// block for each item and 128 groups of columns; the block of the first item of a row of the result
// is its owner and adds all of them, in ascending order, the others end. An owner reads all indices
// once, from the cache, 512 in a round: each thread compares four of them, the hits become masks by
// ballot, and rounds without a hit end there. Gradient of positions: a lane has a group of one
// position and adds the rows of that position, ascending.
//
// Bytes for each element, B = 2 or 4: rows by index 2 B; position embedding 2 B (B more for each
// weight that is not in cache); sums by index B and 8 for each element of the result (2 B where it
// is of the same storage), and 4 from the cache for each owner and item; gradient of positions with
// dropout 2 B. Bound by memory; sums by index by instructions where most indices differ.
#include <algorithm>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/dropout.cuh"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

constexpr int kSumThreads = 128;
constexpr int kSumWarps = kSumThreads / kWarpThreads;
constexpr int kSumCompares = 4;  // items that a thread compares in a round
constexpr int kSumRound = kSumThreads * kSumCompares;
constexpr int kSumMasks = kSumRound / kWarpThreads;
constexpr int kSumRowsInFlight = 4;  // rows that a thread loads before it adds the first

// out[i] = scale * from[index[i] - begin], zeros where that is not one of `rows`.
template <typename T>
struct CopyByIndex {
  static constexpr int kWidth = kGroup<T>;
  const T* from;
  const int32_t* index;
  T* out;
  int64_t columns, begin, rows;
  float scale;  // 1 changes no bit

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t i, int64_t column, int64_t count) const {
    const int64_t row = index[i] - begin;
    float values[kWidth] = {};
    if (row >= 0 && row < rows) LoadGroup<kAligned>(from + row * columns + column, count, values);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] *= scale;
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
  const int32_t* positions;  // null: those of a sequence
  int64_t columns, tokens, first_row;
  DropoutBits dropout;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    T* at = x + row * columns + column;
    float values[kWidth], w[kWidth];
    LoadGroup<kAligned>(at, count, values);
    if (weight != nullptr) {
      const int64_t position = positions == nullptr ? (first_row + row) % tokens : positions[row];
      LoadGroup<kAligned>(weight + position * columns + column, count, w);
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

// to[index[i] - begin] += scale * dropout(from[i]), i ascending; others than `rows` are skipped.
// Without kDropout the kernel has no code for it, which would cost half of the blocks of a
// multiprocessor.
template <bool kDropout, typename To, typename From>
struct SumByIndex {
  const From* from;
  const int32_t* index;
  To* to;
  int64_t count, columns, begin, rows;
  DropoutBits dropout;
  float scale;  // 1 changes no bit
};

// The items of a round that belong to the row, ascending; alike for all threads of a block.
class Hits {
 public:
  __device__ explicit Hits(const unsigned* masks) : masks_(masks), rest_(masks[0]) {}

  // The next item's place in the round; negative after the last one.
  __device__ __forceinline__ int Next() {
    while (rest_ == 0) {
      if (word_ + 1 >= kSumMasks) return -1;
      rest_ = masks_[++word_];
    }
    const int bit = __ffs(static_cast<int>(rest_)) - 1;
    rest_ &= rest_ - 1;
    return word_ * kWarpThreads + bit;
  }

 private:
  const unsigned* masks_;
  int word_ = 0;
  unsigned rest_;
};

// Whether any item of [0, end) has the index `mine`. Nearest items first: a frequent index finds
// another one soon. Alike for all threads of a block.
__device__ __forceinline__ bool FoundBefore(const int32_t* index, int64_t end, int32_t mine) {
  for (; end > 0; end -= kSumRound) {
    bool hit = false;
#pragma unroll
    for (int k = 0; k < kSumCompares; ++k) {
      const int64_t other = end - 1 - k * kSumThreads - static_cast<int>(threadIdx.x);
      hit |= other >= 0 && index[other] == mine;
    }
    if (__syncthreads_or(hit)) return true;
  }
  return false;
}

// Writes the masks of the round of items that begins at `first`; whether there is a hit.
__device__ __forceinline__ bool FindHits(const int32_t* index, int64_t first, int64_t count,
                                         int32_t mine, unsigned* masks) {
  const int thread = static_cast<int>(threadIdx.x);
  unsigned any = 0;
#pragma unroll
  for (int k = 0; k < kSumCompares; ++k) {
    const int64_t item = first + k * kSumThreads + thread;
    const unsigned mask = __ballot_sync(kAllLanes, item < count && index[item] == mine);
    if (thread % kWarpThreads == 0) masks[k * kSumWarps + thread / kWarpThreads] = mask;
    any |= mask;
  }
  return __syncthreads_or(any != 0);
}

// Adds the rows of a round's hits to the thread's columns, in ascending order.
template <bool kAligned, bool kDropout, typename To, typename From>
__device__ __forceinline__ void AddHits(const SumByIndex<kDropout, To, From>& s, int64_t first,
                                        int64_t column, int64_t width, const unsigned* masks,
                                        float (&sum)[kGroup<From>]) {
  constexpr int kWidth = kGroup<From>;
  Hits hits(masks);
  for (;;) {
    Elements<From, kWidth> rows[kSumRowsInFlight];
    int at[kSumRowsInFlight];
#pragma unroll
    for (int k = 0; k < kSumRowsInFlight; ++k) {
      at[k] = hits.Next();
      if (at[k] < 0) continue;
      LoadElements<kAligned>(s.from + (first + at[k]) * s.columns + column, width, rows[k]);
    }
#pragma unroll
    for (int k = 0; k < kSumRowsInFlight; ++k) {
      if (at[k] < 0) return;
      float values[kWidth];
      ToFloats(rows[k], values);
      if constexpr (kDropout) DropGroup(s.dropout, first + at[k], column, values);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += values[j] * s.scale;
    }
  }
}

template <bool kAligned, bool kDropout, typename To, typename From>
__global__ void __launch_bounds__(kSumThreads, kDropout ? 5 : 8)
    SumByIndexKernel(const __grid_constant__ SumByIndex<kDropout, To, From> s) {
  constexpr int kWidth = kGroup<From>;
  // Two, so that a round's barrier also ends the reading of the round before it.
  __shared__ unsigned masks[2][kSumMasks];
  const int64_t item = blockIdx.x;
  const int32_t mine = s.index[item];
  const int64_t row = mine - s.begin;
  if (row < 0 || row >= s.rows) return;
  if (FoundBefore(s.index, item, mine)) return;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kSumThreads + threadIdx.x) * kWidth;
  const int64_t width = s.columns - column < kWidth ? s.columns - column : kWidth;
  float sum[kWidth] = {};
  To* to = s.to + row * s.columns + column;
  if (width > 0) LoadGroup<kAligned>(to, width, sum);
  int round = 0;
  for (int64_t first = item; first < s.count; first += kSumRound) {
    unsigned* found = masks[round];
    round ^= 1;
    if (!FindHits(s.index, first, s.count, mine, found) || width <= 0) continue;
    AddHits<kAligned>(s, first, column, width, found, sum);
  }
  if (width > 0) StoreGroup<kAligned>(sum, width, to);
}

template <bool kDropout, typename To, typename From>
void LaunchSumByIndex(const SumByIndex<kDropout, To, From>& s, cudaStream_t stream) {
  if (s.count == 0 || s.columns == 0) return;
  constexpr int64_t kColumnsOfBlock = kSumThreads * kGroup<From>;
  const LaunchShape shape{
      dim3(static_cast<unsigned>(s.count),
           static_cast<unsigned>((s.columns + kColumnsOfBlock - 1) / kColumnsOfBlock)),
      dim3(kSumThreads)};
  if (Aligned({s.from}, s.columns, sizeof(From)) && Aligned({s.to}, s.columns, sizeof(To))) {
    Launch(SumByIndexKernel<true, kDropout, To, From>, shape, stream, s);
  } else {
    Launch(SumByIndexKernel<false, kDropout, To, From>, shape, stream, s);
  }
}

constexpr int64_t kAllRows = INT64_MAX;

}  // namespace

void EmbeddingCuda(const EmbeddingArgs& a, const CudaContext& context) {
  ByStorage(a.out.stored(), [&]<typename T>() {
    const CopyByIndex<T> operation{As<T>(a.weight),    a.tokens,          As<T>(a.out), a.columns,
                                   a.vocabulary_begin, a.vocabulary_rows, a.scale};
    LaunchRows(operation, a.count, a.columns,
               Aligned({operation.from, operation.out}, a.columns, sizeof(T)), context.stream);
  });
}

void EmbeddingBackwardCuda(const EmbeddingBackwardArgs& a, const CudaContext& context) {
  ByStorage(a.dx.stored(), [&]<typename T>() {
    LaunchSumByIndex(SumByIndex<false, float, T>{As<T>(a.dx),
                                                 a.tokens,
                                                 a.dweight,
                                                 a.count,
                                                 a.columns,
                                                 a.vocabulary_begin,
                                                 a.vocabulary_rows,
                                                 {},
                                                 a.scale},
                     context.stream);
  });
}

void PositionEmbeddingCuda(const PositionEmbeddingArgs& a, const CudaContext& context) {
  ByStorage(a.x.stored(), [&]<typename T>() {
    const AddPositions<T> operation{As<T>(a.x), As<T>(a.weight), As<T>(a.type_weight),
                                    a.types,    a.positions,     a.columns,
                                    a.tokens,   a.first_row,     MakeDropoutBits(a.dropout)};
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
    // First, since the last one overwrites dx.
    const auto sum_by = [&](const int32_t* index, float* to) {
      LaunchSumByIndex(SumByIndex<true, float, T>{As<T>(a.dx), index, to, a.rows, a.columns, 0,
                                                  kAllRows, dropout, 1.0f},
                       context.stream);
    };
    if (a.dtype_weight != nullptr) sum_by(a.types, a.dtype_weight);
    float* dweight = a.dweight;
    // Positions that restart lie anywhere; those of a sequence are in the rows of the call that
    // are T apart.
    if (dweight != nullptr && a.positions != nullptr) {
      sum_by(a.positions, dweight);
      dweight = nullptr;
    }
    if (dweight == nullptr && !dropout.on) return;
    const PositionGradient<T> operation{As<T>(a.dx), dweight,     a.rows, a.columns,
                                        a.tokens,    a.first_row, dropout};
    LaunchRows(operation, std::min(a.rows, a.tokens), a.columns,
               Aligned({operation.dx}, a.columns, sizeof(T)), context.stream);
  });
}

void GatherCuda(const GatherArgs& a, const CudaContext& context) {
  ByStorage(a.out.stored(), [&]<typename T>() {
    const CopyByIndex<T> operation{As<T>(a.x), a.index, As<T>(a.out), a.columns, 0, kAllRows, 1.0f};
    LaunchRows(operation, a.count, a.columns,
               Aligned({operation.from, operation.out}, a.columns, sizeof(T)), context.stream);
  });
}

void ScatterAddCuda(const ScatterAddArgs& a, const CudaContext& context) {
  ByStorage(a.to.stored(), [&]<typename T>() {
    LaunchSumByIndex(
        SumByIndex<false, T, T>{
            As<T>(a.from), a.index, As<T>(a.to), a.count, a.columns, 0, kAllRows, {}, 1.0f},
        context.stream);
  });
}

}  // namespace tercio::kernels::cuda

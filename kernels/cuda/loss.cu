// Soft caps of logits, and cross-entropy over a vocabulary that may be cut over tensor ranks.
//
// Launch geometry: soft caps as primitives/rows.cuh; the statistics have a block for each row, a
// thread groups t, t + 256, ... of it, with a running maximum and sum, four groups loaded ahead;
// the gradient is as primitives/rows.cuh. Joining ranks is a thread for each row. Where the
// vocabulary is not cut, one block does all of this for a row, which it keeps in shared memory if
// two blocks fit there. Adding losses is a block for each sum: all threads load, one adds, in
// ascending order. It is a launch of its own, since a count of the rows that are done would have to
// be set to zero by one, too. Bytes for each logit, B = 2 or 4: soft cap 2 B, statistics B,
// gradient 2 B; all in one 2 B, 3 B where the row does not fit. Bound by memory, and nearly by
// instructions: two exponentials a logit.
#include <cmath>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

constexpr int kLossThreads = 256;
// What a block of whole rows has beside its row: its own declared memory, and the device's part.
constexpr int64_t kSharedBesideRow = 2 << 10;
constexpr int kGroupsAhead = 4;  // that a thread loads before it reads the first

template <typename T>
struct CapLogits {
  static constexpr int kWidth = kGroup<T>;
  T* x;
  float cap;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t, int64_t column, int64_t count) const {
    float values[kWidth];
    LoadGroup<kAligned>(x + column, count, values);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = cap * tanhf(values[j] / cap);
    StoreGroup<kAligned>(values, count, x + column);
  }
};

template <typename T>
struct LocalLoss {
  const T* logits;
  const int32_t* targets;
  float* stats;
  int64_t valid, stride, vocabulary_begin;
  bool sums;
};

// Sum of exp(x - max), with max of all values so far.
struct RunningSum {
  float max;
  float sum;

  template <int kCount>
  __device__ __forceinline__ void Add(const float (&x)[kCount], int64_t count) {
    float next = max;
#pragma unroll
    for (int j = 0; j < kCount; ++j) next = j < count ? fmaxf(next, x[j]) : next;
    // Only -infinity so far: it adds zeros, and NaN stays NaN.
    const float base = next == -INFINITY ? 0.0f : next;
    sum = max == -INFINITY ? sum : sum * expf(max - base);
    max = next;
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum += j < count ? expf(x[j] - base) : 0.0f;
  }
};

// The statistics of a row, as kernels/ops.h describes them.
struct RowStatistics {
  float max;
  float sum;
  float target;  // for the first thread only
  float plain;
};

// All threads of a block. `row_cache`, unless null, then holds a thread's groups.
template <bool kAligned, typename T>
__device__ __forceinline__ RowStatistics StatisticsOf(const LocalLoss<T>& a, int64_t row,
                                                      T* row_cache) {
  constexpr int kWidth = kGroup<T>;
  constexpr int64_t kStep = int64_t{kLossThreads} * kWidth;
  const T* logits = a.logits + row * a.stride;
  RunningSum running{-INFINITY, 0.0f};
  RowStatistics result{};
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * kWidth; first < a.valid;
       first += kGroupsAhead * kStep) {
    Elements<T, kWidth> groups[kGroupsAhead];
#pragma unroll
    for (int k = 0; k < kGroupsAhead; ++k) {
      const int64_t column = first + k * kStep;
      if (column < a.valid) LoadElements<kAligned>(logits + column, a.valid - column, groups[k]);
    }
#pragma unroll
    for (int k = 0; k < kGroupsAhead; ++k) {
      const int64_t column = first + k * kStep;
      if (column >= a.valid) break;
      if (row_cache != nullptr) groups[k].Store(row_cache + column);
      float x[kWidth];
      ToFloats(groups[k], x);
      running.Add(x, a.valid - column);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) result.plain += x[j];
    }
  }
  if (threadIdx.x == 0) {
    // Before a barrier, behind which the logit may become a gradient.
    const int64_t target = a.targets[row] - a.vocabulary_begin;
    result.target = target >= 0 && target < a.valid ? ToFloat(logits[target]) : -INFINITY;
  }
  result.max = BlockMax(running.max);
  // A thread without columns has nothing to scale.
  result.sum = running.sum == 0 ? 0.0f : running.sum;
  if (result.sum != 0 && running.max != result.max && running.max != -INFINITY) {
    result.sum *= expf(running.max - result.max);
  }
  BlockSums(result.sum, result.plain);
  return result;
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kLossThreads)
    LocalLossKernel(const __grid_constant__ LocalLoss<T> a) {
  const int64_t row = blockIdx.x;
  const RowStatistics statistics = StatisticsOf<kAligned, T>(a, row, nullptr);
  if (threadIdx.x != 0) return;
  float* stats = a.stats + row * kCrossEntropyStats;
  stats[0] = statistics.max;
  stats[1] = statistics.sum;
  stats[2] = statistics.target;
  stats[3] = a.sums ? statistics.plain : 0.0f;
}

struct JoinedLoss {
  const float* stats;
  float* lse;
  float* loss;
  int64_t rows, ranks;
  double amount, vocabulary;
};

// Joins the statistics of `ranks` ranks, `stride` floats apart, into those of the row.
__device__ __forceinline__ void JoinRow(const JoinedLoss& a, const float* of_row, int64_t ranks,
                                        int64_t stride, int64_t row) {
  float max = -INFINITY;
  float target = -INFINITY;
  double logits = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* stats = of_row + rank * stride;
    max = fmaxf(max, stats[0]);
    target = fmaxf(target, stats[2]);
    logits += stats[3];
  }
  double sum = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* stats = of_row + rank * stride;
    // A rank without valid columns has sum 0 and maximum -inf: exp(-inf) * 0 = 0.
    sum += stats[1] * exp(static_cast<double>(stats[0]) - static_cast<double>(max));
  }
  const auto lse = static_cast<float>(static_cast<double>(max) + log(sum));
  float loss = lse - target;
  if (a.amount > 0) {
    loss += static_cast<float>(a.amount * (static_cast<double>(target) - logits / a.vocabulary));
  }
  a.lse[row] = lse;
  a.loss[row] = loss;
}

__global__ void __launch_bounds__(kLossThreads)
    JoinLossKernel(const __grid_constant__ JoinedLoss a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kLossThreads + threadIdx.x;
  if (row >= a.rows) return;
  JoinRow(a, a.stats + row * kCrossEntropyStats, a.ranks, a.rows * kCrossEntropyStats, row);
}

template <typename T>
struct LossGradient {
  static constexpr int kWidth = kGroup<T>;
  T* logits;
  const float* lse;
  const int32_t* targets;
  int64_t valid, stride, vocabulary_begin;
  float scale, amount, each;
  float softcap;  // 0: none

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    float x[kWidth];
    LoadGroup<kAligned>(logits + row * stride + column, count, x);
    Write<kAligned>(row, column, count, lse[row], x);
  }

  // x: the logits of the group.
  template <bool kAligned>
  __device__ __forceinline__ void Write(int64_t row, int64_t column, int64_t count, float row_lse,
                                        float (&x)[kWidth]) const {
    const int64_t target = targets[row] - vocabulary_begin - column;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      float p = expf(x[j] - row_lse);
      if (j == target) p -= 1.0f - amount;
      float gradient = (p - each) * scale;
      if (softcap > 0) {
        const float share = x[j] / softcap;
        gradient *= fmaf(-share, share, 1.0f);
      }
      x[j] = column + j < valid ? gradient : 0.0f;
    }
    StoreGroup<kAligned>(x, count, logits + row * stride + column);
  }
};

// A row of which the rank has the whole vocabulary: its statistics, loss and gradient. The logits
// are read once more for the gradient, from shared memory where they are `cached`.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kLossThreads)
    WholeLossKernel(const __grid_constant__ LocalLoss<T> local,
                    const __grid_constant__ JoinedLoss joined,
                    const __grid_constant__ LossGradient<T> gradient, bool cached) {
  constexpr int kWidth = kGroup<T>;
  T* row_cache = cached ? DynamicShared<T>() : nullptr;
  const int64_t row = blockIdx.x;
  const RowStatistics statistics = StatisticsOf<kAligned>(local, row, row_cache);
  if (threadIdx.x == 0) {
    const float stats[kCrossEntropyStats] = {statistics.max, statistics.sum, statistics.target,
                                             local.sums ? statistics.plain : 0.0f};
    JoinRow(joined, stats, 1, 0, row);
  }
  __syncthreads();
  const float row_lse = joined.lse[row];
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kWidth; column < local.stride;
       column += int64_t{kLossThreads} * kWidth) {
    const int64_t count = local.stride - column < kWidth ? local.stride - column : kWidth;
    float x[kWidth] = {};
    if (row_cache == nullptr) {
      LoadGroup<kAligned>(local.logits + row * local.stride + column, count, x);
    } else if (column < local.valid) {
      LoadGroup<true>(row_cache + column, kWidth, x);
    }
    gradient.template Write<kAligned>(row, column, count, row_lse, x);
  }
}

// A block has one sum and the rows that belong to it. The first thread adds them in ascending
// order, so that its additions, not its loads, are what takes time.
__global__ void __launch_bounds__(kLossThreads)
    AddLossesKernel(const float* loss, double* sums, int64_t rows, int64_t first_row,
                    int64_t rows_per_sum) {
  __shared__ float piece[kLossThreads];
  const int64_t index = first_row / rows_per_sum + blockIdx.x;
  const int64_t first = index * rows_per_sum - first_row;
  const int64_t begin = first < 0 ? 0 : first;
  const int64_t end = first + rows_per_sum < rows ? first + rows_per_sum : rows;
  double sum = sums[index];
  for (int64_t at = begin; at < end; at += kLossThreads) {
    const int64_t row = at + static_cast<int>(threadIdx.x);
    piece[threadIdx.x] = row < end ? loss[row] : 0.0f;
    __syncthreads();
    const int count = end - at < kLossThreads ? static_cast<int>(end - at) : kLossThreads;
    for (int i = 0; i < count && threadIdx.x == 0; ++i) sum += piece[i];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[index] = sum;
}

unsigned BlocksOf(int64_t threads) {
  return static_cast<unsigned>((threads + kLossThreads - 1) / kLossThreads);
}

template <typename T>
LossGradient<T> GradientOf(const CrossEntropyBackwardArgs& a) {
  return {As<T>(a.logits),
          a.lse,
          a.targets,
          a.valid,
          a.stride,
          a.vocabulary_begin,
          a.scale,
          a.smoothing.amount,
          a.smoothing.amount / static_cast<float>(a.smoothing.vocabulary),
          a.softcap};
}

template <typename T>
void LaunchWholeLoss(const CrossEntropyArgs& a, const CudaContext& context) {
  const LocalLoss<T> local{As<T>(a.logits),       a.targets, nullptr, a.valid, a.stride, 0,
                           a.smoothing.amount > 0};
  const JoinedLoss joined{nullptr,
                          a.lse,
                          a.loss,
                          a.rows,
                          1,
                          static_cast<double>(a.smoothing.amount),
                          static_cast<double>(a.smoothing.vocabulary)};
  const LossGradient<T> gradient = GradientOf<T>({.logits = a.logits,
                                                  .lse = a.lse,
                                                  .targets = a.targets,
                                                  .rows = a.rows,
                                                  .valid = a.valid,
                                                  .stride = a.stride,
                                                  .vocabulary_begin = 0,
                                                  .scale = a.scale,
                                                  .smoothing = a.smoothing,
                                                  .softcap = a.softcap});
  const int64_t row_bytes = (a.valid + kGroup<T> - 1) / kGroup<T> * 16;
  // One block alone would leave a multiprocessor waiting at each of its barriers.
  const bool cached = 2 * (row_bytes + kSharedBesideRow) <= context.shared_bytes;
  const LaunchShape shape{dim3(static_cast<unsigned>(a.rows)), dim3(kLossThreads),
                          cached ? static_cast<size_t>(row_bytes) : 0};
  if (Aligned({local.logits}, a.stride, sizeof(T))) {
    Launch(WholeLossKernel<true, T>, shape, context.stream, local, joined, gradient, cached);
  } else {
    Launch(WholeLossKernel<false, T>, shape, context.stream, local, joined, gradient, cached);
  }
}

}  // namespace

void SoftCapCuda(const SoftCapArgs& a, const CudaContext& context) {
  ByStorage(a.x.stored(), [&]<typename T>() {
    const CapLogits<T> operation{As<T>(a.x), a.cap};
    LaunchFlat(operation, a.count, Aligned({operation.x}, 0, 1), context.stream);
  });
}

void CrossEntropyLocalCuda(const CrossEntropyLocalArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  ByStorage(a.logits.stored(), [&]<typename T>() {
    const LocalLoss<T> local{As<T>(a.logits), a.targets,          a.stats, a.valid,
                             a.stride,        a.vocabulary_begin, a.sums};
    const LaunchShape shape{dim3(static_cast<unsigned>(a.rows)), dim3(kLossThreads)};
    if (Aligned({local.logits}, a.stride, sizeof(T))) {
      Launch(LocalLossKernel<true, T>, shape, context.stream, local);
    } else {
      Launch(LocalLossKernel<false, T>, shape, context.stream, local);
    }
  });
}

void CrossEntropyCombineCuda(const CrossEntropyCombineArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  Launch(
      JoinLossKernel, {dim3(BlocksOf(a.rows)), dim3(kLossThreads)}, context.stream,
      JoinedLoss{a.stats, a.lse, a.loss, a.rows, a.ranks, static_cast<double>(a.smoothing.amount),
                 static_cast<double>(a.smoothing.vocabulary)});
}

void CrossEntropyBackwardCuda(const CrossEntropyBackwardArgs& a, const CudaContext& context) {
  ByStorage(a.logits.stored(), [&]<typename T>() {
    const LossGradient<T> operation = GradientOf<T>(a);
    LaunchRows(operation, a.rows, a.stride, Aligned({operation.logits}, a.stride, sizeof(T)),
               context.stream);
  });
}

void CrossEntropyCuda(const CrossEntropyArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  ByStorage(a.logits.stored(), [&]<typename T>() { LaunchWholeLoss<T>(a, context); });
  AddLossesCuda({.loss = a.loss,
                 .sums = a.sums,
                 .rows = a.rows,
                 .first_row = a.first_row,
                 .rows_per_sum = a.rows_per_sum},
                context);
}

void AddLossesCuda(const AddLossesArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  const int64_t sums =
      (a.first_row + a.rows - 1) / a.rows_per_sum - a.first_row / a.rows_per_sum + 1;
  Launch(AddLossesKernel, {dim3(static_cast<unsigned>(sums)), dim3(kLossThreads)}, context.stream,
         a.loss, a.sums, a.rows, a.first_row, a.rows_per_sum);
}

}  // namespace tercio::kernels::cuda

// Cross-entropy over a vocabulary that may be cut over tensor ranks.
//
// Launch geometry: the statistics have a block for each row, a thread groups t, t + 256, ... of it,
// with a running maximum and sum; the gradient is as primitives/rows.cuh. Joining ranks and adding
// losses are a thread for each row, and for each sum.
// Bytes for each logit, B = 2 or 4: statistics B, gradient 2 B. Bound by memory.
#include <cmath>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

constexpr int kLossThreads = 256;

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

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kLossThreads) LocalLossKernel(LocalLoss<T> a) {
  constexpr int kWidth = kGroup<T>;
  const int64_t row = blockIdx.x;
  const T* logits = a.logits + row * a.stride;
  RunningSum running{-INFINITY, 0.0f};
  float plain = 0;
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kWidth; column < a.valid;
       column += int64_t{kLossThreads} * kWidth) {
    const int64_t count = a.valid - column < kWidth ? a.valid - column : kWidth;
    float x[kWidth];
    LoadGroup<kAligned>(logits + column, count, x);
    running.Add(x, count);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) plain += x[j];
  }
  const float max = BlockMax(running.max);
  // A thread without columns has nothing to scale.
  float sum = running.sum == 0 ? 0.0f : running.sum;
  if (sum != 0 && running.max != max && running.max != -INFINITY) sum *= expf(running.max - max);
  BlockSums(sum, plain);
  if (threadIdx.x != 0) return;
  float* stats = a.stats + row * kCrossEntropyStats;
  const int64_t target = a.targets[row] - a.vocabulary_begin;
  stats[0] = max;
  stats[1] = sum;
  stats[2] = target >= 0 && target < a.valid ? ToFloat(logits[target]) : -INFINITY;
  stats[3] = a.sums ? plain : 0.0f;
}

struct JoinedLoss {
  const float* stats;
  float* lse;
  float* loss;
  int64_t rows, ranks;
  double amount, vocabulary;
};

__global__ void __launch_bounds__(kLossThreads) JoinLossKernel(JoinedLoss a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kLossThreads + threadIdx.x;
  if (row >= a.rows) return;
  float max = -INFINITY;
  float target = -INFINITY;
  double logits = 0;
  for (int64_t rank = 0; rank < a.ranks; ++rank) {
    const float* stats = a.stats + (rank * a.rows + row) * kCrossEntropyStats;
    max = fmaxf(max, stats[0]);
    target = fmaxf(target, stats[2]);
    logits += stats[3];
  }
  double sum = 0;
  for (int64_t rank = 0; rank < a.ranks; ++rank) {
    const float* stats = a.stats + (rank * a.rows + row) * kCrossEntropyStats;
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

template <typename T>
struct LossGradient {
  static constexpr int kWidth = kGroup<T>;
  T* logits;
  const float* lse;
  const int32_t* targets;
  int64_t valid, stride, vocabulary_begin;
  float scale, amount, each;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    T* at = logits + row * stride + column;
    const float row_lse = lse[row];
    const int64_t target = targets[row] - vocabulary_begin - column;
    float x[kWidth];
    LoadGroup<kAligned>(at, count, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      float p = expf(x[j] - row_lse);
      if (j == target) p -= 1.0f - amount;
      x[j] = column + j < valid ? (p - each) * scale : 0.0f;
    }
    StoreGroup<kAligned>(x, count, at);
  }
};

// A thread has one sum and the rows that belong to it, in ascending order.
__global__ void __launch_bounds__(kLossThreads)
    AddLossesKernel(const float* loss, double* sums, int64_t rows, int64_t first_row,
                    int64_t rows_per_sum) {
  const int64_t index =
      first_row / rows_per_sum + static_cast<int64_t>(blockIdx.x) * kLossThreads + threadIdx.x;
  const int64_t begin = index * rows_per_sum - first_row;
  const int64_t end = begin + rows_per_sum < rows ? begin + rows_per_sum : rows;
  if (begin >= rows) return;
  double sum = sums[index];
  for (int64_t row = begin < 0 ? 0 : begin; row < end; ++row) sum += loss[row];
  sums[index] = sum;
}

unsigned BlocksOf(int64_t threads) {
  return static_cast<unsigned>((threads + kLossThreads - 1) / kLossThreads);
}

}  // namespace

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
  const JoinedLoss joined{a.stats,
                          a.lse,
                          a.loss,
                          a.rows,
                          a.ranks,
                          static_cast<double>(a.smoothing.amount),
                          static_cast<double>(a.smoothing.vocabulary)};
  Launch(JoinLossKernel, {dim3(BlocksOf(a.rows)), dim3(kLossThreads)}, context.stream, joined);
}

void CrossEntropyBackwardCuda(const CrossEntropyBackwardArgs& a, const CudaContext& context) {
  ByStorage(a.logits.stored(), [&]<typename T>() {
    const float each = a.smoothing.amount / static_cast<float>(a.smoothing.vocabulary);
    const LossGradient<T> operation{
        As<T>(a.logits),    a.lse,   a.targets,          a.valid, a.stride,
        a.vocabulary_begin, a.scale, a.smoothing.amount, each};
    LaunchRows(operation, a.rows, a.stride, Aligned({operation.logits}, a.stride, sizeof(T)),
               context.stream);
  });
}

void AddLossesCuda(const AddLossesArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  const int64_t sums =
      (a.first_row + a.rows - 1) / a.rows_per_sum - a.first_row / a.rows_per_sum + 1;
  Launch(AddLossesKernel, {dim3(BlocksOf(sums)), dim3(kLossThreads)}, context.stream, a.loss,
         a.sums, a.rows, a.first_row, a.rows_per_sum);
}

}  // namespace tercio::kernels::cuda

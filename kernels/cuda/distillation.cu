// The divergence of two distributions over a vocabulary that may be cut over tensor ranks, and its
// gradient.
//
// Launch geometry: the statistics have a block for each row, which reads both of its rows twice,
// for their maxima and for the sums; the gradient, and logits of which a row has only some, are as
// primitives/rows.cuh, with a thread for each pair behind the latter. Joining ranks is a thread for
// each row. Bytes for each logit, B = 2 or 4: statistics 4 B, gradient 3 B, some logits B. Bound by
// memory, and nearly by instructions: three exponentials a logit.
#include <cmath>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

constexpr int kDistillationThreads = 256;

template <typename T>
struct LocalDivergence {
  const T* student;
  const T* teacher;
  float* stats;
  int64_t valid, stride;
  float cold;  // 1 / temperature
  bool reverse;
};

// visit(s, t) for the columns of a thread.
template <bool kAligned, typename T, typename Visit>
__device__ __forceinline__ void ForColumns(const LocalDivergence<T>& a, int64_t row,
                                           const Visit& visit) {
  constexpr int kWidth = kGroup<T>;
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kWidth; column < a.valid;
       column += int64_t{kDistillationThreads} * kWidth) {
    const int64_t count = a.valid - column < kWidth ? a.valid - column : kWidth;
    float s[kWidth];
    float t[kWidth];
    LoadGroup<kAligned>(a.student + row * a.stride + column, count, s);
    LoadGroup<kAligned>(a.teacher + row * a.stride + column, count, t);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (j < count) visit(s[j], t[j]);
    }
  }
}

// Finite, so that no difference of two infinities is taken: a row may have only -infinity here.
__device__ __forceinline__ float BaseOf(float max) { return max == -INFINITY ? 0.0f : max; }

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kDistillationThreads)
    LocalDivergenceKernel(const __grid_constant__ LocalDivergence<T> a) {
  const int64_t row = blockIdx.x;
  float student_max = -INFINITY;
  float teacher_max = -INFINITY;
  ForColumns<kAligned>(a, row, [&](float s, float t) {
    student_max = fmaxf(student_max, s);
    teacher_max = fmaxf(teacher_max, t);
  });
  student_max = BlockMax(student_max);
  teacher_max = BlockMax(teacher_max);
  // exp of the student, of the teacher, and what is weighted.
  float sums[3] = {};
  ForColumns<kAligned>(a, row, [&](float s, float t) {
    const float q = expf((s - BaseOf(student_max)) * a.cold);
    const float p = expf((t - BaseOf(teacher_max)) * a.cold);
    sums[0] += q;
    sums[1] += p;
    // What the teacher gives no probability weighs nothing, however unlikely the student has it.
    const float of_teacher = t == -INFINITY ? 0.0f : p * ((t - s) * a.cold);
    sums[2] += a.reverse ? q * ((s - t) * a.cold) : of_teacher;
  });
  BlockSums(sums);
  if (threadIdx.x != 0) return;
  float* stats = a.stats + row * kDistillationStats;
  stats[0] = student_max;
  stats[1] = sums[0];
  stats[2] = teacher_max;
  stats[3] = sums[1];
  stats[4] = sums[2];
}

struct JoinedDivergence {
  const float* stats;
  float* student_lse;
  float* teacher_lse;
  float* divergence;
  int64_t rows, ranks;
  double temperature;
  bool reverse;
};

__global__ void __launch_bounds__(kDistillationThreads)
    JoinDivergenceKernel(const __grid_constant__ JoinedDivergence a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kDistillationThreads + threadIdx.x;
  if (row >= a.rows) return;
  const float* of_row = a.stats + row * kDistillationStats;
  const int64_t stride = a.rows * kDistillationStats;
  double student_max = -INFINITY;
  double teacher_max = -INFINITY;
  for (int64_t rank = 0; rank < a.ranks; ++rank) {
    student_max = fmax(student_max, static_cast<double>(of_row[rank * stride]));
    teacher_max = fmax(teacher_max, static_cast<double>(of_row[rank * stride + 2]));
  }
  double student = 0;
  double teacher = 0;
  double weighted = 0;
  for (int64_t rank = 0; rank < a.ranks; ++rank) {
    const float* stats = of_row + rank * stride;
    // A rank without columns has the maximum -infinity, and so adds nothing.
    const double of_student = exp((static_cast<double>(stats[0]) - student_max) / a.temperature);
    const double of_teacher = exp((static_cast<double>(stats[2]) - teacher_max) / a.temperature);
    student += stats[1] * of_student;
    teacher += stats[3] * of_teacher;
    weighted += stats[4] * (a.reverse ? of_student : of_teacher);
  }
  const double student_lse = student_max / a.temperature + log(student);
  const double teacher_lse = teacher_max / a.temperature + log(teacher);
  const double gap = teacher_lse - student_lse;
  a.student_lse[row] = static_cast<float>(student_lse);
  a.teacher_lse[row] = static_cast<float>(teacher_lse);
  a.divergence[row] =
      static_cast<float>(a.reverse ? weighted / student + gap : weighted / teacher - gap);
}

template <typename T>
struct DivergenceGradient {
  static constexpr int kWidth = kGroup<T>;
  T* student;
  const T* teacher;
  const float* lse;
  const int32_t* targets;
  const float* student_lse;
  const float* teacher_lse;
  const float* divergence;
  int64_t valid, stride, vocabulary_begin;
  float of_entropy, of_divergence;  // what the gradients of both are multiplied with
  float cold, softcap;
  bool reverse;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    float s[kWidth];
    float t[kWidth];
    LoadGroup<kAligned>(student + row * stride + column, count, s);
    LoadGroup<kAligned>(teacher + row * stride + column, count, t);
    const int64_t target = targets[row] - vocabulary_begin - column;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float log_q = fmaf(s[j], cold, -student_lse[row]);
      const float log_p = fmaf(t[j], cold, -teacher_lse[row]);
      const float q = expf(log_q);
      const float pull = reverse ? q * (log_q - log_p - divergence[row]) : q - expf(log_p);
      float entropy = expf(s[j] - lse[row]);
      if (j == target) entropy -= 1.0f;
      float gradient = fmaf(entropy, of_entropy, pull * of_divergence);
      if (softcap > 0) {
        const float share = s[j] / softcap;
        gradient *= fmaf(-share, share, 1.0f);
      }
      s[j] = column + j < valid ? gradient : 0.0f;
    }
    StoreGroup<kAligned>(s, count, student + row * stride + column);
  }
};

template <typename T>
struct NoLogits {
  static constexpr int kWidth = kGroup<T>;
  T* out;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t, int64_t column, int64_t count) const {
    float none[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) none[j] = -INFINITY;
    StoreGroup<kAligned>(none, count, out + column);
  }
};

template <typename T>
struct SomeLogits {
  const int32_t* ids;
  const float* values;
  T* out;
  int64_t count, pairs, stride, vocabulary_begin;
};

template <typename T>
__global__ void __launch_bounds__(kDistillationThreads)
    SomeLogitsKernel(const __grid_constant__ SomeLogits<T> a) {
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * kDistillationThreads + threadIdx.x;
  if (pair >= a.count || a.ids[pair] < 0) return;
  const int64_t column = a.ids[pair] - a.vocabulary_begin;
  if (column < 0 || column >= a.stride) return;
  a.out[pair / a.pairs * a.stride + column] = FromFloat<T>(a.values[pair]);
}

unsigned BlocksOf(int64_t threads) {
  return static_cast<unsigned>((threads + kDistillationThreads - 1) / kDistillationThreads);
}

}  // namespace

void DistillationLocalCuda(const DistillationLocalArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  ByStorage(a.student.stored(), [&]<typename T>() {
    const LocalDivergence<T> local{As<T>(a.student), As<T>(a.teacher),     a.stats,  a.valid,
                                   a.stride,         1.0f / a.temperature, a.reverse};
    const LaunchShape shape{dim3(static_cast<unsigned>(a.rows)), dim3(kDistillationThreads)};
    if (Aligned({local.student, local.teacher}, a.stride, sizeof(T))) {
      Launch(LocalDivergenceKernel<true, T>, shape, context.stream, local);
    } else {
      Launch(LocalDivergenceKernel<false, T>, shape, context.stream, local);
    }
  });
}

void DistillationCombineCuda(const DistillationCombineArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  Launch(JoinDivergenceKernel, {dim3(BlocksOf(a.rows)), dim3(kDistillationThreads)}, context.stream,
         JoinedDivergence{a.stats, a.student_lse, a.teacher_lse, a.divergence, a.rows, a.ranks,
                          static_cast<double>(a.temperature), a.reverse});
}

void DistillationBackwardCuda(const DistillationBackwardArgs& a, const CudaContext& context) {
  ByStorage(a.student.stored(), [&]<typename T>() {
    const DivergenceGradient<T> operation{As<T>(a.student),
                                          As<T>(a.teacher),
                                          a.lse,
                                          a.targets,
                                          a.student_lse,
                                          a.teacher_lse,
                                          a.divergence,
                                          a.valid,
                                          a.stride,
                                          a.vocabulary_begin,
                                          (1.0f - a.weight) * a.scale,
                                          a.weight * a.temperature * a.scale,
                                          1.0f / a.temperature,
                                          a.softcap,
                                          a.reverse};
    LaunchRows(operation, a.rows, a.stride,
               Aligned({operation.student, operation.teacher}, a.stride, sizeof(T)),
               context.stream);
  });
}

void SpreadLogitsCuda(const SpreadLogitsArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  ByStorage(a.out.stored(), [&]<typename T>() {
    const NoLogits<T> none{As<T>(a.out)};
    LaunchFlat(none, a.rows * a.stride, Aligned({none.out}, 0, 1), context.stream);
    const SomeLogits<T> some{a.ids,   a.values, As<T>(a.out),      a.rows * a.pairs,
                             a.pairs, a.stride, a.vocabulary_begin};
    Launch(SomeLogitsKernel<T>, {dim3(BlocksOf(some.count)), dim3(kDistillationThreads)},
           context.stream, some);
  });
}

}  // namespace tercio::kernels::cuda

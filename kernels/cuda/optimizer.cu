// AdamW (Loshchilov & Hutter, "Decoupled weight decay regularization", algorithm 2), in the order
// of operations of torch.optim.AdamW, with the rounded copy that the model reads; and the exact sum
// of squares that a gradient norm is made of. Of many tensors in one launch.
//
// Launch geometry: blocks of 256 threads. AdamW: a block has 4,096 elements of a tensor, a thread
// eight at a time. Sums: a block has 64 Ki elements of a tensor, 16 threads for each 1,024; then
// one block adds what these have. Bytes for each element: AdamW 28, and those of the copy; sums 4.
// Bound by memory.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/many_tensors.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/exact_sum.h"

namespace tercio::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// The most tensors that fit into the parameters of a launch (4,096 bytes).
constexpr int kUpdatedTensors = 48;
constexpr int kSummedTensors = static_cast<int>(kSumsOfLaunch);

constexpr int kWidth = 8;
constexpr int64_t kElementsOfBlock = 2 * kWidth * kThreads;

template <typename T>
struct UpdatedTensor {
  float* parameter;
  const float* gradient;
  float* m;
  float* v;
  T* rounded;
  int64_t count;
  float keep;
  bool aligned;
};

template <typename T>
struct Update {
  UpdatedTensor<T> tensors[kUpdatedTensors];
  BlocksOfTensors<kUpdatedTensors> blocks;
  float clip, rest1, beta2, rest2, eps, root2, step;

  template <bool kAligned>
  __device__ __forceinline__ void Run(const UpdatedTensor<T>& t, int64_t at, int64_t count) const {
    float p[kWidth], g[kWidth], m1[kWidth], m2[kWidth];
    LoadGroup<kAligned>(t.parameter + at, count, p);
    LoadGroup<kAligned>(t.gradient + at, count, g);
    LoadGroup<kAligned>(t.m + at, count, m1);
    LoadGroup<kAligned>(t.v + at, count, m2);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float clipped = g[j] * clip;
      m1[j] = fmaf(clipped - m1[j], rest1, m1[j]);
      m2[j] = fmaf(clipped * clipped, rest2, m2[j] * beta2);
      const float denominator = sqrtf(m2[j]) / root2 + eps;
      p[j] = fmaf(step, m1[j] / denominator, p[j] * t.keep);
    }
    StoreGroup<kAligned>(m1, count, t.m + at);
    StoreGroup<kAligned>(m2, count, t.v + at);
    StoreGroup<kAligned>(p, count, t.parameter + at);
    if (t.rounded != nullptr) StoreGroup<kAligned>(p, count, t.rounded + at);
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) UpdateKernel(const __grid_constant__ Update<T> update) {
  int piece = 0;
  const UpdatedTensor<T>& tensor =
      update.tensors[update.blocks.Find(static_cast<int>(blockIdx.x), &piece)];
  const int64_t begin = piece * kElementsOfBlock;
  for (int64_t offset = threadIdx.x * kWidth; offset < kElementsOfBlock;
       offset += kWidth * kThreads) {
    const int64_t rest = tensor.count - begin - offset;
    if (rest <= 0) return;
    const int64_t count = rest < kWidth ? rest : kWidth;
    if (tensor.aligned) {
      update.template Run<true>(tensor, begin + offset, count);
    } else {
      update.template Run<false>(tensor, begin + offset, count);
    }
  }
}

struct SummedTensors {
  const float* values[kSummedTensors];
  int64_t counts[kSummedTensors];
  BlocksOfTensors<kSummedTensors> blocks;
};
struct AddedTensors {
  double* not_finite[kSummedTensors];
  BlocksOfTensors<kSummedTensors> blocks;
  double* limbs;  // null: of the last launch only
  bool first;     // no launch was before this one
};

constexpr int kSumLanes = 16;                       // interleaved sums
constexpr int kSumRows = kThreads / kSumLanes;      // that many of ops.h's blocks at once
constexpr int kNumbers = kNumbersOfSquares;         // limbs, and elements that are not finite
constexpr int kAddedRows = kThreads / kNumbers;     // parts that are added at once
constexpr int kAddThreads = kAddedRows * kNumbers;  // a thread for each of their numbers
static_assert(kNumbers == kSumLimbs + 1);
static_assert(kAddThreads >= kSummedTensors);

// The numbers of one part of a tensor.
struct PartOfSquares {
  int64_t numbers[kNumbers];
};

struct SquaresMemory {
  double sums[kThreads];
  PartOfSquares rows[kSumRows];
};

__device__ __forceinline__ int64_t CountNotFinite(const float* values, int64_t begin, int64_t end) {
  int64_t count = 0;
  // A NaN compares false as well.
  for (int64_t i = begin; i < end; ++i) count += fabsf(values[i]) <= FLT_MAX ? 0 : 1;
  return count;
}

// A block has kSquaresPart elements. Each row of kSumLanes threads sums the squares of
// kSquaresBlock of them at a time, and its first thread adds the sum to limbs of the row.
__global__ void __launch_bounds__(kThreads)
    SquaresKernel(const __grid_constant__ SummedTensors tensors, PartOfSquares* parts) {
  auto* memory = DynamicShared<SquaresMemory>();
  int piece = 0;
  const int tensor = tensors.blocks.Find(static_cast<int>(blockIdx.x), &piece);
  const float* values = tensors.values[tensor] + piece * kSquaresPart;
  const int64_t left = tensors.counts[tensor] - piece * kSquaresPart;
  const int64_t elements = left < kSquaresPart ? left : kSquaresPart;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kSumLanes;
  const int lane = thread % kSumLanes;
  int64_t* numbers = memory->rows[row].numbers;
  for (int i = lane; i < kNumbers; i += kSumLanes) numbers[i] = 0;
  for (int64_t first = 0; first < elements; first += kSumRows * kSquaresBlock) {
    const int64_t begin = first + row * kSquaresBlock;
    const int64_t end = begin + kSquaresBlock < elements ? begin + kSquaresBlock : elements;
    double sum = 0;
#pragma unroll 8
    for (int64_t i = begin + lane; i < end; i += kSumLanes) {
      const double value = values[i];
      sum = fma(value, value, sum);
    }
    memory->sums[thread] = sum;
    __syncthreads();
    if (lane == 0 && begin < end) {
      double total = 0;
      for (int i = 0; i < kSumLanes; ++i) total += memory->sums[thread + i];
      // A float's square is finite in double, so that a sum tells of every element.
      if (total <= DBL_MAX) {
        AddToLimbs(total, numbers);
      } else {
        numbers[kSumLimbs] += CountNotFinite(values, begin, end);
      }
    }
    __syncthreads();
  }
  if (thread >= kNumbers) return;
  int64_t total = 0;
  for (const PartOfSquares& part : memory->rows) total += part.numbers[thread];
  parts[blockIdx.x].numbers[thread] = total;
}

// One block adds all parts of a launch, and those before it, which `sum` holds. Integers: exact in
// any order.
__global__ void __launch_bounds__(kAddThreads)
    AddSquaresKernel(const __grid_constant__ AddedTensors tensors, PartOfSquares* sum,
                     const PartOfSquares* parts) {
  auto* rows = DynamicShared<PartOfSquares>();
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kNumbers;
  const int number = thread % kNumbers;
  int64_t total = 0;
  const int count = tensors.blocks.first[tensors.blocks.tensors];
  // Neighbouring threads read neighbouring numbers.
#pragma unroll 8
  for (int i = row; i < count; i += kAddedRows) total += parts[i].numbers[number];
  rows[row].numbers[number] = total;
  __syncthreads();
  if (row == 0) {
    for (int i = 1; i < kAddedRows; ++i) total += rows[i].numbers[number];
    rows[0].numbers[number] = total;
    if (!tensors.first) total += sum->numbers[number];
    sum->numbers[number] = total;
  }
  __syncthreads();
  if (thread < tensors.blocks.tensors) {
    int64_t not_finite = 0;
    // They are rare: most often none of the launch has one.
    if (rows[0].numbers[kSumLimbs] > 0) {
      for (int i = tensors.blocks.first[thread]; i < tensors.blocks.first[thread + 1]; ++i) {
        not_finite += parts[i].numbers[kSumLimbs];
      }
    }
    *tensors.not_finite[thread] = static_cast<double>(not_finite);
  }
  if (thread != 0 || tensors.limbs == nullptr) return;
  CarryLimbs(sum->numbers);
  for (int i = 0; i < kSumLimbs; ++i) tensors.limbs[i] = static_cast<double>(sum->numbers[i]);
}

template <typename T>
void LaunchUpdate(const AdamWArgs& a, int64_t begin, int64_t end, cudaStream_t stream) {
  Update<T> update = {};
  update.clip = a.clip;
  update.rest1 = static_cast<float>(1.0 - static_cast<double>(a.beta1));
  update.beta2 = a.beta2;
  update.rest2 = static_cast<float>(1.0 - static_cast<double>(a.beta2));
  update.eps = a.eps;
  update.root2 = static_cast<float>(std::sqrt(a.bias_correction2));
  update.step = static_cast<float>(-a.learning_rate / a.bias_correction1);
  for (int64_t i = begin; i < end; ++i) {
    const AdamWTensor& t = a.tensors[i];
    if (t.count == 0) continue;
    auto* rounded = As<T>(t.rounded);
    update.tensors[update.blocks.tensors] = {
        t.parameter,
        t.gradient,
        t.m,
        t.v,
        rounded,
        t.count,
        1.0f - a.learning_rate * t.weight_decay,
        Aligned({t.parameter, t.gradient, t.m, t.v, rounded}, 0, 1)};
    update.blocks.Add((t.count + kElementsOfBlock - 1) / kElementsOfBlock);
  }
  if (update.blocks.blocks() == 0) return;
  Launch(UpdateKernel<T>, {dim3(static_cast<unsigned>(update.blocks.blocks())), kThreads}, stream,
         update);
}

// The tensors [begin, end) of the list.
void LaunchSums(const SumsOfSquaresArgs& a, int64_t begin, int64_t end,
                const CudaContext& context) {
  SummedTensors tensors = {};
  AddedTensors added = {};
  int64_t elements = 0;
  for (int64_t i = begin; i < end; ++i) {
    const SquaredTensor& tensor = a.tensors[i];
    elements += tensor.count;
    tensors.values[i - begin] = tensor.values;
    tensors.counts[i - begin] = tensor.count;
    tensors.blocks.Add((tensor.count + kSquaresPart - 1) / kSquaresPart);
    added.not_finite[i - begin] = tensor.not_finite;
  }
  added.blocks = tensors.blocks;
  added.first = begin == 0;
  added.limbs = end == a.tensor_count ? a.limbs : nullptr;
  auto* sum = context.Scratch<PartOfSquares>(SquaresBytes(elements));
  PartOfSquares* parts = sum + 1;
  if (tensors.blocks.blocks() > 0) {
    Launch(SquaresKernel,
           {dim3(static_cast<unsigned>(tensors.blocks.blocks())), kThreads, sizeof(SquaresMemory)},
           context.stream, tensors, parts);
  }
  Launch(AddSquaresKernel, {dim3(1), kAddThreads, kAddedRows * sizeof(PartOfSquares)},
         context.stream, added, sum, parts);
}

}  // namespace

void AdamWCuda(const AdamWArgs& a, const CudaContext& context) {
  if (a.tensor_count == 0) return;
  ByStorage(a.tensors[0].rounded.stored(), [&]<typename T>() {
    for (int64_t begin = 0; begin < a.tensor_count; begin += kUpdatedTensors) {
      LaunchUpdate<T>(a, begin, std::min(a.tensor_count, begin + kUpdatedTensors), context.stream);
    }
  });
}

void SumsOfSquaresCuda(const SumsOfSquaresArgs& a, const CudaContext& context) {
  int64_t begin = 0;
  // Also without tensors, whose sum is zero.
  do {
    const int64_t end = std::min(a.tensor_count, begin + kSumsOfLaunch);
    LaunchSums(a, begin, end, context);
    begin = end;
  } while (begin < a.tensor_count);
}

}  // namespace tercio::kernels::cuda

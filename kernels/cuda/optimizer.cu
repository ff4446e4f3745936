// AdamW (Loshchilov & Hutter, "Decoupled weight decay regularization", algorithm 2), in the order
// of operations of torch.optim.AdamW, with the rounded copy that the model reads; and the sums of
// squares that a gradient norm is made of. Of many tensors in one launch.
//
// Launch geometry: blocks of 256 threads. AdamW: a block has 4,096 elements of a tensor, a thread
// eight at a time. Sums: a block has the 64 Ki elements of a partial sum; then a block for each
// tensor adds them.
// Bytes for each element: AdamW 28, and those of the copy; sums 4. Bound by memory.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/many_tensors.cuh"
#include "kernels/cuda/scratch.h"

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
struct Sums {
  double* sums[kSummedTensors];
  BlocksOfTensors<kSummedTensors> blocks;
};

constexpr int kSumLanes = 16;   // interleaved sums
constexpr int kSumTile = 2048;  // elements in shared memory

// A block sums the squares of kSquaresBlock elements; thread t < kSumLanes those of index t modulo
// kSumLanes. All threads bring the elements to shared memory.
__global__ void __launch_bounds__(kThreads)
    SquaresKernel(const __grid_constant__ SummedTensors tensors, double* parts) {
  auto* tile = DynamicShared<float>();
  int piece = 0;
  const int tensor = tensors.blocks.Find(static_cast<int>(blockIdx.x), &piece);
  const float* values = tensors.values[tensor] + piece * kSquaresBlock;
  const int64_t left = tensors.counts[tensor] - piece * kSquaresBlock;
  const int64_t elements = left < kSquaresBlock ? left : kSquaresBlock;
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t offset = 0; offset < elements; offset += kSumTile) {
    const int64_t rest = elements - offset;
    const int size = static_cast<int>(rest < kSumTile ? rest : kSumTile);
    for (int i = thread; i < size; i += kThreads) tile[i] = values[offset + i];
    __syncthreads();
    if (thread < kSumLanes) {
      for (int i = thread; i < size; i += kSumLanes) {
        const double value = tile[i];
        sum += value * value;
      }
    }
    __syncthreads();
  }
  auto* sums = DynamicShared<double>();
  if (thread < kSumLanes) sums[thread] = sum;
  __syncthreads();
  if (thread != 0) return;
  double total = 0;
  for (int i = 0; i < kSumLanes; ++i) total += sums[i];
  parts[blockIdx.x] = total;
}

// A block of one thread adds the parts of a tensor in ascending order.
__global__ void AddSquaresKernel(const __grid_constant__ Sums sums, const double* parts) {
  const int tensor = static_cast<int>(blockIdx.x);
  double total = 0;
  for (int i = sums.blocks.first[tensor]; i < sums.blocks.first[tensor + 1]; ++i) {
    total += parts[i];
  }
  *sums.sums[tensor] = total;
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

void LaunchSums(const SumOfSquares* list, int64_t count, const CudaContext& context) {
  SummedTensors tensors = {};
  Sums sums = {};
  int64_t elements = 0;
  for (int64_t i = 0; i < count; ++i) {
    elements += list[i].count;
    tensors.values[i] = list[i].values;
    tensors.counts[i] = list[i].count;
    tensors.blocks.Add((list[i].count + kSquaresBlock - 1) / kSquaresBlock);
    sums.sums[i] = list[i].sum;
  }
  sums.blocks = tensors.blocks;
  auto* parts = context.Scratch<double>(SquaresBytes(elements));
  if (tensors.blocks.blocks() > 0) {
    Launch(
        SquaresKernel,
        {dim3(static_cast<unsigned>(tensors.blocks.blocks())), kThreads, kSumTile * sizeof(float)},
        context.stream, tensors, parts);
  }
  Launch(AddSquaresKernel, {dim3(static_cast<unsigned>(count)), 1}, context.stream, sums, parts);
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

void SumsOfSquaresCuda(const SumOfSquares* sums, int64_t count, const CudaContext& context) {
  for (int64_t begin = 0; begin < count; begin += kSumsOfLaunch) {
    LaunchSums(sums + begin, std::min(kSumsOfLaunch, count - begin), context);
  }
}

}  // namespace tercio::kernels::cuda

// What threads of a kernel can do, and that each check of the emulation fires.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "emulation/control.h"
#include "gtest/gtest.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/testing/device_test.h"

namespace tercio::emulation {
namespace {

using kernels::cuda::DeviceBuffer;
using kernels::cuda::DynamicShared;
using kernels::cuda::Launch;
using kernels::cuda::LaunchShape;

constexpr unsigned int kAll = 0xffffffffu;

class Kernel : public kernels::cuda::DeviceTest {};
class KernelDeath : public kernels::cuda::DeviceTest {
 protected:
  template <typename... Parameters, typename... Arguments>
  void Run(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments... arguments) {
    Launch(kernel, shape, stream_, arguments...);
    cudaStreamSynchronize(stream_);
  }
};

__global__ void Where(uint4* out) {
  const uint64_t block = (uint64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const uint64_t thread =
      (uint64_t{threadIdx.z} * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = make_uint4(
      blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
}

TEST_F(Kernel, EveryThreadOfEveryBlockRunsOnce) {
  const auto out = SameInEveryOrder([&] {
    DeviceBuffer<uint4> buffer(5 * 3 * 2 * 4 * 3 * 2);
    Launch(Where, {dim3(5, 3, 2), dim3(4, 3, 2)}, stream_, buffer.data());
    return buffer.Read(stream_);
  });
  for (uint32_t i = 0; i < out.size(); ++i) {
    const uint32_t block = i / 24;
    EXPECT_EQ(out[i].x, block % 5 + 10 * (block / 5 % 3) + 100 * (block / 15));
    EXPECT_EQ(out[i].y, i % 4);
    EXPECT_EQ(out[i].z, i / 4 % 3);
    EXPECT_EQ(out[i].w, i / 12 % 2);
  }
}

__global__ void ReverseInShared(int* out) {
  int* shared = DynamicShared<int>();
  for (int round = 0; round < 3; ++round) {
    shared[threadIdx.x] = static_cast<int>(threadIdx.x) + round;
    __syncthreads();
    out[(round * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] =
        shared[blockDim.x - 1 - threadIdx.x];
    __syncthreads();
  }
}

TEST_F(Kernel, BarriersSeparateWritesFromReads) {
  for (const int threads : {1, 2, 33, 1024}) {
    const auto out = SameInEveryOrder([&] {
      DeviceBuffer<int> buffer(3 * 2 * threads);
      Launch(ReverseInShared, {2, dim3(threads), threads * sizeof(int)}, stream_, buffer.data());
      return buffer.Read(stream_);
    });
    for (int i = 0; i < 6 * threads; ++i) {
      ASSERT_EQ(out[static_cast<size_t>(i)], threads - 1 - i % threads + i / (2 * threads));
    }
  }
}

__global__ void VotesOfBlock(int* out, int limit) {
  const int mine = static_cast<int>(threadIdx.x) < limit;
  const int any = __syncthreads_or(mine);
  const int all = __syncthreads_and(mine);
  const int count = __syncthreads_count(mine);
  if (threadIdx.x == 40) out[0] = any, out[1] = all, out[2] = count;
}

TEST_F(Kernel, BlocksVote) {
  for (const int limit : {0, 1, 63, 64}) {
    DeviceBuffer<int> buffer(3);
    Launch(VotesOfBlock, {1, 64}, stream_, buffer.data(), limit);
    EXPECT_EQ(buffer.Read(stream_), (std::vector<int>{limit > 0, limit == 64, limit})) << limit;
  }
}

__global__ void Shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int value = 100 * (static_cast<int>(threadIdx.x) / 32) + lane;
  int* mine = out + threadIdx.x * 8;
  mine[0] = __shfl_sync(kAll, value, 5);
  mine[1] = __shfl_sync(kAll, value, lane + 1, 8);
  mine[2] = __shfl_up_sync(kAll, value, 3);
  mine[3] = __shfl_down_sync(kAll, value, 3, 16);
  mine[4] = __shfl_xor_sync(kAll, value, 9);
  mine[5] = static_cast<int>(__ballot_sync(kAll, lane % 3 == 0) & 0xfff);
  mine[6] = __any_sync(kAll, lane == 7) + 2 * __all_sync(kAll, lane == 7);
  // Halves of a warp go their own ways.
  const unsigned int half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  mine[7] = __shfl_xor_sync(half, value, 1);
  __syncwarp();
}

TEST_F(Kernel, WarpsExchange) {
  const auto out = SameInEveryOrder([&] {
    DeviceBuffer<int> buffer(64 * 8);
    Launch(Shuffles, {1, 64}, stream_, buffer.data());
    return buffer.Read(stream_);
  });
  for (int thread = 0; thread < 64; ++thread) {
    const int lane = thread % 32;
    const int base = 100 * (thread / 32);
    const int* mine = &out[static_cast<size_t>(thread) * 8];
    EXPECT_EQ(mine[0], base + 5);
    EXPECT_EQ(mine[1], base + lane / 8 * 8 + (lane + 1) % 8);
    EXPECT_EQ(mine[2], base + (lane < 3 ? lane : lane - 3));
    EXPECT_EQ(mine[3], base + (lane % 16 + 3 < 16 ? lane + 3 : lane));
    EXPECT_EQ(mine[4], base + (lane ^ 9));
    EXPECT_EQ(mine[5], 0x249);
    EXPECT_EQ(mine[6], 1);
    EXPECT_EQ(mine[7], base + (lane ^ 1));
  }
}

__global__ void ShuffleOfWideTypes(double* out) {
  const double value = 1.0 / (1 + threadIdx.x);
  const auto wide = (uint64_t{threadIdx.x} << 40) + 7;
  out[threadIdx.x] = __shfl_down_sync(kAll, value, 1) +
                     static_cast<double>(__shfl_sync(kAll, wide, 3) >> 40) +
                     __shfl_xor_sync(kAll, static_cast<float>(value), 0);
}

TEST_F(Kernel, ShufflesKeepAllBits) {
  DeviceBuffer<double> buffer(32);
  Launch(ShuffleOfWideTypes, {1, 32}, stream_, buffer.data());
  const std::vector<double> out = buffer.Read(stream_);
  for (int i = 0; i < 31; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], 1.0 / (i + 2) + 3 + static_cast<float>(1.0 / (i + 1)));
  }
}

__global__ void Reductions(float* out, const float* in) {
  const float value = in[threadIdx.x];
  float* mine = out + threadIdx.x * 4;
  mine[0] = kernels::cuda::WarpSum(value);
  mine[1] = kernels::cuda::WarpSumByShuffles(value);
  mine[2] = kernels::cuda::WarpMax(value);
  mine[3] = kernels::cuda::WarpMaxByShuffles(value);
}

// In one meeting of the lanes and in five.
TEST_F(Kernel, ReductionsHaveTheBitsOfShuffles) {
  std::vector<float> values(96);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i * i)) * std::ldexp(1.0f, static_cast<int>(i % 24));
  }
  values[70] = NAN;
  const auto out = SameInEveryOrder([&] {
    DeviceBuffer<float> in(values, 0), buffer(4 * 96);
    Launch(Reductions, {1, 96}, stream_, buffer.data(), in.data());
    return buffer.Read(stream_);
  });
  for (size_t i = 0; i < out.size(); i += 2) {
    EXPECT_EQ(std::memcmp(&out[i], &out[i + 1], sizeof(float)), 0) << i;
  }
  EXPECT_TRUE(std::isnan(out[4 * 64]));
  EXPECT_GT(out[4 * 64 + 2], 0);
}

__global__ void Intrinsics(float* out, const float* in) {
  out[0] = __fmaf_rn(__ldg(in), in[1], in[2]);
  out[1] = rsqrtf(4.0f) + __frcp_rn(4.0f);
  out[2] = __uint_as_float(__float_as_uint(in[0]));
  out[3] = static_cast<float>(__umulhi(0x80000000u, 6)) + __popc(0xf0f0u) + __clz(1) + __ffs(8);
  out[4] = __expf(__logf(3.0f));
  out[5] = atomicAdd(&out[6], 2.0f);
  out[7] = static_cast<float>(10 * __float2int_rn(2.5f) + __float2int_rn(-3.5f));
}

TEST_F(Kernel, IntrinsicsComputeWhatTheirNamesSay) {
  DeviceBuffer<float> in({2, 3, 4}, 0), out(std::vector<float>(8), 0);
  Launch(Intrinsics, {1, 1}, stream_, out.data(), in.data());
  const std::vector<float> values = out.Read(stream_);
  EXPECT_EQ(values[0], 10);
  EXPECT_EQ(values[1], 0.75f);
  EXPECT_EQ(values[2], 2);
  EXPECT_EQ(values[3], 3 + 8 + 31 + 4);
  EXPECT_NEAR(values[4], 3, 1e-6);
  EXPECT_EQ(values[5], 0);
  EXPECT_EQ(values[6], 2);
  EXPECT_EQ(values[7], 20 - 4);
}

__global__ void ReadShared(float* out) { out[threadIdx.x] = DynamicShared<float>()[threadIdx.x]; }

TEST_F(Kernel, DynamicSharedMemoryBeginsAsNan) {
  DeviceBuffer<float> buffer(40), again(40);
  for (DeviceBuffer<float>* each : {&buffer, &again}) {
    Launch(ReadShared, {1, 40, 160}, stream_, each->data());
    for (const float value : each->Read(stream_)) EXPECT_TRUE(std::isnan(value));
  }
}

// Without a barrier between writing and reading.
__global__ void RaceInBlock(int* out) {
  int* shared = DynamicShared<int>();
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

// Each block counts on what the one before it has written.
__global__ void RaceOfBlocks(int* out) { out[blockIdx.x + 1] = out[blockIdx.x] + 1; }

TEST_F(Kernel, OrdersShowRaces) {
  std::vector<std::vector<int>> in_block, of_blocks;
  for (const Orders& orders : DifferentOrders()) {
    SetOrders(orders);
    DeviceBuffer<int> shared(64), blocks(std::vector<int>(9), 0);
    Launch(RaceInBlock, {1, 64, 256}, stream_, shared.data());
    Launch(RaceOfBlocks, {8, 1}, stream_, blocks.data());
    in_block.push_back(shared.Read(stream_));
    of_blocks.push_back(blocks.Read(stream_));
  }
  for (const auto& all : {in_block, of_blocks}) {
    EXPECT_GT(std::count_if(all.begin(), all.end(), [&](const auto& x) { return x != all[0]; }), 1);
  }
}

__global__ void SomeReturn(int limit) {
  if (static_cast<int>(threadIdx.x) >= limit) return;
  __syncthreads();
}

__global__ void OtherBarrier(int limit) {
  if (static_cast<int>(threadIdx.x) < limit) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void WarpAgainstBarrier() {
  if (threadIdx.x == 3) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__global__ void LaneReturnsBeforeSum(float* out) {
  if (threadIdx.x == 9) return;
  out[threadIdx.x] = kernels::cuda::WarpSum(1);
}

__global__ void LaneReturns(int* out) {
  if (threadIdx.x == 9) return;
  out[threadIdx.x] = __shfl_down_sync(kAll, 1, 1);
}

TEST_F(KernelDeath, DivergenceIsNamed) {
  EXPECT_DEATH(
      Run(SomeReturn, {dim3(1, 2), 64}, 10),
      "kernel .*SomeReturn.*block \\(0, 0, 0\\).*thread \\(0, 0, 0\\) waits at "
      "__syncthreads \\(.*kernel_test.cu:[0-9]+\\), but thread \\(10, 0, 0\\) has returned");
  EXPECT_DEATH(Run(OtherBarrier, {1, 64}, 32),
               "thread \\(0, 0, 0\\) waits at __syncthreads \\(.*:[0-9]+\\), but thread "
               "\\(63, 0, 0\\) waits at __syncthreads \\(.*:[0-9]+\\)");
  EXPECT_DEATH(
      Run(WarpAgainstBarrier, {1, 32}),
      "__syncwarp with mask 0xffffffff .*but thread \\(3, 0, 0\\) waits at __syncthreads ");
  EXPECT_DEATH(Run(LaneReturns, {1, 32}, static_cast<int*>(nullptr)),
               "__shfl_down_sync .*but thread \\(9, 0, 0\\) has returned");
  EXPECT_DEATH(Run(LaneReturnsBeforeSum, {1, 32}, static_cast<float*>(nullptr)),
               "a warp's sum .*but thread \\(9, 0, 0\\) has returned");
}

__global__ void WrongMasks(int which) {
  const int lane = static_cast<int>(threadIdx.x);
  if (which == 0) __shfl_sync(0x0000000fu, 1, 0);
  if (which == 1) __shfl_sync(kAll, 1, 0);
  if (which == 2 && lane < 4) __shfl_sync(0x0000000fu, 1, 9);
  if (which == 3) __shfl_sync(kAll, 1, 0, 12);
}

TEST_F(KernelDeath, WrongMasksAreNamed) {
  EXPECT_DEATH(Run(WrongMasks, {1, 32}, 0), "thread \\(4, 0, 0\\).*without being in its mask");
  EXPECT_DEATH(Run(WrongMasks, {1, 40}, 1), "lanes in its mask that the block does not have");
  EXPECT_DEATH(Run(WrongMasks, {1, 32}, 2), "reads from lane 9, which is not in the mask");
  EXPECT_DEATH(Run(WrongMasks, {1, 32}, 3), "with width 12");
}

__global__ void WriteShared(int bytes) { DynamicShared<char>()[bytes] = 0; }

__global__ void Write(char* memory, int64_t at) { memory[at] = 0; }

// AddressSanitizer speaks first.
TEST_F(KernelDeath, OverrunsAreNamed) {
  EXPECT_DEATH(
      Run(WriteShared, {1, 1, 100}, 100),
      "byte 100 of the dynamic shared memory was written; its size is 100|AddressSanitizer");
  char* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 100), cudaSuccess);
  const auto write = [&](int64_t at) {
    Launch(Write, {1, 1}, stream_, memory, at);
    cudaDeviceSynchronize();
  };
  EXPECT_DEATH(write(100),
               "device 0 was written 0 bytes past the end of an allocation of 100|Addr");
  EXPECT_DEATH(write(-1), "device 0 was written 1 bytes before the start of an allocation|Addr");
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

#if defined(__SANITIZE_ADDRESS__)  // and with it, here, UndefinedBehaviorSanitizer
__global__ void ReadFour(float4* out, const float* in) {
  *out = *reinterpret_cast<const float4*>(in);
}

TEST_F(KernelDeath, MisalignedAccessesAreNamed) {
  DeviceBuffer<float4> out(1);
  DeviceBuffer<float> in(std::vector<float>(8), 0);
  EXPECT_DEATH(Run(ReadFour, {1, 1}, out.data(), in.data() + 1), "misaligned address");
}
#endif

TEST_F(KernelDeath, ImpossibleLaunchesAreNamed) {
  EXPECT_DEATH(Run(SomeReturn, {1, 1025}, 0),
               "launch of .*SomeReturn.*cudaErrorInvalidConfiguration");
  EXPECT_DEATH(Run(SomeReturn, {0, 32}, 0), "cudaErrorInvalidConfiguration");
  EXPECT_DEATH(Run(SomeReturn, {1, 32, 200 << 10}, 0), "cudaErrorInvalidValue");
  EXPECT_DEATH(Launch(SomeReturn, {1, 32}, nullptr, 0), "cudaErrorInvalidResourceHandle");
}

TEST_F(Kernel, LaunchAsksForMuchSharedMemory) {
  DeviceBuffer<float> buffer(32);
  Launch(ReadShared, {1, 32, 100 << 10}, stream_, buffer.data());
  EXPECT_EQ(buffer.Read(stream_).size(), 32u);
}

}  // namespace
}  // namespace tercio::emulation

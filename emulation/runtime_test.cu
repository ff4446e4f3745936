// Streams, events, memory and errors of the emulated devices: what CUDA promises, and that what it
// does not promise shows.
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "emulation/control.h"
#include "gtest/gtest.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace tercio::emulation {
namespace {

using kernels::cuda::Launch;

__global__ void Store(int* out, int value) { *out = value; }
__global__ void Double(int* value) { *value *= 2; }
__global__ void CopyOne(int* to, const int* from) { *to = *from; }

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

cudaEvent_t NewEvent(unsigned int flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, flags), cudaSuccess);
  return event;
}

int Read(const int* from) {
  int value = 0;
  EXPECT_EQ(cudaMemcpy(&value, from, sizeof(value), cudaMemcpyDeviceToHost), cudaSuccess);
  return value;
}

class Runtime : public ::testing::Test {
 protected:
  void SetUp() override { Configure({}); }
  void TearDown() override { Configure({}); }

  int* NewInts(int count) {
    int* ints = nullptr;
    EXPECT_EQ(cudaMalloc(&ints, static_cast<size_t>(count) * sizeof(int)), cudaSuccess);
    return ints;
  }
};
using RuntimeDeath = Runtime;

TEST_F(Runtime, WorkWaitsUntilSomebodyWaitsForIt) {
  int* value = NewInts(1);
  cudaStream_t stream = NewStream();
  Launch(Store, {1, 1}, stream, value, 5);
  EXPECT_EQ(Read(value), -1);  // the poison
  EXPECT_EQ(GetCounts().kernels, 0);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(Read(value), 5);
  EXPECT_EQ(GetCounts().kernels, 1);
}

TEST_F(Runtime, AskingGetsItDone) {
  int* value = NewInts(1);
  cudaStream_t stream = NewStream();
  for (int i = 0; i < 10; ++i) Launch(Store, {1, 1}, stream, value, i);
  cudaEvent_t event = NewEvent();
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // never recorded
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  int asked = 0;
  while (cudaEventQuery(event) == cudaErrorNotReady) ++asked;
  EXPECT_EQ(asked, 10);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(Read(value), 9);
}

TEST_F(Runtime, AFullStreamRunsItsOldest) {
  Configure({.max_queued = 4});
  int* value = NewInts(1);
  cudaStream_t stream = NewStream();
  for (int i = 0; i < 10; ++i) Launch(Store, {1, 1}, stream, value, i);
  EXPECT_EQ(Read(value), 5);
}

TEST_F(Runtime, ADestroyedStreamIsFinishedLater) {
  int* value = NewInts(1);
  cudaStream_t stream = NewStream();
  Launch(Store, {1, 1}, stream, value, 3);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(Read(value), 3);
}

// Every order of streams: who forgets the event is found by kWaitedFirst for certain.
std::set<int> CopiesSeen(bool with_event) {
  std::set<int> seen;
  for (const StreamOrder order :
       {StreamOrder::kWaitedFirst, StreamOrder::kWaitedLast, StreamOrder::kDrawn}) {
    for (uint64_t seed = 1; seed < 10; ++seed) {
      SetStreamOrder(order, seed);
      int* values = nullptr;
      EXPECT_EQ(cudaMalloc(&values, 2 * sizeof(int)), cudaSuccess);
      cudaStream_t producer = NewStream(), consumer = NewStream();
      cudaEvent_t event = NewEvent();
      Launch(Store, {1, 1}, producer, values, 21);
      Launch(Double, {1, 1}, producer, values);
      EXPECT_EQ(cudaEventRecord(event, producer), cudaSuccess);
      if (with_event) {
        EXPECT_EQ(cudaStreamWaitEvent(consumer, event, 0), cudaSuccess);
      }
      Launch(CopyOne, {1, 1}, consumer, values + 1, values);
      EXPECT_EQ(cudaStreamSynchronize(consumer), cudaSuccess);
      seen.insert(Read(values + 1));
      EXPECT_EQ(cudaFree(values), cudaSuccess);
    }
  }
  return seen;
}

TEST_F(Runtime, AForgottenEventShows) {
  EXPECT_EQ(CopiesSeen(true), (std::set<int>{42}));
  EXPECT_EQ(CopiesSeen(false), (std::set<int>{-1, 21, 42}));
}

TEST_F(Runtime, AWaitMeansTheRecordBeforeIt) {
  int* value = NewInts(2);
  cudaStream_t a = NewStream(), b = NewStream();
  cudaEvent_t event = NewEvent();
  SetStreamOrder(StreamOrder::kWaitedFirst, 1);
  Launch(Store, {1, 1}, a, value, 1);
  EXPECT_EQ(cudaEventRecord(event, a), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(b, event, 0), cudaSuccess);
  Launch(CopyOne, {1, 1}, b, value + 1, value);
  Launch(Store, {1, 1}, a, value, 2);
  EXPECT_EQ(cudaEventRecord(event, a), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess);
  EXPECT_EQ(Read(value + 1), 1);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(Read(value), 2);
}

TEST_F(Runtime, ABufferThatIsReusedTooEarlyShows) {
  int* value = NewInts(1);
  int* host = nullptr;
  ASSERT_EQ(cudaMallocHost(&host, sizeof(int)), cudaSuccess);
  cudaStream_t stream = NewStream();
  *host = 7;
  EXPECT_EQ(cudaMemcpyAsync(value, host, sizeof(int), cudaMemcpyHostToDevice, stream), cudaSuccess);
  *host = 8;
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(Read(value), 8);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
}

TEST_F(Runtime, CopiesRectanglesAndSetsBytes) {
  int* values = NewInts(12);
  int* host = nullptr;
  ASSERT_EQ(cudaMallocHost(&host, 12 * sizeof(int)), cudaSuccess);
  for (int i = 0; i < 12; ++i) host[i] = i;
  cudaStream_t stream = NewStream();
  EXPECT_EQ(cudaMemsetAsync(values, 0, 12 * sizeof(int), stream), cudaSuccess);
  // Columns 1 and 2 of 3 rows of 4 to columns 2 and 3.
  EXPECT_EQ(cudaMemcpy2DAsync(values + 2, 16, host + 1, 16, 8, 3, cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(host, values, 48, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(host, values, 48, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(std::vector<int>(host, host + 12),
            (std::vector<int>{0, 0, 1, 2, 0, 0, 5, 6, 0, 0, 9, 10}));
}

TEST_F(Runtime, HostFunctionsRunInOrderAndMayNotCallCuda) {
  cudaStream_t stream = NewStream();
  static cudaError_t answer = cudaSuccess;
  const cudaHostFn_t call = [](void* data) {
    *static_cast<int*>(data) += 1;
    cudaStream_t other = nullptr;
    answer = cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  };
  int calls = 0;
  EXPECT_EQ(cudaLaunchHostFunc(stream, call, &calls), cudaSuccess);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(answer, cudaErrorNotPermitted);
}

TEST_F(Runtime, MemoryIsLimitedAndCounted) {
  Configure({.devices = 2, .memory_bytes = 1000});
  void *first = nullptr, *second = nullptr;
  EXPECT_EQ(cudaMalloc(&first, 600), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 401), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 400u);
  EXPECT_EQ(total, 1000u);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 1000), cudaSuccess);
  EXPECT_EQ(MemoryReport(),
            "device 0: 600 bytes were not freed\ndevice 1: 1000 bytes were not freed\n");
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaFree(first), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(second), cudaSuccess);
  EXPECT_EQ(MemoryReport(), "");
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
}

TEST_F(RuntimeDeath, MisuseOfMemoryIsNamed) {
  int* values = NewInts(4);
  int host[4] = {};
  cudaStream_t stream = NewStream();
  EXPECT_DEATH(cudaMemcpyAsync(values, host, 16, cudaMemcpyHostToDevice, stream),
               "cudaMemcpyAsync: host memory that is not pinned");
  EXPECT_DEATH(cudaMemcpy(values + 1, host, 16, cudaMemcpyHostToDevice),
               "cudaMemcpy: 16 bytes at offset 4 exceed an allocation of 16 bytes on device 0");
  EXPECT_DEATH(cudaMemsetAsync(values, 0, 17, stream), "cudaMemsetAsync: 17 bytes at offset 0");
}

TEST_F(Runtime, ADeviceThatFailedStaysFailed) {
  for (const cudaError_t error : {cudaErrorIllegalAddress, cudaErrorECCUncorrectable}) {
    Configure({.devices = 2});
    int* value = NewInts(1);
    cudaStream_t stream = NewStream();
    InjectFault({.error = error, .after = 1});
    Launch(Store, {1, 1}, stream, value, 1);
    Launch(Store, {1, 1}, stream, value, 2);
    Launch(Store, {1, 1}, stream, value, 3);
    EXPECT_EQ(cudaStreamSynchronize(stream), error);
    EXPECT_EQ(cudaStreamSynchronize(stream), error);
    EXPECT_EQ(GetCounts().kernels, 1);
    Launch(Store, {1, 1}, stream, value, 4);  // is no mistake of the launch
    EXPECT_EQ(cudaStreamQuery(stream), error);
    EXPECT_EQ(cudaFree(value), error);
    EXPECT_EQ(cudaGetLastError(), error);
    EXPECT_EQ(cudaGetLastError(), error);
    void* other = nullptr;
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&other, 4), cudaSuccess);
    EXPECT_EQ(cudaFree(other), cudaSuccess);
  }
}

TEST_F(Runtime, CallsFailWhenToldTo) {
  InjectFault({.error = cudaErrorMemoryAllocation, .call = "cudaMalloc", .after = 1});
  void *a = nullptr, *b = nullptr, *c = nullptr;
  EXPECT_EQ(cudaMalloc(&a, 4), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&b, 4), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&c, 4), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

TEST_F(Runtime, StreamsBelongToTheirDevice) {
  Configure({.devices = 2});
  cudaStream_t stream = NewStream();
  cudaEvent_t event = NewEvent();
  int* value = NewInts(1);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(value, 0, 4, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, NewStream()), cudaErrorInvalidResourceHandle);
}

TEST_F(Runtime, AnEventOfAnotherDeviceIsWaitedFor) {
  Configure({.devices = 2});
  int* value = NewInts(1);
  cudaStream_t first = NewStream();
  cudaEvent_t event = NewEvent();
  Launch(Store, {1, 1}, first, value, 9);
  EXPECT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  int* copy = NewInts(1);
  cudaStream_t second = NewStream();
  EXPECT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(copy, value, 4, cudaMemcpyDeviceToDevice, second), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(Read(copy), 9);
}

TEST_F(Runtime, TimesBetweenEvents) {
  cudaStream_t stream = NewStream();
  cudaEvent_t start = NewEvent(cudaEventDefault), end = NewEvent(cudaEventDefault);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventRecord(start, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(end, stream), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorNotReady);
  EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);
  EXPECT_EQ(milliseconds, 1e-3f);  // one work
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, NewEvent()), cudaErrorInvalidResourceHandle);
}

// Work that waits for another rank does not stop the other streams.
TEST_F(Runtime, WorkThatIsNotReadyStopsNobody) {
  cudaStream_t a = NewStream(), b = NewStream();
  int* value = NewInts(1);
  bool ready = false;
  int calls = 0;
  EXPECT_EQ(EnqueueWork(a, "collective", [&] { return ++calls, ready; }), cudaSuccess);
  EXPECT_EQ(cudaLaunchHostFunc(
                b, [](void* flag) { *static_cast<bool*>(flag) = true; }, &ready),
            cudaSuccess);
  Launch(Store, {1, 1}, a, value, 6);
  SetStreamOrder(StreamOrder::kWaitedFirst, 1);
  EXPECT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  EXPECT_EQ(Read(value), 6);
  EXPECT_EQ(calls, 2);
}

// Ranks as threads: each has its device; a number is handed round through work that polls.
TEST_F(Runtime, RanksAreThreads) {
  constexpr int kRanks = 4;
  constexpr int kRounds = 20;
  Configure({.devices = kRanks});
  std::atomic<int> turn{0};
  std::vector<int> results(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
      cudaStream_t stream = NewStream();
      int* value = nullptr;
      EXPECT_EQ(cudaMalloc(&value, sizeof(int)), cudaSuccess);
      Launch(Store, {1, 1}, stream, value, 1);
      for (int round = 0; round < kRounds; ++round) {
        const int mine = round * kRanks + rank;
        EXPECT_EQ(EnqueueWork(stream, "baton",
                              [&turn, mine] {
                                if (turn != mine) return false;
                                ++turn;
                                return true;
                              }),
                  cudaSuccess);
        Launch(Double, {1, 1}, stream, value);
      }
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      results[static_cast<size_t>(rank)] = Read(value);
      EXPECT_EQ(cudaFree(value), cudaSuccess);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(results, std::vector<int>(kRanks, 1 << kRounds));
}

TEST_F(Runtime, NobodyNeedsToWaitWhereProgressIsAskedFor) {
  Configure({.progress_after_milliseconds = 2});
  cudaStream_t stream = NewStream();
  std::atomic<bool> done{false};
  EXPECT_EQ(EnqueueWork(stream, "flag", [&] { return done = true; }), cudaSuccess);
  for (int i = 0; i < 5000 && !done; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(done);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(Runtime, DevicesDescribeThemselves) {
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_EQ(properties.warpSize, 32);
  int major = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  EXPECT_EQ(major, properties.major);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
  int version = 0;
  EXPECT_EQ(cudaRuntimeGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, 13000);
}

TEST_F(Runtime, DevicesReachEachOther) {
  Settings settings;
  settings.devices = 2;
  Configure(settings);
  int can = -1;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 1, 1), cudaSuccess);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorInvalidDevice);
  int* here = NewInts(1);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  int* there = NewInts(1);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  cudaStream_t stream = NewStream();
  Launch(Store, {1, 1}, stream, here, 7);
  EXPECT_EQ(cudaMemcpyPeerAsync(there, 1, here, 0, sizeof(int), stream), cudaSuccess);
  EXPECT_EQ(cudaMemcpyPeerAsync(there, 0, here, 0, sizeof(int), stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(Read(there), 7);
  for (int* memory : {here, there}) EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace tercio::emulation

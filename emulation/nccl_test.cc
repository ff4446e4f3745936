// What the emulated NCCL promises beyond what the communicators of Tercio use: ranks that are
// processes, the order of its sums, and what it refuses.
#include <cuda_bf16.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "emulation/control.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::emulation {
namespace {

using ::testing::HasSubstr;

ncclUniqueId NewId() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  return id;
}

ncclResult_t Settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    if (const ncclResult_t asked = ncclCommGetAsyncError(comm, &state); asked != ncclSuccess) {
      return asked;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return state;
}

ncclConfig_t NonBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

// What has become of a message, which may be the first.
ncclResult_t Begun(ncclResult_t result, ncclComm_t comm) {
  return result == ncclInProgress ? Settled(comm) : result;
}

// One rank, on the device of its number: a buffer, a stream, a communicator.
struct Rank {
  Rank(const ncclUniqueId& id, int rank, int ranks, int device, size_t bytes) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data), bytes), cudaSuccess);
    ncclConfig_t config = NonBlocking();
    EXPECT_EQ(ncclCommInitRankConfig(&comm, ranks, id, rank, &config), ncclInProgress);
    EXPECT_EQ(Settled(comm), ncclSuccess);
  }
  ~Rank() {
    if (comm != nullptr) ncclCommDestroy(comm);
    cudaStreamDestroy(stream);
    cudaFree(data);
  }
  void Put(const void* from, size_t bytes) {
    EXPECT_EQ(cudaMemcpy(data, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
  }
  void Get(void* to, size_t bytes) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(to, data, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  }

  cudaStream_t stream = nullptr;
  std::byte* data = nullptr;
  ncclComm_t comm = nullptr;
};

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Settings settings;
    settings.devices = 4;
    Configure(settings);
  }
  static void OnRanks(int ranks, size_t bytes, const std::function<void(int, Rank&)>& body) {
    const ncclUniqueId id = NewId();
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        Rank rank(id, r, ranks, r, bytes);
        body(r, rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

// Each process has but its own memory, and its device 0. This one forks before it has threads.
TEST_F(NcclTest, ProcessesSumAndSendEachOther) {
  constexpr size_t kCount = 40'000;
  const ncclUniqueId id = NewId();
  const auto run = [&id](int rank) {
    Rank mine(id, rank, 2, 0, kCount * sizeof(float));
    const std::vector<float> values(kCount, rank == 0 ? 1.0f : 2.5f);
    mine.Put(values.data(), kCount * sizeof(float));
    EXPECT_EQ(
        ncclAllReduce(mine.data, mine.data, kCount, ncclFloat32, ncclSum, mine.comm, mine.stream),
        ncclSuccess);
    std::vector<float> sums(kCount);
    mine.Get(sums.data(), kCount * sizeof(float));
    EXPECT_EQ(sums, std::vector<float>(kCount, 3.5f));
    const float mark = 7;
    if (rank == 0) {
      mine.Put(&mark, sizeof(mark));
      EXPECT_EQ(Begun(ncclSend(mine.data, 1, ncclFloat32, 1, mine.comm, mine.stream), mine.comm),
                ncclSuccess);
    } else {
      EXPECT_EQ(Begun(ncclRecv(mine.data, 1, ncclFloat32, 0, mine.comm, mine.stream), mine.comm),
                ncclSuccess);
    }
    float received = 0;
    mine.Get(&received, sizeof(received));
    EXPECT_EQ(received, mark);
  };
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    run(1);
    _exit(HasFailure() ? 1 : 0);
  }
  run(0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// 256 + 1 is 256 in bf16, and 1 + 1 + 256 is 258: it matters with whom a sum begins.
TEST_F(NcclTest, SumsBeginWithTheNextRankAndAreRoundedEachTime) {
  OnRanks(3, 6, [](int r, Rank& rank) {
    const float value = r == 0 ? 256 : 1;
    const std::vector<__nv_bfloat16> values(3, __float2bfloat16(value));
    rank.Put(values.data(), 6);
    EXPECT_EQ(ncclAllReduce(rank.data, rank.data, 3, ncclBfloat16, ncclSum, rank.comm, rank.stream),
              ncclSuccess);
    std::vector<__nv_bfloat16> sums(3);
    rank.Get(sums.data(), 6);
    // 1 + 1 + 256, 1 + 256 + 1, 256 + 1 + 1.
    EXPECT_EQ(__bfloat162float(sums[0]), 258);
    EXPECT_EQ(__bfloat162float(sums[1]), 256);
    EXPECT_EQ(__bfloat162float(sums[2]), 256);
  });
}

TEST_F(NcclTest, CallsOnTwoStreamsKeepTheirOrder) {
  OnRanks(2, 8, [](int r, Rank& rank) {
    cudaStream_t other = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    const double one = 1;
    rank.Put(&one, sizeof(one));
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(ncclAllReduce(rank.data, rank.data, 1, ncclFloat64, ncclSum, rank.comm,
                              (i + r) % 2 == 0 ? rank.stream : other),
                ncclSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    double sum = 0;
    rank.Get(&sum, sizeof(sum));
    EXPECT_EQ(sum, 1024);
    EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  });
}

// Nobody's first message is enqueued before the other has come to it; later ones wait for nobody.
TEST_F(NcclTest, TheFirstMessageWaitsForTheOtherRank) {
  std::atomic<bool> seen = false;
  OnRanks(2, 8, [&](int r, Rank& rank) {
    const auto message = [&] {
      return r == 0 ? ncclSend(rank.data, 8, ncclUint8, 1, rank.comm, rank.stream)
                    : ncclRecv(rank.data, 8, ncclUint8, 0, rank.comm, rank.stream);
    };
    while (r == 1 && !seen) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const ncclResult_t first = message();
    EXPECT_EQ(first, ncclInProgress);
    if (r == 0) {
      ncclResult_t state = ncclSuccess;
      EXPECT_EQ(ncclCommGetAsyncError(rank.comm, &state), ncclSuccess);
      EXPECT_EQ(state, ncclInProgress);
      EXPECT_EQ(message(), ncclInvalidArgument);
      EXPECT_THAT(ncclGetLastError(rank.comm), HasSubstr("connected"));
      seen = true;
    }
    EXPECT_EQ(Begun(first, rank.comm), ncclSuccess);
    EXPECT_EQ(message(), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
  });
}

// A real library would wait for ever for the bytes that nobody sends.
TEST_F(NcclTest, MessagesOfAGroupMustMatch) {
  OnRanks(2, 64, [](int r, Rank& rank) {
    const auto message = [&] {
      return r == 0 ? ncclSend(rank.data, 8, ncclUint8, 1, rank.comm, rank.stream)
                    : ncclRecv(rank.data, 4, ncclUint8, 0, rank.comm, rank.stream);
    };
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclGroupStart(), ncclInvalidUsage);
    EXPECT_EQ(message(), ncclSuccess);
    EXPECT_EQ(message(), ncclInvalidUsage);
    // The group is refused as a whole.
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(message(), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    // The sender may be done before the receiver has noticed.
    if (r == 1) {
      EXPECT_EQ(Settled(rank.comm), ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(rank.comm), HasSubstr("do not match"));
    }
    ncclCommAbort(rank.comm);
    rank.comm = nullptr;
  });
}

TEST_F(NcclTest, WhatIsRefused) {
  OnRanks(2, 64, [](int r, Rank& rank) {
    const auto reduce = [&](const void* in, void* out, size_t count) {
      return ncclAllReduce(in, out, count, ncclFloat32, ncclSum, rank.comm, rank.stream);
    };
    float host = 0;
    EXPECT_EQ(reduce(&host, &host, 1), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(rank.comm), HasSubstr("device"));
    EXPECT_EQ(reduce(rank.data, rank.data + 4, 2), ncclInvalidUsage);
    EXPECT_EQ(ncclBroadcast(rank.data, rank.data, 1, ncclFloat32, 2, rank.comm, rank.stream),
              ncclInvalidArgument);
    EXPECT_EQ(ncclSend(rank.data, 1, ncclFloat32, r, rank.comm, rank.stream), ncclInvalidUsage);
    EXPECT_EQ(reduce(rank.data, rank.data, 0), ncclSuccess);
    // None of these has become a call.
    const ncclComm_t comm = rank.comm;
    ncclCommDestroy(rank.comm);
    rank.comm = nullptr;
    EXPECT_EQ(ncclCommAbort(comm), ncclInvalidArgument);
  });
  ncclComm_t comm = nullptr;
  ncclConfig_t blocking = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, NewId(), 0, &blocking), ncclInvalidUsage);
  ncclConfig_t config = NonBlocking();
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, ncclUniqueId(), 0, &config), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, NewId(), 2, &config), ncclInvalidArgument);
}

TEST_F(NcclTest, DestroyedWithWorkLeftItSaysSo) {
  const ncclUniqueId id = NewId();
  std::atomic<bool> destroyed = false;
  std::thread peer([&] {
    const Rank rank(id, 1, 2, 1, 8);
    while (!destroyed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  {
    Rank rank(id, 0, 2, 0, 8);
    EXPECT_EQ(ncclAllReduce(rank.data, rank.data, 1, ncclFloat64, ncclSum, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(rank.comm), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("in progress"));
    rank.comm = nullptr;
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    destroyed = true;
  }
  peer.join();
}

}  // namespace
}  // namespace tercio::emulation

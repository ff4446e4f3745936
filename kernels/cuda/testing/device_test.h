// For tests of kernels, alike under the emulation and on a GPU: a fixture with a stream, buffers of
// the device with a start that is not aligned, and SameInEveryOrder, which runs a kernel in several
// orders of threads and blocks (on a GPU: several times) and expects the same bits.
//
// Where there is no device the tests of the fixture fail.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#ifdef TERCIO_CUDA_EMULATED
#include "emulation/control.h"
#endif

namespace tercio::kernels::cuda {

// `count` elements of device memory, `offset` elements behind an aligned address, with NaN at
// first.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t count, int64_t offset = 0) : count_(count), offset_(offset) {
    EXPECT_EQ(cudaMalloc(&memory_, Bytes(count + offset)), cudaSuccess);
  }
  DeviceBuffer(const std::vector<T>& values, int64_t offset)
      : DeviceBuffer(static_cast<int64_t>(values.size()), offset) {
    EXPECT_EQ(cudaMemcpy(data(), values.data(), Bytes(count_), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~DeviceBuffer() { cudaFree(memory_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() { return memory_ + offset_; }
  std::vector<T> Read(cudaStream_t stream) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    std::vector<T> values(static_cast<size_t>(count_));
    EXPECT_EQ(cudaMemcpy(values.data(), data(), Bytes(count_), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  static size_t Bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(T); }

  int64_t count_;
  int64_t offset_;
  T* memory_ = nullptr;
};

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef TERCIO_CUDA_EMULATED
    emulation::SetOrders({});  // there is always a device: nothing is skipped
#else
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    // Programs for devices run only where there is to be one: without it nothing would be checked.
    ASSERT_TRUE(error == cudaSuccess && devices > 0)
        << "no CUDA device: " << cudaGetErrorString(error);
#endif
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
#ifdef TERCIO_CUDA_EMULATED
    EXPECT_EQ(emulation::MemoryReport(), "");
#endif
  }

  // What `run` returns, a vector, which must have the same bits every time.
  template <typename Run>
  auto SameInEveryOrder(const Run& run) -> decltype(run()) {
#ifdef TERCIO_CUDA_EMULATED
    const std::vector<emulation::Orders> orders = emulation::DifferentOrders();
#else
    const std::vector<int> orders = {1, 2, 3};
#endif
    decltype(run()) first;
    bool begun = false;
    for (const auto& order : orders) {
      std::string name = "a repetition";
#ifdef TERCIO_CUDA_EMULATED
      emulation::SetOrders(order);
      name = emulation::ToString(order);
#else
      static_cast<void>(order);
#endif
      auto values = run();
      if (!begun) first = values;
      begun = true;
      EXPECT_EQ(values.size(), first.size()) << name;
      const size_t bytes = first.size() * sizeof(first[0]);
      EXPECT_TRUE(bytes == 0 || std::memcmp(values.data(), first.data(), bytes) == 0)
          << "other bits: " << name;
    }
    return first;
  }

  cudaStream_t stream_ = nullptr;
};

}  // namespace tercio::kernels::cuda

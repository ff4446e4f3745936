// The GPU as a device: copies, order, errors. Under the emulation, whose streams run as late as
// they may, and on a GPU where there is one.
#include "worker/device/cuda_device.h"

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "common/gpus/gpu_faults.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/cuda_status.h"
#ifdef TERCIO_CUDA_EMULATED
#include <cublasLt.h>

#include "emulation/control.h"
#include "emulation/product_control.h"
#endif

namespace tercio::device {
namespace {

using ::testing::HasSubstr;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef TERCIO_CUDA_EMULATED
    emulation::Configure({});
    emulation::SetStreamOrder(emulation::StreamOrder::kWaitedFirst, 1);
#endif
    auto device = CreateCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = MakeStream();
  }
  std::unique_ptr<Stream> MakeStream() {
    auto stream = device_->CreateStream(Device::StreamKind::kCompute);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }
  std::unique_ptr<DeviceMemory> Memory(int64_t bytes) {
    auto memory = device_->Allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  static float* Floats(DeviceMemory& memory) { return reinterpret_cast<float*>(memory.data()); }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaDeviceTest, MemoryIsZeroAndCopiesMayBeOverwritten) {
  constexpr int64_t kCount = 1000;
  constexpr int64_t kBytes = kCount * 4;
  const auto memory = Memory(kBytes);
  std::vector<float> back(kCount, 1.0f);
  stream_->CopyToHost(back.data(), memory->data(), kBytes);
  ASSERT_TRUE(stream_->Synchronize().ok());
  EXPECT_EQ(back, std::vector<float>(kCount, 0.0f));
  std::vector<float> values(kCount);
  std::iota(values.begin(), values.end(), 0.0f);
  const std::vector<float> sent = values;
  stream_->CopyFromHost(memory->data(), values.data(), kBytes);
  std::fill(values.begin(), values.end(), -1.0f);
  stream_->CopyToHost(back.data(), memory->data(), kBytes);
  ASSERT_TRUE(stream_->Synchronize().ok());
  EXPECT_EQ(back, sent);
}

// Many times what is pinned, in pieces of all sizes.
TEST_F(CudaDeviceTest, CopiesOfAnySizeAndNumber) {
  constexpr int64_t kLargest = int64_t{70} << 20;
  const auto memory = Memory(kLargest);
  for (const int64_t bytes : {int64_t{1}, int64_t{65}, int64_t{5} << 20, kLargest}) {
    std::vector<unsigned char> values(static_cast<size_t>(bytes));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<unsigned char>(i * 7 + 3);
    std::vector<unsigned char> back(values.size());
    stream_->CopyFromHost(memory->data(), values.data(), bytes);
    stream_->CopyToHost(back.data(), memory->data(), bytes);
    ASSERT_TRUE(stream_->Synchronize().ok());
    ASSERT_EQ(std::memcmp(values.data(), back.data(), values.size()), 0) << bytes;
  }
  // The ring is used again while its pieces are still under way.
  const auto numbers = Memory(400 * 4);
  std::vector<int> padding(60'000);
  for (int i = 0; i < 400; ++i) {
    padding[0] = i;
    stream_->CopyFromHost(memory->data(), padding.data(), 240'000);
    stream_->ops().Copy(Floats(*numbers) + i, Floats(*memory), 1);
  }
  std::vector<int> back(400);
  stream_->CopyToHost(back.data(), numbers->data(), 400 * 4);
  ASSERT_TRUE(stream_->Synchronize().ok());
  for (int i = 0; i < 400; ++i) ASSERT_EQ(back[static_cast<size_t>(i)], i);
}

TEST_F(CudaDeviceTest, EventsOrderStreams) {
  constexpr int64_t kCount = 64;
  const auto a = Memory(kCount * 4);
  const auto b = Memory(kCount * 4);
  const auto other = MakeStream();
  auto event = device_->CreateEvent();
  ASSERT_TRUE(event.ok());
  const std::vector<float> ones(kCount, 1.0f);
  stream_->CopyFromHost(a->data(), ones.data(), kCount * 4);
  stream_->ops().Add(Floats(*a), Floats(*a), kCount);
  stream_->Record(**event);
  other->Wait(**event);
  other->ops().Copy(Floats(*b), Floats(*a), kCount);
  std::vector<float> back(kCount);
  other->CopyToHost(back.data(), b->data(), kCount * 4);
  ASSERT_TRUE(other->Synchronize().ok());
  EXPECT_EQ(back, std::vector<float>(kCount, 2.0f));
}

TEST_F(CudaDeviceTest, HostFunctionsRunInOrderAndTheirErrorIsKept) {
  const auto memory = Memory(4);
  float seen = -1;
  const float one = 1;
  stream_->CopyFromHost(memory->data(), &one, 4);
  stream_->CopyToHost(&seen, memory->data(), 4);
  float in_function = -1;
  stream_->RunOnHost([&] {
    in_function = seen;
    return absl::InternalError("a fault");
  });
  stream_->RunOnHost([&] {
    in_function = 7;
    return absl::OkStatus();
  });
  EXPECT_EQ(stream_->Synchronize().message(), "a fault");
  EXPECT_EQ(in_function, 1);
}

TEST_F(CudaDeviceTest, AGpuThatIsNotThereIsSaid) {
  const auto device = CreateCudaDevice(1000);
  EXPECT_TRUE(absl::IsFailedPrecondition(device.status()));
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("there is no GPU 1000"));
}

#ifdef TERCIO_CUDA_EMULATED

TEST_F(CudaDeviceTest, TooLittleMemoryNamesWhatIsFree) {
  const auto memory = device_->Allocate(int64_t{1} << 40);
  EXPECT_TRUE(absl::IsResourceExhausted(memory.status()));
  EXPECT_THAT(std::string(memory.status().message()),
              testing::AllOf(HasSubstr("allocating 1099511627776 bytes"), HasSubstr("are free")));
  EXPECT_TRUE(device_->Allocate(1000).ok()) << "the device still works";
}

TEST_F(CudaDeviceTest, AFailedDeviceIsNamedAndStaysFailed) {
  const auto memory = Memory(4);
  emulation::InjectFault({cudaErrorECCUncorrectable});
  stream_->ops().Add(Floats(*memory), Floats(*memory), 1);
  const absl::Status status = stream_->Synchronize();
  EXPECT_THAT(std::string(status.message()), HasSubstr("cudaErrorECCUncorrectable"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("take the node out of service"));
  EXPECT_EQ(stream_->Synchronize(), status);
  EXPECT_FALSE(device_->Allocate(4).ok());
}

// Work that never ends by itself is ended by who watches: all of them give up with the first.
TEST_F(CudaDeviceTest, AWatchEndsAWait) {
  struct Watcher : StreamWatch {
    absl::Status Poll() override {
      return ++polls < patience ? absl::OkStatus() : absl::DeadlineExceededError("too long");
    }
    void EndWait() override { ++ends; }
    void GiveUp() override { gave_up = true; }
    int patience = 1000;
    int polls = 0;
    int ends = 0;
    bool gave_up = false;
  };
  Watcher impatient;
  impatient.patience = 3;
  Watcher patient;
  const auto one = std::make_shared<StreamWatch*>(&impatient);
  const auto other = std::make_shared<StreamWatch*>(&patient);
  Watch(*stream_, one);
  Watch(*stream_, one);  // once is enough
  Watch(*stream_, other);
  ASSERT_EQ(emulation::EnqueueWork(HandleOf(*stream_), "a peer that does not come",
                                   [&] { return impatient.gave_up && patient.gave_up; }),
            cudaSuccess);
  EXPECT_EQ(stream_->Synchronize().message(), "too long");
  EXPECT_EQ(impatient.polls, 3);
  EXPECT_EQ(impatient.ends, 1);
  // What nobody has synchronized ends with its stream.
  impatient.gave_up = false;
  ASSERT_EQ(
      emulation::EnqueueWork(HandleOf(*stream_), "another", [&] { return impatient.gave_up; }),
      cudaSuccess);
  stream_.reset();
  EXPECT_EQ(impatient.polls, 4);
}

// An error that a watch sees only when the work has ended is not lost.
TEST_F(CudaDeviceTest, AWatchIsAskedAtTheEnd) {
  struct Watcher : StreamWatch {
    absl::Status Poll() override { return absl::InternalError("not what it should be"); }
    void EndWait() override {}
    void GiveUp() override {}
  } watcher;
  const auto token = std::make_shared<StreamWatch*>(&watcher);
  Watch(*stream_, token);
  EXPECT_EQ(stream_->Synchronize().message(), "not what it should be");
}

#endif

#ifdef TERCIO_CUDA_EMULATED
TEST_F(CudaDeviceTest, FallbacksOfStreamsAreCounted) {
  emulation::SetProductSettings({.lacking_epilogues = {CUBLASLT_EPILOGUE_BGRADB}});
  EXPECT_EQ(FallbacksOf(*device_), kernels::cuda::FallbackCounts());
  const auto memory = Memory(1 << 20);
  const auto multiply = [&](Stream& stream) {
    const auto values = [&](int64_t at) {
      return kernels::Values(memory->data() + at, kernels::Format::kBfloat16,
                             kernels::Format::kBfloat16);
    };
    stream.ops().MatmulBackwardWeight({.dy = values(0),
                                       .x = values(4096),
                                       .dw = Floats(*memory) + 4096,
                                       .dbias = Floats(*memory) + 8192,
                                       .m = 16,
                                       .n = 16,
                                       .k = 16,
                                       .rows_per_leaf = 16,
                                       .accumulate = false});
  };
  for (int streams = 1; streams <= 2; ++streams) {
    const auto workspace = Memory(1 << 20);
    auto stream = device_->CreateStream(Device::StreamKind::kCompute, {workspace->data(), 1 << 20});
    ASSERT_TRUE(stream.ok()) << stream.status();
    for (int i = 0; i < 2; ++i) {
      multiply(**stream);
      // It is one shape, however often it is multiplied and waited for.
      ASSERT_TRUE((*stream)->Synchronize().ok());
      const auto counts = FallbacksOf(*device_);
      EXPECT_EQ(counts[static_cast<size_t>(kernels::cuda::Fallback::kBiasGradient)], streams);
    }
  }
  emulation::SetProductSettings({});
}

TEST(CudaDevice, Fp8NeedsItsComputeCapability) {
  CudaDeviceOptions options;
  options.fp8 = true;
  emulation::Settings settings;
  for (const auto& [major, minor] : {std::pair(8, 0), std::pair(8, 6)}) {
    settings.major = major;
    settings.minor = minor;
    emulation::Configure(settings);
    const auto device = CreateCudaDevice(0, options);
    EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(device.status().message()),
                HasSubstr("training.fp8 needs a GPU of compute capability 8.9 or higher"));
    EXPECT_TRUE(CreateCudaDevice(0).ok());
  }
  for (const auto& [major, minor] : {std::pair(8, 9), std::pair(9, 0), std::pair(12, 0)}) {
    settings.major = major;
    settings.minor = minor;
    emulation::Configure(settings);
    EXPECT_TRUE(CreateCudaDevice(0, options).ok());
  }
  emulation::Configure({});
}
#endif

TEST(CudaStatus, SaysHowToMendAndWhoseFaultItIs) {
  const auto words = [](cudaError_t error) {
    return std::string(CudaStatus(error, "asking").message());
  };
  EXPECT_THAT(words(cudaErrorInsufficientDriver), HasSubstr("or newer"));
  EXPECT_THAT(words(cudaErrorDevicesUnavailable), HasSubstr("nvidia-smi -q -d COMPUTE"));
  EXPECT_THAT(words(cudaErrorSystemNotReady), HasSubstr("nvidia-fabricmanager"));
  EXPECT_EQ(DeviceErrorIn(words(cudaErrorECCUncorrectable)), "cudaErrorECCUncorrectable");
  EXPECT_EQ(DeviceErrorIn(words(cudaErrorDevicesUnavailable)), "cudaErrorDevicesUnavailable");
  EXPECT_EQ(DeviceErrorIn(words(cudaErrorIllegalAddress)), "");
  EXPECT_EQ(DeviceErrorIn(words(cudaErrorMemoryAllocation)), "");
}

}  // namespace
}  // namespace tercio::device

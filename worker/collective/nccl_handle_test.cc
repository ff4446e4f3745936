// Communicators of one rank, which a machine with one GPU can have, too.
#include "worker/collective/nccl_handle.h"

#include <cuda_runtime.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/cuda_device.h"

namespace tercio::collective {
namespace {

using ::testing::HasSubstr;

class NcclHandleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = device::CreateCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    auto handle = NcclHandle::Join(id, 0, 1, {"alone"}, kTimeout);
    ASSERT_TRUE(handle.ok()) << handle.status();
    handle_ = *std::move(handle);
  }

  // The sum of one rank's number.
  absl::Status Sum(NcclHandle& handle, double* number) {
    auto memory = *device_->Allocate(sizeof(double));
    auto stream = *device_->CreateStream(device::Device::StreamKind::kCommunication);
    stream->CopyFromHost(memory->data(), number, sizeof(double));
    *number = 0;
    const absl::Status enqueued = handle.Enqueue("summing", kTimeout, [&](ncclComm_t comm) {
      return ncclAllReduce(memory->data(), memory->data(), 1, ncclFloat64, ncclSum, comm,
                           device::HandleOf(*stream));
    });
    if (!enqueued.ok()) return enqueued;
    stream->CopyToHost(number, memory->data(), sizeof(double));
    return stream->Synchronize();
  }

  static constexpr absl::Duration kTimeout = absl::Seconds(60);
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<NcclHandle> handle_;
};

TEST_F(NcclHandleTest, JoinsSplitsAndCalls) {
  const auto child = handle_->Split(0, 0, {"child"}, kTimeout);
  ASSERT_TRUE(child.ok()) << child.status();
  ASSERT_NE(*child, nullptr);
  const auto none = handle_->Split(NCCL_SPLIT_NOCOLOR, 0, {"none"}, kTimeout);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, nullptr);
  for (NcclHandle* handle : {handle_.get(), child->get()}) {
    double number = 2.5;
    EXPECT_EQ(Sum(*handle, &number), absl::OkStatus());
    EXPECT_EQ(number, 2.5);
    EXPECT_EQ(handle->AsyncError(), absl::OkStatus());
  }
}

// The emulated library reports one that is not.
TEST_F(NcclHandleTest, AreFinalizedBeforeTheyAreDestroyed) {
  testing::internal::CaptureStderr();
  auto child = handle_->Split(0, 0, {"child"}, kTimeout);
  ASSERT_TRUE(child.ok()) << child.status();
  child->reset();
  handle_.reset();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(NcclHandleTest, NothingIsPossibleAfterAbort) {
  handle_->Abort();
  handle_->Abort();
  double number = 1;
  EXPECT_TRUE(absl::IsAborted(Sum(*handle_, &number)));
  EXPECT_TRUE(absl::IsAborted(handle_->AsyncError()));
  EXPECT_TRUE(absl::IsAborted(handle_->Split(0, 0, {"child"}, kTimeout).status()));
}

TEST_F(NcclHandleTest, RefusedCallsSayWhich) {
  const absl::Status status = handle_->Enqueue("spreading", kTimeout, [&](ncclComm_t comm) {
    return ncclBroadcast(nullptr, nullptr, 1, ncclUint8, 3, comm, nullptr);
  });
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("NCCL, spreading: invalid argument"));
}

TEST(NcclStatus, ErrorsOfOthersAreUnavailable) {
  EXPECT_TRUE(absl::IsUnavailable(NcclStatus(ncclRemoteError, "x")));
  EXPECT_TRUE(absl::IsUnavailable(NcclStatus(ncclSystemError, "x")));
  EXPECT_TRUE(absl::IsInternal(NcclStatus(ncclInvalidUsage, "x")));
  EXPECT_TRUE(NcclStatus(ncclSuccess, "x").ok());
}

}  // namespace
}  // namespace tercio::collective

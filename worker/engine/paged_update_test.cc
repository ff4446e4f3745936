#include "worker/engine/paged_update.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/cpu_device.h"

namespace tercio::engine {
namespace {

using ::testing::HasSubstr;

TEST(PiecesOf, CutsAndJoinsTensors) {
  float values[100] = {};
  const auto tensor = [&](int64_t begin, int64_t count) {
    kernels::AdamWTensor result{};
    result.parameter = result.m = result.v = values + begin;
    result.gradient = values + begin;
    result.count = count;
    return result;
  };
  const auto pieces = PiecesOf({tensor(0, 3), tensor(10, 9), tensor(30, 0), tensor(40, 2)}, 5);
  ASSERT_EQ(pieces.size(), 3u);
  ASSERT_EQ(pieces[0].size(), 2u);
  EXPECT_EQ(pieces[0][1].m, values + 10);
  EXPECT_EQ(pieces[0][1].count, 2);
  ASSERT_EQ(pieces[1].size(), 1u);
  EXPECT_EQ(pieces[1][0].gradient, values + 12);
  EXPECT_EQ(pieces[1][0].count, 5);
  ASSERT_EQ(pieces[2].size(), 2u);
  EXPECT_EQ(pieces[2][0].count, 2);
  EXPECT_EQ(pieces[2][1].v, values + 40);
}

// Both moments of a tensor of 1,000 elements on disk, its weights in memory.
class PagedUpdateTest : public ::testing::Test {
 protected:
  static constexpr int64_t kElements = 1000;

  PagedUpdateTest() {
    v1::MemoryTable table;
    for (const char* name : {"adamw.m", "adamw.v", "parameters", "gradients", "near"}) {
      v1::Buffer* buffer = table.add_buffers();
      buffer->set_name(name);
      buffer->set_size_bytes(4 * kElements);
      const bool on_disk = std::string(name).starts_with("adamw");
      buffer->set_on_disk(on_disk);
      buffer->set_offset_bytes(on_disk ? table.disk_bytes() : table.total_bytes());
      if (on_disk) {
        table.set_disk_bytes(table.disk_bytes() + 4096);
      } else {
        table.set_total_bytes(table.total_bytes() + 4096);
      }
    }
    arena_ = std::make_unique<Arena>(*Arena::Allocate(table, *device_, ::testing::TempDir()));
    tensor_.parameter = arena_->Floats("parameters");
    tensor_.gradient = arena_->Floats("gradients");
    tensor_.m = arena_->Floats("adamw.m");
    tensor_.v = arena_->Floats("adamw.v");
    tensor_.count = kElements;
    paged_ = std::make_unique<PagedUpdate>(*arena_);
  }

  absl::Status Step() {
    return paged_->Run({tensor_}, [](absl::Span<kernels::AdamWTensor> piece) {
      for (const kernels::AdamWTensor& tensor : piece) {
        for (int64_t i = 0; i < tensor.count; ++i) tensor.m[i] += 1;
      }
    });
  }

  std::unique_ptr<device::Device> device_ = device::CreateCpuDevice(1);
  std::unique_ptr<Arena> arena_;
  kernels::AdamWTensor tensor_{};
  std::unique_ptr<PagedUpdate> paged_;
};

TEST_F(PagedUpdateTest, UpdatesEveryElementOnce) {
  for (int step = 1; step <= 3; ++step) {
    ASSERT_TRUE(Step().ok());
    EXPECT_EQ(tensor_.m[0], step);
    EXPECT_EQ(tensor_.m[kElements - 1], step);
  }
  EXPECT_TRUE(paged_->Verify().ok());
}

TEST_F(PagedUpdateTest, WhatTheDiskChangesIsFound) {
  ASSERT_TRUE(Step().ok());
  tensor_.v[500] = 1e-30f;
  EXPECT_TRUE(absl::IsDataLoss(paged_->Verify()));
  const absl::Status status = Step();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("piece 0 of 1"));
}

// Gradients and weights in memory change between updates.
TEST_F(PagedUpdateTest, OnlyWhatIsOnDiskIsChecked) {
  ASSERT_TRUE(Step().ok());
  tensor_.parameter[0] = 3;
  EXPECT_TRUE(Step().ok());
}

// A unit that is near, in the same piece as one that is not, and on its own.
TEST_F(PagedUpdateTest, WhatIsNearIsNotChecked) {
  kernels::AdamWTensor near = tensor_;
  near.m = arena_->Floats("near");
  near.v = near.m;
  near.count = kElements;
  const auto step = [&](absl::Span<const kernels::AdamWTensor> list) {
    return paged_->Run(list, [](absl::Span<kernels::AdamWTensor>) {});
  };
  ASSERT_TRUE(step({tensor_, near}).ok());
  near.m[7] = 5;
  EXPECT_TRUE(step({tensor_, near}).ok());
  tensor_.m[7] = 5;
  EXPECT_TRUE(absl::IsDataLoss(step({tensor_, near})));
  // A piece without any part in the file has nothing to check.
  paged_ = std::make_unique<PagedUpdate>(*arena_);
  ASSERT_TRUE(step({near}).ok());
  near.m[8] = 5;
  EXPECT_TRUE(step({near}).ok());
  EXPECT_TRUE(paged_->Verify().ok());
}

TEST_F(PagedUpdateTest, ALoadedStateIsAsItShouldBe) {
  ASSERT_TRUE(Step().ok());
  tensor_.m[0] = 17;
  paged_->Forget();
  ASSERT_TRUE(Step().ok());
  EXPECT_EQ(tensor_.m[0], 18);
}

}  // namespace
}  // namespace tercio::engine

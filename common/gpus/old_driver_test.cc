// A driver that lacks every function that is not among the first of NVML (fake_nvml.cc).
#include "common/gpus/gpus.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

TEST(OldDriver, IsReadAsFarAsItGoes) {
  const auto session = GpuSession::Open();
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ((*session)->gpus().list.size(), 2u);
  EXPECT_EQ((*session)->gpus().cuda_version, 0);
  const auto samples = (*session)->Sample();
  EXPECT_EQ(samples[1].memory_used_bytes, int64_t{1} << 30);
  EXPECT_EQ(samples[1].power_watts, std::nullopt);
  EXPECT_EQ(samples[1].ecc_enabled, std::nullopt);
  EXPECT_EQ(samples[1].compute_mode, std::nullopt);
  EXPECT_FALSE(samples[1].processes.has_value());
  EXPECT_TRUE((*session)->TakeXids().empty());
}

}  // namespace
}  // namespace tercio

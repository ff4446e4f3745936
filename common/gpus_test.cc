// NVML, with a library of the test's own in its place (fake_nvml.cc, two GPUs).
#include "common/gpus.h"

#include "gtest/gtest.h"

namespace tercio {
namespace {

TEST(Gpus, AreReadThroughNvml) {
  const auto gpus = FindGpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  EXPECT_EQ(gpus->driver, "580.1");
  ASSERT_EQ(gpus->list.size(), 2u);
  EXPECT_EQ(gpus->list[0].model, "Fake GPU");
  EXPECT_EQ(gpus->list[1].uuid, "GPU-1");
  EXPECT_EQ(gpus->list[1].memory_bytes, int64_t{80} << 30);
}

}  // namespace
}  // namespace tercio

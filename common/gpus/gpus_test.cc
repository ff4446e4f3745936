// NVML, with a library of the test's own in its place (fake_nvml.cc, two GPUs).
#include "common/gpus/gpus.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "common/temp_dir.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

class GpusTest : public testing::Test {
 protected:
  GpusTest() { setenv("TERCIO_FAKE_NVML", path_.c_str(), 1); }
  ~GpusTest() override { unsetenv("TERCIO_FAKE_NVML"); }
  // Sets the state of the GPUs.
  void Say(const std::string& text) { std::ofstream(path_) << text; }

  TempDir directory_;
  const std::string path_ = directory_.path() + "/gpus";
};

TEST_F(GpusTest, AreReadThroughNvml) {
  const auto gpus = FindGpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  EXPECT_EQ(gpus->driver, "580.1");
  EXPECT_EQ(gpus->cuda_version, 13000);
  ASSERT_EQ(gpus->list.size(), 2u);
  EXPECT_EQ(gpus->list[0].model, "Fake GPU");
  EXPECT_EQ(gpus->list[1].uuid, "GPU-1");
  EXPECT_EQ(gpus->list[1].index, 1);
  EXPECT_EQ(gpus->list[1].memory_bytes, int64_t{80} << 30);
}

TEST_F(GpusTest, OneThatIsLostHidesNoOther) {
  Say("0.lost 1\n");
  const auto gpus = FindGpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->list.size(), 2u);
  EXPECT_NE(gpus->list[0].error, "");
  EXPECT_EQ(gpus->list[0].memory_bytes, 0);
  EXPECT_EQ(gpus->list[1].error, "");
  const auto session = GpuSession::Open();
  ASSERT_TRUE(session.ok()) << session.status();
  const auto samples = (*session)->Sample();
  EXPECT_TRUE(samples[0].lost);
  EXPECT_FALSE(samples[1].lost);
}

TEST_F(GpusTest, AreSampledInBaseUnits) {
  Say("1.ecc_uncorrected 3\n1.process " + std::to_string(getpid()) +
      " 1073741824\n1.rows_pending 1\n1.clock_reasons 68\n");
  const auto session = GpuSession::Open();
  ASSERT_TRUE(session.ok()) << session.status();
  const auto samples = (*session)->Sample();
  ASSERT_EQ(samples.size(), 2u);
  const GpuSample& sample = samples[1];
  EXPECT_FALSE(sample.lost);
  EXPECT_EQ(sample.utilization_ratio, 0.9);
  EXPECT_EQ(sample.memory_utilization_ratio, 0.4);
  EXPECT_EQ(sample.memory_used_bytes, int64_t{1} << 30);
  EXPECT_EQ(sample.memory_total_bytes, int64_t{80} << 30);
  EXPECT_EQ(sample.power_watts, 250.5);
  EXPECT_EQ(sample.power_limit_watts, 700.0);
  EXPECT_EQ(sample.temperature_celsius, 55.0);
  EXPECT_EQ(sample.sm_clock_hertz, 1755e6);
  EXPECT_EQ(sample.sm_clock_limit_hertz, 1980e6);
  EXPECT_EQ(sample.memory_clock_hertz, 2619e6);
  EXPECT_EQ(sample.clock_reasons, 0x44u);
  EXPECT_EQ(sample.ecc_enabled, true);
  EXPECT_EQ(sample.ecc_corrected, 0);
  EXPECT_EQ(sample.ecc_uncorrected, 3);
  EXPECT_EQ(sample.retirement_pending, true);
  EXPECT_EQ(sample.remap_failed, false);
  EXPECT_EQ(sample.pcie_generation, 5);
  EXPECT_EQ(sample.pcie_lanes_limit, 16);
  EXPECT_EQ(sample.nvlinks, 18);
  EXPECT_EQ(sample.nvlinks_active, 18);
  EXPECT_EQ(sample.compute_mode, ComputeMode::kDefault);
  EXPECT_EQ(sample.persistence, true);
  EXPECT_EQ(sample.mig, false);
  ASSERT_TRUE(sample.processes.has_value());
  ASSERT_EQ(sample.processes->size(), 1u);
  EXPECT_EQ(sample.processes->front().pid, getpid());
  EXPECT_EQ(sample.processes->front().memory_bytes, int64_t{1} << 30);
  EXPECT_EQ(sample.processes->front().name, "gpus_test");
  EXPECT_EQ(samples[0].processes->size(), 0u);
  EXPECT_EQ(samples[0].ecc_uncorrected, 0);
}

TEST_F(GpusTest, WhatAGpuDoesNotSupportIsAbsent) {
  Say("0.unsupported power\n0.unsupported ecc_mode\n0.nvlinks 0\n");
  const auto session = GpuSession::Open();
  ASSERT_TRUE(session.ok()) << session.status();
  const auto samples = (*session)->Sample();
  EXPECT_EQ(samples[0].power_watts, std::nullopt);
  EXPECT_EQ(samples[0].ecc_enabled, std::nullopt);
  EXPECT_EQ(samples[0].ecc_uncorrected, std::nullopt);
  EXPECT_EQ(samples[0].nvlinks, std::nullopt);
  EXPECT_TRUE(samples[1].power_watts.has_value());
}

TEST_F(GpusTest, OneWithoutMemoryOfItsOwnIsWell) {
  Say("0.unsupported memory_used\n");
  const auto gpus = FindGpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  EXPECT_EQ(gpus->list[0].error, "");
  EXPECT_EQ(gpus->list[0].memory_bytes, 0);
  const auto session = GpuSession::Open();
  ASSERT_TRUE(session.ok()) << session.status();
  const auto samples = (*session)->Sample();
  EXPECT_EQ(samples[0].error, "");
  EXPECT_EQ(samples[0].memory_used_bytes, std::nullopt);
  EXPECT_EQ(samples[0].power_watts, 250.5);
}

TEST_F(GpusTest, XidsAreToldOnceAndOnlyNewOnes) {
  Say("0.xid 31\n");
  const auto session = GpuSession::Open();
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_TRUE((*session)->TakeXids().empty());
  Say("0.xid 31\n1.xid 79\n0.xid 94\n");
  const auto xids = (*session)->TakeXids();
  ASSERT_EQ(xids.size(), 2u);
  EXPECT_EQ(xids[0].gpu, 0u);
  EXPECT_EQ(xids[0].xid, 94);
  EXPECT_EQ(xids[1].gpu, 1u);
  EXPECT_EQ(xids[1].xid, 79);
  EXPECT_TRUE((*session)->TakeXids().empty());
}

TEST(VisibleGpus, AreThoseOfTheVariable) {
  Gpus gpus;
  for (int i = 0; i < 4; ++i) {
    Gpu& gpu = gpus.list.emplace_back();
    gpu.index = i;
    gpu.uuid = "GPU-" + std::string(1, static_cast<char>('a' + i)) + "123";
  }
  const auto indices = [&](const char* visible) {
    std::string text;
    for (const Gpu& gpu : VisibleGpus(gpus, visible).list) text += std::to_string(gpu.index);
    return text;
  };
  EXPECT_EQ(indices("2,0"), "02");
  EXPECT_EQ(indices("GPU-d1, 1"), "13");
  EXPECT_EQ(indices("1,7,2"), "1");
  EXPECT_EQ(indices(""), "");
  EXPECT_EQ(indices("-1"), "");
}

}  // namespace
}  // namespace tercio

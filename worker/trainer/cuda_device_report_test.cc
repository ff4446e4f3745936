// The report on emulated devices: what is in it, and that faults of one device spoil no other's.
#include "emulation/control.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/trainer/device_report.h"

namespace tercio::trainer {
namespace {

using Json = nlohmann::json;

class DeviceReport : public ::testing::Test {
 protected:
  void Configure(int devices) {
    emulation::Settings settings;
    settings.devices = devices;
    settings.memory_bytes = size_t{1} << 30;
    emulation::Configure(settings);
  }
  void TearDown() override { emulation::Configure({}); }
};

TEST_F(DeviceReport, NamesTheLibraries) {
  const Json libraries = Json::parse(DescribeLibraries());
  EXPECT_EQ(libraries["device"], "cuda");
  EXPECT_EQ(libraries["cuda_runtime"], 13000);
  EXPECT_EQ(libraries["cublas"], "13.0.0");
  EXPECT_NE(libraries["nccl"], "");
}

TEST_F(DeviceReport, MeasuresEachDeviceAndPair) {
  Configure(2);
  const Json report = Json::parse(ExamineDevices());
  EXPECT_FALSE(report.contains("error"));
  ASSERT_EQ(report["gpus"].size(), 2u);
  for (const Json& gpu : report["gpus"]) {
    EXPECT_FALSE(gpu.contains("error")) << gpu;
    EXPECT_EQ(gpu["compute_capability"], "8.0");
    EXPECT_EQ(gpu["memory_total_bytes"], 1 << 30);
    for (const char* rate : {"bf16_flops", "fp32_flops", "host_to_device_bytes_per_second",
                             "device_to_host_bytes_per_second"}) {
      EXPECT_GT(gpu[rate].get<double>(), 0) << rate;
    }
    const Json& plan = gpu["memory_plan"];
    EXPECT_EQ(plan["unused"], Json::array()) << plan;
    EXPECT_EQ(plan["touched_bytes"], plan["planned_bytes"]);
    EXPECT_LT(plan["outside_bytes"], plan["most_outside_bytes"]);
  }
  ASSERT_EQ(report["peers"].size(), 2u);
  EXPECT_EQ(report["peers"][1]["from"], 1);
  EXPECT_EQ(report["peers"][1]["to"], 0);
  EXPECT_EQ(report["peers"][1]["direct"], true);
  EXPECT_GT(report["peers"][1]["bytes_per_second"].get<double>(), 0);
  EXPECT_EQ(emulation::MemoryReport(), "");
}

TEST_F(DeviceReport, FiguresOfTheFirstDevice) {
  Configure(2);
  const absl::StatusOr<v1::MachineFigures> figures = MeasureDevices(0);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_NE(figures->device(), "cpu");
  EXPECT_EQ(figures->devices(), 1);
  EXPECT_GT(figures->products_size(), 2);
  EXPECT_GT(figures->memory_bytes_per_second(), 0);
  EXPECT_GT(figures->link_bytes_per_second(), 0);
  EXPECT_EQ(emulation::MemoryReport(), "");
}

TEST_F(DeviceReport, ThreadsAreNotAskedForOnGpus) {
  Configure(1);
  EXPECT_EQ(MeasureDevices(2).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceReport, SaysWhichDeviceFails) {
  Configure(2);
  emulation::InjectFault({cudaErrorECCUncorrectable, "cudaMemcpyAsync", 3, /*device=*/1});
  const Json report = Json::parse(ExamineDevices());
  EXPECT_FALSE(report["gpus"][0].contains("error"));
  EXPECT_NE(report["gpus"][1]["error"].get<std::string>().find("cudaErrorECCUncorrectable"),
            std::string::npos);
  EXPECT_FALSE(report["gpus"][1].contains("bf16_flops"));
}

}  // namespace
}  // namespace tercio::trainer

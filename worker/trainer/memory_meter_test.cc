#include "worker/trainer/memory_meter.h"

#include "gtest/gtest.h"
#include "worker/device/cpu_device.h"
#include "worker/trainer/memory_trial.h"
#include "worker/trainer/testing/fake_engine.h"

namespace tercio::trainer {
namespace {

class MeteredDevice : public device::Device {
 public:
  std::string name() const override { return "metered"; }
  std::string DescribeProducts(kernels::Format) override { return ""; }
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> Allocate(int64_t) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> AllocateHost(int64_t) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<int64_t> BytesInUse() override { return in_use; }
  using device::Device::CreateStream;
  absl::StatusOr<std::unique_ptr<device::Stream>> CreateStream(StreamKind,
                                                               device::Workspace) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::unique_ptr<device::Event>> CreateEvent() override {
    return absl::UnimplementedError("");
  }

  absl::StatusOr<int64_t> in_use = 1000;
};

class MeteredEngine : public FakeEngine {
 public:
  int64_t used_bytes() const override {
    ++looks;
    return used;
  }
  int64_t used = 0;
  mutable int looks = 0;
};

TEST(MemoryMeterTest, TellsTheArenaFromWhatIsBesideIt) {
  MeteredDevice device;
  MemoryMeter meter(device);
  MeteredEngine engine;
  EXPECT_EQ(meter.peak_bytes(), 0);
  device.in_use = 1750;
  engine.used = 700;
  meter.Measure(engine, 0);
  EXPECT_EQ(meter.used_bytes(), 700);
  EXPECT_EQ(meter.peak_bytes(), 750);
  EXPECT_EQ(meter.outside_bytes(), 50);
}

TEST(MemoryMeterTest, KeepsTheMostThatItHasSeen) {
  MeteredDevice device;
  MemoryMeter meter(device);
  MeteredEngine engine;
  engine.used = 700;
  device.in_use = 1900;
  meter.MeasureAll(engine);
  device.in_use = 1750;
  meter.MeasureAll(engine);
  EXPECT_EQ(meter.peak_bytes(), 900);
  EXPECT_EQ(meter.outside_bytes(), 200);
}

TEST(MemoryMeterTest, LooksAtTheArenaWhereTheStepsHaveDoubled) {
  MeteredDevice device;
  MemoryMeter meter(device);
  MeteredEngine engine;
  for (int64_t step = 0; step <= 1000; ++step) meter.Measure(engine, step);
  EXPECT_EQ(engine.looks, 11);  // 0, 1, 2, 4, ... 512
  device.in_use = 5000;
  meter.Measure(engine, 1001);
  EXPECT_EQ(engine.looks, 11);
  EXPECT_EQ(meter.peak_bytes(), 4000);
  meter.MeasureAll(engine);
  EXPECT_EQ(engine.looks, 12);
}

TEST(MemoryMeterTest, ADeviceThatDoesNotTellLeavesTheArena) {
  MeteredDevice device;
  device.in_use = absl::UnavailableError("no /proc");
  MemoryMeter meter(device);
  MeteredEngine engine;
  engine.used = 700;
  meter.Measure(engine, 1);
  EXPECT_EQ(meter.used_bytes(), 700);
  EXPECT_EQ(meter.peak_bytes(), 700);
  EXPECT_EQ(meter.outside_bytes(), 0);
}

void ExpectAsPlanned(device::Device& device, const v1::JobSpec& job, int64_t most_outside) {
  const auto report = TryMemoryPlan(device, job, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ((*report)["unused"], nlohmann::json::array()) << *report;
  EXPECT_EQ((*report)["touched_bytes"], (*report)["planned_bytes"]);
  EXPECT_GT((*report)["planned_bytes"].get<int64_t>(), 1 << 18);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT((*report)["outside_bytes"].get<int64_t>(), most_outside) << *report;
#endif
  EXPECT_LT(most_outside, (*report)["most_outside_bytes"].get<int64_t>());
}

TEST(MemoryTrialTest, ASmallModelUsesAllThatIsPlannedAndLittleBeside) {
  // Beside the arena: threads' stacks, lists, scratch of products; no part of the model.
  constexpr int64_t kMostOutside = int64_t{24} << 20;
  v1::JobSpec middle = TrialJob(v1::DEVICE_KIND_CPU);
  middle.mutable_model()->set_layers(6);
  middle.mutable_model()->set_hidden(256);
  middle.mutable_model()->set_heads(4);
  middle.mutable_model()->set_context(64);
  middle.mutable_model()->set_ffn_hidden(1024);
  middle.mutable_model()->set_vocab_size(16384);
  const auto device = device::CreateCpuDevice(1);
  for (const v1::JobSpec& job : {TrialJob(v1::DEVICE_KIND_CPU), middle}) {
    SCOPED_TRACE(job.model().hidden());
    ExpectAsPlanned(*device, job, kMostOutside);
  }
}

}  // namespace
}  // namespace tercio::trainer

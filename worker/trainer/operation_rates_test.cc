#include "worker/trainer/operation_rates.h"

#include <cmath>

#include "gtest/gtest.h"
#include "worker/device/cpu_device.h"

namespace tercio::trainer {
namespace {

// A clock that moves by itself: a millisecond at each look.
struct FakeClock {
  absl::Time now = absl::UnixEpoch();
  absl::Time operator()() { return now += absl::Milliseconds(1); }
};

RateOptions Options() {
  RateOptions options;
  options.formats = {kernels::Format::kFloat32, kernels::Format::kBfloat16};
  options.copy_bytes = 1 << 20;
  options.patience = absl::ZeroDuration();
  options.now = [clock = FakeClock()]() mutable { return clock(); };
  return options;
}

TEST(OperationRates, EveryFigureIsANumberAboveZero) {
  const auto device = device::CreateCpuDevice(1);
  v1::MachineFigures figures;
  ASSERT_TRUE(MeasureOperations(*device, Options(), &figures).ok());
  ASSERT_EQ(figures.products_size(), 16);
  EXPECT_EQ(figures.products(0).format(), "fp32");
  EXPECT_EQ(figures.products(15).format(), "bf16");
  for (const v1::ProductRate& rate : figures.products()) EXPECT_GT(rate.flops_per_second(), 0);
  ASSERT_EQ(figures.attention_size(), 2);
  EXPECT_GT(figures.attention(0).forward_flops_per_second(), 0);
  EXPECT_GT(figures.attention(1).backward_flops_per_second(), 0);
  for (const double rate : {figures.memory_bytes_per_second(), figures.norm_bytes_per_second(),
                            figures.activation_bytes_per_second(), figures.loss_bytes_per_second(),
                            figures.update_bytes_per_second(), figures.operation_seconds()}) {
    EXPECT_TRUE(std::isfinite(rate));
    EXPECT_GT(rate, 0);
  }
}

// A call takes a millisecond of that clock.
TEST(OperationRates, RatesAreOperationsOverTheTimeOfTheClock) {
  const auto device = device::CreateCpuDevice(1);
  v1::MachineFigures figures;
  ASSERT_TRUE(MeasureOperations(*device, Options(), &figures).ok());
  const v1::ProductRate& rate = figures.products(5);
  EXPECT_DOUBLE_EQ(rate.flops_per_second(), 6e3 * rate.m() * rate.n() * rate.k());
  EXPECT_DOUBLE_EQ(figures.memory_bytes_per_second(), 2e3 * (1 << 20));
  EXPECT_DOUBLE_EQ(figures.operation_seconds(), 1e-3);
}

TEST(OperationRates, TheMedianOfTheRepetitionsCounts) {
  const auto device = device::CreateCpuDevice(1);
  const auto stream = *device->CreateStream(device::Device::StreamKind::kCompute);
  RateOptions options;
  // A first call, one that tells the length, and three that count: 5, 1 and 2 seconds.
  const double lengths[] = {9, 9, 5, 1, 2};
  double now = 0;
  int call = 0;
  options.patience = absl::ZeroDuration();
  options.now = [&] { return absl::UnixEpoch() + absl::Seconds(now); };
  const absl::StatusOr<double> seconds =
      SecondsOf(*stream, options, [&] { now += lengths[call++]; });
  ASSERT_TRUE(seconds.ok());
  EXPECT_EQ(call, 5);
  EXPECT_DOUBLE_EQ(*seconds, 2);
}

}  // namespace
}  // namespace tercio::trainer

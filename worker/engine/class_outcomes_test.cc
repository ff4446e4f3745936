#include "worker/engine/class_outcomes.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "plan/quality.h"
#include "worker/device/cpu_device.h"

namespace tercio::engine {
namespace {

template <typename T>
int Predicted(const std::vector<T>& logits, kernels::Format stored) {
  return PredictedClass(reinterpret_cast<const std::byte*>(logits.data()), stored,
                        static_cast<int>(logits.size()));
}

TEST(ClassOutcomes, TheLargestLogitIsPredicted) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto of = [](const std::vector<float>& logits) {
    return Predicted(logits, kernels::Format::kFloat32);
  };
  EXPECT_EQ(of({-1, 3, 2}), 1);
  EXPECT_EQ(of({2, -1, 2, 2}), 0);
  EXPECT_EQ(of({-3, -2, -2}), 1);
  EXPECT_EQ(of({1, kNan, 2}), 2);
}

TEST(ClassOutcomes, SixteenBits) {
  // -1, 1.5, 1.25 and -inf; the smallest number, the next one, and both zeros.
  EXPECT_EQ(Predicted<uint16_t>({0xbc00, 0x3e00, 0x3d00, 0xfc00}, kernels::Format::kFloat16), 1);
  EXPECT_EQ(Predicted<uint16_t>({0x0000, 0x8000, 0x0001, 0x0002}, kernels::Format::kFloat16), 3);
  EXPECT_EQ(Predicted<uint16_t>({0x3bff, 0x3c00}, kernels::Format::kFloat16), 1);
  EXPECT_EQ(Predicted<uint16_t>({0x7c00, 0x7bff}, kernels::Format::kFloat16), 0);
  // -1, 1.5, 1.25.
  EXPECT_EQ(Predicted<uint16_t>({0xbf80, 0x3fc0, 0x3fa0}, kernels::Format::kBfloat16), 1);
}

TEST(ClassOutcomes, AreCountedByClassAndPrediction) {
  const auto device = device::CreateCpuDevice(1);
  const auto stream = device->CreateStream(device::Device::StreamKind::kCompute);
  ASSERT_TRUE(stream.ok()) << stream.status();
  ClassOutcomes outcomes(3, 4);
  std::vector<float> first = {1, 2, 3, 3, 2, 1};
  outcomes.Take(0, 2, first.data(), **stream);
  // The buffer is used again for the next micro-batch.
  std::vector<float> second = {0, 1, 0, 0, 0, 1};
  outcomes.Take(2, 2, second.data(), **stream);
  ASSERT_TRUE((*stream)->Synchronize().ok());
  const std::vector<double> encoded = outcomes.Encode({{2, 2, 1, 0}});
  EXPECT_EQ(encoded, (std::vector<double>{8, 6, 4, 2}));
  v1::Confusion confusion = plan::EmptyConfusion(3);
  ClassOutcomes::Count(encoded, &confusion);
  EXPECT_EQ(std::vector<int64_t>(confusion.counts().begin(), confusion.counts().end()),
            (std::vector<int64_t>{0, 0, 1, 0, 1, 0, 1, 0, 1}));
}

}  // namespace
}  // namespace tercio::engine

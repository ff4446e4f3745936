#include "plan/gpu_figures.h"

#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

TEST(GpuFigures, AreFoundByTheDriversName) {
  ASSERT_TRUE(FiguresOf("NVIDIA H200").has_value());
  EXPECT_EQ(FiguresOf("NVIDIA H200")->flops_per_second, 989e12);
  EXPECT_EQ(FiguresOf("NVIDIA H100 PCIe")->flops_per_second, 756e12);
  EXPECT_EQ(FiguresOf("NVIDIA H100 80GB HBM3")->flops_per_second, 989e12);
  EXPECT_EQ(FiguresOf("NVIDIA A100-SXM4-80GB")->memory_bytes_per_second, 2.04e12);
  EXPECT_EQ(FiguresOf("NVIDIA A100-SXM4-40GB")->memory_bytes_per_second, 1.555e12);
  EXPECT_EQ(FiguresOf("NVIDIA GB200")->flops_per_second, 2500e12);
  EXPECT_FALSE(FiguresOf("Fake GPU").has_value());
  // Others of the same family.
  EXPECT_EQ(FiguresOf("NVIDIA GH200 480GB")->memory_bytes_per_second, 4e12);
  EXPECT_EQ(FiguresOf("NVIDIA GH200 144G HBM3e")->memory_bytes_per_second, 4.9e12);
  EXPECT_EQ(FiguresOf("NVIDIA H100 NVL")->flops_per_second, 835e12);
  EXPECT_EQ(FiguresOf("NVIDIA H100 NVL")->memory_bytes_per_second, 3.9e12);
  EXPECT_EQ(FiguresOf("NVIDIA H200 NVL")->flops_per_second, 835e12);
  ASSERT_TRUE(FiguresOf(kAssumedGpu).has_value());
  EXPECT_EQ(FiguresOf(kAssumedGpu)->memory_bytes_per_second, 2.04e12);
}

TEST(GpuFigures, HasTheComputeCapability) {
  EXPECT_EQ(FiguresOf("NVIDIA B200")->capability, 10);
  EXPECT_EQ(FiguresOf("NVIDIA H200 NVL")->capability, 9);
  EXPECT_EQ(FiguresOf("NVIDIA L40S")->capability, 8);
}

TEST(GpuFigures, PeakIsThatOfThePrecision) {
  const GpuFigures figures = *FiguresOf("NVIDIA H200");
  v1::TrainingSpec training;
  EXPECT_EQ(PeakFlops(figures, training), 67e12);
  training.set_tf32(true);
  EXPECT_EQ(PeakFlops(figures, training), 494e12);
  training.set_precision(v1::PRECISION_BF16);
  EXPECT_EQ(PeakFlops(figures, training), 989e12);
}

}  // namespace
}  // namespace tercio::plan

// Operations on CUDA as work of a stream: captured into a graph, and behind an error.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/testing/both_backends.h"

namespace tercio::kernels::cuda {
namespace {

class OpsInStreamTest : public BothBackendsTest {};

// Operations can be captured into a graph, which repeats them.
TEST_F(OpsInStreamTest, GraphsRepeatThem) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kColumns = 24;
  std::normal_distribution<float> normal;
  const auto random = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random_);
    return values;
  };
  DeviceBuffer<float> x(random(kRows * kColumns), 0), w(random(kColumns * kColumns), 0);
  DeviceBuffer<float> bias(random(kColumns), 1);  // products copy it to where it is aligned
  DeviceBuffer<float> y(kRows * kColumns), normed(kRows * kColumns), mean(kRows), rstd(kRows);
  DeviceBuffer<float> dw(std::vector<float>(kColumns * kColumns), 0), dbias(random(kColumns), 0);
  DeviceBuffer<unsigned char> workspace(CudaScratchBytes(scratch_));
  OperationErrors errors;
  const auto ops = CreateCudaOps({stream_, reinterpret_cast<std::byte*>(workspace.data()),
                                  CudaScratchBytes(scratch_), &errors, nullptr});
  const auto step = [&] {
    ops->Matmul({.x = x.data(),
                 .w = w.data(),
                 .bias = bias.data(),
                 .y = y.data(),
                 .m = kRows,
                 .n = kColumns,
                 .k = kColumns});
    ops->LayerNorm({.x = y.data(),
                    .weight = bias.data(),
                    .bias = nullptr,
                    .y = normed.data(),
                    .mean = mean.data(),
                    .rstd = rstd.data(),
                    .rows = kRows,
                    .columns = kColumns});
    ops->MatmulBackwardWeight({.dy = y.data(),
                               .x = x.data(),
                               .dw = dw.data(),
                               .dbias = dbias.data(),
                               .m = kRows,
                               .n = kColumns,
                               .k = kColumns,
                               .rows_per_leaf = kRows,
                               .accumulate = true});
  };
  step();
  const auto once = dw.Read(stream_);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  step();
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(dw.Read(stream_), once);  // nothing has run
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (const float times : {2.0f, 3.0f}) {
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    const auto sum = dw.Read(stream_);
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_NEAR(sum[i], times * once[i], 1e-5f * std::abs(sum[i]) + 1e-6f) << i;
    }
  }
  EXPECT_FALSE(errors.first());
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

#ifdef TERCIO_CUDA_EMULATED
// The runtime keeps one last error for a thread, whichever call it comes from.
TEST_F(OpsInStreamTest, AnErrorThatAnotherCallHasLeftIsNotTheirs) {
  DeviceBuffer<float> a(std::vector<float>{1, 2}, 0);
  DeviceBuffer<unsigned char> workspace(1024);
  OperationErrors errors;
  const auto ops = CreateCudaOps(
      {stream_, reinterpret_cast<std::byte*>(workspace.data()), 1024, &errors, nullptr});
  float of_the_host = 0;
  ASSERT_EQ(cudaFree(&of_the_host), cudaErrorInvalidValue);
  ops->Add(a.data(), a.data(), 2);
  EXPECT_FALSE(errors.first()) << errors.first()->operation;
  EXPECT_EQ(a.Read(stream_), (std::vector<float>{2, 4}));
  // It is still there for those whom it concerns.
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST_F(OpsInStreamTest, TheFirstErrorIsKeptAndEndsTheWork) {
  DeviceBuffer<float> a(std::vector<float>{1, 2}, 0);
  DeviceBuffer<unsigned char> workspace(1024);
  OperationErrors errors;
  const auto ops = CreateCudaOps(
      {stream_, reinterpret_cast<std::byte*>(workspace.data()), 1024, &errors, nullptr});
  emulation::InjectFault({cudaErrorIllegalAddress});
  ops->Add(a.data(), a.data(), 2);
  EXPECT_FALSE(errors.first());  // it has not run yet
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  ops->BiasTanh({.y = a.data(), .bias = nullptr, .rows = 1, .columns = 2});
  ASSERT_TRUE(errors.first());
  EXPECT_EQ(errors.first()->operation, "BiasTanh");
  EXPECT_NE(errors.first()->what.find("cudaErrorIllegalAddress"), std::string::npos);
  const int64_t works = emulation::GetCounts().works;
  ops->Add(a.data(), a.data(), 2);
  EXPECT_EQ(emulation::GetCounts().works, works);
  EXPECT_EQ(errors.first()->operation, "BiasTanh");
  emulation::Configure({});  // the device is beyond repair
  stream_ = nullptr;
}
#endif

}  // namespace
}  // namespace tercio::kernels::cuda

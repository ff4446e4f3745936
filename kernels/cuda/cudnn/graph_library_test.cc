// Our graphs before the real cuDNN, without a GPU: the library plans for devices that are described
// to it, and compiles its kernels. It must take the graphs of both directions for the GPUs that we
// use it on, and need no more workspace than we expect. Nothing is executed: what the plans compute
// is for tests on a GPU (attention_cudnn_test). The driver is a fake one (fake_driver.cc).
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/library.h"
#include "kernels/cuda/scratch.h"

namespace tercio::kernels::cuda {
namespace {

struct Gpu {
  const char* name;
  int capability;  // 900: 9.0
  int processors;
  int shared_bytes;
};
constexpr Gpu kA100 = {"NVIDIA A100-SXM4-80GB", 800, 108, 166912};
constexpr Gpu kH100 = {"NVIDIA H100 80GB HBM3", 900, 132, 232448};
constexpr Gpu kB200 = {"NVIDIA B200", 1000, 148, 232448};
constexpr Gpu kRtx5090 = {"NVIDIA GeForce RTX 5090", 1200, 170, 101376};

// CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION: the fields that 9.19 reads, with the values of the
// CUDA programming guide's table of compute capabilities.
std::string Describe(const Gpu& gpu) {
  const auto number = [](const char* name, int64_t value) {
    return ",\"" + std::string(name) + "\":" + std::to_string(value);
  };
  return R"({"version":1,"deviceName":")" + std::string(gpu.name) +
         R"(","maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64])" +
         number("deviceVer", gpu.capability) + number("smVersion", gpu.capability) +
         number("multiProcessorCount", gpu.processors) +
         number("maxSharedMemoryPerBlockOptin", gpu.shared_bytes) + number("driverVer", 13000) +
         number("regsPerBlock", 65536) + number("maxRegistersPerSM", 65536) +
         number("smClockRateKHz", 1410000) + number("memClockRateKHz", 1593000) +
         number("l2CacheSize", 41943040) + number("warpSize", 32) +
         number("maxSharedMemoryPerBlock", 49152) + number("reservedSharedMemoryPerBlock", 1024) +
         number("pciDeviceId", 0) + number("maxCtasPerSM", 32) +
         number("maxThreadsPerBlock", 1024) + number("maxThreadsPerSM", 2048) +
         number("isTccDriver", 0) + number("supportCoopLaunch", 1) + number("cudaDeviceId", 0) +
         number("totalGlobalMem", int64_t{80} << 30) + "}";
}

class GraphLibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = LoadCudnn();
    ASSERT_TRUE(library_) << NameOf(library_);
    CudnnCalls calls(library_);
    DeviceOf(kA100, calls);
    if (!calls.ok()) {
      GTEST_SKIP() << NameOf(library_)
                   << " wants other descriptions of devices than 9.19: " << calls.failure();
    }
  }

  CudnnDescriptor DeviceOf(const Gpu& gpu, CudnnCalls& calls) {
    CudnnDescriptor device = calls.Create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, gpu.name);
    const std::string text = Describe(gpu);
    calls.Set(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, text.data(),
              static_cast<int64_t>(text.size()));
    calls.Finalize(device);
    return device;
  }

  // "" or why the library does not take it, by the engine that we use.
  std::string Plan(const Gpu& gpu, const CudnnAttentionShape& shape, bool backward,
                   int64_t* workspace_bytes) {
    CudnnRepetition repetition{true, {}};
    if (backward) repetition = RepetitionOf(shape, gpu.capability / 10, library_.version);
    if (!repetition.repeats) return "bits that do not repeat";
    return PlanWith(repetition.engine, gpu, shape, backward, workspace_bytes);
  }
  std::string PlanWith(std::optional<CudnnEngine> engine, const Gpu& gpu,
                       const CudnnAttentionShape& shape, bool backward, int64_t* workspace_bytes) {
    CudnnCalls calls(library_);
    const CudnnDescriptor device = DeviceOf(gpu, calls);
    if (!calls.ok()) return calls.failure();
    CudnnGraph graph(library_);
    if (backward) {
      AddAttentionBackward(shape, graph);
    } else {
      AddAttention(shape, graph);
    }
    const auto plan = graph.Plan({nullptr, device.get(), int64_t{1} << 40, std::move(engine)});
    if (!plan) return graph.failure();
    *workspace_bytes = plan->workspace_bytes;
    return "";
  }

  CudnnLibrary library_;
};

CudnnAttentionShape Shape(int64_t tokens, int64_t group, int64_t head_dim, bool causal,
                          cudnnDataType_t type = CUDNN_DATA_BFLOAT16) {
  constexpr int64_t kHeads = 8;
  const int64_t stride = (kHeads + 2 * kHeads / group) * head_dim;
  return {.type = type,
          .sequences = 2,
          .tokens = tokens,
          .heads = kHeads,
          .head_dim = head_dim,
          .group = group,
          .stride = stride,
          .out_stride = kHeads * head_dim,
          .causal = causal};
}

CudnnAttentionShape Masked(int64_t tokens, int64_t group, bool causal, bool padded, float dropout) {
  CudnnAttentionShape shape = Shape(tokens, group, 64, causal);
  shape.padded = padded;
  shape.dropout = dropout;
  return shape;
}

// A plan takes some seconds.
std::vector<CudnnAttentionShape> ShapesFor(const Gpu& gpu, bool backward) {
  // Padding, groups that a tile does not divide, and all of it with dropout.
  if (gpu.capability == kB200.capability && backward) {
    return {Shape(1024, 1, 64, true), Masked(77, 2, false, true, 0)};
  }
  if (gpu.capability >= kB200.capability) {
    return {Shape(100, 4, 128, true), Masked(77, 2, false, true, 0.1f)};
  }
  return {Shape(1024, 1, 64, true),          Shape(100, 4, 128, true),
          Shape(512, 1, 64, false),          Shape(2048, 8, 128, true, CUDNN_DATA_HALF),
          Shape(77, 1, 80, false),           Masked(512, 1, false, true, 0),
          Masked(100, 2, true, false, 0.1f), Masked(77, 2, false, true, 0.1f)};
}

TEST_F(GraphLibraryTest, TakesOurGraphs) {
  for (const Gpu& gpu : {kA100, kH100, kB200, kRtx5090}) {
    for (const bool backward : {false, true}) {
      for (const CudnnAttentionShape& shape : ShapesFor(gpu, backward)) {
        int64_t bytes = 0;
        EXPECT_EQ(Plan(gpu, shape, backward, &bytes), "")
            << gpu.name << (backward ? " backward, " : " forward, ") << shape.tokens << " tokens";
        EXPECT_LE(bytes, backward ? LibraryAttentionBytes({.sequences = shape.sequences,
                                                           .tokens = shape.tokens,
                                                           .heads = shape.heads,
                                                           .group = shape.group,
                                                           .head_dim = shape.head_dim})
                                  : 4096)
            << shape.tokens;
      }
    }
  }
}

// Its engine for compute capability 10 is the one that we ask for, and has no dropout.
TEST_F(GraphLibraryTest, RefusesDropoutOfAnEngineThatRepeatsBits) {
  CudnnAttentionShape shape = Masked(512, 1, false, true, 0);
  const auto repetition = RepetitionOf(shape, kB200.capability / 10, library_.version);
  ASSERT_TRUE(repetition.repeats && repetition.engine.has_value());
  int64_t bytes = 0;
  EXPECT_EQ(PlanWith(repetition.engine, kB200, shape, true, &bytes), "");
  EXPECT_NE(PlanWith(repetition.engine, kH100, shape, true, &bytes), "");
  shape.dropout = 0.1f;
  EXPECT_FALSE(RepetitionOf(shape, kB200.capability / 10, library_.version).repeats);
  EXPECT_NE(PlanWith(repetition.engine, kB200, shape, true, &bytes), "");
}

// That it is asked at all: what it does not take is refused.
TEST_F(GraphLibraryTest, RefusesWhatIsNoAttention) {
  int64_t bytes = 0;
  CudnnAttentionShape shape = Shape(128, 1, 64, true);
  shape.head_dim = 60;  // whose rows begin at no multiple of 16 bytes
  EXPECT_NE(Plan(kH100, shape, false, &bytes), "");
}

}  // namespace
}  // namespace tercio::kernels::cuda

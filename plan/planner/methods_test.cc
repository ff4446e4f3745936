#include "plan/planner/methods.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

// Narayanan et al. 2021, table 1: 1.7 billion parameters, and what grows from them.
v1::JobSpec Gpt() {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(24);
  model->set_hidden(2304);
  model->set_heads(24);
  model->set_kv_heads(24);
  model->set_ffn_hidden(4 * 2304);
  model->set_context(2048);
  model->set_vocab_size(51200);
  model->set_bias(true);
  job.mutable_training()->set_global_batch(512);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  return job;
}

TEST(LargestByMethod, EveryMethodIsWorthSomething) {
  const auto cluster = cost::MakeCluster(*cost::AcceleratorOf("A100-80"), 8, 8, 8, 25e9);
  std::map<std::string, int64_t> plain;
  std::map<std::string, int64_t> recomputed;
  for (const MethodLimit& limit : LargestByMethod(Gpt(), cluster)) {
    ASSERT_TRUE(limit.largest.has_value()) << limit.method;
    EXPECT_EQ(limit.layout.tensor() * limit.layout.pipeline() * limit.layout.data(), 64)
        << limit.method;
    EXPECT_LT(limit.largest->memory_bytes, 80e9);
    // It nearly fills the device: the next member of a family is some per cent larger.
    EXPECT_GT(limit.largest->memory_bytes, 50e9) << limit.method;
    const bool again = limit.layout.recompute() == v1::RECOMPUTE_FULL;
    (again ? recomputed : plain)[limit.method] = limit.largest->parameters;
  }
  ASSERT_EQ(plain.size(), 8U);
  for (const auto& [method, parameters] : plain) EXPECT_GE(recomputed[method], parameters);
  // 18 bytes for each parameter of a replica (mixed precision with fp32 gradients): some 4 billion.
  EXPECT_GT(recomputed["data parallel"], 3.5e9);
  EXPECT_LT(recomputed["data parallel"], 4.5e9);
  for (int stage = 1; stage <= 3; ++stage) {
    const std::string before =
        stage == 1 ? "data parallel" : "data parallel, zero_stage " + std::to_string(stage - 1);
    EXPECT_GT(recomputed["data parallel, zero_stage " + std::to_string(stage)], recomputed[before]);
  }
  EXPECT_GT(recomputed["tensor parallel within a node"], 6 * recomputed["data parallel"]);
  EXPECT_GE(plain["tensor and sequence parallel within a node"],
            plain["tensor parallel within a node"]);
  EXPECT_GT(plain["tensor and pipeline parallel"],
            4 * plain["tensor and sequence parallel within a node"]);
}

TEST(LargestByMethod, ASingleDeviceHasOneMethod) {
  const auto cluster = cost::MakeCluster(*cost::AcceleratorOf("A100-80"), 1, 1, 1, 25e9);
  const std::vector<MethodLimit> limits = LargestByMethod(Gpt(), cluster);
  ASSERT_EQ(limits.size(), 2U);
  for (const MethodLimit& limit : limits) EXPECT_EQ(limit.method, "data parallel");
}

}  // namespace
}  // namespace tercio::plan

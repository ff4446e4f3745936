#include "coordinator/planner/planner.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;

v1::JobSpec Gpt(const std::string& device) {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture("gpt2");
  model->set_layers(12);
  model->set_hidden(768);
  model->set_heads(12);
  model->set_kv_heads(12);
  model->set_ffn_hidden(3072);
  model->set_context(1024);
  model->set_vocab_size(50257);
  model->set_bias(true);
  job.mutable_training()->set_steps(1);
  job.mutable_training()->set_global_batch(512);
  job.mutable_training()->set_precision("bf16");
  job.mutable_parallelism()->set_automatic(true);
  job.mutable_resources()->set_device(device);
  job.mutable_resources()->set_ranks(1);
  return job;
}

v1::LayoutCandidate Chosen(const v1::JobSpec& job, const Cluster& cluster) {
  const v1::PlanReport report = PlanLayouts(job, cluster);
  EXPECT_GE(report.chosen(), 0);
  return report.layouts(std::max(0, report.chosen()));
}

TEST(Planner, MicroBatchesOfGpusAreAsLargeAsFit) {
  const v1::JobSpec job = Gpt("cuda");
  Cluster cluster;
  UseGpus("NVIDIA H200", job.training(), &cluster);
  const v1::LayoutCandidate roomy = Chosen(job, cluster);
  EXPECT_EQ(roomy.layout().micro_batch(), 64);
  EXPECT_EQ(roomy.layout().micro_batches(), 8);
  cluster.memory_bytes = int64_t{12} << 30;
  const v1::LayoutCandidate tight = Chosen(job, cluster);
  EXPECT_LT(tight.layout().micro_batch(), 64);
  EXPECT_LE(tight.predicted().memory_bytes_peak(), cluster.memory_bytes);
  EXPECT_EQ(tight.layout().micro_batch() * tight.layout().micro_batches(), 512);
  // The next larger one does not fit.
  v1::JobSpec larger = job;
  larger.mutable_training()->set_micro_batch(2 * tight.layout().micro_batch());
  EXPECT_THAT(PlanLayouts(larger, cluster).layouts(0).rejected(), HasSubstr("does not fit"));
  cluster.memory_bytes = int64_t{1} << 30;
  EXPECT_EQ(PlanLayouts(job, cluster).chosen(), -1);
  EXPECT_TRUE(absl::IsResourceExhausted(ChooseLayout(job, cluster).status()));
}

TEST(Planner, UtilisationCountsByThePeak) {
  const v1::JobSpec job = Gpt("cuda");
  Cluster cluster;
  UseGpus("NVIDIA H200", job.training(), &cluster);
  const v1::Prediction gpu = Chosen(job, cluster).predicted();
  EXPECT_NEAR(gpu.mfu(), 0.5, 0.01);
  EXPECT_NEAR(gpu.tflops_per_gpu(), 989 * gpu.mfu(), 1);
  const v1::Prediction cpu = Chosen(Gpt("cpu"), Cluster()).predicted();
  EXPECT_NEAR(cpu.mfu(), 1, 0.01);
}

TEST(Planner, WhatAJobNamesIsNotChanged) {
  v1::JobSpec job = Gpt("cuda");
  job.mutable_training()->set_micro_batch(64);
  Cluster cluster;
  cluster.memory_bytes = int64_t{12} << 30;
  EXPECT_THAT(PlanLayouts(job, cluster).layouts(0).rejected(), HasSubstr("does not fit"));
}

// Each of these once divided by zero, or gave a sum below zero, in whoever looked at the job.
TEST(Planner, NumbersOfAStrangerAreRefused) {
  const auto refused = [](const auto& change) {
    v1::JobSpec job = Gpt("cpu");
    job.mutable_checkpoint()->set_keep_last(1);
    EXPECT_TRUE(AdmitJob(job, int64_t{1} << 62).ok());
    change(job);
    return AdmitJob(job, int64_t{1} << 62).code();
  };
  EXPECT_EQ(refused([](auto& job) {
              job.mutable_parallelism()->set_automatic(false);
              job.mutable_parallelism()->set_tensor(1 << 16);
              job.mutable_parallelism()->set_pipeline(1 << 16);
            }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto& job) {
              job.mutable_parallelism()->set_automatic(false);
              job.mutable_training()->set_micro_batch(int64_t{1} << 32);
            }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto& job) { job.mutable_model()->set_layers(1 << 30); }),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tercio::coordinator

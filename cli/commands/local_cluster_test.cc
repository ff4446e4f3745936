#include "cli/commands/local_cluster.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

Gpus TwoGpus(const std::string& model, int64_t memory_bytes) {
  Gpus gpus;
  for (int i = 0; i < 2; ++i) {
    Gpu& gpu = gpus.list.emplace_back();
    gpu.index = i;
    gpu.model = model;
    gpu.memory_bytes = memory_bytes;
  }
  return gpus;
}

ClusterHere Here(const Gpus& gpus, int ranks) {
  plan::Cluster cluster;
  cluster.ranks = ranks;
  return OnGpusHere(gpus, v1::MachineFigures(), cluster);
}

v1::JobSpec JobOfWidth(int hidden) {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(2);
  model->set_hidden(hidden);
  model->set_heads(hidden / 64);
  model->set_kv_heads(hidden / 64);
  model->set_ffn_hidden(4 * hidden);
  model->set_context(64);
  model->set_vocab_size(256);
  job.mutable_training()->set_steps(1);
  job.mutable_training()->set_global_batch(4);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  job.mutable_parallelism()->set_automatic(true);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  return job;
}

TEST(LocalCluster, WithoutAGpuOneIsAssumedAndNamed) {
  const ClusterHere here = Here(Gpus(), 4);
  EXPECT_EQ(here.cluster.memory_bytes, 157 * kGiB / 2);
  EXPECT_EQ(here.gpus,
            "there is no GPU here; the plan assumes that each rank has an NVIDIA A100-SXM4-80GB "
            "with 80.0 GiB of memory, and may use 78.5 GiB of it");
}

TEST(LocalCluster, NoLayoutIsPlannedBeyondTheAssumedMemory) {
  const ClusterHere here = Here(Gpus(), 4);
  EXPECT_GE(plan::PlanLayouts(JobOfWidth(256), here.cluster).chosen(), 0);
  const v1::PlanReport report = plan::PlanLayouts(JobOfWidth(65536), here.cluster);
  EXPECT_EQ(report.chosen(), -1);
  ASSERT_GT(report.layouts_size(), 0);
  int too_large = 0;
  for (const v1::LayoutCandidate& candidate : report.layouts()) {
    EXPECT_NE(candidate.rejected(), "");
    if (!candidate.predicted_valid()) continue;
    ++too_large;
    EXPECT_GT(candidate.predicted().memory_bytes_peak(), here.cluster.memory_bytes);
    // 80,384 MiB, less what the communicators of four ranks take.
    EXPECT_THAT(candidate.rejected(),
                ContainsRegex("MiB per rank, 7[0-9]{4}.0 MiB are available beside [0-9]+.0 MiB"));
  }
  EXPECT_GT(too_large, 0);
}

TEST(LocalCluster, RanksShareTheGpusOfTheMachine) {
  Gpus gpus = TwoGpus("NVIDIA H200", 140 * kGiB);
  EXPECT_EQ(Here(gpus, 2).cluster.memory_bytes, 277 * kGiB / 2);
  EXPECT_EQ(Here(gpus, 3).cluster.memory_bytes, 277 * kGiB / 4);
  EXPECT_EQ(Here(gpus, 3).gpus,
            "the plan is for the GPUs of this machine: 2 x NVIDIA H200 with 140.0 GiB of memory "
            "each, of which a rank may use 69.2 GiB");
  gpus.list[1].memory_bytes = 100 * kGiB;  // the smaller one counts
  EXPECT_EQ(Here(gpus, 2).cluster.memory_bytes, 197 * kGiB / 2);
  gpus.list[1].memory_bytes = 0;  // one that is lost says nothing
  EXPECT_EQ(Here(gpus, 2).cluster.memory_bytes, 277 * kGiB / 2);
}

TEST(LocalCluster, WhatTheDriverDoesNotSayIsAssumed) {
  const std::string slow = "their speed is not known, and assumed to be that of an NVIDIA A100";
  EXPECT_THAT(Here(TwoGpus("Fake GPU", 24 * kGiB), 2).gpus, HasSubstr(slow));
  EXPECT_THAT(Here(TwoGpus("NVIDIA H200", 24 * kGiB), 2).gpus, Not(HasSubstr(slow)));
  const ClusterHere silent = Here(TwoGpus("", 0), 2);
  EXPECT_EQ(silent.cluster.memory_bytes, 157 * kGiB / 2);
  EXPECT_THAT(silent.gpus, HasSubstr("2 x GPU of unknown model with memory that the driver does "
                                     "not report, assumed to be 80.0 GiB each"));
  EXPECT_EQ(Here(TwoGpus("NVIDIA H200", kGiB), 2).cluster.memory_bytes, 0);
}

}  // namespace
}  // namespace tercio::cli

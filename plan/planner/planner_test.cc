#include "plan/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/gpu_reserve.h"
#include "plan/offload.h"
#include "plan/plan_builder.h"
#include "plan/planner/advice.h"
#include "plan/planner/candidates.h"
#include "plan/planner/cost/testing/slower_cores.h"

namespace tercio::plan {
namespace {

using ::testing::HasSubstr;

v1::JobSpec Gpt(v1::DeviceKind device) {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
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
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
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
  const v1::JobSpec job = Gpt(v1::DEVICE_KIND_CUDA);
  Cluster cluster;
  UseGpus({}, "NVIDIA H200", &cluster);
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
  larger.mutable_parallelism()->set_automatic(false);
  larger.mutable_training()->set_micro_batch(2 * tight.layout().micro_batch());
  EXPECT_THAT(PlanLayouts(larger, cluster).layouts(0).rejected(), HasSubstr("does not fit"));
  cluster.memory_bytes = int64_t{1} << 30;
  EXPECT_EQ(PlanLayouts(job, cluster).chosen(), -1);
  EXPECT_TRUE(absl::IsResourceExhausted(ChooseLayout(job, cluster).status()));
}

// What NCCL takes depends on the layout; ranks that share a GPU do without.
TEST(Planner, CommunicatorsOfALayoutAreLeftFree) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CUDA);
  job.mutable_parallelism()->set_automatic(false);
  job.mutable_parallelism()->set_tensor(2);
  job.mutable_parallelism()->set_pipeline(1);
  job.mutable_parallelism()->set_data(2);
  job.mutable_training()->set_micro_batch(1);
  job.mutable_resources()->set_ranks(4);
  job.mutable_checkpoint()->set_keep_last(1);
  Cluster cluster;
  cluster.ranks = 4;
  const int64_t need = PlanLayouts(job, cluster).layouts(0).predicted().memory_bytes_peak();
  const int64_t nccl = NcclBytes(job, *LayoutOfJob(job));
  ASSERT_GT(nccl, 0);
  cluster.memory_bytes = need + nccl;
  const v1::LayoutCandidate fits = PlanLayouts(job, cluster).layouts(0);
  EXPECT_EQ(fits.rejected(), "");
  EXPECT_EQ(fits.predicted().memory_bytes_available(), need);
  EXPECT_TRUE(AdmitJob(job, need + nccl).ok());
  cluster.memory_bytes -= 1;
  EXPECT_THAT(PlanLayouts(job, cluster).layouts(0).rejected(),
              HasSubstr("beside 1600.0 MiB for NCCL's communicators"));
  EXPECT_FALSE(AdmitJob(job, need + nccl - 1).ok());
  cluster.memory_bytes = need;
  cluster.shares_gpus = true;
  EXPECT_EQ(PlanLayouts(job, cluster).layouts(0).rejected(), "");
  EXPECT_TRUE(AdmitJob(job, need, /*shares_gpus=*/true).ok());
}

TEST(Planner, UtilisationCountsByThePeak) {
  const v1::JobSpec job = Gpt(v1::DEVICE_KIND_CUDA);
  Cluster cluster;
  UseGpus({}, "NVIDIA H200", &cluster);
  const v1::Prediction gpu = Chosen(job, cluster).predicted();
  EXPECT_GT(gpu.mfu(), 0.3);
  EXPECT_LT(gpu.mfu(), 0.6);
  EXPECT_NEAR(gpu.tflops_per_gpu(), 989 * gpu.mfu(), 1);
  const v1::Prediction cpu = Chosen(Gpt(v1::DEVICE_KIND_CPU), Cluster()).predicted();
  // All of attention counts, of which a causal mask hides half.
  EXPECT_GT(cpu.mfu(), 0.5);
  EXPECT_LT(cpu.mfu(), 1.1);
}

// Ranks that share a core compute more slowly, and wait for each other at every message. GPUs have
// their own figures, whatever there was before.
TEST(Planner, RanksThatShareCoresTakeTurns) {
  constexpr int64_t kMemory = int64_t{1} << 40;
  const Cluster alone = LocalCluster(1, 1, kMemory, 0);
  const Cluster shared = LocalCluster(8, 2, kMemory, 0);
  const auto rate = [](const Cluster& cluster) {
    return DevicesOf(cluster, cluster.ranks).accelerator.flops_fp32;
  };
  EXPECT_EQ(DevicesOf(alone, 1).shared_devices, 0);
  EXPECT_EQ(DevicesOf(shared, 8).shared_devices, 2);
  EXPECT_EQ(rate(shared), rate(alone));
  const Cluster roomy = LocalCluster(2, 8, kMemory, 0);
  EXPECT_GT(rate(roomy), 2 * rate(alone));

  Cluster gpu;
  UseGpus({}, "NVIDIA H200", &gpu);
  EXPECT_EQ(DevicesOf(gpu, 1).accelerator.name, "H200");
  Cluster after_cpus = shared;
  UseGpus({}, "NVIDIA H200", &after_cpus);
  EXPECT_EQ(rate(gpu), rate(after_cpus));
  // One that nobody knows counts as the one that is assumed.
  UseGpus({}, "", &gpu);
  EXPECT_EQ(DevicesOf(gpu, 1).accelerator.name, "A100-80");
}

// Two nodes, one with cores of half the rate: its stage has fewer layers, and data ranks would wait
// for it.
TEST(Planner, NodesOfSeveralKindsGetLayersByTheirSpeed) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CPU);
  job.mutable_training()->set_precision(v1::PRECISION_FP32);
  job.mutable_training()->set_global_batch(16);
  job.mutable_resources()->set_ranks(2);
  const Cluster fast = LocalCluster(1, 1, int64_t{1} << 40, 0);
  Cluster slow = fast;
  slow.figures = cost::SlowerCores(fast.figures, 3);
  Cluster cluster = fast;
  cluster.ranks = 2;
  cluster.kinds = {fast, slow};
  for (Cluster& kind : cluster.kinds) kind.ranks = kind.ranks_per_node = 1;
  EXPECT_EQ(DevicesOf(cluster, 2).groups.size(), 2u);

  // Degrees that a job names are kept, and so are the layers that it names.
  job.mutable_parallelism()->set_automatic(false);
  job.mutable_parallelism()->set_tensor(1);
  job.mutable_parallelism()->set_pipeline(2);
  job.mutable_parallelism()->set_data(1);
  const v1::LayoutCandidate divided = Chosen(job, cluster);
  ASSERT_EQ(divided.layout().stage_layers_size(), 2);
  EXPECT_GT(divided.layout().stage_layers(0), divided.layout().stage_layers(1));
  job.mutable_parallelism()->add_stage_layers(6);
  job.mutable_parallelism()->add_stage_layers(6);
  const v1::LayoutCandidate equal = Chosen(job, cluster);
  EXPECT_EQ(equal.layout().stage_layers_size(), 0);
  EXPECT_LT(divided.predicted().step_seconds(), 0.9 * equal.predicted().step_seconds());
  // In the other order it is the other stage.
  std::swap(cluster.kinds[0], cluster.kinds[1]);
  job.mutable_parallelism()->clear_stage_layers();
  const v1::LayoutCandidate other = Chosen(job, cluster);
  ASSERT_EQ(other.layout().stage_layers_size(), 2);
  EXPECT_LT(other.layout().stage_layers(0), other.layout().stage_layers(1));
}

TEST(Planner, ATensorGroupHasGpusOfOneModel) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CUDA);
  job.mutable_training()->set_global_batch(24);
  job.mutable_resources()->set_ranks(6);
  Cluster cluster;
  cluster.ranks = 6;
  cluster.shares_gpus = true;
  cluster.memory_bytes = int64_t{80} << 30;
  UseGpus({}, "NVIDIA A100", &cluster);
  for (const char* model : {"NVIDIA H200", "NVIDIA A100"}) {
    Cluster& kind = cluster.kinds.emplace_back();
    kind.ranks = kind.ranks_per_node = 3;
    UseGpus({}, model, &kind);
  }
  const v1::PlanReport report = PlanLayouts(job, cluster);
  ASSERT_GE(report.chosen(), 0);
  int refused = 0;
  for (const v1::LayoutCandidate& candidate : report.layouts()) {
    if (candidate.layout().tensor() == 1 || candidate.layout().tensor() == 3) continue;
    EXPECT_THAT(candidate.rejected(), HasSubstr("of different models"));
    ++refused;
  }
  EXPECT_GT(refused, 0);
}

// Ranks that a node has no room for are on further ones.
TEST(Planner, NodesFollowFromTheRanks) {
  Cluster cluster;
  UseGpus({}, "NVIDIA H200", &cluster);
  EXPECT_EQ(DevicesOf(cluster, 4).nodes, 1);
  EXPECT_EQ(DevicesOf(cluster, 4).devices_per_node, 4);
  EXPECT_EQ(DevicesOf(cluster, 32).nodes, 4);
  EXPECT_EQ(DevicesOf(cluster, 32).devices_per_node, 8);
  EXPECT_EQ(DevicesOf(Cluster(), 32).nodes, 1);
}

// The state of 124 M parameters in bf16 on four data ranks: it is divided where it does not fit
// whole, and not before.
TEST(Planner, TheStateIsDividedOnlyWhereItMustBe) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CUDA);
  job.mutable_model()->set_heads(1);  // no tensor degree divides it
  job.mutable_model()->set_kv_heads(1);
  job.mutable_model()->set_layers(7);  // nor a pipeline
  job.mutable_model()->set_vocab_size(1024);
  job.mutable_model()->set_hidden(256);
  job.mutable_training()->set_micro_batch(1);
  job.mutable_resources()->set_ranks(4);
  Cluster cluster;
  cluster.ranks = 4;
  cluster.shares_gpus = true;
  cluster.memory_bytes = int64_t{16} << 30;
  const v1::LayoutCandidate whole = Chosen(job, cluster);
  EXPECT_EQ(whole.layout().data(), 4);
  EXPECT_EQ(whole.layout().zero_stage(), 0);
  cluster.memory_bytes = whole.predicted().memory_bytes_peak() - 1;
  const v1::LayoutCandidate divided = Chosen(job, cluster);
  EXPECT_EQ(divided.layout().data(), 4);
  EXPECT_EQ(divided.layout().zero_stage(), 1);
  EXPECT_EQ(divided.layout().recompute(), v1::RECOMPUTE_NONE);
  EXPECT_LE(divided.predicted().memory_bytes_peak(), cluster.memory_bytes);

  // With less and less memory it is the fastest of all that fit, however that is reached.
  int64_t fits = divided.predicted().memory_bytes_peak();
  for (int less = 0; less < 3; ++less) {
    cluster.memory_bytes = fits - 1;
    const v1::LayoutCandidate more = Chosen(job, cluster);
    fits = more.predicted().memory_bytes_peak();
    EXPECT_LE(fits, cluster.memory_bytes);
    Candidates candidates(job, cluster);
    for (int stage = 0; stage <= 3; ++stage) {
      for (const auto recompute :
           {v1::RECOMPUTE_NONE, v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
        v1::Layout other = more.layout();
        other.set_zero_stage(stage);
        other.set_recompute(recompute);
        const v1::LayoutCandidate judged = candidates.Judge(other);
        if (!judged.rejected().empty()) continue;
        EXPECT_LE(more.predicted().step_seconds(), judged.predicted().step_seconds())
            << other.ShortDebugString();
      }
    }
  }
  cluster.memory_bytes = whole.predicted().memory_bytes_peak() - 1;

  // Someone who names the degrees is told.
  v1::ParallelismSpec* parallelism = job.mutable_parallelism();
  parallelism->set_automatic(false);
  parallelism->set_data(4);
  const absl::Status refused = ChooseLayout(job, cluster).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("it fits with parallelism.zero_stage=1 ("));
  parallelism->set_zero_stage(1);
  EXPECT_TRUE(ChooseLayout(job, cluster).ok());
  cluster.memory_bytes = 1 << 20;
  EXPECT_THAT(std::string(ChooseLayout(job, cluster).status().message()),
              ::testing::Not(HasSubstr("it fits with")));
}

// As much of the optimizer's state goes elsewhere as must, in eighths.
TEST(Planner, TheLeastShareIsOffloaded) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CPU);
  job.mutable_parallelism()->set_automatic(false);
  job.mutable_training()->set_micro_batch(1);
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
  job.mutable_offload()->set_share(kLeastShare);
  Cluster cluster;
  // Nobody knows the memory.
  EXPECT_EQ(Chosen(job, cluster).layout().offload_share(), 0);
  cluster.memory_bytes = int64_t{1} << 40;
  const v1::LayoutCandidate roomy = Chosen(job, cluster);
  EXPECT_EQ(roomy.layout().offload_share(), 0);
  v1::JobSpec named = job;
  named.mutable_offload()->clear_share();
  const v1::LayoutCandidate all = Chosen(named, cluster);
  EXPECT_FALSE(all.layout().has_offload_share());
  const auto peak = [](const v1::LayoutCandidate& candidate) {
    return candidate.predicted().memory_bytes_peak();
  };
  EXPECT_LT(peak(all), peak(roomy));
  for (int part = 1; part < 10; ++part) {
    cluster.memory_bytes = peak(all) + (peak(roomy) - peak(all)) * part / 10;
    const v1::LayoutCandidate some = Chosen(job, cluster);
    const double share = some.layout().offload_share();
    EXPECT_GT(share, 0);
    EXPECT_LE(share, 1);
    EXPECT_LE(peak(some), cluster.memory_bytes);
    // The next smaller one does not fit.
    named.mutable_offload()->set_share(share - 0.125);
    if (share > 0.125) {
      EXPECT_THAT(PlanLayouts(named, cluster).layouts(0).rejected(), HasSubstr("does not fit"));
      EXPECT_THAT(std::string(ChooseLayout(named, cluster).status().message()),
                  HasSubstr("offload.share=1 ("));
    }
    // The plan's ranks have it.
    const auto plan = MakePlan(job, {{"here", 0}}, cluster);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->layout().offload_share(), share);
    EXPECT_EQ(SliceForRank(*plan, 0).layout().offload_share(), share);
    EXPECT_EQ(plan->stages(0).memory().total_bytes(), peak(some));
  }
  cluster.memory_bytes = peak(all) - 1;
  const v1::PlanReport none = PlanLayouts(job, cluster);
  EXPECT_EQ(none.chosen(), -1);
  EXPECT_EQ(peak(none.layouts(0)), peak(all));
}

// Micro-batches become smaller before more is offloaded, and the state of several data ranks is
// divided further only where all of it elsewhere is not enough.
TEST(Planner, TheShareIsChosenForEveryLayout) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CPU);
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
  job.mutable_offload()->set_share(kLeastShare);
  job.mutable_training()->set_global_batch(16);
  job.mutable_resources()->set_ranks(4);
  Cluster cluster;
  cluster.ranks = 4;
  int offloaded = 0;
  for (const int64_t memory : {int64_t{3} << 30, int64_t{2} << 30, int64_t{1} << 30}) {
    cluster.memory_bytes = memory;
    const v1::PlanReport report = PlanLayouts(job, cluster);
    for (const v1::LayoutCandidate& candidate : report.layouts()) {
      if (!candidate.rejected().empty()) continue;
      EXPECT_TRUE(candidate.layout().has_offload_share());
      EXPECT_LE(candidate.predicted().memory_bytes_peak(), memory);
      if (candidate.layout().offload_share() == 0) continue;
      // It does not fit with less.
      v1::JobSpec less = job;
      less.mutable_parallelism()->set_automatic(false);
      less.mutable_parallelism()->set_tensor(candidate.layout().tensor());
      less.mutable_parallelism()->set_pipeline(candidate.layout().pipeline());
      less.mutable_parallelism()->set_zero_stage(candidate.layout().zero_stage());
      less.mutable_offload()->set_share(candidate.layout().offload_share() - 0.125);
      ++offloaded;
      if (less.offload().share() == 0) continue;
      EXPECT_FALSE(ChooseLayout(less, cluster).ok());
    }
    const absl::StatusOr<v1::Layout> chosen = ChooseLayout(job, cluster);
    ASSERT_EQ(chosen.ok(), report.chosen() >= 0) << chosen.status();
    if (!chosen.ok()) continue;
    EXPECT_EQ(report.layouts(report.chosen()).layout().SerializeAsString(),
              chosen->SerializeAsString());
  }
  EXPECT_GT(offloaded, 0);
}

// The stage that has most layers sets the pace, and needs most memory.
TEST(Planner, LayersOfStagesCount) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CPU);
  job.mutable_model()->set_vocab_size(256);  // a head that is less work than a layer
  job.mutable_parallelism()->set_automatic(false);
  job.mutable_parallelism()->set_pipeline(4);
  job.mutable_resources()->set_ranks(4);
  Cluster cluster;
  cluster.ranks = 4;
  cluster.memory_bytes = int64_t{1} << 50;
  const v1::Prediction equal = Chosen(job, cluster).predicted();
  for (const int layers : {1, 9, 1, 1}) job.mutable_parallelism()->add_stage_layers(layers);
  const v1::LayoutCandidate chosen = Chosen(job, cluster);
  EXPECT_EQ(chosen.layout().stage_layers_size(), 4);
  EXPECT_GT(chosen.predicted().step_seconds(), 2 * equal.step_seconds());
  EXPECT_GT(chosen.predicted().memory_bytes_peak(), equal.memory_bytes_peak());
  job.mutable_checkpoint()->set_keep_last(1);
  EXPECT_TRUE(AdmitJob(job, int64_t{1} << 62).ok());
  job.mutable_parallelism()->set_automatic(true);
  EXPECT_EQ(AdmitJob(job, int64_t{1} << 62).message(),
            "parallelism.stage_layers without a pipeline degree is not supported by this version");
}

TEST(Planner, WhatAJobNamesIsNotChanged) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CUDA);
  job.mutable_training()->set_micro_batch(64);
  Cluster cluster;
  cluster.memory_bytes = int64_t{12} << 30;
  // Left to the planner, passes are recomputed instead.
  const v1::LayoutCandidate chosen = Chosen(job, cluster);
  EXPECT_EQ(chosen.layout().micro_batch(), 64);
  EXPECT_NE(chosen.layout().recompute(), v1::RECOMPUTE_NONE);
  job.mutable_parallelism()->set_automatic(false);
  EXPECT_THAT(PlanLayouts(job, cluster).layouts(0).rejected(), HasSubstr("does not fit"));
}

// Each of these once divided by zero, or gave a sum below zero, in whoever looked at the job.
TEST(Planner, NumbersOfAStrangerAreRefused) {
  const auto refused = [](const auto& change) {
    v1::JobSpec job = Gpt(v1::DEVICE_KIND_CPU);
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
  for (const double share : {-0.5, 1.5, std::nan("")}) {
    EXPECT_EQ(refused([share](auto& job) { job.mutable_offload()->set_share(share); }),
              absl::StatusCode::kInvalidArgument);
  }
}

// What the planner adds to a layout has to be worth it.
TEST(Planner, ChunksAndSequenceParallelismAreChosenWhereTheyGain) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CUDA);
  v1::ModelSpec* model = job.mutable_model();
  model->set_layers(48);
  model->set_hidden(6144);
  model->set_heads(48);
  model->set_kv_heads(48);
  model->set_ffn_hidden(4 * 6144);
  model->set_context(2048);
  job.mutable_training()->set_global_batch(32);
  job.mutable_resources()->set_ranks(64);
  Cluster cluster;
  cluster.ranks = 64;
  UseGpus({}, "NVIDIA H100 80GB HBM3", &cluster);
  cluster.memory_bytes = int64_t{78} << 30;
  const v1::LayoutCandidate chosen = Chosen(job, cluster);
  const v1::Layout& layout = chosen.layout();
  EXPECT_EQ(layout.tensor() * layout.pipeline() * layout.data(), 64);
  Candidates candidates(job, cluster);
  const auto seconds = [&](const v1::Layout& other) {
    const v1::LayoutCandidate judged = candidates.Judge(other);
    return judged.predicted_valid() ? judged.predicted().step_seconds() : 0;
  };
  // A long pipeline loses much with few micro-batches; chunks win a part of it back.
  v1::Layout deep = layout;
  deep.set_tensor(8);
  deep.set_pipeline(8);
  deep.set_data(1);
  deep.set_sequence_parallel(false);
  const v1::LayoutCandidate best = candidates.BestWith(deep);
  ASSERT_EQ(best.rejected(), "");
  EXPECT_GT(best.layout().virtual_pipeline(), 1);
  v1::Layout plain = best.layout();
  plain.set_virtual_pipeline(1);
  plain.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  EXPECT_GT(seconds(plain), 1.02 * seconds(best.layout()));
  // The parts of a step add up to it.
  const v1::StepParts& parts = best.predicted().parts();
  EXPECT_NEAR(parts.compute() + parts.tensor_communication() + parts.recompute() +
                  parts.pipeline_bubble() + parts.pipeline_transfers() + parts.data_exposed() +
                  parts.optimizer() + parts.offload() + parts.other(),
              best.predicted().step_seconds(), 1e-9);
}

// A job that leaves everything to the planner is told that it would fit with its optimizer's state
// on the host; it does not get that without asking for it.
TEST(Planner, OffloadIsAdvisedAndNeverChosen) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CUDA);
  job.mutable_resources()->set_ranks(1);
  Cluster cluster;
  UseGpus({}, "NVIDIA H100", &cluster);
  cluster.shares_gpus = true;
  cluster.memory_bytes = 1;
  const v1::PlanReport report = PlanLayouts(job, cluster);
  ASSERT_EQ(report.layouts_size(), 1);
  cluster.memory_bytes = report.layouts(0).predicted().memory_bytes_peak() - 1;
  const absl::Status refused = ChooseLayout(job, cluster).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("offload.optimizer=host"));
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
  const absl::StatusOr<v1::Layout> asked = ChooseLayout(job, cluster);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_GT(PlanLayouts(job, cluster).layouts(0).predicted().parts().offload(), 0);
}

// Every setting that is named has been tried, and says what it costs.
TEST(Planner, AdviceFits) {
  v1::JobSpec job = Gpt(v1::DEVICE_KIND_CUDA);
  job.mutable_parallelism()->set_automatic(false);
  job.mutable_parallelism()->set_tensor(2);
  job.mutable_parallelism()->set_data(2);
  job.mutable_parallelism()->set_pipeline(1);
  job.mutable_training()->set_micro_batch(16);
  job.mutable_resources()->set_ranks(4);
  Cluster cluster;
  cluster.ranks = 4;
  UseGpus({}, "NVIDIA H100", &cluster);
  cluster.shares_gpus = true;
  const v1::Layout layout = *LayoutOfJob(job);
  cluster.memory_bytes = Candidates(job, cluster).Judge(layout).predicted().memory_bytes_peak() - 1;
  const std::vector<Advice> advice = SettingsThatFit(job, layout, cluster);
  std::string settings;
  for (const Advice& each : advice) {
    settings += each.setting + "\n";
    EXPECT_LE(each.memory_bytes, cluster.memory_bytes) << each.setting;
    EXPECT_GT(each.step_ratio, 0.2) << each.setting;
    EXPECT_LT(each.step_ratio, 2) << each.setting;
  }
  for (const char* setting : {"parallelism.zero_stage=1\n", "parallelism.recompute=selective\n",
                              "parallelism.sequence_parallel=true\n", "training.micro_batch=8\n",
                              "offload.optimizer=host and parallelism.zero_stage=1\n",
                              "resources.ranks=8 and parallelism.tensor=4\n"}) {
    EXPECT_THAT(settings, HasSubstr(setting));
  }
  EXPECT_THAT(AdviceText(advice), HasSubstr("a step takes "));
  EXPECT_EQ(AdviceText({}), "");
}

}  // namespace
}  // namespace tercio::plan

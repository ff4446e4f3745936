#include "plan/planner/cost/offload_time.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "plan/offload.h"
#include "plan/planner/cost/measured.h"
#include "plan/planner/cost/step_cost.h"

namespace tercio::plan::cost {
namespace {

constexpr double kForever = 1e18;

v1::JobSpec Gpt(v1::DeviceKind device, v1::Precision precision) {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(12);
  model->set_hidden(768);
  model->set_heads(12);
  model->set_kv_heads(12);
  model->set_ffn_hidden(4 * 768);
  model->set_context(256);
  model->set_vocab_size(50304);
  model->set_bias(true);
  job.mutable_training()->set_precision(precision);
  job.mutable_training()->set_global_batch(8);
  job.mutable_resources()->set_device(device);
  return job;
}
v1::JobSpec OnGpus() { return Gpt(v1::DEVICE_KIND_CUDA, v1::PRECISION_BF16); }
v1::JobSpec OnCpus() { return Gpt(v1::DEVICE_KIND_CPU, v1::PRECISION_FP32); }

v1::Layout Layout(int data, int zero_stage) {
  v1::Layout layout;
  layout.set_tensor(1);
  layout.set_pipeline(1);
  layout.set_virtual_pipeline(1);
  layout.set_context_parallel(1);
  layout.set_data(data);
  layout.set_micro_batch(1);
  layout.set_micro_batches(8 / data);
  layout.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  layout.set_zero_stage(zero_stage);
  return layout;
}

ClusterModel Gpus(int devices) {
  return MakeCluster(*AcceleratorOf("A100-80"), devices, 1, 1, 25e9);
}

ClusterModel Cpus(int ranks, double memory_bytes) {
  ClusterModel cluster = MeasuredCluster(AssumedCpuFigures(), 1, ranks, 1);
  cluster.host.disk_bytes_per_second = 1e9;
  cluster.host.memory_bytes = memory_bytes;
  return cluster;
}

const Recipe& Own() { return *FindRecipe("tercio"); }

// A billion parameters for each rank.
constexpr RankState kBillion = {.elements = 1e9};

TEST(OffloadTime, NothingElsewhereCostsNothing) {
  const ClusterModel cluster = Gpus(1);
  const OffloadTime time(OnGpus(), Layout(1, 0), cluster, Own(), 1, kBillion);
  EXPECT_EQ(time.state_bytes(), 0);
  EXPECT_EQ(time.Update(0.02, 0), 0);
  EXPECT_EQ(time.Fetch(1e9), 0);
  EXPECT_EQ(time.Activations(1e9), 0);
  EXPECT_FALSE(time.slows_passes());
}

// In 16 bits below stage 3 moments and fp32 weights: 12 bytes there and back at once over PCIe 4,
// without the time that the update would take in the device's memory.
TEST(OffloadTime, TheDeviceUpdatesOverItsLink) {
  v1::JobSpec job = OnGpus();
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
  v1::Layout layout = Layout(1, 0);
  ClusterModel cluster = Gpus(1);
  const auto update = [&](int ranks) {
    return OffloadTime(job, layout, cluster, Own(), ranks, kBillion).Update(0.02, 0);
  };
  EXPECT_DOUBLE_EQ(update(1), 12e9 / 25e9 - 0.02);
  layout.set_offload_share(0.25);
  EXPECT_DOUBLE_EQ(update(1), 0.25 * (12e9 / 25e9 - 0.02));
  layout.set_offload_share(0);
  EXPECT_EQ(update(1), 0);
  layout.clear_offload_share();
  // All GPUs of a node read and write its memory.
  cluster = Gpus(8);
  cluster.host.memory_bytes_per_second = 100e9;
  EXPECT_DOUBLE_EQ(update(8), 8 * 24e9 / 100e9 - 0.02);
  // Fewer ranks leave some of them idle.
  EXPECT_DOUBLE_EQ(update(2), std::max(2 * 24e9 / 100e9, 12e9 / 25e9) - 0.02);
  // A link that is faster than the update makes nothing faster.
  cluster.host.link_bytes_per_second = 1e15;
  cluster.host.memory_bytes_per_second = 1e16;
  EXPECT_EQ(update(8), 0);
}

// The fp32 weights of stage 3 are parameters, which layers are gathered from.
TEST(OffloadTime, WeightsAreReadForEveryGather) {
  v1::JobSpec job = OnGpus();
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
  const ClusterModel cluster = Gpus(2);
  const v1::Layout layout = Layout(2, 3);
  const auto time = [&] { return OffloadTime(job, layout, cluster, Own(), 2, kBillion); };
  EXPECT_EQ(time().state_bytes(), 8);
  EXPECT_EQ(time().Fetch(1e6), 0);
  job.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_HOST);
  EXPECT_EQ(time().state_bytes(), 12);
  EXPECT_DOUBLE_EQ(time().Fetch(1e6), 4e6 / 25e9);
  EXPECT_TRUE(time().slows_passes());
  job.mutable_offload()->clear_optimizer();
  EXPECT_EQ(time().state_bytes(), 4);
}

// Ren et al. 2021: gradients go to the host, whose cores update, and weights come back.
TEST(OffloadTime, OthersUpdateOnTheHost) {
  v1::JobSpec job = OnGpus();
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
  ClusterModel cluster = Gpus(8);
  cluster.host.memory_bytes_per_second = 200e9;
  Recipe recipe = {.gradient_bytes = 2, .overlaps_gradients = false, .updates_on_host = true};
  const v1::Layout layout = Layout(8, 2);
  const auto update = [&] {
    return OffloadTime(job, layout, cluster, recipe, 8, kBillion).Update(0.02, 0);
  };
  const double on_host = 8 * 30e9 / 200e9 + 2e9 / 25e9 - 0.02;
  EXPECT_DOUBLE_EQ(update(), on_host + 2e9 / 25e9);
  recipe.overlaps_gradients = true;
  EXPECT_DOUBLE_EQ(update(), on_host);
}

// 12 bytes read and 12 written at the disk's rate, which the ranks of a node share, where pages
// have no room in memory.
TEST(OffloadTime, AFileIsReadAndWritten) {
  v1::JobSpec job = OnCpus();
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
  job.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_NVME);
  const v1::Layout layout = Layout(2, 3);
  ClusterModel cluster = Cpus(2, 8e9);
  const auto time = [&] { return OffloadTime(job, layout, cluster, CpuRecipe(), 2, kBillion); };
  EXPECT_FALSE(time().keeps_pages());
  EXPECT_DOUBLE_EQ(time().Update(0, 0), 2 * 24e9 / 1e9);
  EXPECT_DOUBLE_EQ(time().Fetch(1e6), 2 * 4e6 / 1e9);
  // Pages that stay are written while the step runs, and read from memory. A copy of the state for
  // checkpoints is in the file as well.
  cluster.host.memory_bytes = 2 * 2 * 24e9;
  EXPECT_TRUE(time().keeps_pages());
  const double pages = time().Update(0, kForever);
  EXPECT_GT(pages, 5);
  EXPECT_LT(pages, 20);
  EXPECT_NEAR(time().Update(0, 5), pages + 2 * 12e9 / 1e9 - 5, 1e-9);
  EXPECT_EQ(time().Fetch(1e6), 0);
  cluster.host.memory_bytes *= 0.99;
  EXPECT_FALSE(time().keeps_pages());
  // A disk that is faster than the processor does not make the update faster.
  cluster.host.disk_bytes_per_second = 1e12;
  EXPECT_DOUBLE_EQ(time().Update(0, 0), pages);
  // Nobody knows how much there is.
  cluster.host.memory_bytes = 0;
  EXPECT_FALSE(time().keeps_pages());
}

TEST(OffloadTime, ActivationsAreWrittenAndRead) {
  v1::JobSpec job = OnCpus();
  job.mutable_offload()->set_activations(v1::OFFLOAD_TIER_NVME);
  const v1::Layout layout = Layout(1, 0);
  const RankState state = {.elements = 1e9, .activation_bytes = 3e9};
  ClusterModel cluster = Cpus(1, 5.9e9);
  const auto time = [&] { return OffloadTime(job, layout, cluster, CpuRecipe(), 1, state); };
  EXPECT_EQ(time().Update(0.1, 0), 0);
  EXPECT_TRUE(time().slows_passes());
  EXPECT_DOUBLE_EQ(time().Activations(3e8), 0.3);
  cluster.host.memory_bytes = 6e9;
  EXPECT_EQ(time().Activations(3e8), 0);
}

// The memory of a CPU rank is the host's.
TEST(OffloadTime, TheHostOfCpusIsNowhereElse) {
  v1::JobSpec job = OnCpus();
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
  const ClusterModel cluster = Cpus(1, 8e9);
  EXPECT_EQ(OffloadTime(job, Layout(1, 0), cluster, CpuRecipe(), 1, kBillion).Update(0.1, 0), 0);
}

double SumOfParts(const StepCost& cost) {
  return cost.compute + cost.tensor_communication + cost.recompute + cost.pipeline_bubble +
         cost.pipeline_transfers + cost.data_exposed + cost.optimizer + cost.offload + cost.other;
}

TEST(StepCost, OffloadIsAPartOfAStep) {
  struct Case {
    v1::JobSpec job;
    ClusterModel cluster;
    const Recipe& recipe;
    v1::Layout layout;
    v1::OffloadTier tier;
    bool parameters;
    bool activations;
  };
  v1::Layout stages = Layout(2, 3);
  stages.set_pipeline(2);
  for (const Case& each :
       {Case{OnGpus(), Gpus(1), Own(), Layout(1, 0), v1::OFFLOAD_TIER_HOST, false, false},
        Case{OnGpus(), Gpus(2), Own(), Layout(2, 1), v1::OFFLOAD_TIER_HOST, false, false},
        Case{OnGpus(), Gpus(1), Own(), Layout(1, 3), v1::OFFLOAD_TIER_HOST, true, false},
        Case{OnGpus(), Gpus(4), Own(), stages, v1::OFFLOAD_TIER_HOST, true, false},
        Case{OnCpus(), Cpus(1, 1e9), CpuRecipe(), Layout(1, 3), v1::OFFLOAD_TIER_NVME, true, false},
        Case{OnCpus(), Cpus(4, 1e9), CpuRecipe(), stages, v1::OFFLOAD_TIER_NVME, true, true},
        Case{OnCpus(), Cpus(2, 64e9), CpuRecipe(), Layout(2, 1), v1::OFFLOAD_TIER_NVME, false,
             true}}) {
    const StepCost inside = CostOfStep(each.job, each.layout, each.cluster, each.recipe);
    EXPECT_EQ(inside.offload, 0);
    v1::JobSpec job = each.job;
    job.mutable_offload()->set_optimizer(each.tier);
    if (each.parameters) job.mutable_offload()->set_parameters(each.tier);
    if (each.activations) job.mutable_offload()->set_activations(each.tier);
    SCOPED_TRACE(job.offload().ShortDebugString() + each.layout.ShortDebugString());
    StepCosts costs(job, each.cluster, each.recipe);
    const StepCost elsewhere = costs.Of(each.layout);
    EXPECT_GT(elsewhere.offload, 0);
    EXPECT_NEAR(SumOfParts(elsewhere), elsewhere.seconds, 1e-9 * elsewhere.seconds);
    EXPECT_GT(elsewhere.seconds, inside.seconds);
    EXPECT_NEAR(elsewhere.optimizer, inside.optimizer, 1e-12);
    if (each.layout.pipeline() == 1) {
      EXPECT_NEAR(elsewhere.data_exposed, inside.data_exposed, 1e-9 * elsewhere.seconds);
    }
    EXPECT_LE(costs.Least(each.layout), elsewhere.seconds * (1 + 1e-12));
  }
}

// With recomputation or more micro-batches a layer is gathered again, and read again.
TEST(StepCost, WeightsOnDiskAreReadTwiceForEachMicroBatch) {
  v1::JobSpec job = OnCpus();
  job.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_NVME);
  const ClusterModel cluster = Cpus(1, 0);
  v1::Layout layout = Layout(1, 3);
  layout.set_micro_batch(8);
  layout.set_micro_batches(1);
  const double once = CostOfStep(job, layout, cluster, CpuRecipe()).offload;
  layout.set_micro_batch(1);
  layout.set_micro_batches(8);
  const double eight = CostOfStep(job, layout, cluster, CpuRecipe()).offload;
  // Twelve layers of 12 h^2 + 13 h weights in fp32, forward and backward.
  const double layers = 12.0 * (12 * 768.0 * 768 + 13 * 768);
  EXPECT_NEAR(eight - once, 7 * 2 * 4 * layers / 1e9, 0.01 * eight);
}

// docs/benchmarks.md: steps of GPT-2 355M on disk take 10.2 s longer than in memory where 2700 MiB
// are all that there is. The rate that is assumed for disks is that of this run.
TEST(StepCost, StateLargerThanMemory) {
  v1::JobSpec job = OnCpus();
  job.mutable_model()->set_layers(24);
  job.mutable_model()->set_hidden(1024);
  job.mutable_model()->set_heads(16);
  job.mutable_model()->set_kv_heads(16);
  job.mutable_model()->set_ffn_hidden(4096);
  job.mutable_model()->set_context(128);
  v1::Layout layout = Layout(1, 3);
  layout.set_micro_batch(4);
  layout.set_micro_batches(1);
  ClusterModel cluster = MeasuredCluster(AssumedCpuFigures(), 1, 1, 2);
  cluster.host.memory_bytes = 2700.0 * (1 << 20);
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
  job.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_NVME);
  EXPECT_NEAR(CostOfStep(job, layout, cluster, CpuRecipe()).offload, 10.2, 0.5);
}

// What a search offloads that the job does not: the layout says it.
TEST(StepCost, ALayoutMayOffloadWhatItsJobLeavesOpen) {
  const v1::JobSpec open = OnGpus();
  v1::JobSpec host = open;
  host.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
  v1::Layout layout = Layout(1, 0);
  layout.set_offload_share(0.5);
  const double seconds = CostOfStep(open, layout, Gpus(1), Own()).seconds;
  EXPECT_EQ(seconds, CostOfStep(host, layout, Gpus(1), Own()).seconds);
  layout.clear_offload_share();
  EXPECT_LT(CostOfStep(open, layout, Gpus(1), Own()).seconds, seconds);
}

}  // namespace
}  // namespace tercio::plan::cost

#include "plan/planner/cost/measured.h"

#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "plan/planner/cost/collective_time.h"
#include "plan/planner/cost/op_time.h"
#include "plan/planner/cost/step_cost.h"

namespace tercio::plan::cost {
namespace {

// A product takes 1e-10 s for an operation, 1e-9 s for an element and 2e-6 s for a call.
double SecondsOf(double m, double n, double k) {
  return 1e-10 * 2 * m * n * k + 1e-9 * (m * k + k * n + m * n) + 2e-6;
}

v1::MachineFigures Exact() {
  v1::MachineFigures figures = AssumedCpuFigures();
  figures.clear_products();
  figures.clear_reference_step_seconds();
  struct Size {
    int m, n, k;
  };
  for (const auto& [m, n, k] : {Size{64, 64, 64}, Size{256, 512, 128}, Size{512, 1024, 256},
                                Size{128, 2048, 512}, Size{1024, 128, 768}}) {
    v1::ProductRate* rate = figures.add_products();
    rate->set_m(m);
    rate->set_n(n);
    rate->set_k(k);
    rate->set_format("fp32");
    rate->set_flops_per_second(2.0 * m * n * k / SecondsOf(m, n, k));
  }
  return figures;
}

v1::JobSpec Job() {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(4);
  model->set_hidden(256);
  model->set_heads(4);
  model->set_ffn_hidden(1024);
  model->set_context(128);
  model->set_vocab_size(512);
  job.mutable_training()->set_global_batch(8);
  return job;
}

v1::Layout Layout(int tensor, int pipeline, int data) {
  v1::Layout layout;
  layout.set_tensor(tensor);
  layout.set_pipeline(pipeline);
  layout.set_data(data);
  layout.set_virtual_pipeline(1);
  layout.set_micro_batch(2);
  layout.set_micro_batches(4 / data);
  return layout;
}

double Seconds(const ClusterModel& cluster, const v1::Layout& layout) {
  return CostOfStep(Job(), layout, cluster, CpuRecipe()).seconds;
}

TEST(Measured, ProductsThatFollowTheLawArePredictedExactly) {
  const ClusterModel cluster = MeasuredCluster(Exact(), 1, 2, 1);
  const OpTime time(cluster.accelerator, *cluster.constants, Factor::kFp32);
  EXPECT_NEAR(time.Product({300, 700, 200}), SecondsOf(300, 700, 200), 1e-9);
  EXPECT_NEAR(time.Product({16, 16, 16}), SecondsOf(16, 16, 16), 1e-9);
}

// Rates that no law with costs above zero fits: small products are faster than large ones.
TEST(Measured, CostsAreNeverNegative) {
  v1::MachineFigures figures = Exact();
  for (int i = 0; i < figures.products_size(); ++i) {
    figures.mutable_products(i)->set_flops_per_second(1e11 / (1 + i));
  }
  const Accelerator core = MeasuredCluster(figures, 1, 1, 1).accelerator;
  EXPECT_GT(core.flops_fp32, 0);
  EXPECT_GE(core.product_element_seconds, 0);
  EXPECT_GE(core.product_seconds, 0);
}

TEST(Measured, AttentionOfAMeasuredSizeTakesTheMeasuredTime) {
  v1::MachineFigures figures = Exact();
  figures.clear_attention();
  v1::AttentionRate* rate = figures.add_attention();
  rate->set_tokens(256);
  rate->set_heads(4);
  rate->set_head_dim(64);
  rate->set_forward_flops_per_second(2e10);
  rate->set_backward_flops_per_second(3e10);
  const ClusterModel cluster = MeasuredCluster(figures, 1, 2, 1);
  // What memory and the call add is not of interest here.
  Accelerator core = cluster.accelerator;
  core.kernels.plain = 1e30;
  const OpTime time(core, *cluster.constants, Factor::kFp32);
  const AttentionSize size = {
      .sequences = 3, .queries = 256, .keys = 256, .heads = 4, .key_heads = 4, .head_dim = 64};
  const double pairs = 0.5 * 3 * 256 * 256 * 4 * 64;
  const double call = cluster.constants->kernel_seconds;
  EXPECT_NEAR(time.AttentionForward(size, CpuRecipe()) - call, 4 * pairs / 2e10, 1e-9);
  EXPECT_NEAR(time.AttentionBackward(size, CpuRecipe()) - call, 10 * pairs / 3e10, 1e-9);
}

TEST(Measured, ASumOverTwoRanksTakesTheMeasuredTime) {
  v1::MachineFigures figures = Exact();
  figures.set_link_seconds(50e-6);
  figures.set_link_bytes_per_second(1e9);
  const ClusterModel cluster = MeasuredCluster(figures, 1, 2, 1);
  const CollectiveTime time(cluster, *cluster.constants);
  EXPECT_NEAR(time.AllReduce({2, 1}, 1e6), 2 * 50e-6 + 1e6 / 1e9, 1e-12);
}

// A step that takes twice the sum over its operations says that all of them do.
TEST(Measured, TheReferenceStepScalesAllRates) {
  v1::MachineFigures figures = Exact();
  const auto cluster = [&] { return MeasuredCluster(figures, 1, 1, 1); };
  v1::Layout layout = Layout(1, 1, 1);
  layout.set_micro_batch(8);
  layout.set_micro_batches(1);
  const StepCost sum = CostOfStep(ReferenceJob(), layout, cluster(), CpuRecipe());
  const Accelerator before = cluster().accelerator;
  figures.set_reference_step_seconds(2 * (sum.seconds - sum.other) + sum.other);
  const Accelerator after = cluster().accelerator;
  EXPECT_NEAR(after.flops_fp32 / before.flops_fp32, 0.5, 1e-9);
  EXPECT_NEAR(after.kernels.loss / before.kernels.loss, 0.5, 1e-9);
  // Figures of another minute do not make a machine faster than its kernels.
  figures.set_reference_step_seconds(1e-3 * sum.seconds);
  EXPECT_NEAR(cluster().accelerator.flops_fp32 / before.flops_fp32, 1 / 0.8, 1e-9);
}

TEST(Measured, RanksWithSeveralCoresAreFasterByTheirShare) {
  v1::MachineFigures figures = Exact();
  figures.set_threads(4);
  figures.set_thread_share(0.7);
  const auto rate = [&](double cores) {
    return MeasuredCluster(figures, 1, 1, cores).accelerator.flops_fp32;
  };
  EXPECT_NEAR(rate(4) / rate(1), 4 * 0.7, 1e-9);
  EXPECT_NEAR(rate(2) / rate(1), 2 * 0.9, 1e-9);
  // Threads are whole.
  EXPECT_NEAR(rate(1.9) / rate(1), 1, 1e-9);
}

// Gradients of weights are summed apart for each lane, and lanes are added.
TEST(Measured, LanesCostTime) {
  const ClusterModel cluster = MeasuredCluster(Exact(), 1, 1, 1);
  v1::Layout layout = Layout(1, 1, 1);
  layout.set_micro_batch(8);
  layout.set_micro_batches(1);
  const auto seconds = [&](int lanes, const Recipe& recipe) {
    v1::JobSpec job = Job();
    job.mutable_training()->set_lanes(lanes);
    return CostOfStep(job, layout, cluster, recipe).seconds;
  };
  EXPECT_GT(seconds(8, CpuRecipe()), seconds(1, CpuRecipe()));
  // A job that names none has eight.
  EXPECT_EQ(seconds(0, CpuRecipe()), seconds(8, CpuRecipe()));
  const Recipe& gpus = *FindRecipe("tercio");
  EXPECT_EQ(seconds(8, gpus), seconds(1, gpus));
}

TEST(Measured, RanksThatShareCoresTakeTurns) {
  const v1::MachineFigures figures = Exact();
  const v1::Layout layout = Layout(1, 1, 4);
  const double own = Seconds(MeasuredCluster(figures, 1, 4, 1), layout);
  const double shared = Seconds(MeasuredCluster(figures, 1, 4, 0.5), layout);
  EXPECT_NEAR(shared, 2 * own - figures.step_seconds(), 1e-6 * own);
}

// While a pipeline fills, few stages compute, and none waits for a core.
TEST(Measured, PipelinesOnSharedCoresHaveLessOfABubble) {
  const v1::MachineFigures figures = Exact();
  const v1::Layout layout = Layout(1, 4, 1);
  const double own = Seconds(MeasuredCluster(figures, 1, 4, 1), layout);
  const double shared = Seconds(MeasuredCluster(figures, 1, 4, 0.5), layout);
  EXPECT_LT(shared, 1.9 * own);
  EXPECT_GT(shared, own);
  PipelineWalks walks;
  const ClusterModel cluster = MeasuredCluster(figures, 1, 4, 0.5);
  const v1::JobSpec job = Job();
  const StepInput input{.job = job, .layout = layout, .cluster = cluster, .recipe = CpuRecipe()};
  const StepCost cost = CostOfStep(input, &walks);
  EXPECT_GE(cost.pipeline_bubble, 0);
  EXPECT_NEAR(cost.seconds,
              cost.compute + cost.tensor_communication + cost.recompute + cost.pipeline_bubble +
                  cost.pipeline_transfers + cost.data_exposed + cost.optimizer + cost.other,
              1e-9);
  EXPECT_LE(StepCosts(job, cluster, CpuRecipe()).Least(layout), cost.seconds);
}

TEST(Measured, ClustersPassTheChecks) {
  for (const double cores : {0.25, 1.0, 2.5, 8.0}) {
    EXPECT_TRUE(CheckCluster(MeasuredCluster(AssumedCpuFigures(), 2, 4, cores)).ok()) << cores;
  }
  v1::MachineFigures gpu = Exact();
  gpu.set_device("NVIDIA H100 80GB HBM3");
  v1::ProductRate* rate = gpu.add_products();
  *rate = gpu.products(0);
  rate->set_format("bf16");
  rate->set_flops_per_second(7e14);
  const ClusterModel cluster = MeasuredCluster(gpu, 2, 8, 1);
  EXPECT_TRUE(CheckCluster(cluster).ok());
  EXPECT_EQ(cluster.accelerator.flops_16, 7e14);
  EXPECT_FALSE(cluster.constants.has_value());
}

TEST(Measured, AssumedFiguresAreFigures) {
  EXPECT_TRUE(CheckFigures(AssumedCpuFigures()).ok()) << CheckFigures(AssumedCpuFigures());
}

TEST(Measured, AbsurdFiguresAreRefusedByName) {
  struct Fault {
    const char* name;
    std::function<void(v1::MachineFigures&)> make;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const Fault faults[] = {
      {"device", [](v1::MachineFigures& f) { f.clear_device(); }},
      {"devices", [](v1::MachineFigures& f) { f.set_devices(0); }},
      {"threads", [](v1::MachineFigures& f) { f.set_threads(-1); }},
      {"products", [](v1::MachineFigures& f) { f.clear_products(); }},
      {"products[0].format", [](v1::MachineFigures& f) { f.mutable_products(0)->set_format("x"); }},
      {"products[1].m", [](v1::MachineFigures& f) { f.mutable_products(1)->set_m(0); }},
      {"products[1].flops_per_second",
       [=](v1::MachineFigures& f) { f.mutable_products(1)->set_flops_per_second(nan); }},
      {"attention", [](v1::MachineFigures& f) { f.clear_attention(); }},
      {"attention[0]",
       [](v1::MachineFigures& f) { f.mutable_attention(0)->set_forward_flops_per_second(-1); }},
      {"memory_bytes_per_second",
       [=](v1::MachineFigures& f) { f.set_memory_bytes_per_second(infinity); }},
      {"norm_bytes_per_second", [](v1::MachineFigures& f) { f.set_norm_bytes_per_second(0); }},
      {"activation_bytes_per_second",
       [](v1::MachineFigures& f) { f.set_activation_bytes_per_second(-3); }},
      {"loss_bytes_per_second", [](v1::MachineFigures& f) { f.set_loss_bytes_per_second(1); }},
      {"update_bytes_per_second",
       [](v1::MachineFigures& f) { f.set_update_bytes_per_second(1e16); }},
      {"operation_seconds", [](v1::MachineFigures& f) { f.set_operation_seconds(11); }},
      {"thread_share", [](v1::MachineFigures& f) { f.set_thread_share(3); }},
      {"link_bytes_per_second", [](v1::MachineFigures& f) { f.set_link_bytes_per_second(0); }},
      {"link_seconds", [](v1::MachineFigures& f) { f.set_link_seconds(0); }},
      {"step_seconds", [=](v1::MachineFigures& f) { f.set_step_seconds(nan); }},
      {"reference_step_seconds", [=](v1::MachineFigures& f) { f.set_reference_step_seconds(nan); }},
  };
  for (const Fault& fault : faults) {
    v1::MachineFigures figures = AssumedCpuFigures();
    fault.make(figures);
    const absl::Status status = CheckFigures(figures);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << fault.name;
    EXPECT_TRUE(absl::StrContains(status.message(), std::string("figures: ") + fault.name))
        << status << " should name " << fault.name;
  }
}

}  // namespace
}  // namespace tercio::plan::cost

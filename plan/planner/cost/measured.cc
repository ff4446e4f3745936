#include "plan/planner/cost/measured.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "plan/planner/cost/op_time.h"
#include "plan/planner/cost/step_cost.h"

namespace tercio::plan::cost {
namespace {

constexpr char kCpu[] = "cpu";
constexpr double kUnknownMemory = 1e18;
// A measured step that is much shorter than the sum over its operations was measured at another
// time.
constexpr double kLeastSlowness = 0.8;
// Queries of a block of the attention on CPUs (kernels/cpu/attention_scratch.h).
constexpr double kQueriesOfBlock = 64;
// The CPU keeps values of 16 bits in floats (kernels/values.h).
constexpr int kFloatBytes = 4;

bool IsCpu(const v1::MachineFigures& figures) { return figures.device() == kCpu; }

// Seconds of a product: flops * of_flop + elements * of_element + of_call.
struct ProductLaw {
  double of_flop = 0;
  double of_element = 0;
  double of_call = 0;
};
constexpr size_t kTerms = 3;
using Terms = std::array<double, kTerms>;

double Flops(const v1::ProductRate& rate) { return 2.0 * rate.m() * rate.n() * rate.k(); }
double Elements(const v1::ProductRate& rate) {
  const double m = rate.m();
  const double n = rate.n();
  const double k = rate.k();
  return m * k + k * n + m * n;
}

// Solves the normal equations of the terms that are wanted by Gauss's elimination; others are 0.
Terms Solve(std::array<Terms, kTerms> a, Terms b, const std::array<bool, kTerms>& wanted) {
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) {
      if (!wanted[i] || !wanted[j]) a[i][j] = i == j ? 1 : 0;
    }
    if (!wanted[i]) b[i] = 0;
  }
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t row = i + 1; row < kTerms; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (size_t j = i; j < kTerms; ++j) a[row][j] -= factor * a[i][j];
      b[row] -= factor * b[i];
    }
  }
  Terms x = {};
  for (size_t i = kTerms; i-- > 0;) {
    double rest = b[i];
    for (size_t j = i + 1; j < kTerms; ++j) rest -= a[i][j] * x[j];
    x[i] = rest / a[i][i];
  }
  return x;
}

// Least squares of the relative errors; a term that would be negative is left out.
ProductLaw FitProducts(const std::vector<v1::ProductRate>& rates) {
  std::array<Terms, kTerms> a = {};
  Terms b = {};
  for (const v1::ProductRate& rate : rates) {
    // A call stands for each of the product and its two gradients.
    const double seconds = Flops(rate) / rate.flops_per_second();
    const Terms row = {Flops(rate) / seconds, Elements(rate) / seconds, 1 / seconds};
    for (size_t i = 0; i < kTerms; ++i) {
      for (size_t j = 0; j < kTerms; ++j) a[i][j] += row[i] * row[j];
      b[i] += row[i];
    }
  }
  std::array<bool, kTerms> wanted = {true, rates.size() >= kTerms, rates.size() >= kTerms};
  Terms x = Solve(a, b, wanted);
  for (size_t round = 0; round + 1 < kTerms; ++round) {
    // Operations are never left out: what they take is what products are about.
    const size_t least = x[1] < x[2] ? 1 : 2;
    if (x[least] >= 0) break;
    wanted[least] = false;
    x = Solve(a, b, wanted);
  }
  return {.of_flop = x[0], .of_element = std::max(0.0, x[1]), .of_call = std::max(0.0, x[2])};
}

std::vector<v1::ProductRate> RatesOf(const v1::MachineFigures& figures, std::string_view format) {
  std::vector<v1::ProductRate> rates;
  for (const v1::ProductRate& rate : figures.products()) {
    if (rate.format() == format) rates.push_back(rate);
  }
  return rates;
}

double BestOf(const std::vector<v1::ProductRate>& rates) {
  double best = 0;
  for (const v1::ProductRate& rate : rates) best = std::max(best, rate.flops_per_second());
  return best;
}

// The share for which the model's formula gives the measured rate, the mean over the sizes.
double AttentionShareOf(const v1::MachineFigures& figures, Accelerator accelerator,
                        Constants constants, bool backward) {
  constants.kernel_seconds = 0;
  constants.flash2_forward = 1;
  constants.flash2_backward = 1;
  // Reading and writing is a part of what was measured.
  accelerator.kernels.plain = 1e30;
  const OpTime time(accelerator, constants, Factor::kFp32);
  double sum = 0;
  for (const v1::AttentionRate& rate : figures.attention()) {
    const AttentionSize size = {.sequences = 1,
                                .queries = rate.tokens(),
                                .keys = rate.tokens(),
                                .heads = rate.heads(),
                                .key_heads = rate.heads(),
                                .head_dim = rate.head_dim()};
    const double whole = backward ? time.AttentionBackward(size, CpuRecipe())
                                  : time.AttentionForward(size, CpuRecipe());
    const double pairs = 0.5 * rate.tokens() * rate.tokens() * rate.heads() * rate.head_dim();
    const double measured = backward ? 10 * pairs / rate.backward_flops_per_second()
                                     : 4 * pairs / rate.forward_flops_per_second();
    sum += std::log(whole / measured);
  }
  return std::exp(sum / figures.attention_size());
}

// The part of its cores' rates that a rank with several reaches.
double ShareOfThreads(const v1::MachineFigures& figures, double threads) {
  if (figures.threads() <= 1 || threads <= 1) return 1;
  const double part = std::min(1.0, (threads - 1) / (figures.threads() - 1));
  return 1 - (1 - figures.thread_share()) * part;
}

// `speed`: of a rank, in cores.
ClusterModel CpuCluster(const v1::MachineFigures& figures, int nodes, int ranks_per_node,
                        double cores_per_rank, double speed) {
  ClusterModel cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = ranks_per_node;
  cluster.inside = {figures.link_bytes_per_second(), figures.link_seconds()};
  cluster.between = cluster.inside;
  // The host is what the ranks themselves run on.
  cluster.host.link_bytes_per_second = figures.memory_bytes_per_second();
  cluster.host.memory_bytes_per_second = figures.memory_bytes_per_second() * ranks_per_node;
  if (cores_per_rank < 1) cluster.shared_devices = cores_per_rank * ranks_per_node;

  Constants constants = CpuConstants();
  constants.kernel_seconds = figures.operation_seconds();
  constants.step_seconds = figures.step_seconds();

  Accelerator& core = cluster.accelerator;
  core.name = kCpu;
  core.driver_name = kCpu;
  core.tiles_products = false;
  core.processors = 1;
  core.product_share = 1;
  core.sustained_share = 1;
  core.value_bytes = kFloatBytes;
  core.memory_bytes = kUnknownMemory;
  core.memory_bytes_per_second = speed * figures.memory_bytes_per_second();
  core.link_bytes_per_second = figures.link_bytes_per_second();
  core.kernels = {.plain = speed * figures.norm_bytes_per_second(),
                  .activation = speed * figures.activation_bytes_per_second(),
                  .loss = speed * figures.loss_bytes_per_second(),
                  .update = speed * figures.update_bytes_per_second()};
  const ProductLaw fp32 = FitProducts(RatesOf(figures, "fp32"));
  core.flops_fp32 = speed / fp32.of_flop;
  core.flops_tf32 = core.flops_fp32;
  core.product_element_seconds = fp32.of_element / speed;
  core.product_seconds = fp32.of_call;
  // Both formats pack in the same way: their best rates tell the difference.
  const double best16 = BestOf(RatesOf(figures, "bf16"));
  core.flops_16 =
      best16 > 0 ? core.flops_fp32 * best16 / BestOf(RatesOf(figures, "fp32")) : core.flops_fp32;
  constants.flash2_forward = AttentionShareOf(figures, core, constants, false) * speed;
  constants.flash2_backward = AttentionShareOf(figures, core, constants, true) * speed;
  cluster.constants = constants;
  return cluster;
}

ClusterModel GpuCluster(const v1::MachineFigures& figures, int nodes, int gpus) {
  const Accelerator* known = FindDriverName(figures.device());
  Accelerator accelerator = known != nullptr ? *known : Accelerators().front();
  // Data sheets say what a GPU could do, measurements what it does: the best of them counts.
  accelerator.product_share = 1;
  accelerator.flops_16 = BestOf(RatesOf(figures, "bf16"));
  accelerator.flops_fp32 = BestOf(RatesOf(figures, "fp32"));
  const double tf32 = BestOf(RatesOf(figures, "tf32"));
  accelerator.flops_tf32 = tf32 > 0 ? tf32 : accelerator.flops_fp32;
  accelerator.memory_bytes_per_second =
      figures.memory_bytes_per_second() / Constants{}.memory_share;
  if (figures.link_bytes_per_second() > 0) {
    accelerator.link_bytes_per_second = figures.link_bytes_per_second() / Constants{}.link_share;
  }
  ClusterModel cluster =
      MakeCluster(accelerator, gpus, nodes, 1, accelerator.link_bytes_per_second);
  if (figures.link_seconds() > 0) cluster.inside.seconds = figures.link_seconds();
  return cluster;
}

// How much longer the reference step takes than the sum over its operations.
double SlownessOfSteps(const v1::MachineFigures& figures) {
  if (figures.reference_step_seconds() == 0) return 1;  // nobody has measured it
  v1::Layout layout;
  layout.set_tensor(1);
  layout.set_pipeline(1);
  layout.set_data(1);
  layout.set_virtual_pipeline(1);
  const v1::JobSpec job = ReferenceJob();
  layout.set_micro_batch(static_cast<int>(job.training().micro_batch()));
  layout.set_micro_batches(
      static_cast<int>(job.training().global_batch() / job.training().micro_batch()));
  const StepCost cost = CostOfStep(job, layout, CpuCluster(figures, 1, 1, 1, 1), CpuRecipe());
  return (figures.reference_step_seconds() - cost.other) / (cost.seconds - cost.other);
}

struct Bounds {
  std::string_view name;
  double value;
  double least;
  double most;
  bool may_miss;  // 0: not measured
};

absl::Status CheckBounds(const Bounds& figure) {
  if (figure.may_miss && figure.value == 0) return absl::OkStatus();
  // Not a number is in no range.
  if (figure.value >= figure.least && figure.value <= figure.most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "figures: %s is %g, outside %g to %g; measure the machine again (tercio doctor --measure)",
      std::string(figure.name), figure.value, figure.least, figure.most));
}

absl::Status CheckProducts(const v1::MachineFigures& figures) {
  for (int i = 0; i < figures.products_size(); ++i) {
    const v1::ProductRate& rate = figures.products(i);
    const std::string name = absl::StrCat("products[", i, "].");
    if (rate.format() != "fp32" && rate.format() != "tf32" && rate.format() != "bf16") {
      return absl::InvalidArgumentError(absl::StrCat(
          "figures: ", name, "format is \"", rate.format(), "\"; expected fp32, tf32 or bf16"));
    }
    constexpr double kMostSide = 1 << 24;
    for (const Bounds& figure :
         {Bounds{"m", double(rate.m()), 1, kMostSide}, Bounds{"n", double(rate.n()), 1, kMostSide},
          Bounds{"k", double(rate.k()), 1, kMostSide},
          Bounds{"flops_per_second", rate.flops_per_second(), 1e6, 1e17}}) {
      Bounds named = figure;
      const std::string full = absl::StrCat(name, std::string(figure.name));
      named.name = full;
      if (absl::Status status = CheckBounds(named); !status.ok()) return status;
    }
  }
  if (RatesOf(figures, "fp32").empty()) {
    return absl::InvalidArgumentError("figures: products has no fp32 rate; measure at least one");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFigures(const v1::MachineFigures& figures) {
  if (figures.device().empty()) {
    return absl::InvalidArgumentError(
        "figures: device is empty; expected \"cpu\" or the name of a GPU");
  }
  constexpr double kLeastRate = 1e6;
  constexpr double kMostRate = 1e15;
  constexpr double kMostSeconds = 10;
  constexpr double kLeastSeconds = 1e-10;
  const bool cpu = IsCpu(figures);
  const Bounds all[] = {
      {"devices", double(figures.devices()), 1, 1 << 16},
      {"threads", double(figures.threads()), 1, 1 << 16, !cpu},
      {"memory_bytes_per_second", figures.memory_bytes_per_second(), kLeastRate, kMostRate},
      {"norm_bytes_per_second", figures.norm_bytes_per_second(), kLeastRate, kMostRate, !cpu},
      {"activation_bytes_per_second", figures.activation_bytes_per_second(), kLeastRate, kMostRate,
       !cpu},
      {"loss_bytes_per_second", figures.loss_bytes_per_second(), kLeastRate, kMostRate, !cpu},
      {"update_bytes_per_second", figures.update_bytes_per_second(), kLeastRate, kMostRate, !cpu},
      {"operation_seconds", figures.operation_seconds(), kLeastSeconds, kMostSeconds, !cpu},
      {"thread_share", figures.thread_share(), 0.01, 2, !cpu},
      {"link_bytes_per_second", figures.link_bytes_per_second(), 1e5, kMostRate, !cpu},
      {"link_seconds", figures.link_seconds(), kLeastSeconds, kMostSeconds, !cpu},
      {"step_seconds", figures.step_seconds(), kLeastSeconds, kMostSeconds, !cpu},
      {"reference_step_seconds", figures.reference_step_seconds(), kLeastSeconds, 1e3, true},
  };
  for (const Bounds& figure : all) {
    if (absl::Status status = CheckBounds(figure); !status.ok()) return status;
  }
  for (int i = 0; i < figures.attention_size(); ++i) {
    const v1::AttentionRate& rate = figures.attention(i);
    const std::string name = absl::StrCat("attention[", i, "]");
    for (const double value : {double(rate.tokens()), double(rate.heads()), double(rate.head_dim()),
                               rate.forward_flops_per_second(), rate.backward_flops_per_second()}) {
      const absl::Status status = CheckBounds({name, value, 1, 1e17});
      if (!status.ok()) return status;
    }
  }
  if (cpu && figures.attention().empty()) {
    return absl::InvalidArgumentError("figures: attention is empty; measure at least one size");
  }
  return CheckProducts(figures);
}

ClusterModel MeasuredCluster(const v1::MachineFigures& figures, int nodes, int ranks_per_node,
                             double cores_per_rank, Cores cores) {
  TERCIO_CHECK(nodes > 0 && ranks_per_node > 0 && cores_per_rank > 0);
  if (!IsCpu(figures)) return GpuCluster(figures, nodes, ranks_per_node);
  const double threads = std::max(1.0, std::floor(cores_per_rank));
  const double speed = threads * ShareOfThreads(figures, threads) /
                       std::max(kLeastSlowness, SlownessOfSteps(figures));
  if (cores == Cores::kTakeTurns || cores_per_rank >= 1) {
    return CpuCluster(figures, nodes, ranks_per_node, cores_per_rank, speed);
  }
  return CpuCluster(figures, nodes, ranks_per_node, 1, speed * cores_per_rank);
}

v1::JobSpec ReferenceJob() {
  v1::JobSpec job;
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  job.mutable_resources()->set_ranks(1);
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(2);
  model->set_hidden(192);
  model->set_heads(4);
  model->set_ffn_hidden(4 * model->hidden());
  model->set_context(96);
  model->set_vocab_size(256);
  model->set_bias(true);
  v1::TrainingSpec* training = job.mutable_training();
  training->set_steps(1);
  training->set_global_batch(8);
  training->set_micro_batch(8);
  training->set_precision(v1::PRECISION_FP32);
  training->set_seed(1);
  training->mutable_optimizer()->set_learning_rate(1e-3);
  training->mutable_optimizer()->set_beta1(0.9);
  training->mutable_optimizer()->set_beta2(0.95);
  training->mutable_optimizer()->set_eps(1e-8);
  training->mutable_schedule()->set_kind(v1::LEARNING_RATE_SCHEDULE_CONSTANT);
  v1::ParallelismSpec* parallelism = job.mutable_parallelism();
  parallelism->set_tensor(1);
  parallelism->set_pipeline(1);
  parallelism->set_data(1);
  return job;
}

v1::MachineFigures AssumedCpuFigures() {
  v1::MachineFigures figures;
  figures.set_device(kCpu);
  figures.set_devices(1);
  figures.set_threads(2);
  for (const char* format : {"fp32", "bf16"}) {
    v1::ProductRate* rate = figures.add_products();
    rate->set_m(512);
    rate->set_n(1024);
    rate->set_k(256);
    rate->set_format(format);
    rate->set_flops_per_second(140e9);
  }
  v1::AttentionRate* attention = figures.add_attention();
  attention->set_tokens(256);
  attention->set_heads(4);
  attention->set_head_dim(64);
  attention->set_forward_flops_per_second(70e9);
  attention->set_backward_flops_per_second(95e9);
  figures.set_memory_bytes_per_second(30e9);
  figures.set_norm_bytes_per_second(29e9);
  figures.set_activation_bytes_per_second(19e9);
  figures.set_loss_bytes_per_second(17e9);
  figures.set_update_bytes_per_second(49e9);
  figures.set_operation_seconds(1e-7);
  figures.set_thread_share(0.8);
  figures.set_link_bytes_per_second(2e9);
  figures.set_link_seconds(6e-5);
  figures.set_step_seconds(2.4e-4);
  figures.set_reference_step_seconds(42e-3);
  return figures;
}

Constants CpuConstants() {
  Constants constants;
  // What is measured has every share in it.
  constants.memory_share = 1;
  constants.link_share = 1;
  constants.network_share = 1;
  // Messages and products take the time of the same cores.
  constants.overlap_slowdown = 1;
  constants.attention_block = kQueriesOfBlock;
  return constants;
}

const Recipe& CpuRecipe() {
  static const Recipe* const kRecipe = FindRecipe("tercio-cpu");
  return *kRecipe;
}

}  // namespace tercio::plan::cost

#include "plan/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "plan/combinations.h"
#include "plan/data_position.h"
#include "plan/fp8.h"
#include "plan/gpu_figures.h"
#include "plan/gpu_reserve.h"
#include "plan/limits.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/names.h"
#include "plan/offload.h"
#include "plan/precision.h"
#include "plan/rank_layout.h"
#include "plan/reproducibility.h"
#include "plan/state_shards.h"
#include "plan/state_volume.h"

namespace tercio::plan {
namespace {

// The model of time counts 4 bytes, whatever the precision (planner.h).
constexpr double kFloatBytes = 4;
// Rates of CPUs, for one rank on a core of its own (docs/benchmarks.md, "What the planner knows of
// CPUs").
constexpr double kCoreFlops = 60e9;
constexpr double kMessageSeconds = 0.3e-3;
constexpr int kOffloadParts = 8;  // shares that are tried are multiples of an eighth

v1::JobSpec WithVocabulary(v1::JobSpec job) {
  // The data decides the size of the vocabulary later; a plan needs one now to compare layouts.
  if (job.model().vocab_size() == 0) job.mutable_model()->set_vocab_size(kUnknownVocabulary);
  return job;
}

// What part of its bytes as floats travels in a block format.
double PackedPart(kernels::BlockFormat format, bool is_packed) {
  if (!is_packed) return 1;
  constexpr int64_t kElements = kernels::kBlockElements;
  return static_cast<double>(kernels::PackedBytes(format, kElements)) /
         static_cast<double>(kernels::PackedBytes(kernels::BlockFormat::kNone, kElements));
}

// Seconds that data ranks exchange gradients and weights in a step: beside the backward pass, and
// before the forward pass.
struct DataTime {
  double beside_compute = 0;
  double alone = 0;
};
DataTime TimeOfData(const v1::JobSpec& job, const v1::Layout& layout, const Cluster& cluster) {
  const double d = layout.data();
  const double m = layout.micro_batches();
  // Data ranks add the gradients of their own part of the model only.
  const double gradient = static_cast<double>(plan::ParameterCount(job.model())) / layout.tensor() /
                          layout.pipeline() * kFloatBytes;
  // Each half of the sum: the parts of gradients to their owners, and the sums, or the weights that
  // the owners have updated, back.
  const auto half_among = [&](double members, double bytes) {
    return members == 1 ? 0
                        : (members - 1) / members * bytes / cluster.bytes_per_second +
                              cluster.seconds_per_message;
  };
  const double shards = ShardRanks(layout) > 1 ? ShardRanks(layout) : d;
  const bool gathers_weights = ShardRanks(layout) > 1;
  const double weights = gradient * PackedPart(WeightFormatOf(job), gathers_weights);
  const double half_of_sum =
      half_among(shards, gradient * PackedPart(GradientFormatOf(job), DividesGradients(layout)));
  const double gather = half_among(shards, weights);
  // Where gradients are divided, too, every round sends them.
  const double rounds = RoundsOf(layout, LanesOf(job, layout));
  double beside_compute = gathers_weights ? rounds * half_of_sum : 2 * half_of_sum;
  // Shards are then summed over their replicas.
  beside_compute += 2 * half_among(ReplicasOf(layout), gradient / shards);
  // Layers are gathered for every forward and every backward pass.
  if (GathersWeights(job, layout)) {
    const int kept_over = SecondaryRanks(layout);
    beside_compute +=
        kept_over > 0 ? gather + (2 * m - 1) * half_among(kept_over, gradient) : 2 * m * gather;
  }
  return {beside_compute, gathers_weights ? gather : 0};
}

v1::Prediction Predict(const v1::JobSpec& job, const v1::Layout& layout, const Cluster& cluster) {
  v1::Prediction prediction;
  // The stage that needs the most decides: all ranks are assumed to have the same memory.
  int64_t memory = 0;
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    memory = std::max(
        memory, plan::MemoryOfStage(job, layout, stage, cluster.threads_per_rank).total_bytes());
  }
  const double t = layout.tensor();
  const double p = layout.pipeline();
  const double d = layout.data();
  const double m = layout.micro_batches();
  const double v = std::max(1, layout.virtual_pipeline());
  const auto context = static_cast<double>(TokensOfSequence(job.model()));
  const double tokens = static_cast<double>(job.training().global_batch()) * context;
  const double flops = plan::FlopsPerToken(job.model(), plan::AttentionCount::kWhole) * tokens;
  const double ranks = t * p * d;
  // A full recomputation is one more forward pass: a third of forward and backward.
  const double again = layout.recompute() == v1::RECOMPUTE_FULL ? 4.0 / 3 : 1;
  const double compute = again * flops / ranks / cluster.flops_per_second;
  const double activation = layout.micro_batch() * context * job.model().hidden() * kFloatBytes;
  const double layers_per_stage = static_cast<double>(model::LayersOf(job.model())) / p;
  // Four sums per layer: one for each half, forward and backward. Each moves its
  // rows twice around the ring, less the own part, and begins twice.
  const double tensor_time = t == 1 ? 0
                                    : m * layers_per_stage * 4 *
                                          (2 * (t - 1) / t * activation / cluster.bytes_per_second +
                                           2 * cluster.seconds_per_message);
  const double pipeline_time =
      // Each micro-batch crosses a border once forward and once backward, per chunk.
      p == 1 ? 0
             : m * v * 2 * (activation / cluster.bytes_per_second + cluster.seconds_per_message);
  const DataTime of_data = TimeOfData(job, layout, cluster);
  // Narayanan et al. 2021, section 2.2: chunks divide the time to fill the pipeline.
  const double bubble = (p - 1) / (m * v);
  const double busy = compute + tensor_time + pipeline_time;
  // Two thirds of the work are the backward pass; the reduction hides behind half of it.
  const double seconds =
      busy * (1 + bubble) + std::max(0.0, of_data.beside_compute - compute / 3) + of_data.alone;
  prediction.set_step_seconds(seconds);
  prediction.set_tflops_per_gpu(flops / seconds / ranks / 1e12);
  const double peak = cluster.peak_flops_per_second;
  // Without a known peak, the rate that is reached is all there is to compare with.
  prediction.set_mfu(flops / seconds / ranks / (peak > 0 ? peak : cluster.flops_per_second));
  prediction.set_tokens_per_second(tokens / seconds);
  prediction.set_memory_bytes_peak(memory);
  if (cluster.memory_bytes < kUnknownMemoryBytes) {
    const int64_t nccl = cluster.shares_gpus ? 0 : NcclBytes(job, layout);
    prediction.set_memory_bytes_available(std::max<int64_t>(0, cluster.memory_bytes - nccl));
  }
  prediction.set_bubble_ratio(bubble);
  return prediction;
}

std::string MissingMemory(const v1::Prediction& predicted, const Cluster& cluster) {
  constexpr double kMiB = 1 << 20;
  const int64_t available = predicted.memory_bytes_available();
  std::string text =
      absl::StrFormat("does not fit in memory: needs %.1f MiB per rank, %.1f MiB are available",
                      static_cast<double>(predicted.memory_bytes_peak()) / kMiB,
                      static_cast<double>(available) / kMiB);
  if (available == cluster.memory_bytes) return text;
  absl::StrAppendFormat(&text, " beside %.1f MiB for NCCL's communicators",
                        static_cast<double>(cluster.memory_bytes - available) / kMiB);
  return text;
}

v1::LayoutCandidate Judge(const v1::JobSpec& job, const v1::Layout& layout,
                          const Cluster& cluster) {
  v1::LayoutCandidate candidate;
  *candidate.mutable_layout() = layout;
  // Impossible layouts stay in the list: people see why the one they had in mind was not taken.
  const absl::Status legal = plan::CheckLayout(job, layout, cluster.ranks);
  if (!legal.ok()) {
    candidate.set_rejected(std::string(legal.message()));
    return candidate;
  }
  // The prediction is made even where the memory does not suffice: the message names the need.
  candidate.set_predicted_valid(true);
  *candidate.mutable_predicted() = Predict(job, layout, cluster);
  const v1::Prediction& predicted = candidate.predicted();
  if (cluster.memory_bytes < kUnknownMemoryBytes &&
      predicted.memory_bytes_peak() > predicted.memory_bytes_available()) {
    candidate.set_rejected(MissingMemory(predicted, cluster));
  }
  return candidate;
}

int64_t MicroBatchOf(const v1::JobSpec& job, int pipeline, int data) {
  return job.training().micro_batch() > 0 ? job.training().micro_batch()
                                          : plan::ChooseMicroBatch(job, pipeline, data);
}

void SetMicroBatch(const v1::JobSpec& job, int64_t micro_batch, v1::Layout* layout) {
  layout->set_micro_batch(static_cast<int32_t>(micro_batch));
  layout->set_micro_batches(
      static_cast<int32_t>(job.training().global_batch() / (micro_batch * layout->data())));
}

// Micro-batches that are not asked for become smaller until they fit.
v1::LayoutCandidate JudgeFitting(const v1::JobSpec& job, v1::Layout layout,
                                 const Cluster& cluster) {
  v1::LayoutCandidate candidate = Judge(job, layout, cluster);
  while (job.training().micro_batch() == 0 && candidate.predicted_valid() &&
         !candidate.rejected().empty() && layout.micro_batch() > 1) {
    // Only divisors of the share are possible, so the next smaller one is asked for.
    SetMicroBatch(
        job, plan::ChooseMicroBatch(job, layout.pipeline(), layout.data(), layout.micro_batch()),
        &layout);
    candidate = Judge(job, layout, cluster);
  }
  return candidate;
}

// The least share of the optimizer's state goes elsewhere with which the layout fits, where the
// planner chooses it: every byte there is read and written in each step.
v1::LayoutCandidate JudgeLeastOffloaded(const v1::JobSpec& job, v1::Layout layout,
                                        const Cluster& cluster) {
  if (!ChoosesOffloadShare(job)) return JudgeFitting(job, std::move(layout), cluster);
  const auto judge = [&](int part) {
    layout.set_offload_share(static_cast<double>(part) / kOffloadParts);
    return JudgeFitting(job, layout, cluster);
  };
  v1::LayoutCandidate none = judge(0);
  if (none.rejected().empty() || !none.predicted_valid()) return none;
  v1::LayoutCandidate all = judge(kOffloadParts);
  for (int part = 1; part < kOffloadParts && all.rejected().empty(); ++part) {
    v1::LayoutCandidate some = judge(part);
    if (some.rejected().empty()) return some;
  }
  return all;
}

// What the job needs for its offload (plan/combinations.h).
int LeastStage(const v1::JobSpec& job) {
  if (plan::OffloadsParameters(job)) return 3;
  return plan::IsElsewhere(job, job.offload().optimizer()) ? 1 : 0;
}

// Figures of the stage whose ranks have the most.
void AddState(const v1::JobSpec& job, const v1::Layout& layout, int threads,
              v1::Division* division) {
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    int64_t bytes = 0;
    const v1::MemoryTable table = MemoryOfStage(job, layout, stage, threads);
    for (const v1::Buffer& buffer : table.buffers()) {
      const bool is_state = buffer.kind() == v1::BUFFER_KIND_PARAMETER ||
                            buffer.kind() == v1::BUFFER_KIND_GRADIENT ||
                            buffer.kind() == v1::BUFFER_KIND_OPTIMIZER;
      if (is_state) bytes += buffer.size_bytes();
    }
    if (bytes <= division->state_bytes()) continue;
    const int64_t parameters = TensorsOfStage(job.model(), layout, stage).parameter_elements;
    division->set_state_bytes(bytes);
    division->set_bytes_per_parameter(static_cast<double>(bytes) / static_cast<double>(parameters));
    division->set_sent_bytes_per_step(std::llround(VolumeOfStage(job, layout, stage).sum()));
  }
}

// Data ranks that are not asked to divide the state do so only where it does not fit otherwise, and
// then no more of it than they must.
v1::LayoutCandidate JudgeLeastDivided(v1::JobSpec job, v1::Layout layout, const Cluster& cluster) {
  const int least = LeastStage(job);
  if (job.parallelism().automatic() && least > 0) {
    job.mutable_parallelism()->set_zero_stage(least);
    layout.set_zero_stage(least);
    SetMicroBatch(job, MicroBatchOf(job, layout.pipeline(), layout.data()), &layout);
  }
  v1::LayoutCandidate candidate = JudgeLeastOffloaded(job, layout, cluster);
  if (!job.parallelism().automatic() || !candidate.predicted_valid() || layout.data() == 1) {
    return candidate;
  }
  for (int stage = least + 1; stage <= 3 && !candidate.rejected().empty(); ++stage) {
    job.mutable_parallelism()->set_zero_stage(stage);
    layout.set_zero_stage(stage);
    // From stage 2 on a micro-batch is a part of a lane.
    SetMicroBatch(job, MicroBatchOf(job, layout.pipeline(), layout.data()), &layout);
    const v1::LayoutCandidate divided = JudgeLeastOffloaded(job, layout, cluster);
    // A micro-batch that the job names may be impossible there.
    if (divided.predicted_valid()) candidate = divided;
  }
  return candidate;
}

// Settings with which a layout that is too large would fit, each of them tried: "; it fits with
// parallelism.zero_stage=1 (812.3 MiB)". Empty: none.
std::string WhatWouldFit(const v1::JobSpec& job, const v1::Layout& layout, const Cluster& cluster) {
  constexpr double kMiB = 1 << 20;
  std::vector<std::string> fitting;
  const auto attempt = [&](const v1::Layout& other, const std::string& settings) {
    const v1::LayoutCandidate candidate = Judge(job, other, cluster);
    if (!candidate.rejected().empty()) return;
    fitting.push_back(
        absl::StrFormat("%s (%.1f MiB)", settings,
                        static_cast<double>(candidate.predicted().memory_bytes_peak()) / kMiB));
  };
  v1::Layout divided = layout;
  for (int stage = layout.zero_stage() + 1; stage <= 3 && layout.data() > 1; ++stage) {
    divided.set_zero_stage(stage);
    // The least is enough.
    if (fitting.empty()) attempt(divided, absl::StrCat("parallelism.zero_stage=", stage));
  }
  const bool divides = divided.zero_stage() > layout.zero_stage();
  if (layout.recompute() != v1::RECOMPUTE_FULL) {
    v1::Layout recomputed = layout;
    recomputed.set_recompute(v1::RECOMPUTE_FULL);
    attempt(recomputed, "parallelism.recompute=full");
    divided.set_recompute(v1::RECOMPUTE_FULL);
    // Both only where neither suffices.
    if (divides && fitting.empty()) {
      attempt(divided, absl::StrCat("parallelism.zero_stage=", divided.zero_stage(),
                                    " and parallelism.recompute=full"));
    }
  }
  if (layout.micro_batch() > 1) {
    v1::Layout smaller = layout;
    smaller.set_micro_batch(1);
    smaller.set_micro_batches(layout.micro_batches() * layout.micro_batch());
    attempt(smaller, "training.micro_batch=1");
  }
  if (OffloadedShare(job, layout) > kLeastShare && OffloadedShare(job, layout) < kWholeShare) {
    v1::Layout offloaded = layout;
    offloaded.set_offload_share(kWholeShare);
    attempt(offloaded, "offload.share=1");
  }
  if (fitting.empty()) return "";
  return absl::StrCat("; it fits with ", absl::StrJoin(fitting, ", or "));
}

std::vector<v1::Layout> AllLayouts(const v1::JobSpec& job, int ranks) {
  std::vector<v1::Layout> layouts;
  // Every factorisation is tried: even for a thousand ranks there are few.
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    if (ranks % tensor != 0) continue;
    for (int pipeline = 1; pipeline <= ranks / tensor; ++pipeline) {
      if (ranks / tensor % pipeline != 0) continue;
      const int data = ranks / tensor / pipeline;
      v1::Layout layout;
      layout.set_tensor(tensor);
      layout.set_pipeline(pipeline);
      layout.set_virtual_pipeline(1);
      layout.set_context_parallel(1);
      layout.set_data(data);
      SetChoices(job, &layout);
      // The other one needs several runs of layers for each stage.
      if (layout.schedule() == v1::PIPELINE_SCHEDULE_INTERLEAVED) {
        layout.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
      }
      SetMicroBatch(job, MicroBatchOf(job, pipeline, data), &layout);
      layouts.push_back(layout);
    }
  }
  return layouts;
}

// A word, or the number of a later version's.
template <typename E>
std::string Shown(E value) {
  const int number = static_cast<int>(value);
  return IsNamed(value) || number == 0 ? TextOf(value) : absl::StrCat("number ", number);
}

// Values of later versions are refused by name, never ignored.
absl::Status CheckSupported(const v1::JobSpec& job) {
  const auto unsupported = [](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is not supported by this version"));
  };
  const v1::ParallelismSpec& parallelism = job.parallelism();
  if (!IsNamed(job.model().architecture())) {
    return unsupported("model.architecture " + Shown(job.model().architecture()));
  }
  const v1::Precision precision = job.training().precision();
  if (!IsNamed(precision) || precision == v1::PRECISION_AUTO) {
    return unsupported("training.precision " + Shown(precision));
  }
  TERCIO_RETURN_IF_ERROR(plan::CheckFp8(job));
  const v1::DeviceKind device = job.resources().device();
  if (device != v1::DEVICE_KIND_CPU && device != v1::DEVICE_KIND_CUDA) {
    return unsupported("resources.device " + Shown(device));
  }
  if (parallelism.zero_stage() < 0 || parallelism.zero_stage() > 3) {
    return unsupported(absl::StrCat("parallelism.zero_stage ", parallelism.zero_stage()));
  }
  if (parallelism.context_parallel() > 1)
    return unsupported("parallelism.context_parallel above 1");
  if (const auto broken = plan::BrokenBy(job); !broken.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(broken.front()->key, ": ", broken.front()->reason));
  }
  return absl::OkStatus();
}

absl::Status CheckGuards(const v1::JobSpec& job) {
  const v1::FaultToleranceSpec& fault = job.fault_tolerance();
  if (!v1::OnSpike_IsValid(fault.on_spike())) {
    return absl::InvalidArgumentError(
        absl::StrCat("fault_tolerance.on_spike is number ", static_cast<int>(fault.on_spike()),
                     "; expected ", absl::StrJoin(NamesOf<v1::OnSpike>(), ", ")));
  }
  // Not a number fails both.
  if (!(fault.spike_threshold() >= 0) || fault.check_replicas_every() < 0) {
    return absl::InvalidArgumentError(
        "fault_tolerance.spike_threshold and check_replicas_every must not be negative");
  }
  // The bound keeps sums of steps and skips far from the limits of their type.
  constexpr int64_t kMost = int64_t{1} << 40;
  for (const v1::DataSkip& skip : job.training().data_skips()) {
    if (skip.after_step() < 0 || skip.after_step() > kMost || skip.batches() < 0 ||
        skip.batches() > kMost) {
      return absl::InvalidArgumentError("training.data_skips has impossible numbers");
    }
  }
  return absl::OkStatus();
}

// A job is as long as its steps or its epochs; one of no steps evaluates its test data.
absl::Status CheckLength(const v1::JobSpec& job) {
  const v1::TrainingSpec& training = job.training();
  const bool evaluates = !job.data().test_path().empty() && !job.model().from().empty();
  if (training.epochs() < 0 || training.steps() < 0 ||
      (training.steps() == 0 && training.epochs() == 0 && !evaluates)) {
    return absl::InvalidArgumentError(
        "training.steps or training.epochs must be at least 1, or there must be data.test and "
        "model.from to evaluate");
  }
  if ((training.epochs() > 0 || training.evaluate().every_epochs() > 0) &&
      job.data().train_blend_size() > 1) {
    return absl::InvalidArgumentError(
        "training.epochs and training.evaluate.every_epochs: a blend of weighted data sets has no "
        "epochs");
  }
  return absl::OkStatus();
}

absl::Status CheckEvaluation(const v1::EvaluateSpec& evaluate) {
  const v1::QualityMetric best = evaluate.keep_best();
  if (best != v1::QUALITY_METRIC_UNSPECIFIED && !IsNamed(best)) {
    return absl::InvalidArgumentError(absl::StrCat("training.evaluate.keep_best ", Shown(best),
                                                   " is not supported by this version"));
  }
  for (const int number : evaluate.metrics()) {
    const auto metric = static_cast<v1::QualityMetric>(number);
    if (IsNamed(metric)) continue;
    return absl::InvalidArgumentError(absl::StrCat("training.evaluate.metrics ", Shown(metric),
                                                   " is not supported by this version"));
  }
  return absl::OkStatus();
}

constexpr int64_t kLargestHead = 256;  // channels, of the kernels of attention

absl::Status CheckNumbers(const v1::JobSpec& job) {
  const v1::ModelSpec& model = job.model();
  if (model.layers() < 1 || model.hidden() < 1 || model.heads() < 1 || model.context() < 1 ||
      model.ffn_hidden() < 1 || model.decoder_layers() < 0 || model.decoder_context() < 0) {
    return absl::InvalidArgumentError(
        "impossible model: layers, hidden, heads, context and ffn_hidden must be positive, "
        "decoder_layers and decoder_context not negative");
  }
  const bool of_hidden = model.head_dim() == 0;
  const int64_t head = of_hidden ? model.hidden() / model.heads() : model.head_dim();
  if ((of_hidden && model.hidden() % model.heads() != 0) || head > kLargestHead) {
    return absl::InvalidArgumentError(absl::StrCat(
        "impossible model: hidden must be a multiple of heads where head_dim is not given, and a "
        "head has at most ",
        kLargestHead, " channels"));
  }
  if (job.training().global_batch() < 1 || job.training().micro_batch() < 0 ||
      job.resources().ranks() < 0 || job.checkpoint().keep_last() < 1) {
    return absl::InvalidArgumentError(
        "training.global_batch and checkpoint.keep_last must be at least 1, training.micro_batch "
        "and resources.ranks not negative");
  }
  // Not a number fails it, too.
  const double share = job.offload().share();
  if (!(share >= kLeastShare && share <= kWholeShare)) {
    return absl::InvalidArgumentError("offload.share must be from 0 to 1");
  }
  TERCIO_RETURN_IF_ERROR(CheckLength(job));
  TERCIO_RETURN_IF_ERROR(CheckEvaluation(job.training().evaluate()));
  // Products of sizes below are computed in 64 bits, which these bounds keep from overflowing.
  TERCIO_RETURN_IF_ERROR(plan::CheckSizes(job));
  return CheckGuards(job);
}

}  // namespace

v1::PlanReport PlanLayouts(const v1::JobSpec& given, const Cluster& cluster) {
  const v1::JobSpec job = WithVocabulary(given);
  v1::PlanReport report;
  report.set_chosen(-1);
  std::vector<v1::Layout> layouts;
  // A layout that a person has named is the only candidate, even if another would be faster.
  if (job.parallelism().automatic()) {
    layouts = AllLayouts(job, cluster.ranks);
  } else if (const absl::StatusOr<v1::Layout> layout = plan::LayoutOfJob(job); layout.ok()) {
    layouts.push_back(*layout);
  }
  for (const v1::Layout& layout : layouts) {
    *report.add_layouts() = JudgeLeastDivided(job, layout, cluster);
    const v1::LayoutCandidate& candidate = report.layouts(report.layouts_size() - 1);
    if (!candidate.rejected().empty()) continue;
    // The first of equally fast ones is kept, so that the choice does not depend on rounding.
    const bool better =
        report.chosen() < 0 || candidate.predicted().step_seconds() <
                                   report.layouts(report.chosen()).predicted().step_seconds();
    if (better) report.set_chosen(report.layouts_size() - 1);
  }
  return report;
}

void AddDivisions(const v1::JobSpec& given, const Cluster& cluster, v1::PlanReport* report) {
  const int index = report->chosen() >= 0 ? report->chosen() : report->layouts_size() - 1;
  if (index < 0 || (report->chosen() < 0 && index > 0)) return;
  v1::Layout layout = report->layouts(index).layout();
  if (layout.data() <= 1) return;
  v1::JobSpec job = WithVocabulary(given);
  for (int zero_stage = 0; zero_stage <= 3; ++zero_stage) {
    job.mutable_parallelism()->set_zero_stage(zero_stage);
    layout.set_zero_stage(zero_stage);
    SetMicroBatch(job, MicroBatchOf(job, layout.pipeline(), layout.data()), &layout);
    const v1::LayoutCandidate candidate = JudgeLeastOffloaded(job, layout, cluster);
    v1::Division* division = report->add_divisions();
    division->set_zero_stage(zero_stage);
    division->set_rejected(candidate.rejected());
    if (!candidate.predicted_valid()) continue;
    division->set_memory_bytes_peak(candidate.predicted().memory_bytes_peak());
    AddState(job, candidate.layout(), cluster.threads_per_rank, division);
  }
}

absl::StatusOr<v1::Layout> ChooseLayout(const v1::JobSpec& given, const Cluster& cluster) {
  const v1::JobSpec job = WithVocabulary(given);
  if (!job.parallelism().automatic()) TERCIO_RETURN_IF_ERROR(plan::LayoutOfJob(job).status());
  const v1::PlanReport report = PlanLayouts(job, cluster);
  if (report.chosen() >= 0) return report.layouts(report.chosen()).layout();
  // No layout fits: the smallest says how much is missing.
  const v1::LayoutCandidate* smallest = nullptr;
  for (const v1::LayoutCandidate& candidate : report.layouts()) {
    if (!candidate.predicted_valid()) continue;
    if (smallest == nullptr ||
        candidate.predicted().memory_bytes_peak() < smallest->predicted().memory_bytes_peak()) {
      smallest = &candidate;
    }
  }
  if (smallest == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no layout of ", cluster.ranks, " ranks works for this model: ",
                     report.layouts_size() > 0 ? report.layouts(0).rejected() : ""));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      smallest->rejected(), WhatWouldFit(job, smallest->layout(), cluster),
      "; memory of the smallest layout (tensor ", smallest->layout().tensor(), ", pipeline ",
      smallest->layout().pipeline(), ", data ", smallest->layout().data(), "):\n",
      plan::MemoryTableText(
          plan::MemoryOfStage(job, smallest->layout(), 0, cluster.threads_per_rank))));
}

absl::StatusOr<v1::Plan> MakePlan(const v1::JobSpec& job,
                                  const std::vector<plan::DeviceSlot>& slots, Cluster cluster) {
  cluster.ranks = static_cast<int>(slots.size());
  TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, ChooseLayout(job, cluster));
  TERCIO_ASSIGN_OR_RETURN(v1::Plan plan,
                          plan::BuildPlan(job, layout, slots, cluster.threads_per_rank));
  // The prediction is part of the plan, so that people compare it with what is measured.
  *plan.mutable_predicted() = Predict(WithVocabulary(job), layout, cluster);
  return plan;
}

absl::Status AdmitJob(const v1::JobSpec& job, int64_t memory_bytes, bool shares_gpus) {
  TERCIO_RETURN_IF_ERROR(CheckSupported(job));
  TERCIO_RETURN_IF_ERROR(CheckNumbers(job));
  Cluster cluster;
  cluster.memory_bytes = memory_bytes;
  cluster.shares_gpus = shares_gpus;
  // Whether enough devices are there is decided when the job is placed.
  cluster.ranks = std::max(1, job.resources().ranks());
  if (!job.parallelism().automatic()) {
    TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, plan::LayoutOfJob(WithVocabulary(job)));
    cluster.ranks = plan::WorldSize(layout);
  }
  const absl::Status status = ChooseLayout(job, cluster).status();
  // Too little memory is a property of the job here, which waiting does not change.
  return absl::IsResourceExhausted(status) ? absl::InvalidArgumentError(status.message()) : status;
}

int64_t CheckpointBytes(const v1::JobSpec& job) {
  int64_t elements = 0;
  for (const plan::LogicalTensor& tensor : plan::ModelTensors(WithVocabulary(job).model())) {
    elements += tensor.rows * tensor.columns;
  }
  // Weights and both moments of AdamW are saved in fp32, whatever the precision of the job.
  return 3 * elements * static_cast<int64_t>(sizeof(float));
}

Cluster LocalCluster(int ranks, int cores, int64_t memory_bytes, int threads_per_rank) {
  Cluster cluster;
  cluster.ranks = ranks;
  cluster.threads_per_rank = threads_per_rank > 0 ? threads_per_rank : std::max(1, cores / ranks);
  // More ranks than cores share them.
  UseCpus(std::min<double>(cluster.threads_per_rank, static_cast<double>(cores) / ranks), &cluster);
  cluster.memory_bytes = memory_bytes / ranks;
  return cluster;
}

void UseCpus(double cores_per_rank, Cluster* cluster) {
  // A message wakes two ranks, and those that share a core take turns.
  const double turns = std::max(1.0, 1 / cores_per_rank);
  cluster->flops_per_second = kCoreFlops * cores_per_rank;
  cluster->seconds_per_message = kMessageSeconds * turns;
}

void UseGpus(const std::string& model, const v1::TrainingSpec& training, Cluster* cluster) {
  // The rates of one that is not known are assumed: what matters is how rates compare.
  const plan::GpuFigures figures =
      plan::FiguresOf(model).value_or(*plan::FiguresOf(plan::kAssumedGpu));
  constexpr double kReached = 0.5;  // share of either peak that training reaches
  cluster->peak_flops_per_second = plan::PeakFlops(figures, training);
  cluster->flops_per_second = kReached * cluster->peak_flops_per_second;
  cluster->bytes_per_second = kReached * figures.link_bytes_per_second;
  cluster->seconds_per_message = 20e-6;
}

}  // namespace tercio::plan

#include "plan/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "plan/base_format.h"
#include "plan/combinations.h"
#include "plan/data_position.h"
#include "plan/distillation.h"
#include "plan/fp8.h"
#include "plan/limits.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/names.h"
#include "plan/offload.h"
#include "plan/planner/advice.h"
#include "plan/planner/candidates.h"
#include "plan/planner/search.h"
#include "plan/precision.h"
#include "plan/rank_layout.h"
#include "plan/reproducibility.h"
#include "plan/stage_layers.h"
#include "plan/state_shards.h"
#include "plan/state_volume.h"

namespace tercio::plan {
namespace {

v1::JobSpec WithVocabulary(v1::JobSpec job) {
  // The data decides the size of the vocabulary later, unless a teacher does; a plan needs one now
  // to compare layouts.
  if (job.model().vocab_size() == 0) {
    job.mutable_model()->set_vocab_size(VocabularyOf(job, kUnknownVocabulary));
  }
  return job;
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
    const int64_t parameters = TensorsOfStage(job, layout, stage).parameter_elements;
    division->set_state_bytes(bytes);
    division->set_bytes_per_parameter(static_cast<double>(bytes) / static_cast<double>(parameters));
    division->set_sent_bytes_per_step(std::llround(VolumeOfStage(job, layout, stage).sum()));
  }
}

int MostOnANode(const std::vector<DeviceSlot>& slots) {
  std::map<std::string, int> ranks;
  int most = 0;
  for (const DeviceSlot& slot : slots) most = std::max(most, ++ranks[slot.node]);
  return most;
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
  TERCIO_RETURN_IF_ERROR(plan::CheckBaseFormat(job));
  const v1::DeviceKind device = job.resources().device();
  if (device != v1::DEVICE_KIND_CPU && device != v1::DEVICE_KIND_CUDA) {
    return unsupported("resources.device " + Shown(device));
  }
  if (parallelism.zero_stage() < 0 || parallelism.zero_stage() > 3) {
    return unsupported(absl::StrCat("parallelism.zero_stage ", parallelism.zero_stage()));
  }
  if (parallelism.context_parallel() > 1)
    return unsupported("parallelism.context_parallel above 1");
  // The planner divides layers equally.
  if (parallelism.automatic() && !parallelism.stage_layers().empty()) {
    return unsupported("parallelism.stage_layers without a pipeline degree");
  }
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

std::vector<v1::Layout> LayoutsOfDegrees(const v1::JobSpec& job, int ranks) {
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
      SetMicroBatch(job, MicroBatchOf(job, layout), &layout);
      layouts.push_back(layout);
    }
  }
  return layouts;
}

v1::PlanReport PlanLayouts(const v1::JobSpec& given, const Cluster& cluster) {
  const v1::JobSpec job = WithVocabulary(given);
  v1::PlanReport report;
  report.set_chosen(-1);
  std::vector<v1::Layout> layouts;
  // A layout that a person has named is the only candidate, even if another would be faster.
  if (job.parallelism().automatic()) {
    layouts = LayoutsOfDegrees(job, cluster.ranks);
  } else if (const absl::StatusOr<v1::Layout> layout = plan::LayoutOfJob(job); layout.ok()) {
    layouts.push_back(*layout);
  }
  Candidates candidates(job, cluster);
  for (const v1::Layout& layout : layouts) {
    *report.add_layouts() =
        job.parallelism().automatic() ? candidates.BestWith(layout) : candidates.JudgeNamed(layout);
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
    SetMicroBatch(job, MicroBatchOf(job, layout), &layout);
    const v1::LayoutCandidate candidate = Candidates(job, cluster).JudgeNamed(layout);
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
      smallest->rejected(), AdviceText(SettingsThatFit(job, smallest->layout(), cluster)),
      "; memory of the smallest layout (tensor ", smallest->layout().tensor(), ", pipeline ",
      smallest->layout().pipeline(), ", data ", smallest->layout().data(), "):\n",
      plan::MemoryTableText(
          plan::MemoryOfStage(job, smallest->layout(), 0, cluster.threads_per_rank))));
}

absl::StatusOr<v1::Plan> MakePlan(const v1::JobSpec& job,
                                  const std::vector<plan::DeviceSlot>& slots, Cluster cluster) {
  cluster.ranks = static_cast<int>(slots.size());
  cluster.ranks_per_node = MostOnANode(slots);
  TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, ChooseLayout(job, cluster));
  TERCIO_ASSIGN_OR_RETURN(v1::Plan plan,
                          plan::BuildPlan(job, layout, slots, cluster.threads_per_rank));
  // The prediction is part of the plan, so that people compare it with what is measured.
  const v1::JobSpec known = WithVocabulary(job);
  *plan.mutable_predicted() = Candidates(known, cluster).Predict(WithLayout(known, layout), layout);
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
  const v1::JobSpec sized = WithVocabulary(job);
  const std::vector<bool> with_gradients = TensorsWithGradients(sized);
  int64_t elements = 0;
  // Weights and, of what is trained, both moments of AdamW are saved in fp32, whatever the
  // precision of the job.
  for (const LogicalTensor& tensor : ModelTensors(sized.model())) {
    const bool has_moments = with_gradients[static_cast<size_t>(tensor.index)];
    elements += (has_moments ? 3 : 1) * tensor.rows * tensor.columns;
  }
  return elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace tercio::plan

#include "plan/planner/candidates.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/architecture.h"
#include "plan/gpu_reserve.h"
#include "plan/memory_map.h"
#include "plan/offload.h"
#include "plan/plan_builder.h"
#include "plan/planner/search.h"
#include "plan/precision.h"
#include "plan/preference.h"
#include "plan/rank_layout.h"
#include "plan/stage_layers.h"

namespace tercio::plan {
namespace {

constexpr int kMostChunks = 8;
// What a layout with more settings has to gain: predictions are not exact enough for less. On CPUs
// they are off by more (docs/planner.md).
constexpr double kWorthAChange = 1.02;
constexpr double kWorthAChangeOnCpus = 1.1;

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

void SetParts(const cost::StepCost& cost, v1::StepParts* parts) {
  parts->set_compute(cost.compute);
  parts->set_tensor_communication(cost.tensor_communication);
  parts->set_recompute(cost.recompute);
  parts->set_pipeline_bubble(cost.pipeline_bubble);
  parts->set_pipeline_transfers(cost.pipeline_transfers);
  parts->set_data_exposed(cost.data_exposed);
  parts->set_optimizer(cost.optimizer);
  parts->set_other(cost.other);
  parts->set_offload(cost.offload);
}

// The micro-batches that may be chosen, the largest first.
std::vector<int64_t> MicroBatchesOf(const v1::JobSpec& job, const v1::Layout& layout) {
  std::vector<int64_t> sizes = {MicroBatchOf(job, layout)};
  if (job.training().micro_batch() > 0) return sizes;
  const v1::JobSpec with = WithLayout(job, layout);
  while (sizes.back() > SequencesTogether(job.training())) {
    sizes.push_back(ChooseMicroBatch(with, layout.pipeline(), layout.data(), sizes.back()));
  }
  return sizes;
}

// All micro-batches of a layout with everything else.
void AddMicroBatches(const v1::JobSpec& job, v1::Layout layout, std::vector<v1::Layout>* out) {
  for (const int64_t size : MicroBatchesOf(job, layout)) {
    SetMicroBatch(job, size, &layout);
    out->push_back(layout);
  }
}

// Stages with equally many layers, where these divide, and with those that make the slowest one as
// fast as can be: embedding and head are work, too.
void AddDivisionsOfLayers(const v1::JobSpec& job, const cost::ClusterModel& devices,
                          const cost::Recipe& recipe, v1::Layout layout,
                          std::vector<v1::Layout>* out) {
  layout.clear_stage_layers();
  SetStageLayers(job, &layout);
  AddMicroBatches(job, layout, out);
  if (layout.pipeline() == 1 || job.model().decoder_layers() > 0) return;
  SetMicroBatch(job, MicroBatchOf(job, layout), &layout);
  const std::vector<int> before = LayersOfPlaces(model::LayersOf(job.model()), layout);
  const std::vector<int> balanced =
      cost::BalancedLayers({.job = job, .layout = layout, .cluster = devices, .recipe = recipe});
  if (balanced == before) return;
  *layout.mutable_stage_layers() = {balanced.begin(), balanced.end()};
  if (CheckStageLayers(job.model(), layout).ok()) AddMicroBatches(job, layout, out);
}

void AddChunks(const v1::JobSpec& job, const cost::ClusterModel& devices,
               const cost::Recipe& recipe, v1::Layout layout, std::vector<v1::Layout>* out) {
  AddDivisionsOfLayers(job, devices, recipe, layout, out);
  if (layout.pipeline() == 1 || layout.schedule() == v1::PIPELINE_SCHEDULE_GPIPE) return;
  const int of_stage = model::LayersOf(job.model()) / layout.pipeline();
  for (int chunks = 2; chunks <= std::min(of_stage, kMostChunks); ++chunks) {
    layout.set_virtual_pipeline(chunks);
    layout.set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
    AddDivisionsOfLayers(job, devices, recipe, layout, out);
  }
}

// Simple ones first.
std::vector<v1::Layout> WithoutMoreDivision(const v1::JobSpec& job,
                                            const cost::ClusterModel& devices,
                                            const cost::Recipe& recipe, v1::Layout layout) {
  std::vector<v1::Layout> layouts;
  AddChunks(job, devices, recipe, layout, &layouts);
  if (layout.tensor() > 1 && !layout.sequence_parallel()) {
    layout.set_sequence_parallel(true);
    AddChunks(job, devices, recipe, layout, &layouts);
  }
  return layouts;
}

// What the job asks for is the least.
std::vector<v1::Layout> WithMoreDivision(const v1::JobSpec& job, const cost::ClusterModel& devices,
                                         const cost::Recipe& recipe, v1::Layout layout) {
  std::vector<v1::Layout> layouts;
  const v1::Recompute asked = std::max(v1::RECOMPUTE_NONE, layout.recompute());
  const int most_stage = layout.data() > 1 ? 3 : layout.zero_stage();
  for (int stage = layout.zero_stage(); stage <= most_stage; ++stage) {
    for (const auto recompute : {v1::RECOMPUTE_NONE, v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
      if (recompute < asked) continue;
      layout.set_zero_stage(stage);
      layout.set_recompute(recompute);
      const std::vector<v1::Layout> some = WithoutMoreDivision(job, devices, recipe, layout);
      layouts.insert(layouts.end(), some.begin(), some.end());
    }
  }
  return layouts;
}

// Whether `a` takes no less memory than `b` on any rank: it divides and recomputes no more, and its
// micro-batches are no smaller.
bool TakesNoLess(const v1::Layout& a, const v1::Layout& b) {
  return a.zero_stage() <= b.zero_stage() && a.recompute() <= b.recompute() &&
         (!a.sequence_parallel() || b.sequence_parallel()) && a.micro_batch() >= b.micro_batch() &&
         a.virtual_pipeline() >= b.virtual_pipeline() &&
         std::equal(a.stage_layers().begin(), a.stage_layers().end(), b.stage_layers().begin(),
                    b.stage_layers().end());
}

// Gains of the settings that make a layout less simple must be worth it.
double Weighed(const v1::JobSpec& job, double seconds, const v1::Layout& layout) {
  const double worth = OnGpu(job) ? kWorthAChange : kWorthAChangeOnCpus;
  if (layout.virtual_pipeline() > 1) seconds *= worth;
  if (layout.sequence_parallel()) seconds *= worth;
  if (!layout.stage_layers().empty()) seconds *= worth;
  return seconds;
}

// What the job needs for its offload (plan/combinations.h).
int LeastStage(const v1::JobSpec& job, const v1::Layout& layout) {
  int stage = layout.zero_stage();
  if (OffloadsParameters(job)) return 3;
  return IsElsewhere(job, job.offload().optimizer()) ? std::max(1, stage) : stage;
}

}  // namespace

int64_t MicroBatchOf(const v1::JobSpec& job, const v1::Layout& layout) {
  if (job.training().micro_batch() > 0) return job.training().micro_batch();
  v1::JobSpec with = job;
  with.mutable_parallelism()->set_zero_stage(layout.zero_stage());
  return ChooseMicroBatch(with, layout.pipeline(), layout.data());
}

void SetMicroBatch(const v1::JobSpec& job, int64_t micro_batch, v1::Layout* layout) {
  layout->set_micro_batch(static_cast<int32_t>(micro_batch));
  layout->set_micro_batches(
      static_cast<int32_t>(job.training().global_batch() / (micro_batch * layout->data())));
}

Candidates::Candidates(const v1::JobSpec& job, const Cluster& cluster)
    : job_(job),
      cluster_(cluster),
      devices_(DevicesOf(cluster, cluster.ranks)),
      costs_(job_, devices_, cluster_.recipe) {}

v1::Prediction Candidates::Predict(const v1::JobSpec& job, const v1::Layout& layout) {
  v1::Prediction prediction;
  // The stage that needs the most decides: all ranks are assumed to have the same memory.
  int64_t memory = 0;
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    memory = std::max(memory,
                      MemoryOfStage(job, layout, stage, cluster_.threads_per_rank).total_bytes());
  }
  const cost::StepCost cost = cost::CostOfStep(
      {.job = job, .layout = layout, .cluster = devices_, .recipe = cluster_.recipe}, &walks_);
  prediction.set_step_seconds(cost.seconds);
  prediction.set_tokens_per_second(cost.tokens_per_second);
  prediction.set_tflops_per_gpu(cost.model_flops / 1e12);
  const double peak = PeakOf(devices_.accelerator, job.training());
  prediction.set_mfu(peak > 0 ? cost.model_flops / peak : 0);
  SetParts(cost, prediction.mutable_parts());
  prediction.set_memory_bytes_peak(memory);
  if (cluster_.memory_bytes < kUnknownMemoryBytes) {
    const int64_t nccl = cluster_.shares_gpus ? 0 : NcclBytes(job, layout);
    prediction.set_memory_bytes_available(std::max<int64_t>(0, cluster_.memory_bytes - nccl));
  }
  // Narayanan et al. 2021, section 2.2: chunks divide the time to fill the pipeline.
  const double passes =
      static_cast<double>(layout.micro_batches()) * std::max(1, layout.virtual_pipeline());
  prediction.set_bubble_ratio((layout.pipeline() - 1) / passes);
  return prediction;
}

// A tensor group waits for its slowest rank in every layer. Cores differ less than GPUs do.
std::string Candidates::MixedTensorGroup(const v1::Layout& layout) const {
  if (!OnGpu(job_)) return "";
  int first = 0;
  for (const cost::ClusterModel& group : devices_.groups) {
    first += group.devices();
    if (first % layout.tensor() == 0) continue;
    return absl::StrCat("the ", layout.tensor(),
                        " GPUs of a tensor group would be of different models");
  }
  return "";
}

v1::LayoutCandidate Candidates::Judge(const v1::Layout& layout) {
  v1::LayoutCandidate candidate;
  *candidate.mutable_layout() = layout;
  const v1::JobSpec job = WithLayout(job_, layout);
  // Impossible layouts stay in the list: people see why the one they had in mind was not taken.
  const absl::Status legal = CheckLayout(job, layout, cluster_.ranks);
  if (!legal.ok()) {
    candidate.set_rejected(std::string(legal.message()));
    return candidate;
  }
  if (const std::string mixed = MixedTensorGroup(layout); !mixed.empty()) {
    candidate.set_rejected(mixed);
    return candidate;
  }
  // The prediction is made even where the memory does not suffice: the message names the need.
  candidate.set_predicted_valid(true);
  *candidate.mutable_predicted() = Predict(job, layout);
  const v1::Prediction& predicted = candidate.predicted();
  if (cluster_.memory_bytes < kUnknownMemoryBytes &&
      predicted.memory_bytes_peak() > predicted.memory_bytes_available()) {
    candidate.set_rejected(MissingMemory(predicted, cluster_));
  }
  return candidate;
}

v1::LayoutCandidate Candidates::FirstThatFits(const std::vector<v1::Layout>& layouts) {
  v1::LayoutCandidate least;
  std::vector<v1::Layout> too_large;
  for (const v1::Layout& layout : layouts) {
    const bool is_larger =
        std::any_of(too_large.begin(), too_large.end(),
                    [&](const v1::Layout& other) { return TakesNoLess(layout, other); });
    if (is_larger) continue;
    v1::LayoutCandidate candidate = Judge(layout);
    if (candidate.predicted_valid() && candidate.rejected().empty()) return candidate;
    if (candidate.predicted_valid()) too_large.push_back(layout);
    // A need says more than a rule that is broken.
    const bool is_better =
        least.rejected().empty() ||
        (candidate.predicted_valid() &&
         (!least.predicted_valid() ||
          candidate.predicted().memory_bytes_peak() < least.predicted().memory_bytes_peak()));
    if (is_better) least = std::move(candidate);
  }
  return least;
}

// As little of the optimizer's state as lets any of them fit goes elsewhere, where the planner
// chooses it: every byte there is read and written in each step.
v1::LayoutCandidate Candidates::AtLeastShare(std::vector<v1::Layout> layouts) {
  if (!ChoosesOffloadShare(job_)) return FirstThatFits(layouts);
  const auto at = [&](int part) {
    for (v1::Layout& layout : layouts) {
      layout.set_offload_share(static_cast<double>(part) / kOffloadParts);
    }
    return FirstThatFits(layouts);
  };
  v1::LayoutCandidate none = at(0);
  if (none.rejected().empty() || !none.predicted_valid()) return none;
  v1::LayoutCandidate all = at(kOffloadParts);
  for (int part = 1; part < kOffloadParts && all.rejected().empty(); ++part) {
    v1::LayoutCandidate some = at(part);
    if (some.rejected().empty()) return some;
  }
  return all;
}

// On nodes of several kinds stages have as many layers as makes the slowest one as fast as can be,
// where that gains enough and the job does not say otherwise.
std::optional<v1::Layout> Candidates::FasterDivision(v1::Layout layout) {
  const bool is_open = layout.pipeline() > 1 && job_.parallelism().stage_layers().empty();
  if (devices_.groups.empty() || !is_open || job_.model().decoder_layers() > 0) return std::nullopt;
  SetMicroBatch(job_, MicroBatchOf(job_, layout), &layout);
  const double equal = costs_.Of(layout).seconds;
  const std::vector<int> balanced = costs_.Balanced(layout);
  *layout.mutable_stage_layers() = {balanced.begin(), balanced.end()};
  if (!CheckStageLayers(job_.model(), layout).ok()) return std::nullopt;
  if (Weighed(job_, costs_.Of(layout).seconds, layout) >= equal) return std::nullopt;
  return layout;
}

v1::LayoutCandidate Candidates::JudgeNamed(const v1::Layout& layout) {
  std::vector<v1::Layout> layouts;
  if (CheckLayout(WithLayout(job_, layout), layout, cluster_.ranks).ok()) {
    const std::optional<v1::Layout> faster = FasterDivision(layout);
    if (faster.has_value()) AddMicroBatches(job_, *faster, &layouts);
  }
  AddMicroBatches(job_, layout, &layouts);
  return AtLeastShare(std::move(layouts));
}

std::vector<v1::LayoutCandidate> Candidates::AllWith(const v1::Layout& degrees) {
  v1::Layout layout = degrees;
  layout.set_zero_stage(LeastStage(job_, layout));
  std::vector<v1::LayoutCandidate> fitting;
  for (const v1::Layout& each : WithoutMoreDivision(job_, devices_, cluster_.recipe, layout)) {
    v1::LayoutCandidate candidate = Judge(each);
    if (candidate.rejected().empty()) fitting.push_back(std::move(candidate));
  }
  if (!fitting.empty()) return fitting;
  v1::LayoutCandidate best = BestWith(degrees);
  if (best.rejected().empty()) fitting.push_back(std::move(best));
  return fitting;
}

v1::LayoutCandidate Candidates::BestWith(const v1::Layout& degrees) {
  v1::Layout layout = degrees;
  layout.set_zero_stage(LeastStage(job_, layout));
  const auto fastest_first = [&](const std::vector<v1::Layout>& layouts) {
    std::vector<std::pair<double, v1::Layout>> timed;
    for (const v1::Layout& each : layouts) {
      const v1::JobSpec job = WithLayout(job_, each);
      const bool legal = CheckLayout(job, each, cluster_.ranks).ok();
      const double seconds = legal ? costs_.Of(each).seconds : 0;
      // One that breaks a rule is judged only where all do, to say which.
      if (legal) timed.emplace_back(Weighed(job_, seconds, each), each);
    }
    if (timed.empty()) return std::vector<v1::Layout>{layouts.front()};
    std::stable_sort(timed.begin(), timed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<v1::Layout> sorted;
    sorted.reserve(timed.size());
    for (auto& [seconds, each] : timed) sorted.push_back(std::move(each));
    return sorted;
  };
  v1::LayoutCandidate plain =
      AtLeastShare(fastest_first(WithoutMoreDivision(job_, devices_, cluster_.recipe, layout)));
  if (plain.rejected().empty() || !plain.predicted_valid()) return plain;
  v1::LayoutCandidate divided =
      AtLeastShare(fastest_first(WithMoreDivision(job_, devices_, cluster_.recipe, layout)));
  return divided.predicted_valid() ? divided : plain;
}

}  // namespace tercio::plan

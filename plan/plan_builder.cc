#include "plan/plan_builder.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "plan/buckets.h"
#include "plan/data_position.h"
#include "plan/lanes.h"
#include "plan/limits.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/names.h"
#include "plan/numerics.h"
#include "plan/precision.h"
#include "plan/preference.h"
#include "plan/rank_layout.h"
#include "plan/reproducibility.h"
#include "plan/schedule.h"
#include "plan/stage_layers.h"

namespace tercio::plan {
namespace {

// Tokens of a micro-batch above which products gain nothing more: a processor's; and a GPU's, where
// each micro-batch also reads and writes all gradients of weights.
constexpr int64_t kTokensPerMicroBatch = 2048;
constexpr int64_t kTokensPerGpuMicroBatch = 65536;

v1::StagePlan BuildStage(const v1::JobSpec& job, const v1::Layout& layout, int stage, int threads) {
  // The whole stage follows from the layout, so that trainers need not derive any of it.
  const ScheduleShape schedule = ShapeOfSchedule(layout);
  const std::vector<int> layers = LayersOfStage(model::LayersOf(job.model()), layout, stage);
  v1::StagePlan plan;
  plan.mutable_layers()->Add(layers.begin(), layers.end());
  plan.set_activation_slots(ActivationSlots(schedule, stage));
  for (const v1::Action& action : StageActions(schedule, stage)) *plan.add_actions() = action;
  *plan.mutable_memory() = MemoryOfStage(job, layout, stage, threads);
  for (const v1::BucketRange& bucket : BucketsOfStage(job, layout, stage)) {
    *plan.add_buckets() = bucket;
  }
  return plan;
}

// Micro-batch sizes that divide a rank's share, ascending.
std::vector<int64_t> Divisors(int64_t value) {
  std::vector<int64_t> result;
  for (int64_t i = 1; i * i <= value; ++i) {
    if (value % i == 0) result.push_back(i);
  }
  // Only the smaller divisor of each pair was found; its partner follows from it.
  for (size_t i = result.size(); i-- > 0;) {
    if (const int64_t other = value / result[i]; other > result[i]) result.push_back(other);
  }
  return result;
}

// Beyond kMostRanks it stays just above: degrees come from users.
int RanksOfDegrees(int tensor, int pipeline, int data) {
  // 64 bits hold any product of two factors that are bounded like this.
  int64_t ranks = 1;
  for (const int degree : {tensor, pipeline, data}) {
    ranks = std::min<int64_t>(ranks * std::max(1, degree), kMostRanks + 1);
  }
  return static_cast<int>(ranks);
}

// Layouts of the same number of ranks that this model allows, as "tensor x pipeline x data".
std::string NearestLayouts(const v1::JobSpec& job, const v1::Layout& wanted, int ranks) {
  struct Option {
    int distance;
    std::string text;
  };
  // Numbers of layers that the job names are for its own stages.
  v1::JobSpec with_any_stages = job;
  with_any_stages.mutable_parallelism()->clear_stage_layers();
  std::vector<Option> options;
  // All factorisations are looked at, since a person may want to change any of the three.
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    if (ranks % tensor != 0) continue;
    for (int pipeline = 1; pipeline <= ranks / tensor; ++pipeline) {
      if (ranks / tensor % pipeline != 0) continue;
      v1::Layout layout = wanted;
      layout.set_tensor(tensor);
      layout.set_pipeline(pipeline);
      layout.set_data(ranks / tensor / pipeline);
      SetStageLayers(with_any_stages, &layout);
      // The least micro-batch divides every share: the degrees alone are judged.
      const int least = SequencesTogether(job.training());
      layout.set_micro_batch(least);
      layout.set_micro_batches(
          static_cast<int>(job.training().global_batch() / (least * std::max(1, layout.data()))));
      if (!CheckLayout(job, layout, ranks).ok()) continue;
      const int distance = std::abs(tensor - wanted.tensor()) +
                           std::abs(pipeline - wanted.pipeline()) +
                           std::abs(layout.data() - wanted.data());
      options.push_back({distance, absl::StrCat(tensor, "x", pipeline, "x", layout.data())});
    }
  }
  if (options.empty()) return absl::StrCat("no layout of ", ranks, " ranks works for this model");
  // The sort is stable, so that equally near ones keep the order of their degrees.
  std::stable_sort(options.begin(), options.end(),
                   [](const Option& a, const Option& b) { return a.distance < b.distance; });
  // Three suggestions fit into one line of an error.
  if (options.size() > 3) options.resize(3);
  std::vector<std::string> texts;
  for (const Option& option : options) texts.push_back(option.text);
  return absl::StrCat("nearest tensor x pipeline x data that work: ", absl::StrJoin(texts, ", "));
}

// Ranks of the same GPU, or those of which one adds in an order of its own, cannot have NCCL's.
absl::StatusOr<v1::Collectives> ChooseCollectives(const v1::JobSpec& job,
                                                  const std::vector<DeviceSlot>& slots) {
  if (!OnGpu(job)) return v1::COLLECTIVES_UNSPECIFIED;
  const v1::Collectives wanted = job.resources().collectives();
  if (wanted == v1::COLLECTIVES_HOST) return v1::COLLECTIVES_HOST;
  // Two slots are the same GPU where more ranks are placed than there are GPUs, as in tests.
  std::map<std::pair<std::string, int>, size_t> holder;
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    const DeviceSlot& slot = slots[rank];
    const auto [other, alone] = holder.try_emplace({slot.node, slot.gpu}, rank);
    if (alone) continue;
    if (wanted != v1::COLLECTIVES_NCCL) return v1::COLLECTIVES_HOST;
    return absl::InvalidArgumentError(absl::StrCat(
        "resources.collectives: nccl, but ranks ", other->second, " and ", rank, " share GPU ",
        slot.gpu, " of node ", slot.node,
        ", which NCCL refuses; use collectives: auto, or as many ranks as there are GPUs"));
  }
  return OrderIsFixed(job) ? v1::COLLECTIVES_HOST : v1::COLLECTIVES_NCCL;
}

}  // namespace

int64_t ChooseMicroBatch(const v1::JobSpec& job, int pipeline, int data, int64_t less_than) {
  const int64_t share = job.training().global_batch() / data;
  const int64_t most = OnGpu(job) ? kTokensPerGpuMicroBatch : kTokensPerMicroBatch;
  const bool in_rounds = job.parallelism().zero_stage() >= 2 && OrderIsFixed(job);
  const int64_t of_round =
      in_rounds ? share / LanesPerDataRank(LanesOfJob(job.training()), data) : share;
  const int64_t least = SequencesTogether(job.training());
  int64_t best = least;
  for (const int64_t candidate : Divisors(share)) {
    if (candidate % least != 0) continue;
    if (less_than > 0 && candidate >= less_than) break;
    const bool fits = candidate * TokensOfSequence(job.model()) <= most;
    // Two micro-batches per stage keep the bubble below half of the work.
    const bool fills = pipeline == 1 || share / candidate >= 2 * pipeline;
    // Sums of shards are made in rounds, of which a micro-batch is a part.
    if (of_round % candidate != 0) continue;
    if (candidate == least || (fits && fills)) best = candidate;
  }
  return best;
}

absl::StatusOr<v1::Plan> BuildPlan(const v1::JobSpec& job, const v1::Layout& layout,
                                   const std::vector<DeviceSlot>& slots, int threads_per_rank) {
  // The layout may come from another planner, so that it is checked again.
  TERCIO_RETURN_IF_ERROR(CheckLayout(job, layout, static_cast<int>(slots.size())));
  if (!IsNamed(layout.schedule())) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown pipeline schedule ", static_cast<int>(layout.schedule()), ": use ",
                     absl::StrJoin(NamesOf<v1::PipelineSchedule>(), ", ")));
  }
  v1::Plan plan;
  TERCIO_ASSIGN_OR_RETURN(const v1::Collectives collectives, ChooseCollectives(job, slots));
  plan.set_collectives(collectives);
  *plan.mutable_layout() = layout;
  *plan.mutable_model() = job.model();
  plan.set_lanes(LanesOf(job, layout));
  plan.set_numerics(kNumerics);
  plan.set_padded_vocabulary(
      static_cast<int32_t>(PaddedVocabulary(job.model().vocab_size(), layout.tensor())));
  for (int rank = 0; rank < WorldSize(layout); ++rank) {
    const Coordinates at = CoordinatesOfRank(layout, rank);
    v1::RankPlacement* placement = plan.add_ranks();
    placement->set_rank(rank);
    placement->set_node(slots[static_cast<size_t>(rank)].node);
    placement->set_device(slots[static_cast<size_t>(rank)].device);
    placement->set_tensor_index(at.tensor);
    placement->set_data_index(at.data);
    placement->set_pipeline_index(at.pipeline);
  }
  plan.set_threads_per_rank(threads_per_rank);
  for (const v1::ProcessGroup& group : ProcessGroups(layout)) *plan.add_groups() = group;
  // Stages are stored once: the ranks of a stage differ in nothing else than their coordinates.
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    *plan.add_stages() = BuildStage(job, layout, stage, threads_per_rank);
  }
  return plan;
}

v1::RankPlan SliceWithoutStage(const v1::Plan& plan, int rank) {
  TERCIO_CHECK(rank >= 0 && rank < plan.ranks_size());
  v1::RankPlan slice;
  *slice.mutable_layout() = plan.layout();
  *slice.mutable_model() = plan.model();
  slice.set_lanes(plan.lanes());
  slice.set_padded_vocabulary(plan.padded_vocabulary());
  *slice.mutable_placement() = plan.ranks(rank);
  slice.set_threads(plan.threads_per_rank());
  slice.set_collectives(plan.collectives());
  for (v1::ProcessGroup& group : GroupsOfRank(plan.layout(), rank)) {
    *slice.add_groups() = std::move(group);
  }
  return slice;
}

v1::RankPlan SliceForRank(const v1::Plan& plan, int rank) {
  // The trainer's plan is complete in itself: it never asks the coordinator for more.
  v1::RankPlan slice = SliceWithoutStage(plan, rank);
  *slice.mutable_stage() = plan.stages(plan.ranks(rank).pipeline_index());
  return slice;
}

int RanksOfJob(const v1::JobSpec& job) {
  const v1::ParallelismSpec& wanted = job.parallelism();
  const int named = RanksOfDegrees(wanted.tensor(), wanted.pipeline(), wanted.data());
  // With `auto`, or without a data degree, the number of ranks decides the degrees.
  if (wanted.automatic() || wanted.data() == 0) {
    return std::max(job.resources().ranks(), wanted.automatic() ? 1 : named);
  }
  return named;
}

absl::StatusOr<v1::Layout> LayoutOfJob(const v1::JobSpec& job) {
  const v1::ParallelismSpec& wanted = job.parallelism();
  if (RanksOfJob(job) > kMostRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("impossible layout: tensor ", wanted.tensor(), " x pipeline ",
                     wanted.pipeline(), " x data ", wanted.data(), ", resources.ranks ",
                     job.resources().ranks(), ": a job has at most ", kMostRanks, " ranks"));
  }
  v1::Layout layout;
  layout.set_tensor(std::max(1, wanted.tensor()));
  layout.set_pipeline(std::max(1, wanted.pipeline()));
  layout.set_virtual_pipeline(std::max(1, wanted.virtual_pipeline()));
  layout.set_context_parallel(1);
  SetChoices(job, &layout);
  SetStageLayers(job, &layout);
  // Other degrees would not mend these numbers.
  if (!wanted.stage_layers().empty()) {
    TERCIO_RETURN_IF_ERROR(CheckStageLayers(job.model(), layout));
  }
  const int model_ranks = layout.tensor() * layout.pipeline();
  const int ranks = job.resources().ranks() > 0 ? job.resources().ranks()
                                                : model_ranks * std::max(1, wanted.data());
  // The data degree is what is left of the ranks, rounded down: CheckLayout refuses a remainder.
  layout.set_data(wanted.data() > 0 ? wanted.data() : std::max(1, ranks / model_ranks));
  layout.set_micro_batch(
      job.training().micro_batch() > 0
          ? static_cast<int32_t>(job.training().micro_batch())
          : static_cast<int32_t>(ChooseMicroBatch(job, layout.pipeline(), layout.data())));
  layout.set_micro_batches(static_cast<int32_t>(job.training().global_batch() /
                                                (int64_t{layout.data()} * layout.micro_batch())));
  const absl::Status status = CheckLayout(job, layout, ranks);
  if (!status.ok()) {
    // A rule that was broken helps less than a layout that works.
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(status.message()), "; ", NearestLayouts(job, layout, ranks)));
  }
  return layout;
}

}  // namespace tercio::plan

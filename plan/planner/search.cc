#include "plan/planner/search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/architecture.h"
#include "plan/gpu_reserve.h"
#include "plan/lanes.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/plan_builder.h"
#include "plan/precision.h"
#include "plan/rank_layout.h"

namespace tercio::plan {
namespace {

// Larger ones fill no device better.
constexpr int64_t kMostMicroBatch = 64;
constexpr int kMostChunks = 16;

std::vector<int> DivisorsOf(int64_t number, int64_t most) {
  std::vector<int> divisors;
  for (int64_t d = 1; d <= std::min(number, most); ++d) {
    if (number % d == 0) divisors.push_back(static_cast<int>(d));
  }
  return divisors;
}

// Layouts of one set of degrees, with everything else that may be chosen.
class Choices {
 public:
  Choices(const v1::JobSpec& job, v1::Layout degrees, std::vector<v1::Layout>* out)
      : job_(job), degrees_(std::move(degrees)), out_(*out) {}

  void Add() {
    const int64_t batch = job_.training().global_batch();
    if (batch % degrees_.data() != 0) return;
    const int64_t share = batch / degrees_.data();
    std::vector<int> micro_batches = DivisorsOf(share, kMostMicroBatch);
    if (job_.training().micro_batch() > 0) {
      micro_batches = {static_cast<int>(job_.training().micro_batch())};
    }
    for (const int micro_batch : micro_batches) {
      if (share % micro_batch != 0) continue;
      degrees_.set_micro_batch(micro_batch);
      degrees_.set_micro_batches(static_cast<int32_t>(share / micro_batch));
      AddChunks();
    }
  }

 private:
  void AddChunks() {
    const int64_t of_stage = model::LayersOf(job_.model()) / degrees_.pipeline();
    const std::vector<int> chunks =
        degrees_.pipeline() > 1 ? DivisorsOf(of_stage, kMostChunks) : std::vector<int>{1};
    for (const int count : chunks) {
      if (count > 1 && degrees_.micro_batches() % degrees_.pipeline() != 0) continue;
      degrees_.set_virtual_pipeline(count);
      degrees_.set_schedule(count > 1 ? v1::PIPELINE_SCHEDULE_INTERLEAVED
                                      : v1::PIPELINE_SCHEDULE_1F1B);
      AddMemory();
    }
  }

  void AddMemory() {
    for (const bool sequence_parallel : {false, true}) {
      if (sequence_parallel && degrees_.tensor() == 1) continue;
      degrees_.set_sequence_parallel(sequence_parallel);
      for (const auto recompute :
           {v1::RECOMPUTE_NONE, v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
        degrees_.set_recompute(recompute);
        for (int stage = 0; stage <= (degrees_.data() > 1 ? 3 : 0); ++stage) {
          degrees_.set_zero_stage(stage);
          out_.push_back(degrees_);
        }
      }
    }
  }

  const v1::JobSpec& job_;
  v1::Layout degrees_;
  std::vector<v1::Layout>& out_;
};

// What differs from layout to layout is not part of the rule.
std::string RuleOf(const std::string& text) {
  std::string rule;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit) {
      rule.push_back(c);
    } else if (rule.empty() || rule.back() != '#') {
      rule.push_back('#');
    }
  }
  return rule;
}

class BrokenRules {
 public:
  void Add(const absl::Status& status) {
    BrokenRule& rule = rules_[RuleOf(std::string(status.message()))];
    if (rule.layouts++ == 0) rule.rule = std::string(status.message());
  }
  std::vector<BrokenRule> Take() {
    std::vector<BrokenRule> list;
    for (auto& [key, rule] : rules_) list.push_back(std::move(rule));
    std::stable_sort(list.begin(), list.end(),
                     [](const auto& a, const auto& b) { return a.layouts > b.layouts; });
    return list;
  }

 private:
  std::map<std::string, BrokenRule> rules_;
};

// Threads of the host, which only CPUs' memory depends on.
constexpr int kThreads = 1;

// What a rank has for its plan.
double AvailableBytes(const v1::JobSpec& job, const cost::ClusterModel& cluster,
                      const v1::Layout& layout) {
  return std::max(0.0, cluster.accelerator.memory_bytes -
                           static_cast<double>(GpuReserveBytes(WithLayout(job, layout), layout)));
}

void AddMemory(const v1::JobSpec& job, const cost::ClusterModel& cluster, RankedLayout* ranked) {
  const v1::JobSpec with = WithLayout(job, ranked->layout);
  ranked->available_bytes = static_cast<int64_t>(AvailableBytes(job, cluster, ranked->layout));
  ranked->memory_bytes = 0;
  for (int stage = 0; stage < ranked->layout.pipeline(); ++stage) {
    // Stages between are alike, and those further back keep fewer micro-batches; but for stages of
    // an encoder, or of its decoder.
    const bool is_between = stage > 1 && stage + 1 < ranked->layout.pipeline();
    if (is_between && job.model().decoder_layers() == 0) continue;
    const int64_t bytes = MemoryOfStage(with, ranked->layout, stage, kThreads).total_bytes();
    ranked->memory_bytes = std::max(ranked->memory_bytes, bytes);
  }
  if (ranked->memory_bytes <= ranked->available_bytes) return;
  constexpr double kGiB = 1 << 30;
  ranked->rejected =
      absl::StrFormat("does not fit in memory: needs %.1f GiB per rank, %.1f GiB are available",
                      static_cast<double>(ranked->memory_bytes) / kGiB,
                      static_cast<double>(ranked->available_bytes) / kGiB);
}

// A bound of a rank's memory that takes no table of divided state: the activations, which do not
// depend on how state is divided, and the state of an equal part of the parameters.
class LeastMemory {
 public:
  explicit LeastMemory(const v1::JobSpec& job)
      : job_(job), parameters_(static_cast<double>(ParameterCount(job.model()))) {}

  double Of(const v1::Layout& layout) {
    return State(layout) + static_cast<double>(Activations(layout));
  }

 private:
  double State(const v1::Layout& layout) const {
    // Sums of gradients and both moments are fp32, and so are the weights that are updated.
    const double value = PrecisionOf(job_).bytes();
    const double master = value < 4 ? 4 : 0;
    const double shards = layout.data();
    double bytes = 0;
    switch (layout.zero_stage()) {
      case 0:
        bytes = value + 4 + master + 8;
        break;
      case 1:
        bytes = value + 4 + (master + 8) / shards;
        break;
      case 2:
        bytes = value + (4 + master + 8) / shards;
        break;
      default:
        bytes = (4 + 4 + 8) / shards;
    }
    return bytes * parameters_ / layout.tensor() / layout.pipeline();
  }

  int64_t Activations(v1::Layout layout) {
    layout.set_zero_stage(0);
    const auto [found, is_new] = activations_.try_emplace(layout.SerializeAsString(), 0);
    if (!is_new) return found->second;
    const v1::MemoryTable table = MemoryOfStage(WithLayout(job_, layout), layout, 0, kThreads);
    for (const v1::Buffer& buffer : table.buffers()) {
      if (buffer.kind() == v1::BUFFER_KIND_ACTIVATION) found->second += buffer.size_bytes();
    }
    return found->second;
  }

  const v1::JobSpec& job_;
  const double parameters_;
  std::map<std::string, int64_t> activations_;
};

bool IsFaster(const RankedLayout& a, const RankedLayout& b) {
  return a.cost.seconds < b.cost.seconds;
}

struct Bounded {
  double least = 0;  // seconds
  v1::Layout layout;
};

// The fastest layouts that fit, of all that were added.
class Ranking {
 public:
  Ranking(const v1::JobSpec& job, const cost::ClusterModel& cluster, const SearchOptions& options,
          SearchResult* result)
      : job_(job), cluster_(cluster), options_(options), result_(*result), least_memory_(job) {}

  // Nothing slower is wanted.
  double worst() const {
    const std::vector<RankedLayout>& fitting = result_.fitting;
    return fitting.size() < options_.most_fitting ? std::numeric_limits<double>::infinity()
                                                  : fitting.back().cost.seconds;
  }

  void Add(RankedLayout ranked) {
    if (ranked.cost.seconds > worst()) return;
    // Only the fastest of those that are too large are shown.
    const bool is_shown = result_.too_large.size() < options_.most_too_large ||
                          IsFaster(ranked, result_.too_large.back());
    if (!is_shown &&
        least_memory_.Of(ranked.layout) > AvailableBytes(job_, cluster_, ranked.layout)) {
      return;
    }
    AddMemory(job_, cluster_, &ranked);
    const bool fits = ranked.rejected.empty();
    std::vector<RankedLayout>& list = fits ? result_.fitting : result_.too_large;
    list.insert(std::upper_bound(list.begin(), list.end(), ranked, IsFaster), std::move(ranked));
    const size_t most = fits ? options_.most_fitting : options_.most_too_large;
    if (list.size() > most) list.pop_back();
  }

 private:
  const v1::JobSpec& job_;
  const cost::ClusterModel& cluster_;
  const SearchOptions& options_;
  SearchResult& result_;
  LeastMemory least_memory_;
};

// Whether the tensor degree divides what it has to, which all layouts with it share.
bool TensorDivides(const v1::JobSpec& job, int tensor) {
  const std::vector<model::DividedSize> sizes =
      model::SizesThatTensorDivides(model::ArchitectureOf(job.model()));
  return std::all_of(sizes.begin(), sizes.end(),
                     [&](const model::DividedSize& each) { return each.size % tensor == 0; });
}

}  // namespace

v1::JobSpec WithLayout(v1::JobSpec job, const v1::Layout& layout) {
  v1::ParallelismSpec* wanted = job.mutable_parallelism();
  wanted->set_automatic(false);
  wanted->set_tensor(layout.tensor());
  wanted->set_pipeline(layout.pipeline());
  wanted->set_virtual_pipeline(layout.virtual_pipeline());
  wanted->set_context_parallel(layout.context_parallel());
  wanted->set_data(layout.data());
  wanted->set_schedule(layout.schedule());
  wanted->set_sequence_parallel(layout.sequence_parallel());
  wanted->set_tensor_overlap(layout.tensor_overlap());
  wanted->set_zero_stage(layout.zero_stage());
  wanted->set_recompute(layout.recompute());
  wanted->set_shard(layout.shard());
  wanted->set_reshard_after_forward(layout.reshard_after_forward());
  if (layout.has_prefetch()) wanted->set_prefetch(layout.prefetch());
  job.mutable_training()->set_micro_batch(layout.micro_batch());
  job.mutable_resources()->set_ranks(WorldSize(layout));
  return job;
}

std::vector<v1::Layout> SpaceOf(const v1::JobSpec& job, const cost::ClusterModel& cluster) {
  std::vector<v1::Layout> layouts;
  if (!job.parallelism().automatic()) {
    if (absl::StatusOr<v1::Layout> named = LayoutOfJob(job); named.ok()) {
      layouts.push_back(*std::move(named));
    }
    return layouts;
  }
  const int devices = cluster.devices();
  const int layers = model::LayersOf(job.model());
  for (const int tensor : DivisorsOf(devices, devices)) {
    const bool divides = TensorDivides(job, tensor);
    for (const int pipeline : DivisorsOf(devices / tensor, layers)) {
      // Stages have equally many layers.
      if (layers % pipeline != 0) continue;
      v1::Layout degrees;
      degrees.set_tensor(tensor);
      degrees.set_pipeline(pipeline);
      degrees.set_context_parallel(1);
      degrees.set_data(devices / tensor / pipeline);
      SetChoices(job, &degrees);
      Choices(job, degrees, &layouts).Add();
      // One of them is enough to say why it is none.
      if (!divides && !layouts.empty()) break;
    }
    if (divides) continue;
    while (layouts.size() > 1 && layouts[layouts.size() - 2].tensor() == tensor) layouts.pop_back();
  }
  return layouts;
}

RankedLayout Assess(const v1::JobSpec& job, const v1::Layout& layout,
                    const cost::ClusterModel& cluster, const cost::Recipe& recipe,
                    cost::PipelineWalks* walks) {
  RankedLayout ranked;
  ranked.layout = layout;
  ranked.cost = cost::CostOfStep({job, layout, cluster, recipe}, walks);
  AddMemory(job, cluster, &ranked);
  return ranked;
}

SearchResult SearchLayouts(const v1::JobSpec& job, const cost::ClusterModel& cluster,
                           const cost::Recipe& recipe, const SearchOptions& options) {
  SearchResult result;
  BrokenRules broken;
  cost::PipelineWalks walks;
  // By a bound of their time, which takes much less than the time itself.
  std::vector<Bounded> legal;
  for (v1::Layout& layout : SpaceOf(job, cluster)) {
    if (options.accepts && !options.accepts(layout)) continue;
    ++result.considered;
    const absl::Status status = CheckLayout(WithLayout(job, layout), layout, cluster.devices());
    if (!status.ok()) {
      broken.Add(status);
      continue;
    }
    const double least = cost::LeastSecondsOfStep({job, layout, cluster, recipe});
    legal.push_back({least, std::move(layout)});
  }
  result.broken = broken.Take();
  // Equally fast ones stay in the order of the space.
  std::stable_sort(legal.begin(), legal.end(),
                   [](const Bounded& a, const Bounded& b) { return a.least < b.least; });
  Ranking ranking(job, cluster, options, &result);
  for (const Bounded& candidate : legal) {
    // Everything behind it takes longer than all that are wanted.
    if (candidate.least > ranking.worst()) break;
    RankedLayout ranked;
    ranked.layout = candidate.layout;
    ranked.cost = cost::CostOfStep({job, candidate.layout, cluster, recipe}, &walks);
    ranking.Add(std::move(ranked));
  }
  return result;
}

}  // namespace tercio::plan

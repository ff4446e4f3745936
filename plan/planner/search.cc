#include "plan/planner/search.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/architecture.h"
#include "plan/gpu_reserve.h"
#include "plan/memory_map.h"
#include "plan/offload.h"
#include "plan/plan_builder.h"
#include "plan/planner/cost/node_groups.h"
#include "plan/planner/offload_choice.h"
#include "plan/preference.h"
#include "plan/rank_layout.h"
#include "plan/stage_layers.h"

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

// Sizes of the groups of data ranks that divide the state among them; 0: all data ranks do.
std::vector<int> ShardsOf(const v1::JobSpec& job, const cost::ClusterModel& cluster,
                          const v1::Layout& degrees) {
  if (job.parallelism().shard() > 0) return {job.parallelism().shard()};
  std::vector<int> groups;
  for (int ranks = std::max(1, cluster.devices_per_node / degrees.tensor()); ranks < degrees.data();
       ranks *= 2) {
    if (ranks > 1 && degrees.data() % ranks == 0) groups.push_back(ranks);
  }
  std::vector<int> shards = {0};
  if (groups.empty()) return shards;
  shards.push_back(groups.front());
  if (groups.size() > 1) shards.push_back(groups[groups.size() / 2]);
  return shards;
}

// Layouts of one set of degrees, with everything else that may be chosen.
class Choices {
 public:
  // `costs`: where the layers of stages are to be balanced, too; else nullptr.
  Choices(const v1::JobSpec& job, const cost::ClusterModel& cluster, v1::Layout degrees,
          cost::StepCosts* costs, std::vector<v1::Layout>* out)
      : job_(job),
        shards_(ShardsOf(job, cluster, degrees)),
        degrees_(std::move(degrees)),
        costs_(costs),
        out_(*out) {}

  void Add() {
    const int64_t batch = job_.training().global_batch();
    if (batch % degrees_.data() != 0) return;
    const int64_t share = batch / degrees_.data();
    std::vector<int> micro_batches = DivisorsOf(share, kMostMicroBatch);
    if (job_.training().micro_batch() > 0) {
      micro_batches = {static_cast<int>(job_.training().micro_batch())};
    }
    const int together = SequencesTogether(job_.training());
    for (const int micro_batch : micro_batches) {
      if (share % micro_batch != 0 || micro_batch % together != 0) continue;
      degrees_.set_micro_batch(micro_batch);
      degrees_.set_micro_batches(static_cast<int32_t>(share / micro_batch));
      AddChunks();
    }
  }

 private:
  void AddChunks() {
    const int layers = model::LayersOf(job_.model());
    const int of_stage = layers / degrees_.pipeline();
    // Chunks are of equally many layers; stages need not be.
    const bool has_chunks = degrees_.pipeline() > 1 && layers % degrees_.pipeline() == 0;
    const std::vector<int> chunks =
        has_chunks ? DivisorsOf(of_stage, kMostChunks) : std::vector<int>{1};
    for (const int count : chunks) {
      if (count > 1 && degrees_.micro_batches() % degrees_.pipeline() != 0) continue;
      degrees_.set_virtual_pipeline(count);
      SetStageLayers(job_, &degrees_);
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
        AddDivisions();
        AddBalanced();
      }
    }
  }

  void AddBalanced() {
    if (costs_ == nullptr || degrees_.pipeline() == 1 || job_.model().decoder_layers() > 0) return;
    const v1::Layout before = degrees_;
    const std::vector<int> balanced = costs_->Balanced(degrees_);
    if (balanced == LayersOfPlaces(model::LayersOf(job_.model()), degrees_)) return;
    *degrees_.mutable_stage_layers() = {balanced.begin(), balanced.end()};
    if (CheckStageLayers(job_.model(), degrees_).ok()) AddDivisions();
    degrees_ = before;
  }

  void AddDivisions() {
    degrees_.set_zero_stage(0);
    degrees_.set_shard(job_.parallelism().shard());
    out_.push_back(degrees_);
    for (int stage = 1; degrees_.data() > 1 && stage <= 3; ++stage) {
      degrees_.set_zero_stage(stage);
      for (const int shard : shards_) {
        degrees_.set_shard(shard);
        out_.push_back(degrees_);
      }
    }
  }

  const v1::JobSpec& job_;
  const std::vector<int> shards_;
  v1::Layout degrees_;
  cost::StepCosts* const costs_;
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

const RankMemory& OfStage(const std::vector<RankMemory>& available, int stage) {
  return available[available.size() > 1 ? static_cast<size_t>(stage) : 0];
}

// Stages whose memory is that of the rank which needs most: those between are alike, and those
// further back keep fewer micro-batches; but for stages of an encoder, or of its decoder, for
// those that have layers of their own number, and for those on nodes of several kinds.
std::vector<int> StagesThatDiffer(const v1::JobSpec& job, const v1::Layout& layout,
                                  bool is_one_kind) {
  std::vector<int> stages;
  const bool are_alike =
      is_one_kind && job.model().decoder_layers() == 0 && layout.stage_layers().empty();
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    const bool is_between = stage > 1 && stage + 1 < layout.pipeline();
    if (!is_between || !are_alike) stages.push_back(stage);
  }
  return stages;
}

// Device and host of the ranks that lack most of each, or have least left.
class Fit {
 public:
  void Add(const RankMemory& needed, const RankMemory& available) {
    if (is_empty_ || needed.device - available.device > needed_.device - available_.device) {
      needed_.device = needed.device;
      available_.device = available.device;
    }
    if (is_empty_ ||
        needed.host - LimitOf(available.host) > needed_.host - LimitOf(available_.host)) {
      needed_.host = needed.host;
      available_.host = available.host;
    }
    is_empty_ = false;
  }
  bool fits_device() const { return needed_.device <= available_.device; }
  bool fits() const { return fits_device() && needed_.host <= LimitOf(available_.host); }
  const RankMemory& needed() const { return needed_; }
  const RankMemory& available() const { return available_; }

 private:
  static int64_t LimitOf(int64_t host) {
    return host == 0 ? std::numeric_limits<int64_t>::max() : host;
  }

  bool is_empty_ = true;
  RankMemory needed_;
  RankMemory available_;
};

RankMemory NeededBy(const v1::MemoryTable& table) {
  return {.device = table.total_bytes(), .host = table.host_bytes()};
}

void SetMemory(const Fit& fit, RankedLayout* ranked) {
  const RankMemory& needed = fit.needed();
  const RankMemory& available = fit.available();
  ranked->memory_bytes = needed.device;
  ranked->available_bytes = available.device;
  ranked->host_bytes = needed.host;
  ranked->host_available_bytes = available.host;
  if (fit.fits()) return;
  constexpr double kGiB = 1 << 30;
  const bool is_device = needed.device > available.device;
  ranked->rejected =
      absl::StrFormat("does not fit in memory%s: needs %.1f GiB per rank, %.1f GiB are available",
                      is_device ? "" : " of the host",
                      static_cast<double>(is_device ? needed.device : needed.host) / kGiB,
                      static_cast<double>(is_device ? available.device : available.host) / kGiB);
}

// The order of the result: equally fast layouts stay in that of the space.
struct Candidate {
  double least = 0;  // seconds
  size_t place = 0;  // in the space

  bool operator>(const Candidate& other) const {
    return std::tie(least, place) > std::tie(other.least, other.place);
  }
};
struct Placed {
  RankedLayout ranked;
  size_t place = 0;

  bool operator<(const Placed& other) const {
    return std::tie(ranked.cost.seconds, place) < std::tie(other.ranked.cost.seconds, other.place);
  }
};

// The fastest ones of what was added, up to a number of them.
class Fastest {
 public:
  explicit Fastest(size_t most) : most_(most) {}

  // Nothing slower is wanted.
  double worst() const {
    if (list_.size() < most_) return std::numeric_limits<double>::infinity();
    return list_.empty() ? -1 : list_.back().ranked.cost.seconds;
  }
  void Add(Placed placed) {
    list_.insert(std::upper_bound(list_.begin(), list_.end(), placed), std::move(placed));
    if (list_.size() > most_) list_.pop_back();
  }
  // Those that take no more than so many seconds.
  std::vector<RankedLayout> Take(double most_seconds) {
    std::vector<RankedLayout> taken;
    for (Placed& placed : list_) {
      if (placed.ranked.cost.seconds <= most_seconds) taken.push_back(std::move(placed.ranked));
    }
    return taken;
  }

 private:
  const size_t most_;
  std::vector<Placed> list_;
};

// Bounds and times are sums of the same numbers in different orders.
constexpr double kRounding = 1e-12;

class Search {
 public:
  Search(const v1::JobSpec& job, const cost::ClusterModel& cluster, const cost::Recipe& recipe,
         const SearchOptions& options)
      : job_(job),
        cluster_(cluster),
        divided_(model::SizesThatTensorDivides(model::ArchitectureOf(job.model()))),
        costs_(job, cluster, recipe),
        tables_(job),
        offload_(job),
        offloaded_tables_(offload_.job()),
        fitting_(options.most_fitting),
        too_large_(options.most_too_large) {}

  absl::Status Check(const v1::Layout& layout) const {
    return CheckLayout(job_, layout, cluster_.devices(), divided_);
  }

  double LeastSeconds(const v1::Layout& layout) {
    ++work_.bounds;
    return costs_.Least(layout) * (1 - kRounding);
  }

  // False: neither it nor what takes longer is wanted. Candidates come in the order of `least`.
  bool Judge(const v1::Layout& layout, const Candidate& candidate) {
    if (candidate.least > fitting_.worst()) return false;
    // Only the fastest of those that are too large are shown.
    const bool may_be_shown = candidate.least <= too_large_.worst();
    std::optional<Fit> fit;
    if (!may_be_shown) {
      fit = FitOf(&tables_, layout, /*whole=*/false);
      if (!fit->fits()) {
        ConsiderOffload(layout, candidate.place);
        return true;
      }
    }
    Placed placed = {.place = candidate.place};
    placed.ranked.layout = layout;
    placed.ranked.cost = costs_.Of(layout);
    ++work_.steps;
    const double seconds = placed.ranked.cost.seconds;
    if (seconds > fitting_.worst()) return true;
    const bool is_shown = seconds <= too_large_.worst();
    if (!fit.has_value()) fit = FitOf(&tables_, layout, is_shown);
    SetMemory(*fit, &placed.ranked);
    if (!fit->fits()) ConsiderOffload(layout, candidate.place);
    if (fit->fits() || is_shown) (fit->fits() ? fitting_ : too_large_).Add(std::move(placed));
    return true;
  }

  // Judges those that ConsiderOffload has found and whose bound is not above `until`. Like others
  // they are judged in the order of their bounds.
  void JudgeOffloaded(const std::vector<v1::Layout>& space, double until) {
    while (!offloaded_.empty() && offloaded_.top().least <= until) {
      const Candidate candidate = offloaded_.top();
      offloaded_.pop();
      if (candidate.least > fitting_.worst()) continue;
      const v1::Layout& layout = space[candidate.place];
      Fit fit;
      const int parts = OffloadChoice::Fewest([&](int part) {
        const Fit of_part = FitOf(&offloaded_tables_, OffloadChoice::With(layout, part), false);
        if (of_part.fits_device()) fit = of_part;
        return of_part.fits_device();
      });
      // The last ones that fit are the fewest. The host has more of it with more of them.
      if (parts == 0 || !fit.fits()) continue;
      Placed placed = {.place = candidate.place};
      placed.ranked.layout = OffloadChoice::With(layout, parts);
      placed.ranked.cost = costs_.Of(placed.ranked.layout);
      ++work_.steps;
      if (placed.ranked.cost.seconds > fitting_.worst()) continue;
      SetMemory(fit, &placed.ranked);
      fitting_.Add(std::move(placed));
    }
  }

  void Take(SearchResult* result) {
    result->too_large = too_large_.Take(fitting_.worst());
    result->fitting = fitting_.Take(std::numeric_limits<double>::infinity());
    work_.walks = costs_.played();
    result->work = work_;
  }

 private:
  // Not `whole`: where a device lacks memory any one that does is enough.
  Fit FitOf(MemoryTables* tables, const v1::Layout& layout, bool whole) {
    const std::vector<RankMemory> available = AvailableTo(job_, cluster_, layout);
    Fit fit;
    fit.Add({.device = tables->LeastOfStage(layout, 0)}, OfStage(available, 0));
    for (const int stage : StagesThatDiffer(job_, layout, cluster_.groups.empty())) {
      if (!whole && !fit.fits_device()) break;
      ++work_.tables;
      fit.Add(NeededBy(tables->OfStage(layout, stage, kThreads)), OfStage(available, stage));
    }
    return fit;
  }

  // Keeps a layout that does not fit for JudgeOffloaded, if it may fit with state on the host and
  // be among the fastest.
  void ConsiderOffload(const v1::Layout& layout, size_t place) {
    if (!offload_.IsOpen(layout)) return;
    const v1::Layout whole = OffloadChoice::With(layout, kOffloadParts);
    const RankMemory available = OfStage(AvailableTo(job_, cluster_, layout), 0);
    if (offloaded_tables_.LeastOfStage(whole, 0) > available.device) return;
    const double least = LeastSeconds(OffloadChoice::With(layout, 1));
    if (least <= fitting_.worst()) offloaded_.push({.least = least, .place = place});
  }

  const v1::JobSpec& job_;
  const cost::ClusterModel& cluster_;
  const std::vector<model::DividedSize> divided_;
  cost::StepCosts costs_;
  MemoryTables tables_;
  const OffloadChoice offload_;
  MemoryTables offloaded_tables_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> offloaded_;
  Fastest fitting_;
  Fastest too_large_;
  SearchWork work_;
};

// Whether the tensor degree divides what it has to, which all layouts with it share.
bool TensorDivides(const v1::JobSpec& job, int tensor) {
  const std::vector<model::DividedSize> sizes =
      model::SizesThatTensorDivides(model::ArchitectureOf(job.model()));
  return std::all_of(sizes.begin(), sizes.end(),
                     [&](const model::DividedSize& each) { return each.size % tensor == 0; });
}

}  // namespace

std::vector<RankMemory> AvailableTo(const v1::JobSpec& job, const cost::ClusterModel& cluster,
                                    const v1::Layout& layout) {
  const auto reserve = static_cast<double>(GpuReserveBytes(job, layout));
  const auto of_nodes = [&](const cost::ClusterModel& nodes) {
    const double device = std::max(0.0, nodes.accelerator.memory_bytes - reserve);
    return RankMemory{
        .device = static_cast<int64_t>(device),
        .host = static_cast<int64_t>(nodes.host.memory_bytes / nodes.devices_per_node)};
  };
  if (cluster.groups.empty()) return {of_nodes(cluster)};
  std::vector<RankMemory> available;
  const int ranks = WorldSize(layout) / layout.pipeline();
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    const cost::GroupRange range = cost::GroupsOfRanks(cluster, stage * ranks, ranks);
    RankMemory least = of_nodes(cluster.groups[static_cast<size_t>(range.first)]);
    for (int i = range.first + 1; i <= range.last; ++i) {
      const RankMemory other = of_nodes(cluster.groups[static_cast<size_t>(i)]);
      least.device = std::min(least.device, other.device);
      least.host = std::min(least.host, other.host);
    }
    available.push_back(least);
  }
  return available;
}

v1::JobSpec WithLayout(v1::JobSpec job, const v1::Layout& layout) {
  v1::ParallelismSpec* wanted = job.mutable_parallelism();
  wanted->set_automatic(false);
  wanted->set_tensor(layout.tensor());
  wanted->set_pipeline(layout.pipeline());
  wanted->set_virtual_pipeline(layout.virtual_pipeline());
  *wanted->mutable_stage_layers() = layout.stage_layers();
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
  if (layout.offload_share() > kLeastShare) {
    job.mutable_offload()->set_optimizer(OptimizerTierOf(job, layout));
  }
  job.mutable_training()->set_micro_batch(layout.micro_batch());
  job.mutable_resources()->set_ranks(WorldSize(layout));
  return job;
}

std::vector<v1::Layout> SpaceOf(const v1::JobSpec& job, const cost::ClusterModel& cluster,
                                const cost::Recipe& recipe) {
  std::vector<v1::Layout> layouts;
  if (!job.parallelism().automatic()) {
    if (absl::StatusOr<v1::Layout> named = LayoutOfJob(job); named.ok()) {
      layouts.push_back(*std::move(named));
    }
    return layouts;
  }
  std::optional<cost::StepCosts> costs;
  if (!cluster.groups.empty()) costs.emplace(job, cluster, recipe);
  const int devices = cluster.devices();
  const int layers = model::LayersOf(job.model());
  for (const int tensor : DivisorsOf(devices, devices)) {
    const bool divides = TensorDivides(job, tensor);
    for (const int pipeline : DivisorsOf(devices / tensor, layers)) {
      v1::Layout degrees;
      degrees.set_tensor(tensor);
      degrees.set_pipeline(pipeline);
      degrees.set_context_parallel(1);
      degrees.set_data(devices / tensor / pipeline);
      SetChoices(job, &degrees);
      Choices(job, cluster, degrees, costs.has_value() ? &*costs : nullptr, &layouts).Add();
      // One of them is enough to say why it is none.
      if (!divides && !layouts.empty()) break;
    }
    if (divides) continue;
    while (layouts.size() > 1 && layouts[layouts.size() - 2].tensor() == tensor) layouts.pop_back();
  }
  return layouts;
}

RankedLayout Assess(const v1::JobSpec& job, const v1::Layout& layout,
                    const cost::ClusterModel& cluster, const cost::Recipe& recipe) {
  RankedLayout ranked;
  ranked.layout = layout;
  ranked.cost = cost::CostOfStep(job, layout, cluster, recipe);
  const std::vector<RankMemory> available = AvailableTo(job, cluster, layout);
  Fit fit;
  for (const int stage : StagesThatDiffer(job, layout, cluster.groups.empty())) {
    fit.Add(NeededBy(MemoryOfStage(job, layout, stage, kThreads)), OfStage(available, stage));
  }
  SetMemory(fit, &ranked);
  return ranked;
}

namespace {

// With the groups of nodes in the order of the cluster.
SearchResult SearchOneOrder(const v1::JobSpec& job, const cost::ClusterModel& cluster,
                            const cost::Recipe& recipe, const SearchOptions& options) {
  SearchResult result;
  BrokenRules broken;
  Search search(job, cluster, recipe, options);
  const std::vector<v1::Layout> space = SpaceOf(job, cluster, recipe);
  std::vector<Candidate> candidates;
  for (size_t place = 0; place < space.size(); ++place) {
    const v1::Layout& layout = space[place];
    if (options.accepts && !options.accepts(layout)) continue;
    ++result.considered;
    if (const absl::Status status = search.Check(layout); !status.ok()) {
      broken.Add(status);
      continue;
    }
    candidates.push_back({.least = search.LeastSeconds(layout), .place = place});
  }
  result.broken = broken.Take();
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.least, a.place) < std::tie(b.least, b.place);
  });
  for (const Candidate& candidate : candidates) {
    search.JudgeOffloaded(space, candidate.least);
    if (!search.Judge(space[candidate.place], candidate)) break;
  }
  search.JudgeOffloaded(space, std::numeric_limits<double>::infinity());
  search.Take(&result);
  return result;
}

// Moves the fastest of both lists into `into`; equally fast ones stay in the order of the orders.
void Join(std::vector<RankedLayout> more, size_t most, std::vector<RankedLayout>* into) {
  into->insert(into->end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  std::stable_sort(into->begin(), into->end(), [](const RankedLayout& a, const RankedLayout& b) {
    return a.cost.seconds < b.cost.seconds;
  });
  if (into->size() > most) into->resize(most);
}

// What was found in each order of the nodes.
SearchResult Merge(std::vector<SearchResult> results, const SearchOptions& options) {
  SearchResult all;
  // Which rules a layout breaks does not depend on the order.
  all.broken = std::move(results.front().broken);
  for (SearchResult& result : results) {
    Join(std::move(result.fitting), options.most_fitting, &all.fitting);
    Join(std::move(result.too_large), options.most_too_large, &all.too_large);
    all.considered += result.considered;
    all.work.bounds += result.work.bounds;
    all.work.steps += result.work.steps;
    all.work.walks += result.work.walks;
    all.work.tables += result.work.tables;
  }
  if (all.fitting.size() == options.most_fitting && !all.fitting.empty()) {
    const double worst = all.fitting.back().cost.seconds;
    std::erase_if(all.too_large,
                  [&](const RankedLayout& ranked) { return ranked.cost.seconds > worst; });
  }
  return all;
}

}  // namespace

SearchResult SearchLayouts(const v1::JobSpec& job, const cost::ClusterModel& cluster,
                           const cost::Recipe& recipe, const SearchOptions& options) {
  if (cluster.groups.empty()) return SearchOneOrder(job, cluster, recipe, options);
  std::vector<SearchResult> results;
  for (const std::vector<int>& order : cost::OrdersOf(cluster)) {
    SearchResult& result =
        results.emplace_back(SearchOneOrder(job, cost::InOrder(cluster, order), recipe, options));
    for (RankedLayout& ranked : result.fitting) ranked.order = order;
    for (RankedLayout& ranked : result.too_large) ranked.order = order;
  }
  return Merge(std::move(results), options);
}

}  // namespace tercio::plan

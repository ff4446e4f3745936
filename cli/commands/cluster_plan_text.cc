// What a plan on a cluster looks like: tables for people, JSON for programs.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands/cluster_plan.h"
#include "cli/format.h"
#include "cli/text.h"
#include "model/architecture.h"
#include "plan/memory_map.h"
#include "plan/names.h"
#include "plan/offload.h"
#include "plan/planner/cluster.h"
#include "plan/planner/cost/node_groups.h"
#include "plan/stage_layers.h"
#include "plan/state_shards.h"

namespace tercio::cli {
namespace {

using nlohmann::ordered_json;
using plan::RankedLayout;
using plan::cost::StepCost;
using Rows = std::vector<std::vector<std::string>>;

constexpr double kGiB = 1 << 30;

struct TimePart {
  const char* key;
  const char* name;
  double StepCost::*seconds;
};
constexpr TimePart kTimeParts[] = {
    {"compute", "compute", &StepCost::compute},
    {"tensor_communication", "sums over tensor ranks", &StepCost::tensor_communication},
    {"recompute", "recomputation", &StepCost::recompute},
    {"pipeline_bubble", "pipeline bubble", &StepCost::pipeline_bubble},
    {"pipeline_transfers", "messages between stages", &StepCost::pipeline_transfers},
    {"data_exposed", "exchange of data ranks, not hidden", &StepCost::data_exposed},
    {"optimizer", "optimizer", &StepCost::optimizer},
    {"offload", "state on the host", &StepCost::offload},
    {"other", "other", &StepCost::other}};

// The mean over the GPUs.
double PeakOf(const plan::cost::ClusterModel& cluster, const v1::TrainingSpec& training) {
  if (cluster.groups.empty()) return plan::PeakOf(cluster.accelerator, training);
  double all = 0;
  for (const plan::cost::ClusterModel& group : cluster.groups) {
    all += group.devices() * plan::PeakOf(group.accelerator, training);
  }
  return all / cluster.devices();
}

double Utilisation(const ClusterPlan& plan, const RankedLayout& ranked) {
  const double peak = PeakOf(plan.file.cluster, plan.job.training());
  return peak > 0 ? ranked.cost.model_flops / peak : 0;
}

int RanksOf(const v1::Layout& layout) {
  return layout.tensor() * layout.pipeline() * layout.data();
}

// The part of the optimizer's state that lies on the host: "1/8".
std::string OffloadText(const ClusterPlan& plan, const v1::Layout& layout) {
  const v1::JobSpec job = plan::WithLayout(plan.job, layout);
  const double parts = plan::kOffloadParts * plan::OffloadedShare(job, layout);
  if (parts <= 0) return "no";
  if (parts >= plan::kOffloadParts) return "all";
  return absl::StrFormat("%g/%d", parts, plan::kOffloadParts);
}

std::string Degrees(const ClusterPlan& plan, const v1::Layout& layout) {
  std::string text = absl::StrCat(layout.tensor(), "x", layout.pipeline(), "x", layout.data(),
                                  ",micro_batch=", layout.micro_batch());
  if (layout.virtual_pipeline() > 1) {
    absl::StrAppend(&text, ",virtual_pipeline=", layout.virtual_pipeline());
  }
  if (!layout.stage_layers().empty()) {
    absl::StrAppend(&text, " (", plan::StageLayersText(layout), ")");
  }
  if (layout.zero_stage() > 0) absl::StrAppend(&text, ",zero_stage=", layout.zero_stage());
  if (plan::ReplicasOf(layout) > 1) absl::StrAppend(&text, ",shard=", layout.shard());
  if (layout.recompute() != v1::RECOMPUTE_NONE) {
    absl::StrAppend(&text, ",recompute=", plan::TextOf(layout.recompute()));
  }
  if (layout.sequence_parallel()) absl::StrAppend(&text, ",sequence_parallel=true");
  if (layout.offload_share() > 0) {
    absl::StrAppend(&text, " (", OffloadText(plan, layout),
                    " of the optimizer's state on the host)");
  }
  return text;
}

std::string Seconds(double seconds) { return absl::StrFormat("%.3f s", seconds); }
std::string GiB(double bytes) { return absl::StrFormat("%.1f GiB", bytes / kGiB); }
std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

// A run of plan.tokens tokens.
struct RunCost {
  double days = 0;
  double device_hours = 0;
};
RunCost CostOf(const ClusterPlan& plan, const RankedLayout& ranked) {
  const double seconds = plan.tokens / ranked.cost.tokens_per_second;
  return {seconds / 86400, seconds / 3600 * RanksOf(ranked.layout)};
}

void AddRow(const ClusterPlan& plan, const RankedLayout& ranked, const char* mark, Rows* rows) {
  const v1::Layout& layout = ranked.layout;
  rows->push_back({mark, absl::StrCat(layout.tensor()), PipelineText(layout),
                   absl::StrCat(std::max(1, layout.virtual_pipeline())),
                   absl::StrCat(layout.data()), absl::StrCat(layout.micro_batch()),
                   absl::StrCat(layout.zero_stage()), absl::StrCat(plan::ShardRanks(layout)),
                   plan::TextOf(layout.recompute()), layout.sequence_parallel() ? "yes" : "no",
                   OffloadText(plan, layout), Seconds(ranked.cost.seconds),
                   absl::StrFormat("%.0f", ranked.cost.tokens_per_second),
                   Percent(Utilisation(plan, ranked)),
                   GiB(static_cast<double>(ranked.memory_bytes)), ranked.rejected});
}

std::string LayoutsText(const ClusterPlan& plan) {
  Rows rows = {{"", "TENSOR", "PIPELINE", "CHUNKS", "DATA", "MICRO-BATCH", "ZERO", "SHARD",
                "RECOMPUTE", "SEQUENCE PARALLEL", "OFFLOAD", "STEP", "TOKENS/S", "MFU", "MEMORY",
                "NOTE"}};
  for (size_t i = 0; i < plan.found.fitting.size(); ++i) {
    AddRow(plan, plan.found.fitting[i], i == 0 ? "*" : "", &rows);
  }
  for (const RankedLayout& ranked : plan.found.too_large) AddRow(plan, ranked, "", &rows);
  std::string text = Table(rows);
  absl::StrAppend(&text, "\n", plan.found.considered, " layouts considered");
  for (const plan::BrokenRule& broken : plan.found.broken) {
    absl::StrAppend(&text, "\n  ", broken.layouts, " rejected, such as: ", broken.rule);
  }
  return text + "\n";
}

std::string StepPartsText(const ClusterPlan& plan, const std::vector<RankedLayout>& layouts) {
  std::vector<std::string> head = {"TIME OF A STEP"};
  for (const RankedLayout& ranked : layouts) head.push_back(Degrees(plan, ranked.layout));
  Rows rows = {head};
  for (const TimePart& part : kTimeParts) {
    std::vector<std::string> row = {part.name};
    for (const RankedLayout& ranked : layouts) {
      const double seconds = ranked.cost.*part.seconds;
      row.push_back(absl::StrCat(Seconds(seconds), "  ", Percent(seconds / ranked.cost.seconds)));
    }
    rows.push_back(std::move(row));
  }
  std::vector<std::string> total = {"total"};
  for (const RankedLayout& ranked : layouts) total.push_back(Seconds(ranked.cost.seconds));
  rows.push_back(std::move(total));
  return Table(rows);
}

v1::MemoryTable TableOfStage(const ClusterPlan& plan, const v1::Layout& layout, int stage) {
  return plan::MemoryOfStage(plan::WithLayout(plan.job, layout), layout, stage, /*threads=*/1);
}

// Bytes of the device by kind of buffer.
std::map<v1::BufferKind, int64_t> BytesOfDevice(const v1::MemoryTable& table) {
  std::map<v1::BufferKind, int64_t> bytes;
  for (const v1::Buffer& buffer : table.buffers()) {
    if (!buffer.on_host() && !buffer.on_disk()) bytes[buffer.kind()] += buffer.size_bytes();
  }
  return bytes;
}

constexpr int kMostStagesToShow = 8;
std::vector<int> StagesToShow(const RankedLayout& ranked) {
  const v1::Layout& layout = ranked.layout;
  if (layout.pipeline() == 1) return {0};
  std::vector<int> stages = {0, layout.pipeline() - 1};
  // Without stage_layers, and on nodes of one kind, those between have no more than the first.
  const bool are_alike = layout.stage_layers().empty() && ranked.order.empty();
  if (are_alike || layout.pipeline() > kMostStagesToShow) return stages;
  stages.resize(static_cast<size_t>(layout.pipeline()));
  std::iota(stages.begin(), stages.end(), 0);
  return stages;
}

std::string MemoryText(const ClusterPlan& plan, const RankedLayout& ranked) {
  std::vector<std::string> head = {"MEMORY OF A RANK"};
  std::map<v1::BufferKind, std::vector<int64_t>> kinds;
  std::vector<std::string> on_host = {"on the host"};
  const std::vector<int> stages = StagesToShow(ranked);
  for (size_t i = 0; i < stages.size(); ++i) {
    head.push_back(absl::StrCat("STAGE ", stages[i]));
    const v1::MemoryTable table = TableOfStage(plan, ranked.layout, stages[i]);
    on_host.push_back(GiB(static_cast<double>(table.host_bytes())));
    for (const auto& [kind, bytes] : BytesOfDevice(table)) {
      kinds[kind].resize(stages.size());
      kinds[kind][i] = bytes;
    }
  }
  Rows rows = {head};
  for (const auto& [kind, bytes] : kinds) {
    if (std::all_of(bytes.begin(), bytes.end(), [](int64_t b) { return b == 0; })) continue;
    std::vector<std::string> row = {plan::BufferKindText(kind)};
    for (const int64_t of_stage : bytes) row.push_back(GiB(static_cast<double>(of_stage)));
    rows.push_back(std::move(row));
  }
  std::vector<std::string> available = {"available"};
  std::vector<std::string> available_on_host = {"available on the host"};
  const std::vector<plan::RankMemory> of_stages =
      plan::AvailableTo(plan.job, ClusterOf(plan, ranked), ranked.layout);
  for (const int stage : of_stages.size() == 1 ? std::vector<int>{0} : stages) {
    const plan::RankMemory& memory = of_stages[static_cast<size_t>(stage)];
    available.push_back(GiB(static_cast<double>(memory.device)));
    available_on_host.push_back(GiB(static_cast<double>(memory.host)));
  }
  rows.push_back(std::move(available));
  rows.push_back(std::move(on_host));
  rows.push_back(std::move(available_on_host));
  return Table(rows);
}

// Stages in a row that are on the same kinds of nodes.
struct StageRun {
  int first = 0;
  int last = 0;
  plan::cost::GroupRange groups;
};
std::vector<StageRun> RunsOf(const plan::cost::ClusterModel& cluster, const v1::Layout& layout) {
  std::vector<StageRun> runs;
  const int ranks = layout.tensor() * layout.data();
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    const plan::cost::GroupRange groups = plan::cost::GroupsOfRanks(cluster, stage * ranks, ranks);
    if (runs.empty() || !(runs.back().groups == groups)) runs.push_back({stage, stage, groups});
    runs.back().last = stage;
  }
  return runs;
}

std::string NamesOf(const plan::cost::ClusterModel& cluster, const plan::cost::GroupRange& groups) {
  std::vector<std::string> names;
  for (int i = groups.first; i <= groups.last; ++i) {
    names.push_back(cluster.groups[static_cast<size_t>(i)].name);
  }
  return absl::StrJoin(names, " and ");
}

// Layers of each stage, over its chunks.
std::vector<int> LayersOfStages(const ClusterPlan& plan, const v1::Layout& layout) {
  const std::vector<int> places = plan::LayersOfPlaces(model::LayersOf(plan.job.model()), layout);
  std::vector<int> layers(static_cast<size_t>(layout.pipeline()), 0);
  for (size_t place = 0; place < places.size(); ++place) {
    layers[place % layers.size()] += places[place];
  }
  return layers;
}

std::string PlacementText(const ClusterPlan& plan, const RankedLayout& ranked) {
  const plan::cost::ClusterModel cluster = ClusterOf(plan, ranked);
  const std::vector<int> layers = LayersOfStages(plan, ranked.layout);
  Rows rows = {{"STAGES", "NODES", "GPUS", "LAYERS OF EACH"}};
  for (const StageRun& run : RunsOf(cluster, ranked.layout)) {
    const std::string stages =
        run.first == run.last ? absl::StrCat(run.first) : absl::StrCat(run.first, "-", run.last);
    const int gpus = (run.last - run.first + 1) * ranked.layout.tensor() * ranked.layout.data();
    rows.push_back({stages, NamesOf(cluster, run.groups), absl::StrCat(gpus),
                    absl::StrJoin(layers.begin() + run.first, layers.begin() + run.last + 1, ",")});
  }
  return Table(rows);
}

ordered_json PlacementJson(const ClusterPlan& plan, const RankedLayout& ranked) {
  if (ranked.order.empty()) return nullptr;
  const plan::cost::ClusterModel cluster = ClusterOf(plan, ranked);
  const std::vector<int> layers = LayersOfStages(plan, ranked.layout);
  const int ranks = ranked.layout.tensor() * ranked.layout.data();
  ordered_json stages = ordered_json::array();
  for (int stage = 0; stage < ranked.layout.pipeline(); ++stage) {
    const plan::cost::GroupRange groups = plan::cost::GroupsOfRanks(cluster, stage * ranks, ranks);
    ordered_json names = ordered_json::array();
    for (int i = groups.first; i <= groups.last; ++i) {
      names.push_back(cluster.groups[static_cast<size_t>(i)].name);
    }
    stages.push_back({{"stage", stage},
                      {"first_rank", stage * ranks},
                      {"ranks", ranks},
                      {"nodes", names},
                      {"layers", layers[static_cast<size_t>(stage)]}});
  }
  return stages;
}

std::string CostText(const ClusterPlan& plan, const RankedLayout& ranked) {
  const RunCost cost = CostOf(plan, ranked);
  std::string text = absl::StrFormat("%.4g tokens: %.1f days, %.0f device hours", plan.tokens,
                                     cost.days, cost.device_hours);
  if (plan.file.cost.has_value()) {
    absl::StrAppendFormat(&text, ", %.0f %s", cost.device_hours * plan.file.cost->per_device_hour,
                          plan.file.cost->currency);
  }
  return text + "\n";
}

std::string ScaleText(const ClusterPlan& plan) {
  Rows rows = {{"GPUS", "GLOBAL BATCH", "LAYOUT", "STEP", "TOKENS/S", "PER GPU", "MFU"}};
  double first = 0;
  for (const ScalePoint& point : plan.scale) {
    const std::string devices = absl::StrCat(point.devices);
    const std::string batch = absl::StrCat(point.global_batch);
    if (!point.best.has_value()) {
      rows.push_back({devices, batch, "none fits"});
      continue;
    }
    const double per_device = point.best->cost.tokens_per_second / point.devices;
    if (first == 0) first = per_device;
    rows.push_back({devices, batch, Degrees(plan, point.best->layout),
                    Seconds(point.best->cost.seconds),
                    absl::StrFormat("%.0f", point.best->cost.tokens_per_second),
                    Percent(per_device / first), Percent(Utilisation(plan, *point.best))});
  }
  return Table(rows);
}

std::string LargestText(const ClusterPlan& plan) {
  Rows rows = {
      {"LARGEST MODEL WITH", "LAYOUT", "RECOMPUTE", "PARAMETERS", "LAYERS", "HIDDEN", "MEMORY"}};
  for (const plan::MethodLimit& limit : plan.largest) {
    const v1::Layout& layout = limit.layout;
    std::vector<std::string> row = {
        limit.method, absl::StrCat(layout.tensor(), "x", layout.pipeline(), "x", layout.data()),
        plan::TextOf(layout.recompute())};
    if (limit.largest.has_value()) {
      const plan::LargestModel& largest = *limit.largest;
      row.insert(row.end(),
                 {absl::StrFormat("%.2f B", static_cast<double>(largest.parameters) / 1e9),
                  absl::StrCat(largest.layers), absl::StrCat(largest.hidden),
                  GiB(static_cast<double>(largest.memory_bytes))});
    } else {
      row.push_back("none fits");
    }
    rows.push_back(std::move(row));
  }
  return Table(rows);
}

ordered_json LargestJson(const ClusterPlan& plan) {
  ordered_json list = ordered_json::array();
  for (const plan::MethodLimit& limit : plan.largest) {
    ordered_json json = {{"method", limit.method}, {"layout", LayoutToJson(limit.layout)}};
    json["model"] = nullptr;
    if (limit.largest.has_value()) {
      json["model"] = {{"parameters", limit.largest->parameters},
                       {"layers", limit.largest->layers},
                       {"hidden", limit.largest->hidden},
                       {"memory_bytes_peak", limit.largest->memory_bytes}};
    }
    list.push_back(std::move(json));
  }
  return list;
}

ordered_json TimeJson(const StepCost& cost) {
  ordered_json json;
  for (const TimePart& part : kTimeParts) json[part.key] = cost.*part.seconds;
  return json;
}

ordered_json RankedJson(const ClusterPlan& plan, const RankedLayout& ranked) {
  ordered_json json = LayoutToJson(ranked.layout);
  json["rejected"] = ranked.rejected.empty() ? ordered_json() : ordered_json(ranked.rejected);
  const double chunks = static_cast<double>(ranked.layout.micro_batches()) *
                        std::max(1, ranked.layout.virtual_pipeline());
  json["predicted"] = {{"step_seconds", ranked.cost.seconds},
                       {"tflops_per_gpu", ranked.cost.model_flops / 1e12},
                       {"mfu", Utilisation(plan, ranked)},
                       {"tokens_per_second", ranked.cost.tokens_per_second},
                       {"memory_bytes_peak", ranked.memory_bytes},
                       {"bubble_ratio", (ranked.layout.pipeline() - 1) / chunks}};
  json["memory_bytes_available"] = ranked.available_bytes;
  json["host_bytes"] = ranked.host_bytes;
  json["host_bytes_available"] = ranked.host_available_bytes;
  json["time"] = TimeJson(ranked.cost);
  json["placement"] = PlacementJson(plan, ranked);
  return json;
}

ordered_json MemoryJson(const ClusterPlan& plan, const RankedLayout& ranked) {
  ordered_json stages = ordered_json::array();
  for (const int stage : StagesToShow(ranked)) {
    const v1::MemoryTable table = TableOfStage(plan, ranked.layout, stage);
    ordered_json json = {{"stage", stage}};
    for (const auto& [kind, bytes] : BytesOfDevice(table)) {
      json[plan::BufferKindText(kind)] = bytes;
    }
    json["host"] = table.host_bytes();
    stages.push_back(std::move(json));
  }
  return stages;
}

ordered_json CostJson(const ClusterPlan& plan) {
  if (plan.tokens <= 0 || plan.found.fitting.empty()) return nullptr;
  const RunCost cost = CostOf(plan, plan.found.fitting.front());
  ordered_json json = {{"tokens", plan.tokens},
                       {"days", cost.days},
                       {"device_hours", cost.device_hours},
                       {"cost", nullptr},
                       {"currency", nullptr}};
  if (plan.file.cost.has_value()) {
    json["cost"] = cost.device_hours * plan.file.cost->per_device_hour;
    json["currency"] = plan.file.cost->currency;
  }
  return json;
}

}  // namespace

std::string ClusterPlanText(const ClusterPlan& plan) {
  std::string text = LayoutsText(plan);
  std::vector<RankedLayout> explained = plan.compared;
  if (explained.empty() && !plan.found.fitting.empty()) {
    explained.push_back(plan.found.fitting.front());
  }
  if (!explained.empty()) absl::StrAppend(&text, "\n", StepPartsText(plan, explained));
  for (const RankedLayout& ranked : explained) {
    absl::StrAppend(&text, "\n", plan.compared.empty() ? "" : Degrees(plan, ranked.layout) + "\n");
    if (!ranked.order.empty()) absl::StrAppend(&text, PlacementText(plan, ranked), "\n");
    absl::StrAppend(&text, MemoryText(plan, ranked));
  }
  if (plan.tokens > 0 && !plan.found.fitting.empty()) {
    absl::StrAppend(&text, "\n", CostText(plan, plan.found.fitting.front()));
  }
  if (!plan.scale.empty()) absl::StrAppend(&text, "\n", ScaleText(plan));
  if (!plan.largest.empty()) absl::StrAppend(&text, "\n", LargestText(plan));
  return text;
}

ordered_json ClusterPlanJson(const ClusterPlan& plan) {
  ordered_json layouts = ordered_json::array();
  for (const RankedLayout& ranked : plan.found.fitting) layouts.push_back(RankedJson(plan, ranked));
  for (const RankedLayout& ranked : plan.found.too_large) {
    layouts.push_back(RankedJson(plan, ranked));
  }
  ordered_json broken = ordered_json::array();
  for (const plan::BrokenRule& rule : plan.found.broken) {
    broken.push_back({{"rule", rule.rule}, {"layouts", rule.layouts}});
  }
  ordered_json compared = ordered_json::array();
  for (const RankedLayout& ranked : plan.compared) compared.push_back(RankedJson(plan, ranked));
  ordered_json scale = ordered_json::array();
  for (const ScalePoint& point : plan.scale) {
    ordered_json json = {{"devices", point.devices}, {"global_batch", point.global_batch}};
    json["layout"] = point.best.has_value() ? RankedJson(plan, *point.best) : ordered_json();
    scale.push_back(std::move(json));
  }
  const bool fits = !plan.found.fitting.empty();
  return {{"layouts", layouts},
          {"divisions", ordered_json::array()},
          {"chosen", fits ? ordered_json(0) : ordered_json()},
          {"considered", plan.found.considered},
          {"broken_rules", broken},
          {"memory", fits ? MemoryJson(plan, plan.found.fitting.front()) : ordered_json()},
          {"run", CostJson(plan)},
          {"compared", compared},
          {"scale", scale},
          {"largest", LargestJson(plan)}};
}

}  // namespace tercio::cli

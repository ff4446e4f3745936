#include "cli/report/configuration.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "config/flat_job.h"
#include "config/parallelism_section.h"
#include "plan/names.h"
#include "plan/numerics.h"
#include "plan/stage_layers.h"
#include "plan/state_shards.h"

namespace tercio::report {
namespace {

// Ranks on each node, e.g. "node-1: 8, node-2: 8", or the number of nodes if there are many.
std::string PlacementText(const v1::Plan& plan) {
  std::map<std::string, int> ranks;
  for (const v1::RankPlacement& rank : plan.ranks()) ++ranks[rank.node()];
  // Names of many nodes differ between any two jobs and explain nothing.
  if (ranks.size() > 4)
    return absl::StrCat(plan.ranks_size(), " ranks on ", ranks.size(), " nodes");
  std::string text;
  for (const auto& [node, count] : ranks) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", node, ": ", count);
  }
  return text;
}

}  // namespace

KeyValues ConfigurationOf(const v1::JobSpec& spec) { return config::FlatJob(spec); }

KeyValues PlanOf(const v1::JobStatus& status) {
  if (!status.has_plan()) return {};
  const v1::Plan& plan = status.plan();
  const v1::Layout& layout = plan.layout();
  KeyValues out = {
      {"ranks", absl::StrCat(plan.ranks_size())},
      {"tensor", absl::StrCat(layout.tensor())},
      {"pipeline", absl::StrCat(layout.pipeline())},
      {"data", absl::StrCat(layout.data())},
      {"virtual_pipeline", absl::StrCat(layout.virtual_pipeline())},
      {"stage_layers", plan::StageLayersText(layout)},
      {"schedule", plan::TextOf(layout.schedule())},
      {"micro_batch", absl::StrCat(layout.micro_batch())},
      {"micro_batches", absl::StrCat(layout.micro_batches())},
      {"sequence_parallel", layout.sequence_parallel() ? "true" : "false"},
      {"zero_stage", absl::StrCat(layout.zero_stage())},
      {"shard", layout.shard() > 0 ? absl::StrCat(layout.shard()) : ""},
      {"reshard_after_forward", config::ReshardText(layout.reshard_after_forward())},
      {"prefetch", absl::StrCat(plan::PrefetchOf(layout))},
      {"offload_share", layout.has_offload_share() ? absl::StrCat(layout.offload_share()) : ""},
      {"recompute", plan::TextOf(layout.recompute())},
      {"lanes", absl::StrCat(plan.lanes())},
      {"numerics", absl::StrCat(plan::RecordedNumerics(plan.numerics()))},
      {"threads_per_rank", absl::StrCat(plan.threads_per_rank())},
      {"collectives", plan::TextOf(plan.collectives())},
      {"placement", PlacementText(plan)}};
  // An empty value is of a plan that had no such choice.
  std::erase_if(out, [](const auto& entry) { return entry.second.empty(); });
  // More stages than this would bury the rest.
  for (int i = 0; i < plan.stages_size() && plan.stages_size() <= 64; ++i) {
    out.emplace_back(absl::StrCat("stage ", i, " memory bytes"),
                     absl::StrCat(plan.stages(i).memory().total_bytes()));
  }
  return out;
}

std::vector<Difference> DifferencesOf(const std::vector<KeyValues>& jobs) {
  std::vector<std::string> keys;
  std::set<std::string> known;
  std::vector<std::map<std::string, std::string>> values;
  for (const KeyValues& job : jobs) {
    values.emplace_back(job.begin(), job.end());
    for (const auto& [key, value] : job) {
      // Keys keep the order of the first job that has them.
      if (known.insert(key).second) keys.push_back(key);
    }
  }
  std::vector<Difference> differences;
  for (const std::string& key : keys) {
    Difference difference{key, {}};
    for (const auto& job : values) {
      const auto found = job.find(key);
      // A key that is missing counts as empty, and so as a difference.
      difference.values.push_back(found == job.end() ? "" : found->second);
    }
    const bool differ =
        std::any_of(difference.values.begin(), difference.values.end(),
                    [&](const std::string& value) { return value != difference.values.front(); });
    if (differ) differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace tercio::report

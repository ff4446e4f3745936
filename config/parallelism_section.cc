#include "config/parallelism_section.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "config/yaml_text.h"
#include "model/architecture.h"
#include "plan/limits.h"
#include "plan/names.h"
#include "plan/offload.h"
#include "plan/state_shards.h"
#include "yaml-cpp/yaml.h"

namespace tercio::config {
namespace {

// A degree beyond this is a mistake; their product is checked with the resources.
constexpr int64_t kMostRanksOfDegree = 1 << 16;
constexpr int64_t kMostPrefetch = 64;

int32_t Degree(Section& section, const char* key, int fallback) {
  return static_cast<int32_t>(section.Integer(key, fallback, 1, kMostRanksOfDegree));
}

// true, false, or a number of ranks.
int32_t ReshardAfterForward(Section& section) {
  const char* key = "reshard_after_forward";
  const YAML::Node node = section.Get(key);
  if (!node.IsDefined()) return 0;
  bool flag = true;
  if (node.IsScalar() && YAML::convert<bool>::decode(node, flag)) {
    return flag ? 0 : plan::kKeepsWeights;
  }
  return static_cast<int32_t>(section.Integer(key, 2, 2, kMostRanksOfDegree));
}

// How the state of data ranks is divided.
void ParseDivision(Section& section, v1::ParallelismSpec* out) {
  out->set_zero_stage(static_cast<int32_t>(section.Integer("zero_stage", 0, 0, 3)));
  // 0: all data ranks, a number that the planner may have to choose.
  if (section.Has("shard")) {
    out->set_shard(static_cast<int32_t>(section.Integer("shard", 2, 2, kMostRanksOfDegree)));
  }
  out->set_reshard_after_forward(ReshardAfterForward(section));
  out->set_prefetch(static_cast<int32_t>(section.Integer("prefetch", 1, 0, kMostPrefetch)));
}

// How many layers each stage has; with several chunks, each chunk of each stage. Whether they are
// the model's is known once both sections are read.
void ParseStageLayers(Section& section, v1::ParallelismSpec* out) {
  const char* key = "stage_layers";
  const YAML::Node list = section.Get(key);
  if (!list.IsDefined()) return;
  if (!list.IsSequence()) {
    return section.Fault(key, "expected a list of whole numbers, such as [7, 9, 9, 7]");
  }
  if (out->pipeline() < 2) {
    return section.Fault(key, "needs pipeline: 2 or more, whose stages it gives their layers");
  }
  const int64_t needed = int64_t{out->pipeline()} * out->virtual_pipeline();
  if (static_cast<int64_t>(list.size()) != needed) {
    return section.Fault(
        key, absl::StrCat("has ", list.size(), " numbers, but pipeline ", out->pipeline(),
                          out->virtual_pipeline() > 1
                              ? absl::StrCat(" x virtual_pipeline ", out->virtual_pipeline())
                              : "",
                          " needs ", needed));
  }
  for (const YAML::Node& node : list) {
    int32_t layers = 0;
    const bool is_number = node.IsScalar() && YAML::convert<int32_t>::decode(node, layers);
    if (!is_number || layers < 1 || layers > plan::kMostLayers) {
      return section.Fault(key,
                           absl::StrCat("'", node.IsScalar() ? node.Scalar() : "...",
                                        "': expected whole numbers from 1 to ", plan::kMostLayers));
    }
    out->add_stage_layers(layers);
  }
}

// A part of the optimizer's state, or `auto`. All of it is the default, which no message holds.
void ParseShare(Section& section, v1::OffloadSpec* out) {
  const char* key = "share";
  const YAML::Node node = section.Get(key);
  if (!node.IsDefined()) return;
  if (node.IsScalar() && node.Scalar() == "auto") return out->set_share(plan::kLeastShare);
  double share = 0;
  const bool is_number = node.IsScalar() && YAML::convert<double>::decode(node, share);
  // Not a number is neither.
  if (!is_number || !(share > plan::kLeastShare && share <= plan::kWholeShare)) {
    return section.Fault(key, "expected auto, or a number above 0 and at most 1");
  }
  if (share != plan::kWholeShare) out->set_share(share);
}

std::string ShareText(const v1::OffloadSpec& offload) {
  if (!offload.has_share()) return Number(plan::kWholeShare);
  return offload.share() == plan::kLeastShare ? "auto" : Number(offload.share());
}

std::string TierText(v1::OffloadTier tier) {
  return plan::TextOf(plan::IsNamed(tier) ? tier : v1::OFFLOAD_TIER_NONE);
}

const char* FlagText(bool flag) { return flag ? "true" : "false"; }

}  // namespace

void ParseParallelism(Section& root, v1::ParallelismSpec* out) {
  const YAML::Node node = root.Get("parallelism");
  // The planner takes these as well where it chooses (AllLayouts).
  if (!node.IsDefined() || (node.IsScalar() && node.Scalar() == "auto")) {
    out->set_automatic(true);
    out->set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
    out->set_recompute(v1::RECOMPUTE_NONE);
    return;
  }
  Section section = root.Child("parallelism");
  out->set_tensor(Degree(section, "tensor", 1));
  out->set_pipeline(Degree(section, "pipeline", 1));
  // 0 lets the data degree follow from the number of ranks.
  out->set_data(section.Has("data") ? Degree(section, "data", 1) : 0);
  out->set_virtual_pipeline(Degree(section, "virtual_pipeline", 1));
  ParseStageLayers(section, out);
  out->set_context_parallel(Degree(section, "context_parallel", 1));
  // More than one chunk per stage means the interleaved schedule: no other has them.
  out->set_schedule(section.OneOf("schedule", out->virtual_pipeline() > 1
                                                  ? v1::PIPELINE_SCHEDULE_INTERLEAVED
                                                  : v1::PIPELINE_SCHEDULE_1F1B));
  out->set_sequence_parallel(section.Flag("sequence_parallel", false));
  out->set_tensor_overlap(static_cast<int32_t>(section.Integer("tensor_overlap", 1, 1, 64)));
  ParseDivision(section, out);
  out->set_recompute(section.OneOf("recompute", v1::RECOMPUTE_NONE));
  if (out->context_parallel() > 1) section.Fault("context_parallel", NotYet("a value above 1"));
  section.Finish();
}

void CheckStageLayers(Section& root, const v1::JobSpec& spec) {
  const auto& given = spec.parallelism().stage_layers();
  const int layers = model::LayersOf(spec.model());
  const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
  // A model whose layers are not known has a fault of its own.
  if (given.empty() || layers == 0 || sum == layers) return;
  root.Child("parallelism")
      .Fault("stage_layers",
             absl::StrCat("adds up to ", sum, " layers, but the model has ", layers,
                          spec.model().decoder_layers() > 0 ? " (layers and decoder_layers)" : ""));
}

void ParseOffload(Section offload, v1::OffloadSpec* out) {
  // Left out it stays open: a plan for a cluster may choose it (plan/planner/offload_choice.h).
  if (offload.Has("optimizer")) {
    out->set_optimizer(offload.OneOf("optimizer", v1::OFFLOAD_TIER_NONE));
  }
  out->set_parameters(offload.OneOf("parameters", v1::OFFLOAD_TIER_NONE));
  out->set_activations(offload.OneOf("activations", v1::OFFLOAD_TIER_NONE));
  ParseShare(offload, out);
  offload.Finish();
}

std::string ParallelismYaml(const v1::ParallelismSpec& parallelism) {
  if (parallelism.automatic()) return "parallelism: auto\n";
  const auto unless_open = [](const char* key, int value) {
    return value > 0 ? absl::StrCat(", ", key, ": ", value) : "";
  };
  return absl::StrCat(
      "parallelism: {tensor: ", parallelism.tensor(), ", pipeline: ", parallelism.pipeline(),
      unless_open("data", parallelism.data()),
      ", virtual_pipeline: ", parallelism.virtual_pipeline(),
      parallelism.stage_layers().empty()
          ? ""
          : absl::StrCat(", stage_layers: [", absl::StrJoin(parallelism.stage_layers(), ", "), "]"),
      ", context_parallel: ", parallelism.context_parallel(),
      ", schedule: ", plan::TextOf(parallelism.schedule()),
      ", sequence_parallel: ", FlagText(parallelism.sequence_parallel()),
      ", tensor_overlap: ", std::max(1, parallelism.tensor_overlap()),
      ", zero_stage: ", parallelism.zero_stage(), unless_open("shard", parallelism.shard()),
      ", reshard_after_forward: ", ReshardText(parallelism.reshard_after_forward()),
      ", prefetch: ", plan::PrefetchOf(parallelism),
      ", recompute: ", plan::TextOf(parallelism.recompute()), "}\n");
}

std::string ReshardText(int ranks) {
  if (ranks == 0) return "true";
  return ranks == plan::kKeepsWeights ? "false" : absl::StrCat(ranks);
}

std::string OffloadYaml(const v1::OffloadSpec& offload) {
  const bool is_open = offload.optimizer() == v1::OFFLOAD_TIER_UNSPECIFIED;
  return absl::StrCat(
      "offload: {", is_open ? "" : absl::StrCat("optimizer: ", TierText(offload.optimizer()), ", "),
      "parameters: ", TierText(offload.parameters()),
      ", activations: ", TierText(offload.activations()), ", share: ", ShareText(offload), "}\n");
}

}  // namespace tercio::config

#include "config/adapter_section.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/peft_adapter.h"
#include "checkpoint/model_description.h"
#include "model/adapters.h"
#include "model/architecture.h"
#include "nlohmann/json.hpp"
#include "plan/names.h"
#include "plan/tensor_policy.h"

namespace tercio::config {
namespace {

constexpr int64_t kLargestRank = 1024;
constexpr int64_t kUsualRank = 8;

// The list of a key, or the one word that stands for it.
std::vector<std::string> Texts(Section& adapter, const char* key) {
  const YAML::Node value = adapter.Get(key);
  if (!value.IsDefined() || value.IsNull()) return {};
  if (value.IsScalar()) return {value.Scalar()};
  std::vector<std::string> texts;
  if (value.IsSequence()) {
    for (const YAML::Node& entry : value) texts.push_back(entry.IsScalar() ? entry.Scalar() : "");
  }
  if (texts.empty()) adapter.Fault(key, "expected a list of names");
  return texts;
}

// Empty without sizes: the parts are not known, and the missing sizes are faults already.
std::vector<std::string> AdaptableNamesOf(const v1::ModelSpec& model) {
  if (model.hidden() == 0 || model.heads() == 0) return {};
  v1::ModelSpec plain = model;
  plain.clear_adapter();
  return model::AdaptableNames(model::ArchitectureOf(plain));
}

void CheckTargets(Section& adapter, const v1::ModelSpec& model) {
  const std::vector<std::string> names = AdaptableNamesOf(model);
  for (const std::string& target : model.adapter().targets()) {
    v1::AdapterSpec alone;
    alone.add_targets(target);
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return model::IsTarget(alone, name); })) {
      continue;
    }
    adapter.Fault("targets", absl::StrCat("'", target, "' matches no product of the model; it has ",
                                          absl::StrJoin(names, ", "), ", and all-linear for all"));
  }
}

void CheckTrained(Section& adapter, const v1::ModelSpec& model) {
  for (const std::string& pattern : model.adapter().train()) {
    if (plan::MatchesAnyTensor(model, pattern)) continue;
    adapter.Fault(
        "train", absl::StrCat("no tensor of the model is named '", pattern, "' (docs/formats.md)"));
  }
}

std::string List(const google::protobuf::RepeatedPtrField<std::string>& texts) {
  return nlohmann::json(std::vector<std::string>(texts.begin(), texts.end())).dump();
}

}  // namespace

namespace {

// What the section leaves out: the adapter that training starts from, or the defaults.
v1::AdapterSpec BaseOf(Section& adapter, const std::string& directory, const v1::ModelSpec& model) {
  v1::AdapterSpec base = model.adapter();
  base.clear_from();
  if (!adapter.Has("from")) return base;
  const std::filesystem::path path = adapter.Text("from", "");
  const std::string from = (path.is_absolute() ? path : std::filesystem::path(directory) / path)
                               .lexically_normal()
                               .string();
  if (model.has_adapter()) {
    adapter.Fault("from", "the model in model.from has an adapter already; leave one of them out");
    return base;
  }
  const auto opened = checkpoint::PeftAdapter::Open(from, model);
  if (opened.ok()) {
    base = (*opened)->spec();
  } else if (!absl::IsNotFound(opened.status()) || !adapter.Has("targets")) {
    // Where only nodes can see the directory, they compare what the section says.
    adapter.Fault("from", std::string(opened.status().message()));
  }
  base.set_from(from);
  return base;
}

void ParseLowRank(Section& adapter, const v1::AdapterSpec& base, v1::AdapterSpec* out) {
  if (out->kind() != v1::ADAPTER_KIND_LORA) {
    for (const char* key : {"rank", "alpha", "dropout", "rslora"}) {
      if (adapter.Has(key)) adapter.Fault(key, "only kind: lora has this key");
    }
    return;
  }
  const bool starts_from = base.rank() > 0;
  out->set_rank(static_cast<int32_t>(
      adapter.Integer("rank", starts_from ? base.rank() : kUsualRank, 1, kLargestRank)));
  // As peft's defaults, both 8, have it: a factor of 1.
  out->set_alpha(adapter.Number("alpha", starts_from ? base.alpha() : out->rank(), 1e-6, 1e6));
  out->set_dropout(adapter.Number("dropout", base.dropout(), 0, 0.999));
  out->set_rslora(adapter.Flag("rslora", base.rslora()));
}

// As Tercio names it, or, where it names nothing so, as transformers does.
void AddTarget(const std::string& target, const v1::ModelSpec& model, v1::AdapterSpec* out) {
  v1::AdapterSpec alone;
  alone.add_targets(target);
  const std::vector<std::string> names = AdaptableNamesOf(model);
  const bool known = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return model::IsTarget(alone, name);
  });
  const std::vector<std::string> modules = known || names.empty()
                                               ? std::vector<std::string>()
                                               : checkpoint::TargetsOfModules(model, target);
  if (modules.empty()) return out->add_targets(target);
  for (const std::string& module : modules) out->add_targets(module);
}

// Without a list those of the adapter that training starts from, else all products, or, for IA3,
// keys, values and the last product of the feed-forward part (Liu et al. 2022).
void ParseTargets(Section& adapter, const v1::AdapterSpec& base, const v1::ModelSpec& model,
                  v1::AdapterSpec* out) {
  if (adapter.Has("targets")) {
    for (const std::string& target : Texts(adapter, "targets")) AddTarget(target, model, out);
    return;
  }
  *out->mutable_targets() = base.targets();
  if (!base.targets().empty()) return;
  if (out->kind() == v1::ADAPTER_KIND_LORA) return out->add_targets(model::kAllLinear);
  for (const std::string& name : AdaptableNamesOf(model)) {
    const std::string part = name.substr(name.rfind('.') + 1);
    if (part == "query_key_value" || part == "key" || part == "value" || part == "down") {
      out->add_targets(name);
    }
  }
}

// Training continues with the tensors that are there, so that they must be what the job says.
void CheckSame(Section& adapter, const v1::AdapterSpec& base, const v1::ModelSpec& model) {
  v1::ModelSpec source = model;
  *source.mutable_adapter() = base;
  for (const checkpoint::ModelDifference& difference : checkpoint::DifferencesOf(model, source)) {
    adapter.Fault("", absl::StrCat("the job has ", difference.ours, ", but the adapter that it ",
                                   "starts from is ", difference.theirs));
  }
}

}  // namespace

void ParseAdapter(Section& root, const std::string& directory, v1::ModelSpec* model) {
  if (!root.Has("adapter")) return;
  Section adapter = root.Child("adapter");
  const v1::AdapterSpec base = BaseOf(adapter, directory, *model);
  const bool starts_from = base.kind() != v1::ADAPTER_KIND_UNSPECIFIED;
  v1::AdapterSpec* out = model->mutable_adapter();
  out->Clear();
  out->set_from(base.from());
  out->set_kind(adapter.OneOf("kind", starts_from ? base.kind() : v1::ADAPTER_KIND_LORA));
  ParseLowRank(adapter, base, out);
  ParseTargets(adapter, base, *model, out);
  *out->mutable_train() = base.train();
  for (const std::string& pattern : Texts(adapter, "train")) out->add_train(pattern);
  // The head of a classifier is new, and useless untrained.
  if (model->labels() > 0 && out->train().empty()) out->add_train("classifier.*");
  adapter.Finish();
  // Without sizes the parts are not known, and the missing sizes are faults already.
  if (model->hidden() == 0 || model->heads() == 0) return;
  CheckTargets(adapter, *model);
  CheckTrained(adapter, *model);
  if (starts_from) CheckSame(adapter, base, *model);
}

std::string AdapterYaml(const v1::ModelSpec& model) {
  if (!model.has_adapter()) return "";
  const v1::AdapterSpec& adapter = model.adapter();
  const auto number = [](double value) { return nlohmann::json(value).dump(); };
  std::string yaml = absl::StrCat(
      "adapter: {kind: ", plan::TextOf(adapter.kind()), ", rank: ", adapter.rank(),
      ", alpha: ", number(adapter.alpha()), ", dropout: ", number(adapter.dropout()),
      ", rslora: ", adapter.rslora() ? "true" : "false", ", targets: ", List(adapter.targets()));
  if (!adapter.train().empty()) absl::StrAppend(&yaml, ", train: ", List(adapter.train()));
  if (!adapter.from().empty()) {
    absl::StrAppend(&yaml, ", from: ", nlohmann::json(adapter.from()).dump());
  }
  return yaml + "}\n";
}

}  // namespace tercio::config

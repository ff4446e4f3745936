#include "checkpoint/huggingface/peft_adapter.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/config_reader.h"
#include "checkpoint/huggingface/faults.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/peft_names.h"
#include "checkpoint/safetensors.h"
#include "common/status_macros.h"
#include "model/architecture.h"
#include "nlohmann/json.hpp"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kLargestRank = 1024;

absl::StatusOr<nlohmann::json> ReadConfig(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kPeftConfig);
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError(path + ": not a JSON object");
  return json;
}

void RemovePrefix(std::string_view prefix, std::string_view* text) {
  if (text->starts_with(prefix)) text->remove_prefix(prefix.size());
}

// What would change the adapter's meaning and is absent or empty in usual files.
void RefuseOthers(ConfigReader* config) {
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    if (config->Has(key) && !config->Value(key).empty()) {
      config->Unsupported(absl::StrCat(key,
                                       ": adapters of several ranks or scales are not "
                                       "supported by this version"));
    }
  }
  config->OnlyText("bias", "none", {"none"});
  for (const char* key : {"use_dora", "lora_bias", "use_qalora", "use_bdlora"})
    config->Only(key, false, false);
  config->Without({"layer_replication", "trainable_token_indices", "target_parameters",
                   "alora_invocation_tokens", "arrow_config"});
}

absl::Status ReadSpec(const nlohmann::json& json, const std::string& path, v1::AdapterSpec* spec) {
  ConfigReader config(json, path);
  config.OnlyText("peft_type", "LORA", {"LORA", "IA3"});
  if (config.TextOr("peft_type", "LORA") == "IA3") {
    spec->set_kind(v1::ADAPTER_KIND_IA3);
    return config.status();
  }
  spec->set_kind(v1::ADAPTER_KIND_LORA);
  spec->set_rank(config.Size("r"));
  if (spec->rank() > kLargestRank) {
    config.Unsupported(absl::StrCat("r: a rank above ", kLargestRank, " is not supported"));
  }
  spec->set_alpha(config.NumberOr("lora_alpha", 8, 1e-6, 1e6));
  spec->set_dropout(config.NumberOr("lora_dropout", 0, 0, 0.999));
  spec->set_rslora(config.FlagOr("use_rslora", false));
  RefuseOthers(&config);
  return config.status();
}

}  // namespace

bool IsPeftAdapter(const std::string& directory) {
  return PathExists(absl::StrCat(directory, "/", kPeftConfig));
}

absl::StatusOr<std::string> DirectoryOfPeftBase(const std::string& directory) {
  TERCIO_ASSIGN_OR_RETURN(const nlohmann::json json, ReadConfig(directory));
  const auto named = json.find("base_model_name_or_path");
  const std::string base =
      named != json.end() && named->is_string() ? named->get<std::string>() : "";
  for (const std::string& path : {base, absl::StrCat(directory, "/", base)}) {
    if (!base.empty() && PathExists(path) && path != directory) return path;
  }
  return absl::NotFoundError(absl::StrCat(
      directory, " is an adapter of ", base.empty() ? "a model that it does not name" : base,
      base.empty() ? "" : ", which is no directory of this machine",
      "; name the directory of the "
      "model, and this one as its adapter"));
}

std::vector<std::string> TargetsOfModules(const v1::ModelSpec& model, const std::string& name) {
  if (FindForm(model.architecture()) == nullptr) return {};
  std::vector<std::string> targets;
  for (const PeftModule& module : PeftModulesOf(model)) {
    const bool named = module.module == name || module.module.ends_with("." + name);
    if (!named || std::find(targets.begin(), targets.end(), module.target) != targets.end())
      continue;
    targets.push_back(module.target);
  }
  return targets;
}

std::string TokenizerDirectoryOf(const std::string& directory) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"}) {
    if (PathExists(absl::StrCat(directory, "/", name))) return directory;
  }
  if (!IsPeftAdapter(directory)) return directory;
  return DirectoryOfPeftBase(directory).value_or(directory);
}

// Finds the places of a file's tensors.
class PeftAdapter::Loader {
 public:
  Loader(const std::string& directory, const v1::ModelSpec& base, PeftAdapter* adapter)
      : adapter_(*adapter),
        faults_(absl::StrCat(directory, "/", kPeftWeights)),
        modules_(PeftModulesOf(base)),
        weights_(HuggingFaceTensors(base)) {}

  absl::Status Load(const SafetensorsLayout& layout) {
    const std::string_view content = adapter_.file_->content();
    data_ = content.data() + layout.data_begin;
    for (const TensorEntry& entry : layout.tensors) Place(entry);
    CheckComplete();
    return faults_.ToStatus();
  }

 private:
  // The module and what of it a name is: "lora_A", "lora_B", or "" for a tensor of the model.
  void Place(const TensorEntry& entry) {
    std::string_view name = entry.name;
    RemovePrefix(kPeftPrefix, &name);
    for (const char* part : {".lora_A", ".lora_B"}) {
      const size_t at = name.find(part);
      if (at == std::string_view::npos) continue;
      std::string_view rest = name.substr(at + std::string_view(part).size());
      RemovePrefix(".default", &rest);
      if (rest != ".weight") break;
      return PlaceLowRank(entry, name.substr(0, at), part[6] == 'A');
    }
    constexpr std::string_view kFactors = ".ia3_l";
    if (const size_t at = name.find(kFactors); at != std::string_view::npos) {
      std::string_view rest = name.substr(at + kFactors.size());
      RemovePrefix(".default", &rest);
      if (rest.empty()) return PlaceFactors(entry, name.substr(0, at));
    }
    PlaceWhole(entry, std::string(name));
  }

  // Null where the adapter is of another kind than such a tensor, or the model lacks the module.
  const PeftModule* ModuleOf(std::string_view name, v1::AdapterKind kind) const {
    const auto module = std::find_if(modules_.begin(), modules_.end(), [&](const PeftModule& m) {
      return m.module == name || m.suffix == name;
    });
    return module == modules_.end() || adapter_.spec_.kind() != kind ? nullptr : &*module;
  }

  void PlaceFactors(const TensorEntry& entry, std::string_view name) {
    const PeftModule* const module = ModuleOf(name, v1::ADAPTER_KIND_IA3);
    if (module == nullptr) return Unknown(entry);
    const HuggingFaceTensor& weight = module->weight;
    const bool of_inputs = module->cut_by_columns;
    const std::vector<int64_t> shape = of_inputs ? std::vector<int64_t>{1, weight.inputs}
                                                 : std::vector<int64_t>{weight.outputs, 1};
    if (!Fits(entry, shape)) return;
    targets_[module->target].insert(module->block);
    for (size_t i = 0; i < weight.parts.size(); ++i) {
      const HuggingFacePart part =
          of_inputs ? HuggingFacePart{"", 0, weight.inputs, weight.inputs, weight.inputs}
                    : weight.parts[i];
      const std::string tensor = module->TensorOfFactors(module->part.weights[i]);
      Add(tensor, entry, part, 1, of_inputs ? weight.inputs : weight.outputs);
      adapter_.places_[tensor].is_vector = true;
    }
  }

  void PlaceLowRank(const TensorEntry& entry, std::string_view name, bool is_a) {
    const PeftModule* const module = ModuleOf(name, v1::ADAPTER_KIND_LORA);
    if (module == nullptr) return Unknown(entry);
    const HuggingFaceTensor& weight = module->weight;
    const int64_t rank = adapter_.spec_.rank();
    const std::vector<int64_t> shape = is_a ? std::vector<int64_t>{rank, weight.inputs}
                                            : std::vector<int64_t>{weight.outputs, rank};
    if (!Fits(entry, shape)) return;
    targets_[module->target].insert(module->block);
    if (is_a) {
      return Add(module->TensorA(), entry, {"", 0, rank, rank, rank}, weight.inputs, rank);
    }
    for (size_t i = 0; i < weight.parts.size(); ++i) {
      Add(module->TensorB(module->part.weights[i]), entry, weight.parts[i], rank, weight.outputs);
    }
  }

  // A module that was trained as it is.
  void PlaceWhole(const TensorEntry& entry, std::string name) {
    constexpr std::string_view kSaved = ".modules_to_save";
    if (const size_t at = name.find(kSaved); at != std::string::npos) {
      name.erase(at, kSaved.size());
      if (const size_t copy = name.find(".default", at); copy == at) name.erase(copy, 8);
    }
    for (const HuggingFaceTensor& weight : weights_) {
      if (weight.name != name && weight.suffix != name) continue;
      if (!Fits(entry, weight.shape)) return;
      for (const HuggingFacePart& part : weight.parts) {
        Add(part.tensor, entry, part, weight.inputs, weight.outputs);
        StoredPlace& place = adapter_.places_[part.tensor];
        place.is_vector = weight.is_vector;
        place.transposed = weight.transposed;
        adapter_.spec_.add_train(part.tensor);
      }
      return;
    }
    Unknown(entry);
  }

  bool Fits(const TensorEntry& entry, const std::vector<int64_t>& shape) {
    if (entry.shape != shape) {
      faults_.Unsupported(absl::StrCat("tensor ", ShownName(entry.name), " has shape [",
                                       absl::StrJoin(entry.shape, ", "), "], the model needs [",
                                       absl::StrJoin(shape, ", "), "]: it is for another model"));
      return false;
    }
    if (FloatFormatOf(entry.dtype).has_value()) return true;
    faults_.Unsupported(absl::StrCat("tensor ", ShownName(entry.name), " has dtype ", entry.dtype,
                                     ", this version reads F32, F16, BF16 and F64"));
    return false;
  }

  void Add(const std::string& canonical, const TensorEntry& entry, const HuggingFacePart& part,
           int64_t inputs, int64_t outputs) {
    StoredPlace place;
    place.data = data_ + entry.begin;
    place.format = *FloatFormatOf(entry.dtype);
    place.part = part;
    place.part.tensor = canonical;
    place.inputs = inputs;
    place.outputs = outputs;
    if (!adapter_.places_.emplace(canonical, place).second) {
      faults_.Damaged(absl::StrCat("tensor ", ShownName(entry.name), " appears twice"));
    }
  }

  void Unknown(const TensorEntry& entry) {
    faults_.Unsupported(absl::StrCat("tensor ", ShownName(entry.name),
                                     " belongs to no product or module of the model"));
  }

  // Each target has both factors in every layer that could have them.
  void CheckComplete() {
    std::vector<std::string> order;
    for (const PeftModule& module : modules_) {
      const auto target = targets_.find(module.target);
      if (target == targets_.end()) continue;
      if (std::find(order.begin(), order.end(), module.target) == order.end()) {
        order.push_back(module.target);
      }
      if (!target->second.contains(module.block)) {
        faults_.Unsupported(absl::StrCat(module.module,
                                         " has no adapter, though other layers have "
                                         "one: this version adapts all layers"));
        continue;
      }
      if (adapter_.spec_.kind() == v1::ADAPTER_KIND_IA3) continue;
      const bool complete = adapter_.Find(module.TensorA()) != nullptr &&
                            adapter_.Find(module.TensorB(module.part.weights.front())) != nullptr;
      if (!complete) faults_.Damaged(absl::StrCat(module.module, " has only one of its factors"));
    }
    if (order.empty()) faults_.Unsupported("it adapts no product of the model");
    for (const std::string& target : order) adapter_.spec_.add_targets(target);
  }

  PeftAdapter& adapter_;
  TensorFaults faults_;
  const std::vector<PeftModule> modules_;
  const std::vector<HuggingFaceTensor> weights_;
  const char* data_ = nullptr;
  std::map<std::string, std::set<std::string>> targets_;  // their blocks
};

absl::StatusOr<std::unique_ptr<PeftAdapter>> PeftAdapter::Open(const std::string& directory,
                                                               const v1::ModelSpec& base) {
  if (FindForm(base.architecture()) == nullptr) {
    return absl::InvalidArgumentError("peft has no form of this architecture's adapters");
  }
  v1::ModelSpec model = base;
  model.clear_adapter();
  model.set_vocab_size(std::max(1, model.vocab_size()));
  auto adapter = std::make_unique<PeftAdapter>();
  TERCIO_ASSIGN_OR_RETURN(const nlohmann::json json, ReadConfig(directory));
  TERCIO_RETURN_IF_ERROR(
      ReadSpec(json, absl::StrCat(directory, "/", kPeftConfig), &adapter->spec_));
  const std::string path = absl::StrCat(directory, "/", kPeftWeights);
  if (!PathExists(path) && PathExists(directory + "/adapter_model.bin")) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, ": this version reads ", kPeftWeights,
                     ", not adapter_model.bin; "
                     "save the adapter again with a current version of peft"));
  }
  TERCIO_ASSIGN_OR_RETURN(adapter->file_, MappedFile::Open(path));
  const std::string_view content = adapter->file_->content();
  const absl::StatusOr<SafetensorsLayout> layout =
      ParseSafetensors(content, static_cast<int64_t>(content.size()));
  if (!layout.ok()) {
    return absl::DataLossError(absl::StrCat(path, ": ", std::string(layout.status().message())));
  }
  TERCIO_RETURN_IF_ERROR(Loader(directory, model, adapter.get()).Load(*layout));
  return adapter;
}

const StoredPlace* PeftAdapter::Find(const std::string& tensor) const {
  const auto found = places_.find(tensor);
  return found == places_.end() ? nullptr : &found->second;
}

}  // namespace tercio::checkpoint

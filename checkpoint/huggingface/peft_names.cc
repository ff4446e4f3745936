#include "checkpoint/huggingface/peft_names.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "model/architecture.h"
#include "model/layer.h"

namespace tercio::checkpoint {
namespace {

constexpr char kWeight[] = ".weight";

// Names of tensors are asked for, which need a vocabulary.
v1::ModelSpec Sized(v1::ModelSpec model) {
  model.set_vocab_size(std::max(1, model.vocab_size()));
  return model;
}

bool EndsWithModule(std::string_view module, std::string_view end) {
  return module == end || (module.ends_with(end) && module[module.size() - end.size() - 1] == '.');
}

// The last `count` parts of the path; empty: it has fewer.
std::string_view EndOf(std::string_view module, int count) {
  size_t at = module.size();
  for (int i = 0; i < count; ++i) {
    if (at == 0) return {};
    const size_t dot = module.rfind('.', at - 1);
    at = dot == std::string_view::npos ? 0 : dot;
  }
  return at == 0 ? module : module.substr(at + 1);
}

// The number of a layer in a path would make it one of that layer.
bool HasNumber(std::string_view end) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(end), '.');
  return std::any_of(parts.begin(), parts.end(), [](const std::string& part) {
    return part.find_first_not_of("0123456789") == std::string::npos;
  });
}

bool IsCutByColumns(const model::BlockOptions& block, const model::AdaptablePart& part) {
  return model::Describe(block, 1).products[static_cast<size_t>(part.product)].summed ==
         model::Summed::kForward;
}

}  // namespace

std::vector<PeftModule> PeftModulesOf(const v1::ModelSpec& spec) {
  const v1::ModelSpec model = Sized(spec);
  const model::Architecture architecture = model::ArchitectureOf(model);
  std::map<std::vector<std::string>, HuggingFaceTensor> tensors;  // by what they hold
  for (HuggingFaceTensor& tensor : HuggingFaceTensors(model)) {
    std::vector<std::string> parts;
    for (const HuggingFacePart& part : tensor.parts) parts.push_back(part.tensor);
    tensors.emplace(std::move(parts), std::move(tensor));
  }
  std::vector<PeftModule> modules;
  for (int layer = 0; layer < model::LayersOf(model); ++layer) {
    for (const model::Sublayer& sublayer : architecture.layer(layer).sublayers) {
      for (const model::Branch& branch : sublayer.branches) {
        const std::string block = absl::StrCat("layers.", layer, ".", branch.name, ".");
        for (const model::AdaptablePart& part : model::AdaptablePartsOf(branch.block)) {
          std::vector<std::string> holds;
          for (const std::string& weight : part.weights) {
            holds.push_back(absl::StrCat(block, weight, kWeight));
          }
          const auto found = tensors.find(holds);
          if (found == tensors.end()) continue;
          const HuggingFaceTensor& tensor = found->second;
          modules.push_back({std::string(absl::StripSuffix(tensor.name, kWeight)),
                             std::string(absl::StripSuffix(tensor.suffix, kWeight)), block,
                             branch.name + "." + part.name, part,
                             IsCutByColumns(branch.block, part), tensor});
        }
      }
    }
  }
  return modules;
}

PeftTargets PeftTargetsOf(const v1::ModelSpec& model, const std::vector<std::string>& targets) {
  const auto is_wanted = [&](const std::string& target) {
    return std::find(targets.begin(), targets.end(), target) != targets.end();
  };
  // Every module with a matrix, also those that take no adapter here.
  std::map<std::string, std::string> all;  // module, target
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(Sized(model))) {
    if (tensor.is_vector) continue;
    all.emplace(absl::StripSuffix(tensor.name, kWeight), "");
  }
  const std::vector<PeftModule> modules = PeftModulesOf(model);
  for (const PeftModule& module : modules) all[module.module] = module.target;
  std::set<std::string> ends;
  std::set<std::string> patterns;
  bool fits = true;
  for (const PeftModule& module : modules) {
    if (!is_wanted(module.target)) continue;
    patterns.insert(absl::StrReplaceAll(module.suffix, {{".", "\\."}}));
    bool found = false;
    for (int parts = 1; parts <= 3 && !found; ++parts) {
      const std::string_view end = EndOf(module.module, parts);
      if (end.empty() || HasNumber(end)) break;
      found = std::all_of(all.begin(), all.end(), [&](const auto& other) {
        return !EndsWithModule(other.first, end) || is_wanted(other.second);
      });
      if (found) ends.insert(std::string(end));
    }
    fits = fits && found;
  }
  if (fits) return {{ends.begin(), ends.end()}, ""};
  return {{}, absl::StrCat(".*\\.(", absl::StrJoin(patterns, "|"), ")")};
}

}  // namespace tercio::checkpoint

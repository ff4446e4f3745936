// peft's names of a model's adapters: which module of transformers' model each adaptable part
// (model/adapters.h) is. Pure.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/huggingface/names.h"
#include "model/adapters.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

inline constexpr char kPeftConfig[] = "adapter_config.json";
inline constexpr char kPeftWeights[] = "adapter_model.safetensors";
inline constexpr char kPeftPrefix[] = "base_model.model.";  // begins every name in the weights

// A module of one layer that can have an adapter.
struct PeftModule {
  std::string module;  // "model.layers.0.self_attn.q_proj"
  std::string suffix;  // without the prefix of the base model
  std::string block;   // "layers.0.attention.", before the part's name
  std::string target;  // "attention.query"
  model::AdaptablePart part;
  bool cut_by_columns = false;  // IA3 scales its inputs: peft's feedforward_modules
  HuggingFaceTensor weight;     // the module's

  std::string TensorA() const { return block + part.name + model::kLoraA; }
  std::string TensorB(const std::string& of_weight) const {
    return block + of_weight + model::kLoraB;
  }
  std::string TensorOfFactors(const std::string& of_weight) const {
    return block + of_weight + model::kIa3;
  }
};

// All of them, ascending by layer. REQUIRES: the architecture has a Hugging Face form.
std::vector<PeftModule> PeftModulesOf(const v1::ModelSpec& model);

// What adapter_config.json names as targets, so that peft finds exactly the modules of `targets` in
// the model: ends of their paths where these fit no other module, else one pattern for whole paths.
struct PeftTargets {
  std::vector<std::string> ends;
  std::string pattern;  // not empty: instead of the ends
};
PeftTargets PeftTargetsOf(const v1::ModelSpec& model, const std::vector<std::string>& targets);

}  // namespace tercio::checkpoint

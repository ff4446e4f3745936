#include "model/architectures/registry.h"

#include <algorithm>

namespace tercio::model {

// An architecture is a file of this folder, and a line here and in the list below.
const ArchitectureFacts& Gpt2Facts();
const ArchitectureFacts& LlamaFacts();
const ArchitectureFacts& BertFacts();
const ArchitectureFacts& OptFacts();
const ArchitectureFacts& GptJFacts();
const ArchitectureFacts& GptNeoxFacts();
const ArchitectureFacts& PhiFacts();
const ArchitectureFacts& Phi3Facts();
const ArchitectureFacts& Qwen2Facts();
const ArchitectureFacts& Qwen3Facts();
const ArchitectureFacts& MistralFacts();
const ArchitectureFacts& Gemma2Facts();
const ArchitectureFacts& T5Facts();

bool ArchitectureFacts::Has(std::string_view key) const {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

const std::vector<const ArchitectureFacts*>& AllArchitectures() {
  // Never destroyed, since threads may use it until the process ends.
  static const auto* const all = new std::vector<const ArchitectureFacts*>{
      &Gpt2Facts(),    &LlamaFacts(),  &BertFacts(), &OptFacts(),   &GptJFacts(),
      &GptNeoxFacts(), &PhiFacts(),    &Phi3Facts(), &Qwen2Facts(), &Qwen3Facts(),
      &MistralFacts(), &Gemma2Facts(), &T5Facts()};
  return *all;
}

namespace {

const ArchitectureFacts* of_test = nullptr;

}  // namespace

ScopedArchitecture::ScopedArchitecture(const ArchitectureFacts& facts) { of_test = &facts; }
ScopedArchitecture::~ScopedArchitecture() { of_test = nullptr; }

const ArchitectureFacts& FactsOf(v1::Architecture architecture) {
  if (of_test != nullptr && of_test->architecture == architecture) return *of_test;
  for (const ArchitectureFacts* facts : AllArchitectures()) {
    if (facts->architecture == architecture) return *facts;
  }
  return Gpt2Facts();
}

std::optional<NamedPreset> FindPreset(std::string_view name) {
  for (const ArchitectureFacts* facts : AllArchitectures()) {
    for (const Preset& preset : facts->presets) {
      if (name == preset.name) return NamedPreset{facts, &preset};
    }
  }
  return std::nullopt;
}

v1::ModelSpec ModelOf(const NamedPreset& named) {
  const Preset& preset = *named.preset;
  v1::ModelSpec model;
  model.set_architecture(named.facts->architecture);
  model.set_layers(preset.layers);
  model.set_hidden(preset.hidden);
  model.set_heads(preset.heads);
  model.set_kv_heads(preset.kv_heads);
  model.set_ffn_hidden(preset.ffn_hidden);
  model.set_context(preset.context);
  model.set_vocab_size(preset.vocab_size);
  model.set_rope_theta(preset.rope_theta);
  model.set_untied_head(!preset.tied_head);
  model.set_bias(named.facts->bias);
  if (preset.further != nullptr) preset.further(&model);
  return model;
}

int64_t UsualFfnHidden(const v1::ModelSpec& model) {
  if (!FactsOf(model.architecture()).gated) return 4 * int64_t{model.hidden()};
  return (8 * int64_t{model.hidden()} / 3 + 63) / 64 * 64;
}

}  // namespace tercio::model

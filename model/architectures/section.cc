#include "model/architectures/section.h"

#include <algorithm>

namespace tercio::model {

bool SectionFacts::Has(std::string_view key) const {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

const std::vector<const SectionFacts*>& AllSections() {
  // Never destroyed, since threads may use it until the process ends.
  static const auto* const all = new std::vector<const SectionFacts*>{
      &Gpt2Section(),  &LlamaSection(),   &BertSection(),    &OptSection(),
      &GptJSection(),  &GptNeoxSection(), &PhiSection(),     &Phi3Section(),
      &Qwen2Section(), &Qwen3Section(),   &MistralSection(), &Gemma2Section()};
  return *all;
}

const SectionFacts& SectionOf(v1::Architecture architecture) {
  for (const SectionFacts* facts : AllSections()) {
    if (facts->architecture == architecture) return *facts;
  }
  return Gpt2Section();
}

std::optional<NamedPreset> FindPreset(std::string_view name) {
  for (const SectionFacts* facts : AllSections()) {
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
  if (!SectionOf(model.architecture()).gated) return 4 * int64_t{model.hidden()};
  return (8 * int64_t{model.hidden()} / 3 + 63) / 64 * 64;
}

}  // namespace tercio::model

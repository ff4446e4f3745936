#include "config/model_section.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tercio::config {
namespace {

struct Preset {
  const char* name;
  const char* architecture;
  int layers, hidden, heads, kv_heads, ffn_hidden, context, vocab_size;
  double rope_theta;
  bool tied_head;
};

// Published sizes: Radford et al. 2019 table 2 (gpt2), Meta's model cards (llama).
constexpr Preset kPresets[] = {
    {"gpt2-124m", "gpt2", 12, 768, 12, 12, 3072, 1024, 50257, 0, true},
    {"gpt2-355m", "gpt2", 24, 1024, 16, 16, 4096, 1024, 50257, 0, true},
    {"gpt2-774m", "gpt2", 36, 1280, 20, 20, 5120, 1024, 50257, 0, true},
    {"gpt2-1.5b", "gpt2", 48, 1600, 25, 25, 6400, 1024, 50257, 0, true},
    {"llama2-7b", "llama", 32, 4096, 32, 32, 11008, 4096, 32000, 10000, false},
    {"llama3-8b", "llama", 32, 4096, 32, 8, 14336, 8192, 128256, 500000, false},
    {"llama3-70b", "llama", 80, 8192, 64, 8, 28672, 8192, 128256, 500000, false},
};

const Preset* FindPreset(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return &preset;
  }
  return nullptr;
}

std::string PresetNames() {
  std::string names;
  for (const Preset& preset : kPresets) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", preset.name);
  }
  return names;
}

// llama's usual width: two thirds of 4 hidden, since there are three matrices, in steps of 64.
int64_t DefaultFfn(const v1::ModelSpec& model) {
  if (model.architecture() != "llama") return 4 * int64_t{model.hidden()};
  return (8 * int64_t{model.hidden()} / 3 + 63) / 64 * 64;
}

void ParseRopeScaling(Section scaling, v1::ModelSpec* out) {
  const std::string kind = scaling.OneOf("kind", "llama3", {"llama3", "linear", "dynamic", "yarn"});
  if (kind != "llama3") scaling.Fault("kind", kind + " is not supported by this version");
  v1::RopeScaling* rope = out->mutable_rope_scaling();
  rope->set_factor(scaling.Number("factor", 8, 1, 1e6));
  rope->set_low_freq_factor(scaling.Number("low_freq_factor", 1, 1e-6, 1e6));
  rope->set_high_freq_factor(scaling.Number("high_freq_factor", 4, 1e-6, 1e6));
  rope->set_original_context(
      static_cast<int32_t>(scaling.Integer("original_context", 8192, 1, 1 << 30)));
  if (rope->high_freq_factor() <= rope->low_freq_factor()) {
    scaling.Fault("high_freq_factor", "must be above low_freq_factor");
  }
  scaling.Finish();
}

void ParsePositions(Section& model, const Preset* preset, v1::ModelSpec* out) {
  if (out->architecture() == "llama") {
    out->set_rope_theta(model.Number("rope_theta", preset ? preset->rope_theta : 10000, 1, 1e12));
    if (model.Has("rope_scaling")) ParseRopeScaling(model.Child("rope_scaling"), out);
    if (out->heads() > 0 && out->hidden() / out->heads() % 2 != 0) {
      model.Fault("heads", "hidden / heads must be even for rotary positions");
    }
    return;
  }
  for (const char* key : {"rope_theta", "rope_scaling"}) {
    if (model.Has(key)) model.Fault(key, "only llama has rotary positions");
  }
}

void CheckHeads(Section& model, const v1::ModelSpec& spec) {
  if (spec.hidden() % spec.heads() != 0) {
    model.Fault("hidden",
                absl::StrCat(spec.hidden(), " is not a multiple of heads ", spec.heads()));
  } else if (spec.hidden() / spec.heads() > 256) {
    model.Fault("heads", "hidden / heads is above 256, the largest head dimension");
  }
  if (spec.heads() % spec.kv_heads() != 0) {
    model.Fault("kv_heads", absl::StrCat(spec.kv_heads(), " does not divide heads ", spec.heads()));
  }
}

}  // namespace

void ParseModel(Section model, const std::string& directory, v1::ModelSpec* out) {
  if (model.Has("from")) {
    model.Fault("from", "starting from a Hugging Face directory is not supported by this version");
    const std::filesystem::path path = model.Text("from", "");
    out->set_from((path.is_absolute() ? path : std::filesystem::path(directory) / path)
                      .lexically_normal()
                      .string());
  }
  const Preset* preset = nullptr;
  if (model.Has("preset")) {
    preset = FindPreset(model.Text("preset", ""));
    if (preset == nullptr) model.Fault("preset", "unknown preset; there are " + PresetNames());
  }
  const std::string architecture = model.OneOf(
      "architecture", preset ? preset->architecture : "gpt2", {"gpt2", "llama", "bert"});
  if (architecture == "bert") model.Fault("architecture", "bert is not supported by this version");
  out->set_architecture(architecture == "bert" ? "gpt2" : architecture);
  const bool llama = out->architecture() == "llama";
  const auto size = [&](const char* key, int64_t of_preset) {
    if (preset == nullptr && !model.Has(key)) model.Fault(key, "missing; a model needs it");
    return static_cast<int32_t>(model.Integer(key, of_preset, 1, 1 << 24));
  };
  out->set_layers(size("layers", preset ? preset->layers : 12));
  out->set_hidden(size("hidden", preset ? preset->hidden : 768));
  out->set_heads(size("heads", preset ? preset->heads : 12));
  out->set_context(size("context", preset ? preset->context : 1024));
  const auto optional = [&](const char* key, int64_t fallback) {
    return static_cast<int32_t>(model.Integer(key, fallback, 1, 1 << 24));
  };
  out->set_kv_heads(optional("kv_heads", preset ? preset->kv_heads : out->heads()));
  out->set_ffn_hidden(optional("ffn_hidden", preset ? preset->ffn_hidden : DefaultFfn(*out)));
  out->set_bias(model.Flag("bias", !llama));
  if (llama && out->bias())
    model.Fault("bias", "biases in llama are not supported by this version");
  out->set_dropout(model.Number("dropout", 0, 0, 0.999));
  out->set_untied_head(!model.Flag("tied_head", preset ? preset->tied_head : !llama));
  out->set_norm_eps(model.Number("norm_eps", 1e-5, 1e-12, 1));
  out->set_vocab_size(static_cast<int32_t>(model.Integer("vocab_size", 0, 0, 1 << 30)));
  ParsePositions(model, preset, out);
  CheckHeads(model, *out);
  model.Finish();
}

std::string ModelYaml(const v1::ModelSpec& model) {
  const auto number = [](double value) { return nlohmann::json(value).dump(); };
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::string yaml = "model:\n";
  if (!model.from().empty()) {
    absl::StrAppend(&yaml, "  from: ", nlohmann::json(model.from()).dump(), "\n");
  }
  absl::StrAppend(&yaml, "  architecture: ", model.architecture(), "\n  layers: ", model.layers(),
                  "\n  hidden: ", model.hidden(), "\n  heads: ", model.heads(),
                  "\n  kv_heads: ", model.kv_heads() > 0 ? model.kv_heads() : model.heads());
  absl::StrAppend(&yaml, "\n  ffn_hidden: ", model.ffn_hidden(), "\n  context: ", model.context(),
                  "\n  bias: ", flag(model.bias()), "\n  tied_head: ", flag(!model.untied_head()),
                  "\n  dropout: ", number(model.dropout()));
  if (model.norm_eps() > 0) absl::StrAppend(&yaml, "\n  norm_eps: ", number(model.norm_eps()));
  if (model.rope_theta() > 0) {
    absl::StrAppend(&yaml, "\n  rope_theta: ", number(model.rope_theta()));
  }
  if (model.has_rope_scaling()) {
    const v1::RopeScaling& rope = model.rope_scaling();
    absl::StrAppend(&yaml, "\n  rope_scaling: {kind: llama3, factor: ", number(rope.factor()),
                    ", low_freq_factor: ", number(rope.low_freq_factor()),
                    ", high_freq_factor: ", number(rope.high_freq_factor()),
                    ", original_context: ", rope.original_context(), "}");
  }
  absl::StrAppend(&yaml, "\n  vocab_size: ", model.vocab_size(), "\n");
  return yaml;
}

}  // namespace tercio::config

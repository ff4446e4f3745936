#include "config/model_section.h"

#include <filesystem>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/model_description.h"
#include "nlohmann/json.hpp"
#include "plan/limits.h"
#include "plan/names.h"

namespace tercio::config {
namespace {

struct Preset {
  const char* name;
  v1::Architecture architecture;
  int layers, hidden, heads, kv_heads, ffn_hidden, context, vocab_size;
  double rope_theta;
  bool tied_head;
};

// Published sizes: Radford et al. 2019 table 2 (gpt2), Meta's model cards (llama), Devlin et al.
// 2019 section 3 (bert).
constexpr Preset kPresets[] = {
    {"gpt2-124m", v1::ARCHITECTURE_GPT2, 12, 768, 12, 12, 3072, 1024, 50257, 0, true},
    {"gpt2-355m", v1::ARCHITECTURE_GPT2, 24, 1024, 16, 16, 4096, 1024, 50257, 0, true},
    {"gpt2-774m", v1::ARCHITECTURE_GPT2, 36, 1280, 20, 20, 5120, 1024, 50257, 0, true},
    {"gpt2-1.5b", v1::ARCHITECTURE_GPT2, 48, 1600, 25, 25, 6400, 1024, 50257, 0, true},
    {"llama2-7b", v1::ARCHITECTURE_LLAMA, 32, 4096, 32, 32, 11008, 4096, 32000, 10000, false},
    // The context is that of Llama 3's first release; later ones scale their positions.
    {"llama3-8b", v1::ARCHITECTURE_LLAMA, 32, 4096, 32, 8, 14336, 8192, 128256, 500000, false},
    {"llama3-70b", v1::ARCHITECTURE_LLAMA, 80, 8192, 64, 8, 28672, 8192, 128256, 500000, false},
    {"bert-base", v1::ARCHITECTURE_BERT, 12, 768, 12, 12, 3072, 512, 30522, 0, true},
    {"bert-large", v1::ARCHITECTURE_BERT, 24, 1024, 16, 16, 4096, 512, 30522, 0, true},
};

// A preset is a model like any other from here on: each of its sizes may be changed.
std::optional<v1::ModelSpec> FindPreset(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name != preset.name) continue;
    v1::ModelSpec model;
    model.set_architecture(preset.architecture);
    model.set_layers(preset.layers);
    model.set_hidden(preset.hidden);
    model.set_heads(preset.heads);
    model.set_kv_heads(preset.kv_heads);
    model.set_ffn_hidden(preset.ffn_hidden);
    model.set_context(preset.context);
    model.set_vocab_size(preset.vocab_size);
    model.set_rope_theta(preset.rope_theta);
    model.set_untied_head(!preset.tied_head);
    model.set_bias(model.architecture() != v1::ARCHITECTURE_LLAMA);
    return model;
  }
  return std::nullopt;
}

// The list is part of the error, so that nobody has to look it up.
std::string PresetNames() {
  std::string names;
  for (const Preset& preset : kPresets) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", preset.name);
  }
  return names;
}

// llama's usual width: two thirds of 4 hidden, since there are three matrices, in steps of 64.
int64_t DefaultFfn(const v1::ModelSpec& model) {
  if (model.architecture() != v1::ARCHITECTURE_LLAMA) return 4 * int64_t{model.hidden()};
  return (8 * int64_t{model.hidden()} / 3 + 63) / 64 * 64;
}

void ParseRopeScaling(Section scaling, v1::ModelSpec* out) {
  const std::string kind = scaling.OneOf("kind", "llama3", {"llama3", "linear", "dynamic", "yarn"});
  // Other kinds have names of their own in published configurations: they
  // are recognised, so that the message can say what is missing.
  if (kind != "llama3") scaling.Fault("kind", kind + " is not supported by this version");
  v1::RopeScaling* rope = out->mutable_rope_scaling();
  // The defaults are those of Llama 3.1.
  rope->set_factor(scaling.Number("factor", 8, 1, 1e6));
  rope->set_low_freq_factor(scaling.Number("low_freq_factor", 1, 1e-6, 1e6));
  rope->set_high_freq_factor(scaling.Number("high_freq_factor", 4, 1e-6, 1e6));
  rope->set_original_context(
      static_cast<int32_t>(scaling.Integer("original_context", 8192, 1, 1 << 30)));
  // The blend between the two frequencies divides by their difference.
  if (rope->high_freq_factor() <= rope->low_freq_factor()) {
    scaling.Fault("high_freq_factor", "must be above low_freq_factor");
  }
  scaling.Finish();
}

void ParsePositions(Section& model, const v1::ModelSpec& base, v1::ModelSpec* out) {
  if (out->architecture() == v1::ARCHITECTURE_LLAMA) {
    const double theta = base.rope_theta() > 0 ? base.rope_theta() : 10000;
    out->set_rope_theta(model.Number("rope_theta", theta, 1, 1e12));
    if (base.has_rope_scaling()) *out->mutable_rope_scaling() = base.rope_scaling();
    if (model.Has("rope_scaling")) ParseRopeScaling(model.Child("rope_scaling"), out);
    // Rotary positions turn pairs of dimensions.
    if (out->heads() > 0 && out->hidden() / out->heads() % 2 != 0) {
      model.Fault("heads", "hidden / heads must be even for rotary positions");
    }
    return;
  }
  // To ignore a key of another architecture would let a mistake pass.
  for (const char* key : {"rope_theta", "rope_scaling"}) {
    if (model.Has(key)) model.Fault(key, "only llama has rotary positions");
  }
}

// `labels: 3`, or their names.
void ParseLabels(Section& model, const v1::ModelSpec& base, v1::ModelSpec* out) {
  const YAML::Node labels = model.Get("labels");
  if (labels.IsDefined() && labels.IsSequence()) {
    for (const YAML::Node& name : labels) {
      if (!name.IsScalar()) return model.Fault("labels", "expected a list of class names");
      out->add_label_names(name.Scalar());
    }
    out->set_labels(out->label_names_size());
  } else {
    out->set_labels(static_cast<int32_t>(model.Integer("labels", base.labels(), 0, 1 << 16)));
    // Names of another number of classes would be wrong; those of the same number stay.
    if (out->labels() == base.labels()) *out->mutable_label_names() = base.label_names();
  }
  // With one class every answer is right, and nothing is learned.
  if (out->labels() == 1) model.Fault("labels", "a classifier needs at least two classes");
}

void ParseEncoder(Section& model, const v1::ModelSpec& base, v1::ModelSpec* out) {
  if (out->architecture() != v1::ARCHITECTURE_BERT) {
    for (const char* key : {"norm", "token_types", "sentence_order", "labels"}) {
      if (model.Has(key)) model.Fault(key, "only bert supports this key");
    }
    return;
  }
  out->set_norm(
      model.OneOf("norm", plan::IsNamed(base.norm()) ? base.norm() : v1::NORM_PLACEMENT_POST));
  out->set_token_types(static_cast<int32_t>(
      model.Integer("token_types", base.token_types() > 0 ? base.token_types() : 2, 2, 1 << 16)));
  ParseLabels(model, base, out);
  out->set_sentence_order(
      // Sentence order is a task of pretraining: a classifier
      // that starts from such a model leaves it.
      model.Flag("sentence_order", out->labels() == 0 && base.sentence_order()));
  if (out->labels() > 0 && out->sentence_order()) {
    model.Fault("sentence_order",
                "conflicts with labels: it is for pretraining, labels are for a classifier; "
                "leave one of the two out");
  }
  if (!out->bias()) model.Fault("bias", "bert without biases is not supported by this version");
  if (out->untied_head()) {
    model.Fault("tied_head", "bert with an untied head is not supported by this version");
  }
  if (out->kv_heads() != out->heads()) model.Fault("kv_heads", "must equal heads for bert");
}

// The sizes may each be possible and not fit together.
void CheckHeads(Section& model, const v1::ModelSpec& spec) {
  if (spec.hidden() % spec.heads() != 0) {
    model.Fault("hidden",
                absl::StrCat(spec.hidden(), " is not a multiple of heads ", spec.heads()));
  } else if (spec.hidden() / spec.heads() > 256) {
    model.Fault("heads", "hidden / heads exceeds 256, the largest head dimension");
  }
  if (spec.heads() % spec.kv_heads() != 0) {
    model.Fault("kv_heads", absl::StrCat(spec.kv_heads(), " does not divide heads ", spec.heads()));
  }
}

// The defaults where neither preset nor directory is named: gpt2's, or those of the section's
// architecture.
v1::ModelSpec UnnamedModel(Section& model) {
  v1::ModelSpec base;
  const bool llama =
      model.Has("architecture") &&
      plan::Named<v1::Architecture>(model.Text("architecture", "")) == v1::ARCHITECTURE_LLAMA;
  base.set_architecture(v1::ARCHITECTURE_GPT2);
  base.set_bias(!llama);
  base.set_untied_head(llama);
  return base;
}

// The section names every size itself: that of a job which was submitted once.
bool IsComplete(Section& model) {
  // A job that is resumed is written out completely, including what came from the directory.
  for (const char* key : {"architecture", "layers", "hidden", "heads", "kv_heads", "ffn_hidden",
                          "context", "bias", "tied_head", "norm_eps", "vocab_size"}) {
    if (!model.Has(key)) return false;
  }
  return true;
}

std::string ResolvePath(const std::string& text, const std::string& directory) {
  const std::filesystem::path path = text;
  return (path.is_absolute() ? path : std::filesystem::path(directory) / path)
      .lexically_normal()
      .string();
}

// The whole section, with `base` for what it leaves out; `named`: base has the sizes too.
void ParseSizes(Section& model, const v1::ModelSpec& base, bool named, v1::ModelSpec* out) {
  const v1::Architecture architecture = model.OneOf("architecture", base.architecture());
  out->set_architecture(architecture);
  const auto size = [&](const char* key, int64_t of_base, int64_t otherwise, int64_t most) {
    // A size that is missing is reported and then replaced,
    // so that later checks do not fail with it.
    if (!named && !model.Has(key)) model.Fault(key, "missing; a model needs it");
    return static_cast<int32_t>(model.Integer(key, named ? of_base : otherwise, 1, most));
  };
  out->set_layers(size("layers", base.layers(), 12, plan::kMostLayers));
  out->set_hidden(size("hidden", base.hidden(), 768, plan::kMostHidden));
  out->set_heads(size("heads", base.heads(), 12, plan::kMostHidden));
  out->set_context(size("context", base.context(), 1024, plan::kMostContext));
  // These follow from the other sizes where they are not given.
  const auto optional = [&](const char* key, int64_t of_base, int64_t otherwise) {
    return static_cast<int32_t>(
        model.Integer(key, of_base > 0 ? of_base : otherwise, 1, plan::kMostFfn));
  };
  out->set_kv_heads(optional("kv_heads", base.kv_heads(), out->heads()));
  out->set_ffn_hidden(optional("ffn_hidden", base.ffn_hidden(), DefaultFfn(*out)));
  out->set_bias(model.Flag("bias", base.bias()));
  if (out->architecture() == v1::ARCHITECTURE_LLAMA && out->bias())
    model.Fault("bias", "biases in llama are not supported by this version");
  out->set_dropout(model.Number("dropout", 0, 0, 0.999));
  out->set_untied_head(!model.Flag("tied_head", !base.untied_head()));
  // The epsilons are those of the published models.
  const double eps = architecture == v1::ARCHITECTURE_BERT ? 1e-12 : 1e-5;
  out->set_norm_eps(
      model.Number("norm_eps", base.norm_eps() > 0 ? base.norm_eps() : eps, 1e-12, 1));
  // 0 lets the data decide.
  out->set_vocab_size(static_cast<int32_t>(
      model.Integer("vocab_size", base.vocab_size(), 0, plan::kMostVocabulary)));
  ParsePositions(model, base, out);
  ParseEncoder(model, base, out);
  CheckHeads(model, *out);
}

// Sizes come from the directory; the job may shorten the context, and choose its dropout.
void ParseFrom(Section& model, const std::string& directory, v1::ModelSpec* out) {
  const std::string path = ResolvePath(model.Text("from", ""), directory);
  out->set_from(path);
  if (model.Has("preset")) {
    model.Fault("preset", "the model comes from " + path + "; leave one of the two out");
    return;
  }
  // Only the description is read here; weights stay with the trainers.
  const absl::StatusOr<v1::ModelSpec> source = checkpoint::DescribeModel(path);
  // A job that resumes from its own checkpoints no longer needs the directory, and where only nodes
  // can see it they do the comparison.
  if (absl::IsNotFound(source.status()) && IsComplete(model)) {
    ParseSizes(model, UnnamedModel(model), /*named=*/false, out);
    return;
  }
  if (!source.ok()) {
    model.Fault("from", std::string(source.status().message()));
    return;
  }
  ParseSizes(model, *source, /*named=*/true, out);
  // Every difference is reported by its key, as for the rest of the section.
  for (const checkpoint::ModelDifference& difference : checkpoint::DifferencesOf(*out, *source)) {
    model.Fault(difference.key, absl::StrCat(difference.ours, ", but the model in ", path, " has ",
                                             difference.theirs));
  }
}

}  // namespace

void ParseModel(Section model, const std::string& directory, v1::ModelSpec* out) {
  if (model.Has("from")) {
    ParseFrom(model, directory, out);
    // Without its sizes the section's keys were not read.
    if (out->layers() > 0) model.Finish();
    return;
  }
  std::optional<v1::ModelSpec> preset;
  if (model.Has("preset")) {
    preset = FindPreset(model.Text("preset", ""));
    if (!preset) model.Fault("preset", "unknown preset; available: " + PresetNames());
  }
  ParseSizes(model, preset ? *preset : UnnamedModel(model), preset.has_value(), out);
  model.Finish();
}

namespace {

std::string EncoderYaml(const v1::ModelSpec& model) {
  const std::string labels =
      // Names say more than their number, which follows from them.
      model.label_names().empty()
          ? absl::StrCat(model.labels())
          : nlohmann::json(
                std::vector<std::string>(model.label_names().begin(), model.label_names().end()))
                .dump();
  return absl::StrCat(
      "\n  norm: ", plan::TextOf(model.norm()), "\n  token_types: ", model.token_types(),
      "\n  sentence_order: ", model.sentence_order() ? "true" : "false", "\n  labels: ", labels);
}

}  // namespace

std::string ModelYaml(const v1::ModelSpec& model) {
  const auto number = [](double value) { return nlohmann::json(value).dump(); };
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::string yaml = "model:\n";
  if (!model.from().empty()) {
    absl::StrAppend(&yaml, "  from: ", nlohmann::json(model.from()).dump(), "\n");
  }
  absl::StrAppend(&yaml, "  architecture: ", plan::TextOf(model.architecture()),
                  "\n  layers: ", model.layers(), "\n  hidden: ", model.hidden(),
                  "\n  heads: ", model.heads(),
                  // Jobs of older versions have 0, which means as many as heads.
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
  if (model.architecture() == v1::ARCHITECTURE_BERT) absl::StrAppend(&yaml, EncoderYaml(model));
  absl::StrAppend(&yaml, "\n  vocab_size: ", model.vocab_size(), "\n");
  return yaml;
}

}  // namespace tercio::config

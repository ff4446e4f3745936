#include "config/model_section.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/model_description.h"
#include "model/architectures/registry.h"
#include "nlohmann/json.hpp"
#include "plan/limits.h"
#include "plan/names.h"
#include "plan/span_lengths.h"

namespace tercio::config {
namespace {

constexpr int64_t kLargestHead = 256;

// Which architecture has which of them: model/architectures/.
constexpr const char* kKeysOfSome[] = {"norm",
                                       "token_types",
                                       "sentence_order",
                                       "labels",
                                       "activation",
                                       "head_dim",
                                       "rotary_dim",
                                       "sliding_window",
                                       "attention_softcap",
                                       "logit_softcap",
                                       "query_scale",
                                       "sequential_residual",
                                       "decoder_layers",
                                       "decoder_context",
                                       "relative_buckets",
                                       "relative_distance",
                                       "gated_mlp"};

// "gpt2", "gpt2 and llama", "gpt2, llama and bert": the architectures that job files can name, and
// for which `holds`.
template <typename Holds>
std::string ArchitecturesWith(const Holds& holds) {
  std::vector<std::string> names;
  for (const model::ArchitectureFacts* facts : model::AllArchitectures()) {
    if (plan::IsNamed(facts->architecture) && holds(*facts)) {
      names.push_back(plan::TextOf(facts->architecture));
    }
  }
  if (names.size() < 2) return absl::StrJoin(names, "");
  const std::string last = names.back();
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " and ", last);
}

std::string SupportersOf(std::string_view key) {
  const std::string names =
      ArchitecturesWith([&](const model::ArchitectureFacts& facts) { return facts.Has(key); });
  if (names.empty()) return "no architecture of this version supports this key";
  const bool several = names.find(' ') != std::string::npos;
  return absl::StrCat("only ", names, several ? " support" : " supports", " this key");
}

// The list is part of the error, so that nobody has to look it up.
std::string PresetNames() {
  std::vector<std::string> names;
  for (const model::ArchitectureFacts* facts : model::AllArchitectures()) {
    if (!plan::IsNamed(facts->architecture)) continue;
    for (const model::Preset& preset : facts->presets) names.push_back(preset.name);
  }
  return absl::StrJoin(names, ", ");
}

std::optional<v1::ModelSpec> PresetNamed(const std::string& name) {
  const std::optional<model::NamedPreset> preset = model::FindPreset(name);
  if (!preset || !plan::IsNamed(preset->facts->architecture)) return std::nullopt;
  return model::ModelOf(*preset);
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

void ParsePositions(Section& model, const model::ArchitectureFacts& facts,
                    const v1::ModelSpec& base, v1::ModelSpec* out) {
  if (facts.rope_theta > 0) {
    const double theta = base.rope_theta() > 0 ? base.rope_theta() : facts.rope_theta;
    out->set_rope_theta(model.Number("rope_theta", theta, 1, 1e12));
    if (base.has_rope_scaling()) *out->mutable_rope_scaling() = base.rope_scaling();
    if (model.Has("rope_scaling")) ParseRopeScaling(model.Child("rope_scaling"), out);
    return;
  }
  // To ignore a key of another architecture would let a mistake pass.
  for (const char* key : {"rope_theta", "rope_scaling"}) {
    if (!model.Has(key)) continue;
    const std::string names = ArchitecturesWith(
        [](const model::ArchitectureFacts& other) { return other.rope_theta > 0; });
    const bool several = names.find(' ') != std::string::npos;
    model.Fault(key, absl::StrCat("only ", names, several ? " have" : " has", " rotary positions"));
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

void ParseEncoder(Section& model, const model::ArchitectureFacts& facts, const v1::ModelSpec& base,
                  v1::ModelSpec* out) {
  if (!facts.Has("labels")) return;
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
}

void ParseActivation(Section& model, const model::ArchitectureFacts& facts,
                     const v1::ModelSpec& base, v1::ModelSpec* out) {
  const v1::Activation usual =
      plan::IsNamed(base.activation()) ? base.activation() : facts.activation;
  const v1::Activation activation = model.OneOf("activation", usual);
  const auto& further = facts.further_activations;
  // The architecture's own stays unset.
  if (activation == facts.activation) return;
  if (std::find(further.begin(), further.end(), activation) == further.end()) {
    return model.Fault("activation", absl::StrCat(plan::TextOf(activation), " in ",
                                                  plan::TextOf(facts.architecture),
                                                  " is not supported by this version"));
  }
  out->set_activation(activation);
}

// Keys whose values stay unset where the section does not name them.
void ParseFurther(Section& model, const model::ArchitectureFacts& facts, const v1::ModelSpec& base,
                  v1::ModelSpec* out) {
  if (facts.Has("activation")) ParseActivation(model, facts, base, out);
  const auto size = [&](const char* key, int64_t of_base, int64_t most) -> int32_t {
    if (!facts.Has(key)) return 0;
    return static_cast<int32_t>(model.Integer(key, of_base, 0, most));
  };
  out->set_head_dim(size("head_dim", base.head_dim(), kLargestHead));
  out->set_rotary_dim(size("rotary_dim", base.rotary_dim(), kLargestHead));
  out->set_sliding_window(size("sliding_window", base.sliding_window(), plan::kMostContext));
  const auto number = [&](const char* key, double of_base) {
    return facts.Has(key) ? model.Number(key, of_base, 0, 1e6) : 0;
  };
  out->set_attention_softcap(number("attention_softcap", base.attention_softcap()));
  out->set_logit_softcap(number("logit_softcap", base.logit_softcap()));
  out->set_query_scale(number("query_scale", base.query_scale()));
  if (facts.Has("sequential_residual")) {
    out->set_sequential_residual(model.Flag("sequential_residual", base.sequential_residual()));
  }
  if (facts.Has("gated_mlp")) out->set_gated_mlp(model.Flag("gated_mlp", base.gated_mlp()));
  out->set_relative_buckets(
      size("relative_buckets", base.relative_buckets(), model::kMostRelativeBuckets));
  out->set_relative_distance(
      size("relative_distance", base.relative_distance(), plan::kMostContext));
}

// A decoder beside the encoder that `layers` and `context` are about.
void ParseDecoder(Section& model, const model::ArchitectureFacts& facts, const v1::ModelSpec& base,
                  v1::ModelSpec* out) {
  if (!facts.Has("decoder_layers")) return;
  const int layers = base.decoder_layers() > 0 ? base.decoder_layers() : out->layers();
  out->set_decoder_layers(
      static_cast<int32_t>(model.Integer("decoder_layers", layers, 1, plan::kMostLayers)));
  // 0 lets ResolveDecoderContext decide. The number of another job depends on its masking.
  out->set_decoder_context(
      static_cast<int32_t>(model.Integer("decoder_context", 0, 0, plan::kMostContext)));
}

void CheckKeys(Section& model, const model::ArchitectureFacts& facts) {
  // To ignore a key of another architecture would let a mistake pass.
  for (const char* key : kKeysOfSome) {
    if (model.Has(key) && !facts.Has(key)) model.Fault(key, SupportersOf(key));
  }
}

// What the architecture has in one form only.
void CheckForms(Section& model, const model::ArchitectureFacts& facts, const v1::ModelSpec& spec) {
  const std::string name = plan::TextOf(facts.architecture);
  if (!facts.free_bias && spec.bias() != facts.bias) {
    model.Fault("bias", facts.bias ? name + " without biases is not supported by this version"
                                   : "biases in " + name + " are not supported by this version");
  }
  if (!facts.free_head && spec.untied_head()) {
    model.Fault("tied_head", name + " with an untied head is not supported by this version");
  }
  if (!facts.grouped_keys && spec.kv_heads() != spec.heads()) {
    model.Fault("kv_heads", "must equal heads for " + name);
  }
}

// The sizes may each be possible and not fit together.
void CheckHeads(Section& model, const model::ArchitectureFacts& facts, const v1::ModelSpec& spec) {
  if (spec.heads() % spec.kv_heads() != 0) {
    model.Fault("kv_heads", absl::StrCat(spec.kv_heads(), " does not divide heads ", spec.heads()));
  }
  int64_t head = spec.head_dim();
  if (head == 0) {
    head = spec.hidden() / spec.heads();
    if (spec.hidden() % spec.heads() != 0) {
      model.Fault("hidden",
                  absl::StrCat(spec.hidden(), " is not a multiple of heads ", spec.heads()));
    } else if (head > kLargestHead) {
      model.Fault("heads", "hidden / heads exceeds 256, the largest head dimension");
    }
  }
  // Rotary positions turn pairs of dimensions.
  if (facts.rope_theta > 0 && spec.rotary_dim() == 0 && head % 2 != 0) {
    model.Fault(spec.head_dim() > 0 ? "head_dim" : "heads",
                absl::StrCat(spec.head_dim() > 0 ? "" : "hidden / heads ",
                             "must be even for rotary positions"));
  }
  if (spec.rotary_dim() % 2 != 0 || spec.rotary_dim() > head) {
    model.Fault("rotary_dim", absl::StrCat(spec.rotary_dim(), ", expected an even number up to ",
                                           head, ", the size of a head"));
  }
}

// The defaults where neither preset nor directory is named: gpt2's, or those of the section's
// architecture.
v1::ModelSpec UnnamedModel(Section& model) {
  const v1::Architecture named =
      plan::Named<v1::Architecture>(model.Has("architecture") ? model.Text("architecture", "") : "")
          .value_or(v1::ARCHITECTURE_GPT2);
  v1::ModelSpec base;
  base.set_architecture(v1::ARCHITECTURE_GPT2);
  base.set_bias(model::FactsOf(named).bias);
  base.set_untied_head(!model::FactsOf(named).tied_head);
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

// The whole section, with `base` for what it leaves out; `named`: base has the sizes too.
void ParseSizes(Section& model, const v1::ModelSpec& base, bool named, v1::ModelSpec* out) {
  out->set_architecture(model.OneOf("architecture", base.architecture()));
  const model::ArchitectureFacts& facts = model::FactsOf(out->architecture());
  CheckKeys(model, facts);
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
  out->set_ffn_hidden(optional("ffn_hidden", base.ffn_hidden(), model::UsualFfnHidden(*out)));
  out->set_bias(model.Flag("bias", base.bias()));
  out->set_dropout(model.Number("dropout", 0, 0, 0.999));
  out->set_untied_head(!model.Flag("tied_head", !base.untied_head()));
  out->set_norm_eps(
      model.Number("norm_eps", base.norm_eps() > 0 ? base.norm_eps() : facts.norm_eps, 1e-12, 1));
  // 0 lets the data decide.
  out->set_vocab_size(static_cast<int32_t>(
      model.Integer("vocab_size", base.vocab_size(), 0, plan::kMostVocabulary)));
  ParsePositions(model, facts, base, out);
  ParseEncoder(model, facts, base, out);
  ParseFurther(model, facts, base, out);
  ParseDecoder(model, facts, base, out);
  CheckForms(model, facts, *out);
  CheckHeads(model, facts, *out);
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
  // An adapter that the model has is trained on, whatever the job says of it (ParseAdapter).
  if (source->has_adapter()) *out->mutable_adapter() = source->adapter();
  // Every difference is reported by its key, as for the rest of the section.
  for (const checkpoint::ModelDifference& difference : checkpoint::DifferencesOf(*out, *source)) {
    model.Fault(difference.key, absl::StrCat(difference.ours, ", but the model in ", path, " has ",
                                             difference.theirs));
  }
}

void ParseBaseFormat(Section& model, v1::ModelSpec* out) {
  if (!model.Has("base_format")) return;
  const v1::BaseFormat format = model.OneOf("base_format", v1::BASE_FORMAT_NONE);
  // Without it and with none a job is the same.
  if (format != v1::BASE_FORMAT_NONE) out->set_base_format(format);
}

}  // namespace

void ParseModel(Section model, const std::string& directory, v1::ModelSpec* out) {
  if (model.Has("from")) {
    ParseFrom(model, directory, out);
    ParseBaseFormat(model, out);
    // Without its sizes the section's keys were not read.
    if (out->layers() > 0) model.Finish();
    return;
  }
  std::optional<v1::ModelSpec> preset;
  if (model.Has("preset")) {
    preset = PresetNamed(model.Text("preset", ""));
    if (!preset) model.Fault("preset", "unknown preset; available: " + PresetNames());
    // A model without groups stays one without groups: its heads are one number.
    if (preset && model.Has("heads") && preset->kv_heads() == preset->heads()) {
      preset->clear_kv_heads();
    }
  }
  ParseSizes(model, preset ? *preset : UnnamedModel(model), preset.has_value(), out);
  ParseBaseFormat(model, out);
  model.Finish();
}

void ResolveDecoderContext(Section model, const v1::DataSpec& data, v1::ModelSpec* out) {
  if (!model::FactsOf(out->architecture()).Has("decoder_context")) return;
  const absl::StatusOr<plan::SpanLengths> lengths =
      plan::SpanLengthsOf(out->context(), data.masking());
  if (!lengths.ok()) return model.Fault("context", std::string(lengths.status().message()));
  if (out->decoder_context() > 0 && out->decoder_context() != lengths->targets) {
    model.Fault("decoder_context",
                absl::StrCat(out->decoder_context(), ", but with this context and data.masking a ",
                             "sample has ", lengths->targets, " tokens in the decoder; use that ",
                             "number, or leave the key out"));
  }
  out->set_decoder_context(static_cast<int32_t>(lengths->targets));
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

// Only what is set, since most models have none of it.
std::string FurtherYaml(const v1::ModelSpec& model) {
  std::string yaml;
  const auto add = [&](const char* key, bool set, const std::string& value) {
    if (set) absl::StrAppend(&yaml, "\n  ", key, ": ", value);
  };
  const auto size = [&](const char* key, int64_t value) {
    add(key, value > 0, absl::StrCat(value));
  };
  const auto number = [&](const char* key, double value) {
    add(key, value > 0, nlohmann::json(value).dump());
  };
  add("activation", plan::IsNamed(model.activation()), plan::TextOf(model.activation()));
  size("head_dim", model.head_dim());
  size("rotary_dim", model.rotary_dim());
  size("sliding_window", model.sliding_window());
  number("attention_softcap", model.attention_softcap());
  number("logit_softcap", model.logit_softcap());
  number("query_scale", model.query_scale());
  add("sequential_residual", model.sequential_residual(), "true");
  // decoder_context follows from the data, also after a change of either.
  size("decoder_layers", model.decoder_layers());
  size("relative_buckets", model.relative_buckets());
  size("relative_distance", model.relative_distance());
  add("gated_mlp", model.gated_mlp(), "true");
  add("base_format", plan::IsNamed(model.base_format()), plan::TextOf(model.base_format()));
  return yaml;
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
  absl::StrAppend(&yaml, FurtherYaml(model));
  if (model::FactsOf(model.architecture()).Has("labels")) {
    absl::StrAppend(&yaml, EncoderYaml(model));
  }
  absl::StrAppend(&yaml, "\n  vocab_size: ", model.vocab_size(), "\n");
  return yaml;
}

}  // namespace tercio::config

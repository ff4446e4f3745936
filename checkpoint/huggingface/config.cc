#include "checkpoint/huggingface/config.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "plan/names.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;

// Far above the sizes of real models; a matrix of two such sizes still has a number of bytes that
// fits into 64 bits.
constexpr int64_t kLargestSize = 1 << 24;
constexpr int64_t kLargestHead = 256;

// Reads keys and gathers faults. A key that is null counts as missing, as in transformers.
class ConfigReader {
 public:
  ConfigReader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  bool Has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  const Json& Value(const char* key) const { return json_[key]; }

  int32_t Size(const char* key) {
    if (!Has(key)) Damaged(absl::StrCat(key, " is missing"));
    // A missing size counts as 1, so that the other faults of the file are found as well.
    return SizeOr(key, 1);
  }
  int32_t SizeOr(const char* key, int64_t fallback) {
    if (!Has(key)) return static_cast<int32_t>(fallback);
    const Json& value = json_[key];
    if (!value.is_number_unsigned() || value.get<uint64_t>() < 1 ||
        value.get<uint64_t>() > static_cast<uint64_t>(kLargestSize)) {
      Damaged(absl::StrCat(key, " is ", Shown(value), ", expected a whole number from 1 to ",
                           kLargestSize));
      return 1;
    }
    return value.get<int32_t>();
  }
  double NumberOr(const char* key, double fallback, double least, double most) {
    if (!Has(key)) return fallback;
    const Json& value = json_[key];
    // The comparisons are negated, so that NaN is refused, too.
    if (!value.is_number() || !(value.get<double>() >= least) || !(value.get<double>() <= most)) {
      Damaged(absl::StrCat(key, " is ", Shown(value), ", expected a number from ", least, " to ",
                           most));
      return least;
    }
    return value.get<double>();
  }
  bool FlagOr(const char* key, bool fallback) {
    if (!Has(key)) return fallback;
    if (!json_[key].is_boolean()) {
      Damaged(absl::StrCat(key, " is ", Shown(json_[key]), ", expected true or false"));
      return fallback;
    }
    return json_[key].get<bool>();
  }
  std::string TextOr(const char* key, const std::string& fallback) {
    if (!Has(key)) return fallback;
    if (!json_[key].is_string()) {
      Damaged(absl::StrCat(key, " is ", Shown(json_[key]), ", expected a string"));
      return fallback;
    }
    return json_[key].get<std::string>();
  }

  // Tercio has the operation in one form only.
  void Only(const char* key, bool value, bool fallback) {
    if (FlagOr(key, fallback) != value) {
      Unsupported(absl::StrCat(key, ": ", value ? "false" : "true"));
    }
  }
  void OnlyText(const char* key, const std::string& fallback,
                const std::vector<std::string>& values) {
    const std::string text = TextOr(key, fallback);
    for (const std::string& value : values) {
      if (text == value) return;
    }
    Unsupported(absl::StrCat(key, ": ", Shown(Json(text)),
                             " (supported: ", absl::StrJoin(values, ", "), ")"));
  }

  void Damaged(const std::string& what) {
    // Damage decides the kind of error even among other faults, since it puts the whole file in
    // doubt.
    damaged_ = true;
    faults_.push_back(what);
  }
  void Unsupported(const std::string& what) {
    faults_.push_back(absl::StrCat(what, " is not supported by this version"));
  }
  void Impossible(const std::string& what) { faults_.push_back(what); }

  bool good() const { return faults_.empty(); }
  absl::Status status() const {
    if (faults_.empty()) return absl::OkStatus();
    const std::string message = absl::StrCat(path_, ": ", absl::StrJoin(faults_, "; "));
    return damaged_ ? absl::DataLossError(message) : absl::InvalidArgumentError(message);
  }

  // A value of an untrusted file, for a message.
  static std::string Shown(const Json& value) {
    // Messages go to terminals and logs, which the escapes protect from the file's control
    // characters.
    const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
    return text.size() <= 80 ? text : text.substr(0, 77) + "...";
  }

 private:
  const Json& json_;
  std::string path_;
  std::vector<std::string> faults_;
  bool damaged_ = false;
};

void ReadGpt2(ConfigReader& config, v1::ModelSpec* model) {
  model->set_layers(config.Size("n_layer"));
  model->set_hidden(config.Size("n_embd"));
  model->set_heads(config.Size("n_head"));
  // GPT-2 has no grouped queries.
  model->set_kv_heads(model->heads());
  model->set_context(config.Size("n_positions"));
  // The usual defaults here and below are those of transformers' classes.
  model->set_ffn_hidden(config.SizeOr("n_inner", 4 * int64_t{model->hidden()}));
  // transformers' gpt2 has biases everywhere, and no setting to leave them out.
  model->set_bias(true);
  model->set_norm_eps(config.NumberOr("layer_norm_epsilon", 1e-5, 1e-12, 1));
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", true));
  // Both names stand for the approximation by tanh.
  config.OnlyText("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  config.Only("scale_attn_weights", true, true);
  config.Only("scale_attn_by_inverse_layer_idx", false, false);
  config.Only("add_cross_attention", false, false);
}

void ReadLlama3Scaling(ConfigReader& rope, v1::RopeScaling* out) {
  // There are no defaults for these numbers, and a wrong guess would change every position.
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    if (!rope.Has(key)) rope.Damaged(absl::StrCat("the llama3 rotary scaling is missing ", key));
  }
  out->set_factor(rope.NumberOr("factor", 1, 1, 1e6));
  out->set_low_freq_factor(rope.NumberOr("low_freq_factor", 1, 1e-6, 1e6));
  out->set_high_freq_factor(rope.NumberOr("high_freq_factor", 4, 1e-6, 1e6));
  out->set_original_context(rope.SizeOr("original_max_position_embeddings", 1));
  // The interpolation between the two divides by their difference.
  if (out->high_freq_factor() <= out->low_freq_factor()) {
    rope.Impossible("high_freq_factor is not above low_freq_factor");
  }
}

// transformers 5 writes rope_parameters with the base in it; before, rope_scaling beside
// rope_theta.
absl::Status ReadRotary(ConfigReader& config, const std::string& path, v1::ModelSpec* model) {
  model->set_rope_theta(config.NumberOr("rope_theta", 10000, 1, 1e12));
  const char* key = config.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.Has(key)) return absl::OkStatus();
  if (!config.Value(key).is_object()) {
    config.Damaged(absl::StrCat(key, " is not a map"));
    return absl::OkStatus();
  }
  ConfigReader rope(config.Value(key), absl::StrCat(path, ": ", key));
  // The base beside the map counts only where the map does not name one.
  model->set_rope_theta(rope.NumberOr("rope_theta", model->rope_theta(), 1, 1e12));
  // Files before rope_type have the same values under the name of type.
  const std::string kind = rope.TextOr("rope_type", rope.TextOr("type", "default"));
  if (kind == "llama3") {
    ReadLlama3Scaling(rope, model->mutable_rope_scaling());
  } else if (kind != "default") {
    rope.Unsupported(absl::StrCat("rope_type: ", ConfigReader::Shown(kind)));
  }
  if (rope.NumberOr("partial_rotary_factor", 1, 0, 1) != 1) {
    rope.Unsupported("partial_rotary_factor below 1");
  }
  return rope.status();
}

void ReadLlama(ConfigReader& config, v1::ModelSpec* model) {
  model->set_layers(config.Size("num_hidden_layers"));
  model->set_hidden(config.Size("hidden_size"));
  model->set_heads(config.Size("num_attention_heads"));
  model->set_kv_heads(config.SizeOr("num_key_value_heads", model->heads()));
  model->set_context(config.Size("max_position_embeddings"));
  model->set_ffn_hidden(config.Size("intermediate_size"));
  model->set_norm_eps(config.NumberOr("rms_norm_eps", 1e-6, 1e-12, 1));
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", false));
  // Both names stand for the same function.
  config.OnlyText("hidden_act", "silu", {"silu", "swish"});
  config.Only("attention_bias", false, false);
  config.Only("mlp_bias", false, false);
  if (config.NumberOr("partial_rotary_factor", 1, 0, 1) != 1) {
    config.Unsupported("partial_rotary_factor below 1");
  }
}

constexpr int64_t kMostLabels = 1 << 16;

// The class that a config.json names first, without what tells bert and megatron-bert apart.
std::string TaskOf(const Json& json) {
  if (!json.contains("architectures") || !json["architectures"].is_array() ||
      json["architectures"].empty() || !json["architectures"][0].is_string()) {
    return "";
  }
  std::string name = json["architectures"][0].get<std::string>();
  for (const char* prefix : {"MegatronBert", "Bert"}) {
    if (name.rfind(prefix, 0) == 0) return name.substr(std::string(prefix).size());
  }
  return name;
}

// {"0": "negative", "1": "positive"}, in the order of the numbers. transformers assumes two classes
// when it is missing.
void ReadLabels(ConfigReader& config, v1::ModelSpec* model) {
  // Other types of problems have another loss, which Tercio does not compute.
  config.OnlyText("problem_type", "single_label_classification", {"single_label_classification"});
  if (!config.Has("id2label")) {
    model->set_labels(config.SizeOr("num_labels", 2));
    return;
  }
  const Json& names = config.Value("id2label");
  if (!names.is_object() || names.empty() || names.size() > kMostLabels) {
    return config.Damaged("id2label is not a map of classes");
  }
  // The keys are texts and sorted as such, "10" before "2", so they are looked up by number.
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string key = absl::StrCat(i);
    if (!names.contains(key) || !names[key].is_string()) {
      return config.Damaged(absl::StrCat("id2label has no name for class ", i));
    }
    model->add_label_names(names[key].get<std::string>());
  }
  model->set_labels(model->label_names_size());
}

void ReadBert(ConfigReader& config, const std::string& task, bool post_norm, v1::ModelSpec* model) {
  model->set_architecture(v1::ARCHITECTURE_BERT);
  model->set_norm(post_norm ? v1::NORM_PLACEMENT_POST : v1::NORM_PLACEMENT_PRE);
  model->set_layers(config.Size("num_hidden_layers"));
  model->set_hidden(config.Size("hidden_size"));
  model->set_heads(config.Size("num_attention_heads"));
  model->set_kv_heads(model->heads());
  model->set_context(config.Size("max_position_embeddings"));
  model->set_ffn_hidden(config.Size("intermediate_size"));
  model->set_token_types(config.SizeOr("type_vocab_size", 2));
  model->set_bias(true);
  model->set_norm_eps(config.NumberOr("layer_norm_eps", 1e-12, 1e-12, 1));
  config.OnlyText("hidden_act", "gelu", {"gelu"});
  config.OnlyText("position_embedding_type", "absolute", {"absolute"});
  // The head of Tercio's bert is always the embedding table.
  config.Only("tie_word_embeddings", true, true);
  config.Only("is_decoder", false, false);
  config.Only("add_cross_attention", false, false);
  if (task == "ForSequenceClassification") {
    ReadLabels(config, model);
  } else if (task == "ForPreTraining") {
    // This class has both heads of BERT's pretraining, the second of which reads the order.
    model->set_sentence_order(true);
  } else if (task != "ForMaskedLM" && task != "Model" && !task.empty()) {
    config.Unsupported(absl::StrCat("architectures: ", ConfigReader::Shown(task)));
  }
}

// Checks what the engine needs of any model.
void CheckHeads(ConfigReader& config, const v1::ModelSpec& model) {
  // After a fault sizes may be 1, and further messages about them would mislead.
  if (!config.good()) return;
  if (model.hidden() % model.heads() != 0) {
    config.Impossible(absl::StrCat("hidden size ", model.hidden(), " is not a multiple of ",
                                   model.heads(), " heads"));
    return;
  }
  const int64_t head = model.hidden() / model.heads();
  if (head > kLargestHead) {
    config.Unsupported(absl::StrCat("a head size of ", head, " (at most ", kLargestHead, ")"));
  }
  if (model.heads() % model.kv_heads() != 0) {
    config.Impossible(absl::StrCat("num_key_value_heads ", model.kv_heads(),
                                   " does not divide the ", model.heads(), " heads"));
  }
  // Only llama turns pairs of channels by their position, and may name another size of heads.
  if (model.architecture() != v1::ARCHITECTURE_LLAMA) return;
  if (head % 2 != 0) config.Unsupported(absl::StrCat("an odd head size, ", head));
  if (const int64_t given = config.SizeOr("head_dim", head); given != head) {
    config.Unsupported(absl::StrCat("head_dim: ", given, " (hidden size / heads is ", head, ")"));
  }
}

}  // namespace

absl::StatusOr<v1::ModelSpec> ModelOfHuggingFaceConfig(std::string_view text,
                                                       const std::string& path) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(path, ": not a JSON map"));
  ConfigReader config(json, path);
  v1::ModelSpec model;
  const std::string kind = config.TextOr("model_type", "");
  // This status is asked for last, since its map is a part of the file with a reader of its own.
  absl::Status rotary;
  if (kind == "gpt2") {
    model.set_architecture(v1::ARCHITECTURE_GPT2);
    ReadGpt2(config, &model);
  } else if (kind == "llama") {
    model.set_architecture(v1::ARCHITECTURE_LLAMA);
    ReadLlama(config, &model);
    rotary = ReadRotary(config, path, &model);
  } else if (kind == "bert" || kind == "megatron-bert") {
    ReadBert(config, TaskOf(json), kind == "bert", &model);
  } else if (kind.empty()) {
    config.Damaged("model_type is missing");
  } else {
    config.Unsupported(absl::StrCat("model_type: ", ConfigReader::Shown(kind),
                                    " (supported: gpt2, llama, bert, megatron-bert)"));
  }
  // Quantised weights have scales beside them, and are no numbers by themselves.
  if (config.Has("quantization_config")) config.Unsupported("quantization_config");
  // A file of an unknown kind has no layers here, and should not be blamed for its sizes, too.
  model.set_vocab_size(model.layers() > 0 ? config.Size("vocab_size") : 0);
  CheckHeads(config, model);
  TERCIO_RETURN_IF_ERROR(config.status());
  TERCIO_RETURN_IF_ERROR(rotary);
  return model;
}

absl::Status CheckHasHuggingFaceForm(const v1::ModelSpec& model) {
  if (model.architecture() == v1::ARCHITECTURE_GPT2 && model.kv_heads() > 0 &&
      model.kv_heads() != model.heads()) {
    return absl::InvalidArgumentError(
        absl::StrCat("transformers' gpt2 has as many key heads as query heads; this model has ",
                     model.kv_heads(), " for ", model.heads()));
  }
  if (plan::IsNamed(model.architecture())) return absl::OkStatus();
  return absl::InvalidArgumentError("export of this architecture is not supported by this version");
}

namespace {

nlohmann::ordered_json BertConfig(const v1::ModelSpec& model) {
  const bool post_norm = model.norm() != v1::NORM_PLACEMENT_PRE;
  const std::string task = model.labels() > 0       ? "ForSequenceClassification"
                           : model.sentence_order() ? "ForPreTraining"
                                                    : "ForMaskedLM";
  nlohmann::ordered_json json = {
      // The name of the class tells transformers where the norms are.
      {"architectures", {(post_norm ? "Bert" : "MegatronBert") + task}},
      {"model_type", post_norm ? "bert" : "megatron-bert"},
      {"hidden_act", "gelu"},
      {"num_hidden_layers", model.layers()},
      {"hidden_size", model.hidden()},
      {"intermediate_size", model.ffn_hidden()},
      {"num_attention_heads", model.heads()},
      {"max_position_embeddings", model.context()},
      {"type_vocab_size", model.token_types() > 0 ? model.token_types() : 2},
      {"layer_norm_eps", model.norm_eps() > 0 ? model.norm_eps() : 1e-12},
      {"hidden_dropout_prob", model.dropout()},
      {"attention_probs_dropout_prob", model.dropout()}};
  for (int i = 0; i < model.labels(); ++i) {
    const std::string name =
        // transformers itself gives this name to a class without one.
        i < model.label_names_size() ? model.label_names(i) : absl::StrCat("LABEL_", i);
    json["id2label"][absl::StrCat(i)] = name;
    json["label2id"][name] = i;
  }
  return json;
}

const char* TorchNameOf(FloatFormat format) {
  switch (format) {
    case FloatFormat::kF16:
      return "float16";
    case FloatFormat::kBF16:
      return "bfloat16";
    case FloatFormat::kF64:
      return "float64";
    case FloatFormat::kF32:
      break;
  }
  return "float32";
}

void SetDtype(FloatFormat format, nlohmann::ordered_json* json) {
  const char* const name = TorchNameOf(format);
  // transformers renamed the key; a file keeps the one that it has.
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (json->contains(key)) (*json)[key] = name;
  }
  if (!json->contains("dtype") && !json->contains("torch_dtype")) (*json)["torch_dtype"] = name;
}

}  // namespace

bool IsBaseModelConfig(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && TaskOf(json) == "Model";
}

std::string HuggingFaceConfig(const v1::ModelSpec& model) {
  const double eps = model.norm_eps() > 0 ? model.norm_eps() : 1e-5;
  nlohmann::ordered_json json;
  if (model.architecture() == v1::ARCHITECTURE_GPT2) {
    json = {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"activation_function", "gelu_new"},
            {"n_layer", model.layers()},
            {"n_embd", model.hidden()},
            {"n_head", model.heads()},
            {"n_inner", model.ffn_hidden()},
            {"n_positions", model.context()},
            {"layer_norm_epsilon", eps},
            {"attn_pdrop", model.dropout()},
            {"embd_pdrop", model.dropout()},
            {"resid_pdrop", model.dropout()}};
  } else if (model.architecture() == v1::ARCHITECTURE_BERT) {
    json = BertConfig(model);
  } else {
    json = {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_act", "silu"},
            {"num_hidden_layers", model.layers()},
            {"hidden_size", model.hidden()},
            {"intermediate_size", model.ffn_hidden()},
            {"num_attention_heads", model.heads()},
            {"num_key_value_heads", model.kv_heads() > 0 ? model.kv_heads() : model.heads()},
            {"max_position_embeddings", model.context()},
            {"rms_norm_eps", eps},
            {"attention_bias", false},
            {"mlp_bias", false},
            {"rope_theta", model.rope_theta() > 0 ? model.rope_theta() : 10000.0},
            {"rope_scaling", nullptr}};
    // Any other scaling was refused when the model was read.
    if (model.has_rope_scaling()) {
      const v1::RopeScaling& rope = model.rope_scaling();
      json["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", rope.factor()},
                              {"low_freq_factor", rope.low_freq_factor()},
                              {"high_freq_factor", rope.high_freq_factor()},
                              {"original_max_position_embeddings", rope.original_context()}};
    }
  }
  json["vocab_size"] = model.vocab_size();
  json["tie_word_embeddings"] = !model.untied_head();
  // transformers' own defaults are ids of the published vocabularies.
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["torch_dtype"] = "float32";
  return json.dump(2) + "\n";
}

absl::StatusOr<std::string> ChangedHuggingFaceConfig(std::string_view original,
                                                     const v1::ModelSpec& model) {
  nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(original, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError("the original config.json is not a JSON map");
  const char* context =
      // The context is the one size that may differ from the model that training started from.
      model.architecture() == v1::ARCHITECTURE_GPT2 ? "n_positions" : "max_position_embeddings";
  json[context] = model.context();
  if (model.architecture() == v1::ARCHITECTURE_BERT) {
    // The task may have changed.
    const nlohmann::ordered_json made = BertConfig(model);
    for (const char* key : {"architectures", "id2label", "label2id"}) {
      if (made.contains(key)) json[key] = made[key];
    }
  }
  // Old files of gpt2 have the context under a second name, too.
  if (json.contains("n_ctx")) json["n_ctx"] = model.context();
  SetDtype(FloatFormat::kF32, &json);
  return json.dump(2) + "\n";
}

absl::StatusOr<std::string> WithDtype(std::string_view config, FloatFormat format) {
  nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError("config.json is not a JSON map");
  SetDtype(format, &json);
  return json.dump(2) + "\n";
}

}  // namespace tercio::checkpoint

#include "checkpoint/huggingface/form_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLargestHead = 256;

int64_t QuotientHead(const v1::ModelSpec& model) { return model.hidden() / model.heads(); }

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

// Whether every layer has a window, where a file of transformers 5 lists its layers; a mixture is
// refused.
bool AllLayersSlide(ConfigReader& config) {
  const Json& types = config.Value("layer_types");
  size_t sliding = 0;
  const size_t layers = types.is_array() ? types.size() : 0;
  for (const Json& type : types) sliding += type == "sliding_attention";
  if (!types.is_array()) {
    config.Damaged("layer_types is not a list");
  } else if (sliding > 0 && sliding < layers) {
    config.Unsupported("layer_types: a window in some of the layers");
  }
  return sliding > 0;
}

}  // namespace

void ReadUsualSizes(ConfigReader& config, int64_t kv_heads, v1::ModelSpec* model) {
  model->set_layers(config.Size("num_hidden_layers"));
  model->set_hidden(config.Size("hidden_size"));
  model->set_heads(config.Size("num_attention_heads"));
  // An explicit null means as many as heads, whatever a file without the key means.
  const bool usual = kv_heads > 0 && !config.IsNull("num_key_value_heads");
  model->set_kv_heads(config.SizeOr("num_key_value_heads", usual ? kv_heads : model->heads()));
  model->set_context(config.Size("max_position_embeddings"));
  model->set_ffn_hidden(config.Size("intermediate_size"));
}

nlohmann::ordered_json UsualKeys(const v1::ModelSpec& model, const char* model_type,
                                 const char* model_class, const std::string& hidden_act) {
  return {{"architectures", {model_class}},
          {"model_type", model_type},
          {"hidden_act", hidden_act},
          {"num_hidden_layers", model.layers()},
          {"hidden_size", model.hidden()},
          {"intermediate_size", model.ffn_hidden()},
          {"num_attention_heads", model.heads()},
          {"num_key_value_heads", model.kv_heads() > 0 ? model.kv_heads() : model.heads()},
          {"max_position_embeddings", model.context()}};
}

void CheckHeadSize(ConfigReader& config, const v1::ModelSpec& model, int64_t head) {
  if (head > kLargestHead) {
    config.Unsupported(absl::StrCat("a head size of ", head, " (at most ", kLargestHead, ")"));
  }
  if (model.heads() % model.kv_heads() != 0) {
    config.Impossible(absl::StrCat("num_key_value_heads ", model.kv_heads(),
                                   " does not divide the ", model.heads(), " heads"));
  }
}

int64_t CheckedHead(ConfigReader& config, const v1::ModelSpec& model) {
  if (!config.good()) return 0;
  if (model.hidden() % model.heads() != 0) {
    config.Impossible(absl::StrCat("hidden size ", model.hidden(), " is not a multiple of ",
                                   model.heads(), " heads"));
    return 0;
  }
  const int64_t head = QuotientHead(model);
  CheckHeadSize(config, model, head);
  return head;
}

int64_t ReadHeadDim(ConfigReader& config, int64_t usual, v1::ModelSpec* model) {
  if (!config.good()) return 0;
  const bool divides = model->hidden() % model->heads() == 0;
  const int64_t quotient = QuotientHead(*model);
  const bool named = config.Has("head_dim") || (usual > 0 && !config.IsNull("head_dim"));
  if (!named) return CheckedHead(config, *model);
  const int64_t head = config.SizeOr("head_dim", usual);
  if (!divides || head != quotient) model->set_head_dim(static_cast<int32_t>(head));
  CheckHeadSize(config, *model, head);
  return config.good() ? head : 0;
}

int64_t CheckedPlainHead(ConfigReader& config, const v1::ModelSpec& model) {
  const int64_t head = CheckedHead(config, model);
  if (head == 0) return 0;
  if (const int64_t given = config.SizeOr("head_dim", head); given != head) {
    config.Unsupported(absl::StrCat("head_dim: ", given, " (hidden size / heads is ", head, ")"));
  }
  return head;
}

double ReadRotary(ConfigReader& config, const UsualRotary& usual, v1::ModelSpec* model) {
  model->set_rope_theta(config.NumberOr("rope_theta", usual.theta, 1, 1e12));
  const double share = config.NumberOr("partial_rotary_factor", usual.share, 0, 1);
  // transformers 5 writes rope_parameters with the base in it; before, rope_scaling beside
  // rope_theta.
  const char* key = config.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.Has(key)) return share;
  if (!config.Value(key).is_object()) {
    config.Damaged(absl::StrCat(key, " is not a map"));
    return share;
  }
  ConfigReader rope(config.Value(key), key);
  // What stands beside the map counts only where the map does not name it.
  model->set_rope_theta(rope.NumberOr("rope_theta", model->rope_theta(), 1, 1e12));
  // Files before rope_type have the same values under the name of type.
  const std::string kind = rope.TextOr("rope_type", rope.TextOr("type", "default"));
  if (kind == "llama3") {
    ReadLlama3Scaling(rope, model->mutable_rope_scaling());
  } else if (kind != "default") {
    rope.Unsupported(absl::StrCat("rope_type: ", ConfigReader::Shown(kind)));
  }
  const double of_map = rope.NumberOr("partial_rotary_factor", share, 0, 1);
  config.Add(rope);
  return of_map;
}

void ReadWholeRotary(ConfigReader& config, int64_t head, v1::ModelSpec* model) {
  if (ReadRotary(config, {}, model) != 1) config.Unsupported("partial_rotary_factor below 1");
  if (head % 2 != 0) config.Unsupported(absl::StrCat("an odd head size, ", head));
}

void SetRotaryDim(ConfigReader& config, int64_t head, double share, v1::ModelSpec* model) {
  if (head == 0) return;
  const auto rotary = static_cast<int64_t>(static_cast<double>(head) * share);
  // Pairs of channels turn.
  if (rotary < 2 || rotary % 2 != 0) {
    return config.Unsupported(
        absl::StrCat("rotary positions of ", rotary, " of a head's ", head, " channels"));
  }
  if (rotary != head) model->set_rotary_dim(static_cast<int32_t>(rotary));
}

double RotaryShare(const v1::ModelSpec& model) {
  const auto head = static_cast<double>(HeadOf(model));
  const double rotary = model.rotary_dim() > 0 ? model.rotary_dim() : head;
  double share = rotary / head;
  // The quotient may be a little too small, and transformers cuts the product's fraction off.
  while (std::floor(head * share) < rotary) share = std::nextafter(share, 2);
  return share;
}

void WriteRotary(const v1::ModelSpec& model, nlohmann::ordered_json* json) {
  (*json)["rope_theta"] = RopeThetaOf(model);
  (*json)["rope_scaling"] = nullptr;
  // Any other scaling was refused when the model was read.
  if (!model.has_rope_scaling()) return;
  const v1::RopeScaling& rope = model.rope_scaling();
  (*json)["rope_scaling"] = {{"rope_type", "llama3"},
                             {"factor", rope.factor()},
                             {"low_freq_factor", rope.low_freq_factor()},
                             {"high_freq_factor", rope.high_freq_factor()},
                             {"original_max_position_embeddings", rope.original_context()}};
}

int64_t HeadOf(const v1::ModelSpec& model) {
  return model.head_dim() > 0 ? model.head_dim() : QuotientHead(model);
}

double NormEpsOf(const v1::ModelSpec& model, double usual) {
  return model.norm_eps() > 0 ? model.norm_eps() : usual;
}

double RopeThetaOf(const v1::ModelSpec& model) {
  return model.rope_theta() > 0 ? model.rope_theta() : 10000.0;
}

void ReadWindow(ConfigReader& config, int64_t usual, v1::ModelSpec* model) {
  const bool named = config.Has("sliding_window");
  if (!named && (usual == 0 || config.IsNull("sliding_window"))) return;
  model->set_sliding_window(config.SizeOr("sliding_window", usual));
}

void ReadSwitchedWindow(ConfigReader& config, v1::ModelSpec* model) {
  if (!config.FlagOr("use_sliding_window", false)) return;
  bool slides = false;
  if (config.Has("layer_types")) {
    slides = AllLayersSlide(config);
  } else {
    // The first layers have no window.
    const bool from_first =
        config.json().contains("max_window_layers") && config.Value("max_window_layers") == 0;
    const int64_t whole = from_first ? 0 : config.SizeOr("max_window_layers", 28);
    slides = whole < model->layers();
    if (slides && whole > 0) {
      config.Unsupported(absl::StrCat("max_window_layers: ", whole, " of ", model->layers()));
    }
  }
  if (slides) ReadWindow(config, 4096, model);
}

void WriteSwitchedWindow(const v1::ModelSpec& model, nlohmann::ordered_json* json) {
  (*json)["use_sliding_window"] = model.sliding_window() > 0;
  if (model.sliding_window() == 0) return;
  (*json)["sliding_window"] = model.sliding_window();
  (*json)["max_window_layers"] = 0;
}

void ReadActivation(ConfigReader& config, const char* key, const std::string& usual,
                    const std::vector<ActivationNames>& known, v1::ModelSpec* model) {
  std::vector<std::string> supported;
  for (const ActivationNames& item : known) {
    supported.insert(supported.end(), item.names.begin(), item.names.end());
  }
  config.OnlyText(key, usual, supported);
  SetActivation(config.TextOr(key, usual), known, model);
}

bool SetActivation(const std::string& name, const std::vector<ActivationNames>& known,
                   v1::ModelSpec* model) {
  for (const ActivationNames& item : known) {
    if (std::find(item.names.begin(), item.names.end(), name) == item.names.end()) continue;
    if (item.activation != known.front().activation) model->set_activation(item.activation);
    return true;
  }
  return false;
}

std::string ActivationText(const v1::ModelSpec& model, const std::vector<ActivationNames>& known) {
  for (const ActivationNames& item : known) {
    if (item.activation == model.activation()) return item.names.front();
  }
  return known.front().names.front();
}

absl::Status CheckUngrouped(const char* model_type, const v1::ModelSpec& model) {
  if (model.kv_heads() == 0 || model.kv_heads() == model.heads()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "transformers' ", model_type, " has as many key heads as query heads; this model has ",
      model.kv_heads(), " for ", model.heads()));
}

absl::Status CheckConstant(const char* model_type, const char* key, double value, double constant) {
  // 0 stands for the default, which is the constant.
  if (value == 0 || value == constant) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("transformers' ", model_type, " has ", key, " ",
                                                 constant, "; this model has ", value));
}

void AddPair(const std::string& theirs, const std::string& ours, std::vector<FormRow>* rows) {
  for (const char* part : {".weight", ".bias"}) rows->push_back({theirs + part, {ours + part}});
}

void AddWeight(const std::string& theirs, const std::string& ours, std::vector<FormRow>* rows) {
  rows->push_back({theirs + ".weight", {ours + ".weight"}});
}

FormTable LlamaTable() {
  FormTable table;
  table.prefix = "model.";
  AddWeight("embed_tokens", "embedding.token", &table.embedding);
  const auto layer = [&](const std::string& theirs, const std::string& ours) {
    AddWeight("layers.*." + theirs, "layers.*." + ours, &table.layer);
  };
  layer("input_layernorm", "attention_norm");
  layer("self_attn.q_proj", "attention.query");
  layer("self_attn.k_proj", "attention.key");
  layer("self_attn.v_proj", "attention.value");
  layer("self_attn.o_proj", "attention.output");
  layer("post_attention_layernorm", "mlp_norm");
  layer("mlp.gate_proj", "mlp.gate");
  layer("mlp.up_proj", "mlp.up");
  layer("mlp.down_proj", "mlp.down");
  AddWeight("norm", "final_norm", &table.end);
  AddWeight("lm_head", "head", &table.end);
  // Old versions saved the frequencies, which follow from rope_theta.
  table.ignored = {"layers.*.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"};
  table.tied = {{"lm_head.weight", "embed_tokens.weight"}};
  table.other_heads = {"score.", "qa_outputs."};
  return table;
}

}  // namespace tercio::checkpoint

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

// 0 where the file says null.
double ReadCap(ConfigReader& config, const char* key, double usual) {
  return config.IsNull(key) ? 0 : config.NumberOr(key, usual, 1e-3, 1e6);
}

// Every other layer has the window, from the first. transformers 5 writes the list out.
void ReadAlternation(ConfigReader& config, v1::ModelSpec* model) {
  ReadWindow(config, 4096, model);
  if (!config.Has("layer_types")) return;
  const nlohmann::json& types = config.Value("layer_types");
  bool alternates = types.is_array();
  bool full = types.is_array();
  for (size_t i = 0; types.is_array() && i < types.size(); ++i) {
    alternates &= types[i] == (i % 2 == 0 ? "sliding_attention" : "full_attention");
    full &= types[i] == "full_attention";
  }
  if (full) return model->clear_sliding_window();
  if (!alternates) {
    config.Unsupported("layer_types: anything else than a window in every other layer");
  }
}

void ReadGemma2(ConfigReader& config, v1::ModelSpec* model) {
  ReadUsualSizes(config, 4, model);
  model->set_norm_eps(config.NumberOr("rms_norm_eps", 1e-6, 1e-12, 1));
  config.OnlyText("hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh"});
  config.Only("tie_word_embeddings", true, true);
  config.Only("attention_bias", false, false);
  config.Only("use_bidirectional_attention", false, false);
  model->set_attention_softcap(ReadCap(config, "attn_logit_softcapping", 50));
  model->set_logit_softcap(ReadCap(config, "final_logit_softcapping", 30));
  ReadAlternation(config, model);
  const int64_t head = ReadHeadDim(config, 256, model);
  const double scale = config.NumberOr("query_pre_attn_scalar", 256, 1e-3, 1e6);
  if (scale != static_cast<double>(head)) model->set_query_scale(scale);
  ReadWholeRotary(config, head, model);
}

nlohmann::json WholeOrNot(double value) {
  if (value == static_cast<double>(static_cast<int64_t>(value))) return static_cast<int64_t>(value);
  return value;
}

nlohmann::ordered_json WriteGemma2(const v1::ModelSpec& model) {
  nlohmann::ordered_json json =
      UsualKeys(model, "gemma2", "Gemma2ForCausalLM", "gelu_pytorch_tanh");
  json["hidden_activation"] = "gelu_pytorch_tanh";
  json["head_dim"] = HeadOf(model);
  // transformers takes whole numbers only.
  json["query_pre_attn_scalar"] = WholeOrNot(
      model.query_scale() > 0 ? model.query_scale() : static_cast<double>(HeadOf(model)));
  for (const auto& [key, cap] : {std::pair("attn_logit_softcapping", model.attention_softcap()),
                                 std::pair("final_logit_softcapping", model.logit_softcap())}) {
    json[key] = nullptr;
    if (cap > 0) json[key] = cap;
  }
  json["rms_norm_eps"] = NormEpsOf(model, 1e-6);
  json["attention_bias"] = false;
  json["attention_dropout"] = model.dropout();
  json["sliding_window"] = nullptr;
  if (model.sliding_window() > 0) {
    json["sliding_window"] = model.sliding_window();
  } else {
    json["layer_types"] =
        std::vector<std::string>(static_cast<size_t>(model.layers()), "full_attention");
  }
  WriteRotary(model, &json);
  // transformers' default is an id of the published vocabulary.
  json["pad_token_id"] = nullptr;
  return json;
}

absl::Status CheckGemma2(const v1::ModelSpec& model) {
  if (model.untied_head()) {
    return absl::InvalidArgumentError(
        "transformers' gemma2 predicts with its embedding; this model has a head of its own");
  }
  if (const double scale = model.query_scale();
      scale != static_cast<double>(static_cast<int64_t>(scale))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transformers' gemma2 has whole numbers as query_scale; this model has ", scale));
  }
  return absl::OkStatus();
}

// llama's, with norms on both sides of attention and of the feed-forward part.
FormTable MakeGemma2() {
  FormTable table = LlamaTable();
  const std::string at = "layers.*.";
  std::erase_if(table.layer, [&](const FormRow& row) {
    return row.theirs == at + "post_attention_layernorm.weight";
  });
  AddWeight(at + "post_attention_layernorm", at + "attention_post_norm", &table.layer);
  AddWeight(at + "pre_feedforward_layernorm", at + "mlp_norm", &table.layer);
  AddWeight(at + "post_feedforward_layernorm", at + "mlp_post_norm", &table.layer);
  return table;
}

const FormTable& Gemma2Table(const v1::ModelSpec&) {
  static const auto* const table = new FormTable(MakeGemma2());
  return *table;
}

}  // namespace

const HuggingFaceForm& Gemma2Form() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_GEMMA2,
                                                      .model_types = {"gemma2"},
                                                      .read = ReadGemma2,
                                                      .write = WriteGemma2,
                                                      .check = CheckGemma2,
                                                      .table = Gemma2Table};
  return *form;
}

}  // namespace tercio::checkpoint

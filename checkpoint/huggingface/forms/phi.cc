#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

void ReadPhi(ConfigReader& config, v1::ModelSpec* model) {
  ReadUsualSizes(config, 0, model);
  model->set_bias(true);
  model->set_norm_eps(config.NumberOr("layer_norm_eps", 1e-5, 1e-12, 1));
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", false));
  config.OnlyText("hidden_act", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  config.Only("qk_layernorm", false, false);
  const double share = ReadRotary(config, {.share = 0.5}, model);
  SetRotaryDim(config, CheckedPlainHead(config, *model), share, model);
}

nlohmann::ordered_json WritePhi(const v1::ModelSpec& model) {
  nlohmann::ordered_json json = UsualKeys(model, "phi", "PhiForCausalLM", "gelu_new");
  json["layer_norm_eps"] = NormEpsOf(model, 1e-5);
  json["qk_layernorm"] = false;
  json["attention_dropout"] = model.dropout();
  json["embd_pdrop"] = model.dropout();
  json["resid_pdrop"] = model.dropout();
  WriteRotary(model, &json);
  json["partial_rotary_factor"] = RotaryShare(model);
  return json;
}

FormTable MakePhi() {
  FormTable table;
  table.prefix = "model.";
  AddWeight("embed_tokens", "embedding.token", &table.embedding);
  const auto layer = [&](const std::string& theirs, const std::string& ours) {
    AddPair("layers.*." + theirs, "layers.*." + ours, &table.layer);
  };
  layer("input_layernorm", "attention_norm");
  layer("self_attn.q_proj", "attention.query");
  layer("self_attn.k_proj", "attention.key");
  layer("self_attn.v_proj", "attention.value");
  layer("self_attn.dense", "attention.output");
  layer("mlp.fc1", "mlp.up");
  layer("mlp.fc2", "mlp.down");
  AddPair("final_layernorm", "final_norm", &table.end);
  AddPair("lm_head", "head", &table.end);
  table.ignored = {"layers.*.self_attn.rotary_emb.inv_freq"};
  table.tied = {{"lm_head.weight", "embed_tokens.weight"}};
  table.other_heads = {"score.", "classifier."};
  return table;
}

const FormTable& PhiTable(const v1::ModelSpec&) {
  static const auto* const table = new FormTable(MakePhi());
  return *table;
}

}  // namespace

const HuggingFaceForm& PhiForm() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_PHI,
                                                      .model_types = {"phi"},
                                                      .always_biased = true,
                                                      .read = ReadPhi,
                                                      .write = WritePhi,
                                                      .table = PhiTable};
  return *form;
}

}  // namespace tercio::checkpoint

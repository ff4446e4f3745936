#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

void ReadPhi3(ConfigReader& config, v1::ModelSpec* model) {
  ReadUsualSizes(config, 0, model);
  model->set_norm_eps(config.NumberOr("rms_norm_eps", 1e-5, 1e-12, 1));
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", false));
  config.OnlyText("hidden_act", "silu", {"silu", "swish"});
  config.Only("attention_bias", false, false);
  ReadWindow(config, 0, model);
  // Frequencies for long contexts (longrope) are refused by their type.
  const double share = ReadRotary(config, {}, model);
  SetRotaryDim(config, CheckedPlainHead(config, *model), share, model);
}

nlohmann::ordered_json WritePhi3(const v1::ModelSpec& model) {
  nlohmann::ordered_json json = UsualKeys(model, "phi3", "Phi3ForCausalLM", "silu");
  json["original_max_position_embeddings"] = model.context();
  json["rms_norm_eps"] = NormEpsOf(model, 1e-5);
  json["sliding_window"] = nullptr;
  if (model.sliding_window() > 0) json["sliding_window"] = model.sliding_window();
  json["attention_dropout"] = model.dropout();
  json["embd_pdrop"] = model.dropout();
  json["resid_pdrop"] = model.dropout();
  WriteRotary(model, &json);
  json["partial_rotary_factor"] = RotaryShare(model);
  // transformers' default is an id of the published vocabulary.
  json["pad_token_id"] = nullptr;
  return json;
}

absl::Status CheckPhi3(const v1::ModelSpec& model) {
  if (!model.has_rope_scaling()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "transformers' phi3 has no rope_scaling of the kind llama3; this model has one");
}

// llama's, but for the joined projections.
FormTable MakePhi3() {
  FormTable table = LlamaTable();
  const std::string at = "layers.*.";
  std::erase_if(table.layer,
                [](const FormRow& row) { return row.theirs.find("proj") != std::string::npos; });
  table.layer.push_back({at + "self_attn.qkv_proj.weight",
                         {at + "attention.query.weight", at + "attention.key.weight",
                          at + "attention.value.weight"}});
  AddWeight(at + "self_attn.o_proj", at + "attention.output", &table.layer);
  table.layer.push_back(
      {at + "mlp.gate_up_proj.weight", {at + "mlp.gate.weight", at + "mlp.up.weight"}});
  AddWeight(at + "mlp.down_proj", at + "mlp.down", &table.layer);
  return table;
}

const FormTable& Phi3Table(const v1::ModelSpec&) {
  static const auto* const table = new FormTable(MakePhi3());
  return *table;
}

}  // namespace

const HuggingFaceForm& Phi3Form() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_PHI3,
                                                      .model_types = {"phi3"},
                                                      .read = ReadPhi3,
                                                      .write = WritePhi3,
                                                      .check = CheckPhi3,
                                                      .table = Phi3Table};
  return *form;
}

}  // namespace tercio::checkpoint

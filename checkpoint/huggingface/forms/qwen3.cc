#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

void ReadQwen3(ConfigReader& config, v1::ModelSpec* model) {
  ReadUsualSizes(config, 32, model);
  model->set_norm_eps(config.NumberOr("rms_norm_eps", 1e-6, 1e-12, 1));
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", false));
  config.OnlyText("hidden_act", "silu", {"silu", "swish"});
  config.Only("attention_bias", false, false);
  ReadSwitchedWindow(config, model);
  ReadWholeRotary(config, ReadHeadDim(config, 128, model), model);
}

nlohmann::ordered_json WriteQwen3(const v1::ModelSpec& model) {
  nlohmann::ordered_json json = UsualKeys(model, "qwen3", "Qwen3ForCausalLM", "silu");
  json["head_dim"] = HeadOf(model);
  json["rms_norm_eps"] = NormEpsOf(model, 1e-6);
  json["attention_bias"] = false;
  json["attention_dropout"] = model.dropout();
  WriteSwitchedWindow(model, &json);
  WriteRotary(model, &json);
  return json;
}

FormTable MakeQwen3() {
  FormTable table = LlamaTable();
  AddWeight("layers.*.self_attn.q_norm", "layers.*.attention.query_norm", &table.layer);
  AddWeight("layers.*.self_attn.k_norm", "layers.*.attention.key_norm", &table.layer);
  return table;
}

const FormTable& Qwen3Table(const v1::ModelSpec&) {
  static const auto* const table = new FormTable(MakeQwen3());
  return *table;
}

}  // namespace

const HuggingFaceForm& Qwen3Form() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_QWEN3,
                                                      .model_types = {"qwen3"},
                                                      .read = ReadQwen3,
                                                      .write = WriteQwen3,
                                                      .table = Qwen3Table};
  return *form;
}

}  // namespace tercio::checkpoint

#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

void ReadQwen2(ConfigReader& config, v1::ModelSpec* model) {
  ReadUsualSizes(config, 32, model);
  // Query, key and value have biases in every qwen2, and other products never.
  model->set_norm_eps(config.NumberOr("rms_norm_eps", 1e-6, 1e-12, 1));
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", false));
  config.OnlyText("hidden_act", "silu", {"silu", "swish"});
  ReadSwitchedWindow(config, model);
  ReadWholeRotary(config, CheckedPlainHead(config, *model), model);
}

nlohmann::ordered_json WriteQwen2(const v1::ModelSpec& model) {
  nlohmann::ordered_json json = UsualKeys(model, "qwen2", "Qwen2ForCausalLM", "silu");
  json["rms_norm_eps"] = NormEpsOf(model, 1e-6);
  json["attention_dropout"] = model.dropout();
  WriteSwitchedWindow(model, &json);
  WriteRotary(model, &json);
  return json;
}

FormTable MakeQwen2() {
  FormTable table = LlamaTable();
  for (const auto& [theirs, ours] : {std::pair<const char*, const char*>("q_proj", "query"),
                                     std::pair<const char*, const char*>("k_proj", "key"),
                                     std::pair<const char*, const char*>("v_proj", "value")}) {
    table.layer.push_back({std::string("layers.*.self_attn.") + theirs + ".bias",
                           {std::string("layers.*.attention.") + ours + ".bias"}});
  }
  return table;
}

const FormTable& Qwen2Table(const v1::ModelSpec&) {
  static const auto* const table = new FormTable(MakeQwen2());
  return *table;
}

}  // namespace

const HuggingFaceForm& Qwen2Form() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_QWEN2,
                                                      .model_types = {"qwen2"},
                                                      .read = ReadQwen2,
                                                      .write = WriteQwen2,
                                                      .table = Qwen2Table};
  return *form;
}

}  // namespace tercio::checkpoint

#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

void ReadLlama(ConfigReader& config, v1::ModelSpec* model) {
  ReadUsualSizes(config, 0, model);
  model->set_norm_eps(config.NumberOr("rms_norm_eps", 1e-6, 1e-12, 1));
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", false));
  // Both names stand for the same function.
  config.OnlyText("hidden_act", "silu", {"silu", "swish"});
  config.Only("attention_bias", false, false);
  config.Only("mlp_bias", false, false);
  ReadWholeRotary(config, CheckedPlainHead(config, *model), model);
}

nlohmann::ordered_json WriteLlama(const v1::ModelSpec& model) {
  nlohmann::ordered_json json = UsualKeys(model, "llama", "LlamaForCausalLM", "silu");
  json["rms_norm_eps"] = NormEpsOf(model, 1e-5);
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  WriteRotary(model, &json);
  return json;
}

const FormTable& TableOfLlama(const v1::ModelSpec&) {
  static const auto* const table = new FormTable(LlamaTable());
  return *table;
}

}  // namespace

const HuggingFaceForm& LlamaForm() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_LLAMA,
                                                      .model_types = {"llama"},
                                                      .read = ReadLlama,
                                                      .write = WriteLlama,
                                                      .table = TableOfLlama};
  return *form;
}

}  // namespace tercio::checkpoint

#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

void ReadMistral(ConfigReader& config, v1::ModelSpec* model) {
  ReadUsualSizes(config, 8, model);
  model->set_norm_eps(config.NumberOr("rms_norm_eps", 1e-6, 1e-12, 1));
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", false));
  config.OnlyText("hidden_act", "silu", {"silu", "swish"});
  ReadWindow(config, 4096, model);
  ReadWholeRotary(config, ReadHeadDim(config, 0, model), model);
}

nlohmann::ordered_json WriteMistral(const v1::ModelSpec& model) {
  nlohmann::ordered_json json = UsualKeys(model, "mistral", "MistralForCausalLM", "silu");
  json["head_dim"] = HeadOf(model);
  json["rms_norm_eps"] = NormEpsOf(model, 1e-5);
  json["attention_dropout"] = model.dropout();
  json["sliding_window"] = nullptr;
  if (model.sliding_window() > 0) json["sliding_window"] = model.sliding_window();
  WriteRotary(model, &json);
  return json;
}

const FormTable& MistralTable(const v1::ModelSpec&) {
  static const auto* const table = new FormTable(LlamaTable());
  return *table;
}

}  // namespace

const HuggingFaceForm& MistralForm() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_MISTRAL,
                                                      .model_types = {"mistral"},
                                                      .read = ReadMistral,
                                                      .write = WriteMistral,
                                                      .table = MistralTable};
  return *form;
}

}  // namespace tercio::checkpoint

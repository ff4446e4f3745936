#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

const std::vector<ActivationNames>& GptNeoxActivations() {
  // The last three stand for the same function; the 20b has gelu_fast.
  static const auto* const names = new std::vector<ActivationNames>{
      {v1::ACTIVATION_GELU, {"gelu"}},
      {v1::ACTIVATION_GELU_TANH, {"gelu_fast", "gelu_new", "gelu_pytorch_tanh"}}};
  return *names;
}

void ReadGptNeox(ConfigReader& config, v1::ModelSpec* model) {
  ReadUsualSizes(config, 0, model);
  model->set_kv_heads(model->heads());
  model->set_bias(true);
  model->set_norm_eps(config.NumberOr("layer_norm_eps", 1e-5, 1e-12, 1));
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", false));
  model->set_sequential_residual(!config.FlagOr("use_parallel_residual", true));
  ReadActivation(config, "hidden_act", "gelu", GptNeoxActivations(), model);
  config.Only("attention_bias", true, true);
  config.Only("is_decoder", false, false);
  // transformers 4 has its own names for these two.
  const UsualRotary usual = {config.NumberOr("rotary_emb_base", 10000, 1, 1e12),
                             config.NumberOr("rotary_pct", 0.25, 0, 1)};
  const double share = ReadRotary(config, usual, model);
  SetRotaryDim(config, CheckedPlainHead(config, *model), share, model);
}

nlohmann::ordered_json WriteGptNeox(const v1::ModelSpec& model) {
  nlohmann::ordered_json json = UsualKeys(model, "gpt_neox", "GPTNeoXForCausalLM",
                                          ActivationText(model, GptNeoxActivations()));
  json.erase("num_key_value_heads");
  json["layer_norm_eps"] = NormEpsOf(model, 1e-5);
  json["use_parallel_residual"] = !model.sequential_residual();
  json["attention_dropout"] = model.dropout();
  json["hidden_dropout"] = model.dropout();
  WriteRotary(model, &json);
  json["rotary_emb_base"] = json["rope_theta"];
  json["rotary_pct"] = RotaryShare(model);
  return json;
}

absl::Status CheckGptNeox(const v1::ModelSpec& model) { return CheckUngrouped("gpt_neox", model); }

FormTable MakeGptNeox() {
  FormTable table;
  table.prefix = "gpt_neox.";
  table.beside = {"embed_out."};
  AddWeight("embed_in", "embedding.token", &table.embedding);
  const std::string theirs = "layers.*.";
  const std::string ours = "layers.*.";
  AddPair(theirs + "input_layernorm", ours + "attention_norm", &table.layer);
  for (const std::string kind : {".weight", ".bias"}) {
    table.layer.push_back({theirs + "attention.query_key_value" + kind,
                           {ours + "attention.query" + kind, ours + "attention.key" + kind,
                            ours + "attention.value" + kind},
                           RowForm::kInterleaved});
  }
  AddPair(theirs + "attention.dense", ours + "attention.output", &table.layer);
  AddPair(theirs + "post_attention_layernorm", ours + "mlp_norm", &table.layer);
  AddPair(theirs + "mlp.dense_h_to_4h", ours + "mlp.up", &table.layer);
  AddPair(theirs + "mlp.dense_4h_to_h", ours + "mlp.down", &table.layer);
  AddPair("final_layer_norm", "final_norm", &table.end);
  AddWeight("embed_out", "head", &table.end);
  // Old versions saved causal masks and frequencies.
  table.ignored = {"layers.*.attention.bias", "layers.*.attention.masked_bias",
                   "layers.*.attention.rotary_emb.inv_freq"};
  table.tied = {{"embed_out.weight", "embed_in.weight"}};
  // transformers 5 calls the head so in memory, and writes the older name.
  table.renamed = {{"lm_head.weight", "embed_out.weight"}};
  table.other_heads = {"score.", "classifier.", "qa_outputs."};
  return table;
}

const FormTable& GptNeoxTable(const v1::ModelSpec&) {
  static const auto* const table = new FormTable(MakeGptNeox());
  return *table;
}

}  // namespace

const HuggingFaceForm& GptNeoxForm() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_GPT_NEOX,
                                                      .model_types = {"gpt_neox"},
                                                      .always_biased = true,
                                                      .read = ReadGptNeox,
                                                      .write = WriteGptNeox,
                                                      .check = CheckGptNeox,
                                                      .table = GptNeoxTable};
  return *form;
}

}  // namespace tercio::checkpoint

#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

void ReadGpt2(ConfigReader& config, v1::ModelSpec* model) {
  model->set_layers(config.Size("n_layer"));
  model->set_hidden(config.Size("n_embd"));
  model->set_heads(config.Size("n_head"));
  // GPT-2 has no grouped queries.
  model->set_kv_heads(model->heads());
  model->set_context(config.Size("n_positions"));
  // The usual defaults here and in the other forms are those of transformers' classes.
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
  CheckedHead(config, *model);
}

nlohmann::ordered_json WriteGpt2(const v1::ModelSpec& model) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"n_layer", model.layers()},
          {"n_embd", model.hidden()},
          {"n_head", model.heads()},
          {"n_inner", model.ffn_hidden()},
          {"n_positions", model.context()},
          {"layer_norm_epsilon", NormEpsOf(model, 1e-5)},
          {"attn_pdrop", model.dropout()},
          {"embd_pdrop", model.dropout()},
          {"resid_pdrop", model.dropout()}};
}

absl::Status CheckGpt2(const v1::ModelSpec& model) { return CheckUngrouped("gpt2", model); }

FormTable MakeGpt2() {
  FormTable table;
  table.prefix = "transformer.";
  AddWeight("wte", "embedding.token", &table.embedding);
  AddWeight("wpe", "embedding.position", &table.embedding);
  const std::string theirs = "h.*.";
  const std::string ours = "layers.*.";
  const std::string attention = ours + "attention.";
  AddPair(theirs + "ln_1", ours + "attention_norm", &table.layer);
  // c_attn has the three projections side by side, in this order.
  table.layer.push_back(
      {theirs + "attn.c_attn.weight",
       {attention + "query.weight", attention + "key.weight", attention + "value.weight"},
       RowForm::kTransposed});
  table.layer.push_back(
      {theirs + "attn.c_attn.bias",
       {attention + "query.bias", attention + "key.bias", attention + "value.bias"}});
  const auto transposed = [&](const std::string& name, const std::string& part) {
    table.layer.push_back(
        {theirs + name + ".weight", {ours + part + ".weight"}, RowForm::kTransposed});
    table.layer.push_back({theirs + name + ".bias", {ours + part + ".bias"}});
  };
  transposed("attn.c_proj", "attention.output");
  AddPair(theirs + "ln_2", ours + "mlp_norm", &table.layer);
  transposed("mlp.c_fc", "mlp.up");
  transposed("mlp.c_proj", "mlp.down");
  AddPair("ln_f", "final_norm", &table.end);
  AddWeight("lm_head", "head", &table.end);
  // Old versions saved causal masks, which follow from the context.
  table.ignored = {"h.*.attn.bias", "h.*.attn.masked_bias"};
  table.tied = {{"lm_head.weight", "wte.weight"}};
  table.other_heads = {"score.", "classifier.", "multiple_choice_head.", "qa_outputs."};
  return table;
}

const FormTable& Gpt2Table(const v1::ModelSpec&) {
  // The tables and forms are never destroyed, since threads may use them until the process ends.
  static const auto* const table = new FormTable(MakeGpt2());
  return *table;
}

}  // namespace

const HuggingFaceForm& Gpt2Form() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_GPT2,
                                                      .model_types = {"gpt2"},
                                                      .context_key = "n_positions",
                                                      .always_biased = true,
                                                      .read = ReadGpt2,
                                                      .write = WriteGpt2,
                                                      .check = CheckGpt2,
                                                      .table = Gpt2Table};
  return *form;
}

}  // namespace tercio::checkpoint

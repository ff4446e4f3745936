#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

// The base of the frequencies, which the configuration cannot change.
constexpr double kGptJTheta = 10000;

void ReadGptJ(ConfigReader& config, v1::ModelSpec* model) {
  model->set_layers(config.Size("n_layer"));
  model->set_hidden(config.Size("n_embd"));
  model->set_heads(config.Size("n_head"));
  model->set_kv_heads(model->heads());
  model->set_context(config.Size("n_positions"));
  model->set_ffn_hidden(config.SizeOr("n_inner", 4 * int64_t{model->hidden()}));
  // Those of the feed-forward part, of the norms and of the head; attention has none.
  model->set_bias(true);
  model->set_norm_eps(config.NumberOr("layer_norm_epsilon", 1e-5, 1e-12, 1));
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", false));
  config.OnlyText("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  config.Only("scale_attn_weights", true, true);
  config.Only("rotary", true, true);
  model->set_rope_theta(kGptJTheta);
  const int64_t head = CheckedHead(config, *model);
  if (config.IsNull("rotary_dim")) config.Unsupported("rotary_dim: null");
  const int64_t rotary = config.SizeOr("rotary_dim", 64);
  if (head == 0) return;
  // Pairs of channels turn.
  if (rotary > head || rotary % 2 != 0) {
    config.Impossible(absl::StrCat("rotary_dim is ", rotary, ", expected an even number up to ",
                                   head, ", the size of a head"));
  }
  if (rotary != head) model->set_rotary_dim(static_cast<int32_t>(rotary));
}

nlohmann::ordered_json WriteGptJ(const v1::ModelSpec& model) {
  return {{"architectures", {"GPTJForCausalLM"}},
          {"model_type", "gptj"},
          {"activation_function", "gelu_new"},
          {"n_layer", model.layers()},
          {"n_embd", model.hidden()},
          {"n_head", model.heads()},
          {"n_inner", model.ffn_hidden()},
          {"n_positions", model.context()},
          {"rotary_dim", model.rotary_dim() > 0 ? model.rotary_dim() : HeadOf(model)},
          {"layer_norm_epsilon", NormEpsOf(model, 1e-5)},
          {"attn_pdrop", model.dropout()},
          {"embd_pdrop", model.dropout()},
          {"resid_pdrop", model.dropout()}};
}

absl::Status CheckGptJ(const v1::ModelSpec& model) {
  TERCIO_RETURN_IF_ERROR(CheckConstant("gptj", "rope_theta", model.rope_theta(), kGptJTheta));
  if (model.has_rope_scaling()) {
    return absl::InvalidArgumentError("transformers' gptj has no rope_scaling; this model has one");
  }
  return CheckUngrouped("gptj", model);
}

FormTable MakeGptJ() {
  FormTable table;
  table.prefix = "transformer.";
  AddWeight("wte", "embedding.token", &table.embedding);
  AddPair("h.*.ln_1", "layers.*.attention_norm", &table.layer);
  AddWeight("h.*.attn.q_proj", "layers.*.attention.query", &table.layer);
  AddWeight("h.*.attn.k_proj", "layers.*.attention.key", &table.layer);
  AddWeight("h.*.attn.v_proj", "layers.*.attention.value", &table.layer);
  AddWeight("h.*.attn.out_proj", "layers.*.attention.output", &table.layer);
  AddPair("h.*.mlp.fc_in", "layers.*.mlp.up", &table.layer);
  AddPair("h.*.mlp.fc_out", "layers.*.mlp.down", &table.layer);
  AddPair("ln_f", "final_norm", &table.end);
  AddPair("lm_head", "head", &table.end);
  // Old versions saved causal masks, which follow from the context.
  table.ignored = {"h.*.attn.bias", "h.*.attn.masked_bias"};
  table.tied = {{"lm_head.weight", "wte.weight"}};
  table.other_heads = {"score.", "qa_outputs."};
  return table;
}

const FormTable& GptJTable(const v1::ModelSpec&) {
  static const auto* const table = new FormTable(MakeGptJ());
  return *table;
}

}  // namespace

const HuggingFaceForm& GptJForm() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_GPT_J,
                                                      .model_types = {"gptj"},
                                                      .context_key = "n_positions",
                                                      .always_biased = true,
                                                      .read = ReadGptJ,
                                                      .write = WriteGptJ,
                                                      .check = CheckGptJ,
                                                      .table = GptJTable};
  return *form;
}

}  // namespace tercio::checkpoint

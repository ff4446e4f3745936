#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

// torch's own, which the configuration cannot change.
constexpr double kOptEps = 1e-5;

const std::vector<ActivationNames>& OptActivations() {
  static const auto* const names = new std::vector<ActivationNames>{
      {v1::ACTIVATION_RELU, {"relu"}}, {v1::ACTIVATION_GELU, {"gelu"}}};
  return *names;
}

void ReadOpt(ConfigReader& config, v1::ModelSpec* model) {
  model->set_layers(config.Size("num_hidden_layers"));
  model->set_hidden(config.Size("hidden_size"));
  model->set_heads(config.Size("num_attention_heads"));
  model->set_kv_heads(model->heads());
  model->set_context(config.Size("max_position_embeddings"));
  model->set_ffn_hidden(config.Size("ffn_dim"));
  model->set_bias(true);
  model->set_norm_eps(kOptEps);
  model->set_untied_head(!config.FlagOr("tie_word_embeddings", true));
  ReadActivation(config, "activation_function", "relu", OptActivations(), model);
  // The 350m has its norms behind the additions, and an embedding that is narrower than its layers.
  config.Only("do_layer_norm_before", true, true);
  const int32_t width = config.SizeOr("word_embed_proj_dim", model->hidden());
  if (width != model->hidden()) {
    config.Unsupported(
        absl::StrCat("word_embed_proj_dim: ", width, " (hidden_size is ", model->hidden(), ")"));
  }
  // Models that were fine-tuned with transformers before 4.20 may lack the last norm.
  config.Only("_remove_final_layer_norm", false, false);
  config.Only("enable_bias", true, true);
  config.Only("layer_norm_elementwise_affine", true, true);
  CheckedHead(config, *model);
}

nlohmann::ordered_json WriteOpt(const v1::ModelSpec& model) {
  return {{"architectures", {"OPTForCausalLM"}},
          {"model_type", "opt"},
          {"activation_function", ActivationText(model, OptActivations())},
          {"num_hidden_layers", model.layers()},
          {"hidden_size", model.hidden()},
          {"word_embed_proj_dim", model.hidden()},
          {"ffn_dim", model.ffn_hidden()},
          {"num_attention_heads", model.heads()},
          {"max_position_embeddings", model.context()},
          {"do_layer_norm_before", true},
          {"dropout", model.dropout()},
          {"attention_dropout", model.dropout()},
          // transformers' default is an id of the published vocabulary.
          {"pad_token_id", nullptr}};
}

absl::Status CheckOpt(const v1::ModelSpec& model) {
  TERCIO_RETURN_IF_ERROR(CheckConstant("opt", "norm_eps", model.norm_eps(), kOptEps));
  return CheckUngrouped("opt", model);
}

// The table of positions begins with two rows that no position has.
FormTable MakeOpt() {
  FormTable table;
  table.prefix = "model.";
  AddWeight("decoder.embed_tokens", "embedding.token", &table.embedding);
  AddWeight("decoder.embed_positions", "embedding.position", &table.embedding);
  const auto layer = [&](const std::string& theirs, const std::string& ours) {
    AddPair("decoder.layers.*." + theirs, "layers.*." + ours, &table.layer);
  };
  layer("self_attn_layer_norm", "attention_norm");
  layer("self_attn.q_proj", "attention.query");
  layer("self_attn.k_proj", "attention.key");
  layer("self_attn.v_proj", "attention.value");
  layer("self_attn.out_proj", "attention.output");
  layer("final_layer_norm", "mlp_norm");
  layer("fc1", "mlp.up");
  layer("fc2", "mlp.down");
  AddPair("decoder.final_layer_norm", "final_norm", &table.end);
  AddWeight("lm_head", "head", &table.end);
  table.tied = {{"lm_head.weight", "decoder.embed_tokens.weight"}};
  table.other_heads = {"score.", "qa_outputs."};
  return table;
}

const FormTable& OptTable(const v1::ModelSpec&) {
  static const auto* const table = new FormTable(MakeOpt());
  return *table;
}

}  // namespace

const HuggingFaceForm& OptForm() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_OPT,
                                                      .model_types = {"opt"},
                                                      .always_biased = true,
                                                      .read = ReadOpt,
                                                      .write = WriteOpt,
                                                      .check = CheckOpt,
                                                      .table = OptTable};
  return *form;
}

}  // namespace tercio::checkpoint

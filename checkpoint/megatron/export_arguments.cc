#include "checkpoint/megatron/export_arguments.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/megatron/arguments.h"
#include "checkpoint/megatron/model_form.h"
#include "plan/names.h"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kDivisible = 128;  // Megatron-LM's make_vocab_size_divisible_by

TorchValue Number(int64_t value) { return {value}; }
TorchValue Real(double value) { return {value}; }
TorchValue Flag(bool value) { return {value}; }
TorchValue Text(const char* value) { return {std::string(value)}; }

TorchMembers SizeArguments(const v1::ModelSpec& model, const MegatronForm& form) {
  const bool grouped = form.kv_heads != model.heads();
  return {{"num_layers", Number(model.layers())},
          {"encoder_num_layers", Number(model.layers())},
          {"hidden_size", Number(model.hidden())},
          {"ffn_hidden_size", Number(model.ffn_hidden())},
          {"num_attention_heads", Number(model.heads())},
          {"kv_channels", Number(form.head_dim)},
          {"group_query_attention", Flag(grouped)},
          {"num_query_groups", Number(grouped ? form.kv_heads : 1)},
          {"seq_length", Number(model.context())},
          {"max_position_embeddings", Number(model.context())}};
}

TorchMembers FormArguments(const v1::ModelSpec& model, const MegatronForm& form) {
  const bool rotary = !form.learned_positions;
  const double theta = model.rope_theta() > 0 ? model.rope_theta() : 10000;
  const double eps = form.norm_eps;
  return {
      {"position_embedding_type", Text(rotary ? "rope" : "learned_absolute")},
      {"add_position_embedding", Flag(!rotary)},
      {"use_rotary_position_embeddings", Flag(rotary)},
      {"rotary_percent", Real(1)},
      // A whole number is one of Python's, too.
      {"rotary_base",
       theta == std::floor(theta) ? Number(static_cast<int64_t>(theta)) : Real(theta)},
      {"rotary_interleaved", Flag(false)},
      {"use_rope_scaling", Flag(model.has_rope_scaling())},
      {"rope_scaling_factor", Real(model.has_rope_scaling() ? model.rope_scaling().factor() : 8)},
      {"normalization", Text(form.rms_norm ? "RMSNorm" : "LayerNorm")},
      // Versions before 2024 read the second name.
      {"norm_epsilon", Real(eps)},
      {"layernorm_epsilon", Real(eps)},
      {"apply_layernorm_1p", Flag(false)},
      {"apply_residual_connection_post_layernorm", Flag(false)},
      {"apply_query_key_layer_scaling", Flag(false)},
      {"add_bias_linear", Flag(model.bias())},
      {"add_qkv_bias", Flag(model.bias())},
      {"swiglu", Flag(form.gated_mlp)},
      {"openai_gelu", Flag(false)},
      {"squared_relu", Flag(false)},
      {"onnx_safe", {}},
      {"bias_gelu_fusion", Flag(!form.gated_mlp && !form.exact_gelu)},
      {"bert_binary_head", Flag(true)},
      {"untie_embeddings_and_output_weights", Flag(!form.tied_head)},
      {"hidden_dropout", Real(model.dropout())},
      {"attention_dropout", Real(model.dropout())}};
}

TorchMembers RunArguments(const v1::ModelSpec& model, const MegatronWritten& written) {
  return {// Where there is no tokenizer, Megatron-LM counts without the token that ends a document.
          {"tokenizer_type", Text("NullTokenizer")},
          {"vocab_size", Number(model.vocab_size() - 1)},
          {"padded_vocab_size", Number(written.split.padded_vocabulary)},
          {"make_vocab_size_divisible_by", Number(kDivisible)},
          {"tensor_model_parallel_size", Number(written.split.tensor)},
          {"pipeline_model_parallel_size", Number(written.pipeline)},
          {"virtual_pipeline_model_parallel_size", {}},
          {"num_layers_per_virtual_pipeline_stage", {}},
          {"expert_model_parallel_size", Number(1)},
          {"num_experts", {}},
          {"sequence_parallel", Flag(false)},
          {"data_parallel_random_init", Flag(false)},
          {"use_legacy_models", Flag(written.layout == MegatronLayout::kLegacy)},
          {"use_mcore_models", Flag(written.layout == MegatronLayout::kCore)},
          {"transformer_impl", Text("local")},
          {"ckpt_format", Text("torch")},
          {"iteration", Number(written.iteration)},
          {"consumed_train_samples", Number(0)},
          {"consumed_valid_samples", Number(0)},
          {"params_dtype", {TorchDtype{written.format}}},
          {"fp16", Flag(written.format == FloatFormat::kF16)},
          {"bf16", Flag(written.format == FloatFormat::kBF16)}};
}

}  // namespace

absl::Status CheckHasMegatronForm(const v1::ModelSpec& model) {
  const auto lacks = [](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("Megatron-LM has no form of ", what));
  };
  if (!plan::IsNamed(model.architecture())) return lacks("this architecture");
  const MegatronForm form = MegatronFormOf(model);
  if (form.lacks != nullptr) return lacks(form.lacks);
  if (form.post_norm) return lacks("a bert with norm: post, only of one with norm: pre");
  if (!form.causal && form.token_types != 2) {
    return lacks(absl::StrCat("a bert with ", form.token_types, " token types, only with 2"));
  }
  if (!model.has_rope_scaling()) return absl::OkStatus();
  const v1::RopeScaling& scaling = model.rope_scaling();
  if (scaling.low_freq_factor() == kMegatronLowFrequency &&
      scaling.high_freq_factor() == kMegatronHighFrequency &&
      scaling.original_context() == kMegatronOriginalContext) {
    return absl::OkStatus();
  }
  return lacks(absl::StrCat("this rope_scaling, only of one with low_freq_factor: ",
                            kMegatronLowFrequency, ", high_freq_factor: ", kMegatronHighFrequency,
                            ", original_context: ", kMegatronOriginalContext));
}

int64_t MegatronPaddedVocabulary(int64_t vocab_size, int tensor) {
  const int64_t multiple = kDivisible * tensor;
  return (vocab_size + multiple - 1) / multiple * multiple;
}

TorchMembers MegatronArguments(const v1::ModelSpec& model, const MegatronWritten& written) {
  const MegatronForm form = MegatronFormOf(model);
  TorchMembers all;
  for (TorchMembers& members : std::vector<TorchMembers>{
           SizeArguments(model, form), FormArguments(model, form), RunArguments(model, written)}) {
    for (auto& member : members) all.push_back(std::move(member));
  }
  return all;
}

}  // namespace tercio::checkpoint

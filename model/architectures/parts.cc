#include "model/architectures/parts.h"

#include "kernels/random.h"

namespace tercio::model {
namespace {

NormOptions NormOf(const v1::ModelSpec& model, double otherwise) {
  NormOptions norm;
  // A model that was loaded says which one it was trained with.
  norm.eps = static_cast<float>(model.norm_eps() > 0 ? model.norm_eps() : otherwise);
  return norm;
}

Activation ActivationOf(const v1::ModelSpec& model, Activation usual) {
  switch (model.activation()) {
    case v1::ACTIVATION_GELU:
      return Activation::kGelu;
    case v1::ACTIVATION_GELU_TANH:
      return Activation::kGeluTanh;
    case v1::ACTIVATION_RELU:
      return Activation::kRelu;
    case v1::ACTIVATION_SILU:
      return Activation::kSilu;
    case v1::ACTIVATION_UNSPECIFIED:
    case v1::Activation_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Activation_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return usual;
}

}  // namespace

Branch AttentionBranch(const AttentionOptions& attention) {
  return {.name = "attention", .block = attention, .dropout_site = kernels::kSiteAttentionOutput};
}

Branch MlpBranch(const MlpOptions& mlp) {
  return {.name = "mlp", .block = mlp, .dropout_site = kernels::kSiteMlpOutput};
}

NormOptions LayerNormOf(const v1::ModelSpec& model, double otherwise) {
  NormOptions norm = NormOf(model, otherwise);
  norm.bias = model.bias();
  return norm;
}

NormOptions RmsNormOf(const v1::ModelSpec& model, double otherwise) {
  NormOptions norm = NormOf(model, otherwise);
  norm.rms = true;
  norm.bias = false;
  return norm;
}

AttentionOptions AttentionOf(const v1::ModelSpec& model) {
  AttentionOptions attention;
  attention.hidden = model.hidden();
  attention.heads = model.heads();
  attention.key_heads = model.kv_heads() > 0 ? model.kv_heads() : model.heads();
  attention.head_dim = model.head_dim();
  if (attention.head_dim == 0 && model.heads() > 0) {
    attention.head_dim = model.hidden() / model.heads();
  }
  attention.bias = model.bias();
  attention.output_bias = model.bias();
  return attention;
}

RotaryOptions RotaryOf(const v1::ModelSpec& model) {
  RotaryOptions rotary;
  rotary.width = model.rotary_dim() > 0 ? model.rotary_dim() : AttentionOf(model).head_dim;
  return rotary;
}

MlpOptions MlpOf(const v1::ModelSpec& model, Activation usual) {
  MlpOptions mlp;
  mlp.hidden = model.hidden();
  mlp.width = model.ffn_hidden();
  mlp.activation = ActivationOf(model, usual);
  mlp.bias = model.bias();
  return mlp;
}

Layer PreNormLayer(const NormOptions& norm, const AttentionOptions& attention,
                   const MlpOptions& mlp) {
  Branch first = AttentionBranch(attention);
  Branch second = MlpBranch(mlp);
  first.norm = Norm{"attention_norm", norm};
  second.norm = Norm{"mlp_norm", norm};
  return {{{.branches = {first}}, {.branches = {second}}}};
}

Layer ParallelLayer(const NormOptions& norm, ParallelNorms norms, const AttentionOptions& attention,
                    const MlpOptions& mlp) {
  Branch first = AttentionBranch(attention);
  Branch second = MlpBranch(mlp);
  first.norm = Norm{"attention_norm", norm};
  if (norms == ParallelNorms::kTwo) second.norm = Norm{"mlp_norm", norm};
  return {{{.branches = {first, second}}}};
}

AttentionOptions RotaryAttentionOf(const v1::ModelSpec& model) {
  AttentionOptions attention = AttentionOf(model);
  attention.rotary = RotaryOf(model);
  attention.window = model.sliding_window();
  return attention;
}

MlpOptions GatedMlpOf(const v1::ModelSpec& model) {
  MlpOptions mlp = MlpOf(model, Activation::kSilu);
  mlp.gated = true;
  return mlp;
}

Layer PostNormLayer(const NormOptions& norm, AttentionOptions attention, MlpOptions mlp) {
  attention.output_initialization = Initialization::kNormal;
  mlp.output_initialization = Initialization::kNormal;
  return {{{.branches = {AttentionBranch(attention)}, .sum_norm = Norm{"attention_norm", norm}},
           {.branches = {MlpBranch(mlp)}, .sum_norm = Norm{"mlp_norm", norm}}}};
}

Architecture RepeatedLayer(const v1::ModelSpec& model, const Layer& layer) {
  Architecture architecture;
  architecture.hidden = model.hidden();
  architecture.streams = {{model.context()}};
  architecture.embedding.vocabulary = model.vocab_size();
  architecture.embedding.hidden = model.hidden();
  architecture.kinds = {layer};
  architecture.layers.assign(static_cast<size_t>(model.layers()), 0);
  return architecture;
}

Head LanguageHead(const v1::ModelSpec& model, const NormOptions& norm) {
  Head head;
  head.norm = Norm{"final_norm", norm};
  head.language = LanguageHeadOptions{};
  head.tied = !model.untied_head();
  return head;
}

Architecture LlamaWith(const v1::ModelSpec& model, const AttentionOptions& attention) {
  return LlamaWith(model, attention, GatedMlpOf(model));
}

Architecture LlamaWith(const v1::ModelSpec& model, const AttentionOptions& attention,
                       const MlpOptions& mlp) {
  const NormOptions norm = RmsNormOf(model);
  Architecture relative = RepeatedLayer(model, PreNormLayer(norm, attention, mlp));
  relative.head = LanguageHead(model, norm);
  return relative;
}

}  // namespace tercio::model

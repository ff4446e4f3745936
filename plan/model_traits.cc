#include "plan/model_traits.h"

namespace tercio::plan {

namespace {

void AddEncoderTraits(const v1::ModelSpec& model, ModelTraits* traits) {
  traits->causal = false;
  // An empty value means the original, whose norms follow.
  traits->post_norm = model.norm() != v1::NORM_PLACEMENT_PRE;
  traits->exact_gelu = true;
  traits->token_types = model.token_types() > 0 ? model.token_types() : 2;
  traits->head = model.labels() > 0 ? Head::kNone : Head::kMaskedToken;
  traits->classes = model.labels() > 0 ? model.labels() : model.sentence_order() ? 2 : 0;
  // The published models use this one; another changes what loaded weights compute.
  traits->norm_eps = 1e-12f;
}

}  // namespace

ModelTraits TraitsOf(const v1::ModelSpec& model) {
  ModelTraits traits;
  switch (model.architecture()) {
    case v1::ARCHITECTURE_LLAMA:
      traits.learned_positions = false;
      traits.rms_norm = true;
      traits.gated_mlp = true;
      break;
    case v1::ARCHITECTURE_BERT:
      AddEncoderTraits(model, &traits);
      break;
    case v1::ARCHITECTURE_UNSPECIFIED:
    case v1::ARCHITECTURE_GPT2:
    case v1::Architecture_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Architecture_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  traits.tied_head = !model.untied_head();
  traits.kv_heads = model.kv_heads() > 0 ? model.kv_heads() : model.heads();
  traits.head_dim = model.hidden() / model.heads();
  // A model that was loaded says which one it was trained with.
  if (model.norm_eps() > 0) traits.norm_eps = static_cast<float>(model.norm_eps());
  return traits;
}

}  // namespace tercio::plan

#include "plan/model_traits.h"

namespace tercio::plan {

ModelTraits TraitsOf(const v1::ModelSpec& model) {
  ModelTraits traits;
  const bool llama = model.architecture() == "llama";
  traits.learned_positions = !llama;
  traits.rms_norm = llama;
  traits.gated_mlp = llama;
  traits.tied_head = !model.untied_head();
  traits.kv_heads = model.kv_heads() > 0 ? model.kv_heads() : model.heads();
  traits.head_dim = model.hidden() / model.heads();
  if (model.norm_eps() > 0) traits.norm_eps = static_cast<float>(model.norm_eps());
  return traits;
}

}  // namespace tercio::plan

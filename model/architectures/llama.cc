#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {

Architecture DescribeLlama(const v1::ModelSpec& model) {
  const NormOptions norm = RmsNormOf(model);
  AttentionOptions attention = AttentionOf(model);
  attention.rotary = RotaryOf(model);
  MlpOptions mlp = MlpOf(model, Activation::kSilu);
  mlp.gated = true;
  Architecture llama = RepeatedLayer(model, PreNormLayer(norm, attention, mlp));
  llama.head = LanguageHead(model, norm);
  llama.keys_by_place = true;
  return llama;
}

}  // namespace tercio::model

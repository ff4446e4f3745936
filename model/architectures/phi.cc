#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {

Architecture DescribePhi(const v1::ModelSpec& model) {
  const NormOptions norm = LayerNormOf(model);
  AttentionOptions attention = AttentionOf(model);
  attention.rotary = RotaryOf(model);
  Architecture phi = RepeatedLayer(model, ParallelLayer(norm, ParallelNorms::kOne, attention,
                                                        MlpOf(model, Activation::kGeluTanh)));
  phi.head = LanguageHead(model, norm);
  phi.head.language->bias = model.bias();
  return phi;
}

}  // namespace tercio::model

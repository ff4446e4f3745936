#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {

Architecture DescribeGptNeox(const v1::ModelSpec& model) {
  const NormOptions norm = LayerNormOf(model);
  AttentionOptions attention = AttentionOf(model);
  attention.rotary = RotaryOf(model);
  const MlpOptions mlp = MlpOf(model, Activation::kGelu);
  Architecture neox =
      RepeatedLayer(model, model.sequential_residual()
                               ? PreNormLayer(norm, attention, mlp)
                               : ParallelLayer(norm, ParallelNorms::kTwo, attention, mlp));
  neox.head = LanguageHead(model, norm);
  return neox;
}

}  // namespace tercio::model

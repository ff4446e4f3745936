#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {

Architecture DescribeGptJ(const v1::ModelSpec& model) {
  const NormOptions norm = LayerNormOf(model);
  AttentionOptions attention = AttentionOf(model);
  attention.bias = false;
  attention.output_bias = false;
  attention.rotary = RotaryOf(model);
  attention.rotary->interleaved = true;
  Architecture gptj = RepeatedLayer(model, ParallelLayer(norm, ParallelNorms::kOne, attention,
                                                         MlpOf(model, Activation::kGeluTanh)));
  gptj.head = LanguageHead(model, norm);
  gptj.head.language->bias = model.bias();
  return gptj;
}

}  // namespace tercio::model

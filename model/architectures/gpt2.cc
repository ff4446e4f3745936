#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {

Architecture DescribeGpt2(const v1::ModelSpec& model) {
  const NormOptions norm = LayerNormOf(model);
  Architecture gpt2 = RepeatedLayer(
      model, PreNormLayer(norm, AttentionOf(model), MlpOf(model, Activation::kGeluTanh)));
  gpt2.embedding.positions = model.context();
  gpt2.head = LanguageHead(model, norm);
  gpt2.keys_by_place = true;
  return gpt2;
}

}  // namespace tercio::model

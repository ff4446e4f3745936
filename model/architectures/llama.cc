#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {

Architecture DescribeLlama(const v1::ModelSpec& model) {
  const NormOptions norm = RmsNormOf(model);
  Architecture llama =
      RepeatedLayer(model, PreNormLayer(norm, RotaryAttentionOf(model), GatedMlpOf(model)));
  llama.head = LanguageHead(model, norm);
  llama.keys_by_place = true;
  return llama;
}

}  // namespace tercio::model

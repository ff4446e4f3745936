// Architectures that are llama but for their attention.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

Architecture LlamaWith(const v1::ModelSpec& model, const AttentionOptions& attention) {
  const NormOptions norm = RmsNormOf(model);
  Architecture relative = RepeatedLayer(model, PreNormLayer(norm, attention, GatedMlpOf(model)));
  relative.head = LanguageHead(model, norm);
  return relative;
}

}  // namespace

Architecture DescribeMistral(const v1::ModelSpec& model) {
  return LlamaWith(model, RotaryAttentionOf(model));
}

Architecture DescribePhi3(const v1::ModelSpec& model) {
  return LlamaWith(model, RotaryAttentionOf(model));
}

Architecture DescribeQwen2(const v1::ModelSpec& model) {
  AttentionOptions attention = RotaryAttentionOf(model);
  attention.bias = true;
  return LlamaWith(model, attention);
}

Architecture DescribeQwen3(const v1::ModelSpec& model) {
  AttentionOptions attention = RotaryAttentionOf(model);
  attention.head_norm = RmsNormOf(model);
  return LlamaWith(model, attention);
}

}  // namespace tercio::model

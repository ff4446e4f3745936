#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

// The table's first two rows belong to padding, which causal training has none of.
constexpr int64_t kFirstPosition = 2;

}  // namespace

Architecture DescribeOpt(const v1::ModelSpec& model) {
  const NormOptions norm = LayerNormOf(model);
  Architecture opt =
      RepeatedLayer(model, PreNormLayer(norm, AttentionOf(model), MlpOf(model, Activation::kRelu)));
  opt.embedding.positions = model.context() + kFirstPosition;
  opt.embedding.first_position = kFirstPosition;
  opt.head = LanguageHead(model, norm);
  return opt;
}

}  // namespace tercio::model

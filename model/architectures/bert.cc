#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

// The published models use this one; another changes what loaded weights compute.
constexpr double kNormEps = 1e-12;

Head HeadOf(const v1::ModelSpec& model, const NormOptions& norm, bool post_norm) {
  Head head;
  if (!post_norm) head.norm = Norm{"final_norm", norm};
  if (model.labels() > 0) {
    head.classes = ClassHeadOptions{"classifier", model.labels(), /*drops=*/true};
  } else {
    head.masked = MaskedHeadOptions{norm};
    // Classification drops before its last product (as Devlin et al.); sentence order does not.
    if (model.sentence_order()) head.classes = ClassHeadOptions{"sentence_order", 2, false};
  }
  head.tied = !model.untied_head();
  return head;
}

}  // namespace

Architecture DescribeBert(const v1::ModelSpec& model) {
  // An empty value means the original, whose norms follow.
  const bool post_norm = model.norm() != v1::NORM_PLACEMENT_PRE;
  const NormOptions norm = LayerNormOf(model, kNormEps);
  AttentionOptions attention = AttentionOf(model);
  attention.causal = false;
  const MlpOptions mlp = MlpOf(model, Activation::kGelu);
  Architecture bert = RepeatedLayer(
      model, post_norm ? PostNormLayer(norm, attention, mlp) : PreNormLayer(norm, attention, mlp));
  bert.embedding.positions = model.context();
  bert.embedding.types = model.token_types() > 0 ? model.token_types() : 2;
  if (post_norm) bert.embedding.norm = Norm{"embedding.norm", norm};
  bert.head = HeadOf(model, norm, post_norm);
  bert.causal = false;
  bert.keys_by_place = true;
  return bert;
}

}  // namespace tercio::model

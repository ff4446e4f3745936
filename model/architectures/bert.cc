// Devlin et al. 2019, or with the norms where Megatron-LM has them (Shoeybi et al. 2019, section
// 5.3); sentence order: Lan et al. 2020.
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

}  // namespace

const ArchitectureFacts& BertFacts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_BERT,
      .describe = DescribeBert,
      .free_head = false,
      .grouped_keys = false,
      .norm_eps = 1e-12,
      .activation = v1::ACTIVATION_GELU,
      .keys = {"norm", "token_types", "sentence_order", "labels"},
      .presets =
          // Devlin et al. 2019, section 3.
      {{"bert-base", 12, 768, 12, 12, 3072, 512, 30522},
       {"bert-large", 24, 1024, 16, 16, 4096, 512, 30522}},
  };
  return *facts;
}

}  // namespace tercio::model

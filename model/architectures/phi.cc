// Li et al. 2023 (Phi-1.5), Javaheripi and Bubeck 2023 (Phi-2): parallel branches behind one norm.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

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

}  // namespace

const ArchitectureFacts& PhiFacts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_PHI,
      .describe = DescribePhi,
      .tied_head = false,
      .rope_theta = 10000,
      .keys = {"rotary_dim"},
      .presets = {{"phi-1.5", 24, 2048, 32, 32, 8192, 2048, 51200, 10000, false,
                   [](v1::ModelSpec* model) { model->set_rotary_dim(32); }},
                  {"phi-2", 32, 2560, 32, 32, 10240, 2048, 51200, 10000, false,
                   [](v1::ModelSpec* model) { model->set_rotary_dim(32); }}},
  };
  return *facts;
}

}  // namespace tercio::model

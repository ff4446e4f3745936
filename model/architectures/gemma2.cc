#include <cmath>

#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

Branch Normed(Branch branch, const std::string& before, const std::string& after,
              const NormOptions& norm) {
  branch.norm = Norm{before, norm};
  branch.result_norm = Norm{after, norm};
  return branch;
}

Layer LayerWith(const v1::ModelSpec& model, const AttentionOptions& attention,
                const NormOptions& norm) {
  MlpOptions mlp = MlpOf(model, Activation::kGeluTanh);
  mlp.gated = true;
  return {
      {{.branches = {Normed({.name = "attention", .block = attention}, "attention_norm",
                            "attention_post_norm", norm)}},
       {.branches = {Normed({.name = "mlp", .block = mlp}, "mlp_norm", "mlp_post_norm", norm)}}}};
}

}  // namespace

Architecture DescribeGemma2(const v1::ModelSpec& model) {
  NormOptions norm = RmsNormOf(model, 1e-6);
  norm.unit_offset = true;
  AttentionOptions attention = RotaryAttentionOf(model);
  attention.softcap = static_cast<float>(model.attention_softcap());
  if (model.query_scale() > 0) {
    attention.scale = static_cast<float>(1 / std::sqrt(model.query_scale()));
  }
  AttentionOptions whole = attention;
  whole.window = 0;
  Architecture gemma = RepeatedLayer(model, LayerWith(model, attention, norm));
  // Layers with a window and without one take turns, beginning with the window.
  gemma.kinds.push_back(LayerWith(model, whole, norm));
  for (size_t i = 1; i < gemma.layers.size(); i += 2) gemma.layers[i] = 1;
  gemma.embedding.scale = static_cast<float>(std::sqrt(static_cast<double>(model.hidden())));
  gemma.head = LanguageHead(model, norm);
  gemma.head.language->softcap = static_cast<float>(model.logit_softcap());
  return gemma;
}

}  // namespace tercio::model

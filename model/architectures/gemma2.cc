// Gemma Team 2024: norms before and after each branch, soft caps, windows in every other layer.
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

void Gemma2Published(v1::ModelSpec* model) {
  model->set_head_dim(256);
  model->set_sliding_window(4096);
  model->set_attention_softcap(50);
  model->set_logit_softcap(30);
}

}  // namespace

const ArchitectureFacts& Gemma2Facts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_GEMMA2,
      .describe = DescribeGemma2,
      .bias = false,
      .free_head = false,
      .norm_eps = 1e-6,
      .rope_theta = 10000,
      .gated = true,
      .keys = {"head_dim", "sliding_window", "attention_softcap", "logit_softcap", "query_scale"},
      .presets =
          // Riviere et al. 2024.
      {{"gemma2-2b", 26, 2304, 8, 4, 9216, 8192, 256000, 10000, true, Gemma2Published},
       {"gemma2-9b", 42, 3584, 16, 8, 14336, 8192, 256000, 10000, true, Gemma2Published}},
  };
  return *facts;
}

}  // namespace tercio::model

// Abdin et al. 2024.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

Architecture DescribePhi3(const v1::ModelSpec& model) {
  AttentionOptions attention = RotaryAttentionOf(model);
  attention.joined = true;
  MlpOptions mlp = GatedMlpOf(model);
  mlp.joined = true;
  return LlamaWith(model, attention, mlp);
}

}  // namespace

const ArchitectureFacts& Phi3Facts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_PHI3,
      .describe = DescribePhi3,
      .bias = false,
      .tied_head = false,
      .rope_theta = 10000,
      .gated = true,
      .activation = v1::ACTIVATION_SILU,
      .keys = {"rotary_dim", "sliding_window"},
      .presets = {{"phi3-mini", 32, 3072, 32, 32, 8192, 4096, 32064, 10000, false,
                   [](v1::ModelSpec* model) { model->set_sliding_window(2047); }}},
  };
  return *facts;
}

}  // namespace tercio::model

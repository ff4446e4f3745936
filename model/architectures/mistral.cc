// Jiang et al. 2023: a sliding window.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

Architecture DescribeMistral(const v1::ModelSpec& model) {
  return LlamaWith(model, RotaryAttentionOf(model));
}

}  // namespace

const ArchitectureFacts& MistralFacts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_MISTRAL,
      .describe = DescribeMistral,
      .bias = false,
      .tied_head = false,
      .rope_theta = 10000,
      .gated = true,
      .activation = v1::ACTIVATION_SILU,
      .keys = {"head_dim", "sliding_window"},
      .presets =
          // Jiang et al. 2023. Later releases have no window.
      {{"mistral-7b", 32, 4096, 32, 8, 14336, 32768, 32000, 10000, false,
        [](v1::ModelSpec* model) { model->set_sliding_window(4096); }}},
  };
  return *facts;
}

}  // namespace tercio::model

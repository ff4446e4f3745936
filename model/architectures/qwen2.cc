// Yang et al. 2024: biases of query, key and value.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

Architecture DescribeQwen2(const v1::ModelSpec& model) {
  AttentionOptions attention = RotaryAttentionOf(model);
  attention.bias = true;
  return LlamaWith(model, attention);
}

}  // namespace

const ArchitectureFacts& Qwen2Facts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_QWEN2,
      .describe = DescribeQwen2,
      .bias = false,  // but those of query, key and value
      .tied_head = false,
      .norm_eps = 1e-6,
      .rope_theta = 1000000,
      .gated = true,
      .activation = v1::ACTIVATION_SILU,
      .keys = {"sliding_window"},
      .presets =
          // Yang et al. 2024.
      {{"qwen2-0.5b", 24, 896, 14, 2, 4864, 131072, 151936, 1000000, true},
       {"qwen2-1.5b", 28, 1536, 12, 2, 8960, 131072, 151936, 1000000, true},
       {"qwen2-7b", 28, 3584, 28, 4, 18944, 131072, 152064, 1000000, false}},
  };
  return *facts;
}

}  // namespace tercio::model

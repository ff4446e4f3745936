// Yang et al. 2025: norms of each head's query and key.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

Architecture DescribeQwen3(const v1::ModelSpec& model) {
  AttentionOptions attention = RotaryAttentionOf(model);
  attention.head_norm = RmsNormOf(model);
  return LlamaWith(model, attention);
}

void HeadsOf128(v1::ModelSpec* model) { model->set_head_dim(128); }

}  // namespace

const ArchitectureFacts& Qwen3Facts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_QWEN3,
      .describe = DescribeQwen3,
      .bias = false,
      .tied_head = false,
      .norm_eps = 1e-6,
      .rope_theta = 1000000,
      .gated = true,
      .activation = v1::ACTIVATION_SILU,
      .keys = {"head_dim", "sliding_window"},
      .presets =
          // Yang et al. 2025.
      {{"qwen3-0.6b", 28, 1024, 16, 8, 3072, 40960, 151936, 1000000, true, HeadsOf128},
       {"qwen3-1.7b", 28, 2048, 16, 8, 6144, 40960, 151936, 1000000, true},
       {"qwen3-8b", 36, 4096, 32, 8, 12288, 40960, 151936, 1000000, false}},
  };
  return *facts;
}

}  // namespace tercio::model

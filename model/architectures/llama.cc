// Touvron et al. 2023 (RMSNorm, rotary positions, SwiGLU), with the grouped-query attention of
// Ainslie et al. 2023.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

Architecture DescribeLlama(const v1::ModelSpec& model) {
  Architecture llama = LlamaWith(model, RotaryAttentionOf(model));
  llama.keys_by_place = true;
  return llama;
}

}  // namespace

const ArchitectureFacts& LlamaFacts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_LLAMA,
      .describe = DescribeLlama,
      .bias = false,
      .tied_head = false,
      .rope_theta = 10000,
      .gated = true,
      .activation = v1::ACTIVATION_SILU,
      .presets =
          // Meta's model cards. The context of llama3 is that of its first release; later ones
          // scale their positions.
      {{"llama2-7b", 32, 4096, 32, 32, 11008, 4096, 32000, 10000, false},
       {"llama3-8b", 32, 4096, 32, 8, 14336, 8192, 128256, 500000, false},
       {"llama3-70b", 80, 8192, 64, 8, 28672, 8192, 128256, 500000, false}},
  };
  return *facts;
}

}  // namespace tercio::model

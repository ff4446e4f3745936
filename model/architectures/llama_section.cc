#include "model/architectures/section.h"

namespace tercio::model {

const SectionFacts& LlamaSection() {
  static const auto* const facts = new SectionFacts{
      .architecture = v1::ARCHITECTURE_LLAMA,
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

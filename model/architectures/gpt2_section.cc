#include "model/architectures/section.h"

namespace tercio::model {

const SectionFacts& Gpt2Section() {
  static const auto* const facts = new SectionFacts{
      .architecture = v1::ARCHITECTURE_GPT2,
      .free_bias = true,
      .presets =
          // Radford et al. 2019, table 2.
      {{"gpt2-124m", 12, 768, 12, 12, 3072, 1024, 50257},
       {"gpt2-355m", 24, 1024, 16, 16, 4096, 1024, 50257},
       {"gpt2-774m", 36, 1280, 20, 20, 5120, 1024, 50257},
       {"gpt2-1.5b", 48, 1600, 25, 25, 6400, 1024, 50257}},
  };
  return *facts;
}

}  // namespace tercio::model

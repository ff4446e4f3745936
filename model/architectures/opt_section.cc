#include "model/architectures/section.h"

namespace tercio::model {

const SectionFacts& OptSection() {
  static const auto* const facts = new SectionFacts{
      .architecture = v1::ARCHITECTURE_OPT,
      .grouped_keys = false,
      .activation = v1::ACTIVATION_RELU,
      .further_activations = {v1::ACTIVATION_GELU},
      .keys = {"activation"},
      .presets =
          // Zhang et al. 2022. The 350m has its norms elsewhere.
      {{"opt-125m", 12, 768, 12, 12, 3072, 2048, 50272},
       {"opt-1.3b", 24, 2048, 32, 32, 8192, 2048, 50272},
       {"opt-2.7b", 32, 2560, 32, 32, 10240, 2048, 50272},
       {"opt-6.7b", 32, 4096, 32, 32, 16384, 2048, 50272}},
  };
  return *facts;
}

}  // namespace tercio::model

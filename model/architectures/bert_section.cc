#include "model/architectures/section.h"

namespace tercio::model {

const SectionFacts& BertSection() {
  static const auto* const facts = new SectionFacts{
      .architecture = v1::ARCHITECTURE_BERT,
      .free_head = false,
      .grouped_keys = false,
      .norm_eps = 1e-12,
      .activation = v1::ACTIVATION_GELU,
      .keys = {"norm", "token_types", "sentence_order", "labels"},
      .presets =
          // Devlin et al. 2019, section 3.
      {{"bert-base", 12, 768, 12, 12, 3072, 512, 30522},
       {"bert-large", 24, 1024, 16, 16, 4096, 512, 30522}},
  };
  return *facts;
}

}  // namespace tercio::model

#include "model/architectures/section.h"

namespace tercio::model {

const SectionFacts& GptJSection() {
  static const auto* const facts = new SectionFacts{
      .architecture = v1::ARCHITECTURE_GPT_J,
      .tied_head = false,
      .grouped_keys = false,
      .rope_theta = 10000,
      .keys = {"rotary_dim"},
      .presets = {{"gptj-6b", 28, 4096, 16, 16, 16384, 2048, 50400, 10000, false,
                   [](v1::ModelSpec* model) { model->set_rotary_dim(64); }}},
  };
  return *facts;
}

}  // namespace tercio::model

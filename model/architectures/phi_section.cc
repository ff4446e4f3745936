#include "model/architectures/section.h"

namespace tercio::model {

const SectionFacts& PhiSection() {
  static const auto* const facts = new SectionFacts{
      .architecture = v1::ARCHITECTURE_PHI,
      .tied_head = false,
      .rope_theta = 10000,
      .keys = {"rotary_dim"},
      .presets = {{"phi-1.5", 24, 2048, 32, 32, 8192, 2048, 51200, 10000, false,
                   [](v1::ModelSpec* model) { model->set_rotary_dim(32); }},
                  {"phi-2", 32, 2560, 32, 32, 10240, 2048, 51200, 10000, false,
                   [](v1::ModelSpec* model) { model->set_rotary_dim(32); }}},
  };
  return *facts;
}

}  // namespace tercio::model

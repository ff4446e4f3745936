#include "model/architectures/section.h"

namespace tercio::model {

namespace {

void Gemma2Published(v1::ModelSpec* model) {
  model->set_head_dim(256);
  model->set_sliding_window(4096);
  model->set_attention_softcap(50);
  model->set_logit_softcap(30);
}

}  // namespace

const SectionFacts& Gemma2Section() {
  static const auto* const facts = new SectionFacts{
      .architecture = v1::ARCHITECTURE_GEMMA2,
      .bias = false,
      .free_head = false,
      .norm_eps = 1e-6,
      .rope_theta = 10000,
      .gated = true,
      .keys = {"head_dim", "sliding_window", "attention_softcap", "logit_softcap", "query_scale"},
      .presets =
          // Riviere et al. 2024.
      {{"gemma2-2b", 26, 2304, 8, 4, 9216, 8192, 256000, 10000, true, Gemma2Published},
       {"gemma2-9b", 42, 3584, 16, 8, 14336, 8192, 256000, 10000, true, Gemma2Published}},
  };
  return *facts;
}

}  // namespace tercio::model

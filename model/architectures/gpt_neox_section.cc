#include "model/architectures/section.h"

namespace tercio::model {

namespace {

void QuarterTurns(v1::ModelSpec* model) {
  model->set_rotary_dim(model->hidden() / model->heads() / 4);
}

}  // namespace

const SectionFacts& GptNeoxSection() {
  static const auto* const facts = new SectionFacts{
      .architecture = v1::ARCHITECTURE_GPT_NEOX,
      .tied_head = false,
      .grouped_keys = false,
      .rope_theta = 10000,
      .activation = v1::ACTIVATION_GELU,
      .further_activations = {v1::ACTIVATION_GELU_TANH},
      .keys = {"activation", "rotary_dim", "sequential_residual"},
      .presets =
          // Biderman et al. 2023 (pythia), Black et al. 2022.
      {{"pythia-160m", 12, 768, 12, 12, 3072, 2048, 50304, 10000, false, QuarterTurns},
       {"pythia-410m", 24, 1024, 16, 16, 4096, 2048, 50304, 10000, false, QuarterTurns},
       {"pythia-1.4b", 24, 2048, 16, 16, 8192, 2048, 50304, 10000, false, QuarterTurns},
       {"gpt-neox-20b", 44, 6144, 64, 64, 24576, 2048, 50432, 10000, false,
        [](v1::ModelSpec* model) {
          QuarterTurns(model);
          model->set_activation(v1::ACTIVATION_GELU_TANH);
        }}},
  };
  return *facts;
}

}  // namespace tercio::model

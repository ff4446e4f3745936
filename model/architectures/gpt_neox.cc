// Black et al. 2022: parallel branches with a norm each, or one after the other.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

Architecture DescribeGptNeox(const v1::ModelSpec& model) {
  const NormOptions norm = LayerNormOf(model);
  AttentionOptions attention = AttentionOf(model);
  attention.rotary = RotaryOf(model);
  attention.joined = true;
  const MlpOptions mlp = MlpOf(model, Activation::kGelu);
  Architecture neox =
      RepeatedLayer(model, model.sequential_residual()
                               ? PreNormLayer(norm, attention, mlp)
                               : ParallelLayer(norm, ParallelNorms::kTwo, attention, mlp));
  neox.head = LanguageHead(model, norm);
  return neox;
}

void QuarterTurns(v1::ModelSpec* model) {
  model->set_rotary_dim(model->hidden() / model->heads() / 4);
}

}  // namespace

const ArchitectureFacts& GptNeoxFacts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_GPT_NEOX,
      .describe = DescribeGptNeox,
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

// Wang and Komatsuzaki 2021: parallel branches behind one norm, interleaved rotary positions.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

Architecture DescribeGptJ(const v1::ModelSpec& model) {
  const NormOptions norm = LayerNormOf(model);
  AttentionOptions attention = AttentionOf(model);
  attention.bias = false;
  attention.output_bias = false;
  attention.rotary = RotaryOf(model);
  attention.rotary->interleaved = true;
  Architecture gptj = RepeatedLayer(model, ParallelLayer(norm, ParallelNorms::kOne, attention,
                                                         MlpOf(model, Activation::kGeluTanh)));
  gptj.head = LanguageHead(model, norm);
  gptj.head.language->bias = model.bias();
  return gptj;
}

}  // namespace

const ArchitectureFacts& GptJFacts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_GPT_J,
      .describe = DescribeGptJ,
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

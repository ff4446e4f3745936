// Radford et al. 2019: pre-norm, learned positions, GELU.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

Architecture DescribeGpt2(const v1::ModelSpec& model) {
  const NormOptions norm = LayerNormOf(model);
  AttentionOptions attention = AttentionOf(model);
  attention.joined = true;
  Architecture gpt2 =
      RepeatedLayer(model, PreNormLayer(norm, attention, MlpOf(model, Activation::kGeluTanh)));
  gpt2.embedding.positions = model.context();
  gpt2.head = LanguageHead(model, norm);
  gpt2.keys_by_place = true;
  return gpt2;
}

}  // namespace

const ArchitectureFacts& Gpt2Facts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_GPT2,
      .describe = DescribeGpt2,
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

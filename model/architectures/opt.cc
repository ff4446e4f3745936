// Zhang et al. 2022: GPT-2 with ReLU, and a table of positions that begins at its third row.
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

// The table's first two rows belong to padding, which causal training has none of.
constexpr int64_t kFirstPosition = 2;

Architecture DescribeOpt(const v1::ModelSpec& model) {
  const NormOptions norm = LayerNormOf(model);
  Architecture opt =
      RepeatedLayer(model, PreNormLayer(norm, AttentionOf(model), MlpOf(model, Activation::kRelu)));
  opt.embedding.positions = model.context() + kFirstPosition;
  opt.embedding.first_position = kFirstPosition;
  opt.head = LanguageHead(model, norm);
  return opt;
}

}  // namespace

const ArchitectureFacts& OptFacts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_OPT,
      .describe = DescribeOpt,
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

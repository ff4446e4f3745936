// Raffel et al. 2020: an encoder, and a decoder that attends to it. Biases by relative positions
// stand for position embeddings, and scores are not scaled. T5 1.1 has a gate in the feed-forward
// part, and a head of its own.
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/random.h"
#include "model/architectures/parts.h"
#include "model/architectures/registry.h"

namespace tercio::model {
namespace {

enum Kind { kEncoder, kEncoderEnd, kDecoder };

AttentionOptions SelfAttention(const v1::ModelSpec& model, int first_layer) {
  AttentionOptions attention = AttentionOf(model);
  attention.scale = 1;
  RelativeBiasOptions relative;
  if (model.relative_buckets() > 0) relative.buckets = model.relative_buckets();
  if (model.relative_distance() > 0) relative.distance = model.relative_distance();
  relative.shared = absl::StrCat("layers.", first_layer, ".attention.relative_bias.weight");
  attention.relative = relative;
  return attention;
}

MlpOptions Mlp(const v1::ModelSpec& model) {
  MlpOptions mlp = MlpOf(model, Activation::kRelu);
  mlp.gated = model.gated_mlp();
  return mlp;
}

Branch CrossAttentionBranch(const v1::ModelSpec& model, const NormOptions& norm) {
  CrossAttentionOptions cross;
  cross.hidden = model.hidden();
  cross.heads = model.heads();
  cross.head_dim = AttentionOf(model).head_dim;
  cross.scale = 1;
  return {.name = "cross_attention",
          .block = cross,
          .norm = Norm{"cross_attention_norm", norm},
          .dropout_site = kernels::kSiteCrossAttentionOutput};
}

Layer EncoderLayer(const v1::ModelSpec& model, const NormOptions& norm) {
  AttentionOptions attention = SelfAttention(model, 0);
  attention.causal = false;
  return PreNormLayer(norm, attention, Mlp(model));
}

Layer DecoderLayer(const v1::ModelSpec& model, const NormOptions& norm) {
  Layer layer = PreNormLayer(norm, SelfAttention(model, model.layers()), Mlp(model));
  layer.sublayers.insert(layer.sublayers.begin() + 1,
                         Sublayer{.branches = {CrossAttentionBranch(model, norm)}});
  layer.stream = 1;
  return layer;
}

Architecture DescribeT5(const v1::ModelSpec& model) {
  const NormOptions norm = RmsNormOf(model, 1e-6);
  Architecture t5 = RepeatedLayer(model, EncoderLayer(model, norm));
  t5.streams.push_back({model.decoder_context() > 0 ? model.decoder_context() : model.context()});
  // What the decoder attends to is the encoder's result behind a norm of its own.
  t5.kinds.push_back(t5.kinds[kEncoder]);
  t5.kinds[kEncoderEnd].sublayers.back().sum_norm = Norm{"encoder_norm", norm};
  if (!t5.layers.empty()) t5.layers.back() = kEncoderEnd;
  t5.kinds.push_back(DecoderLayer(model, norm));
  t5.layers.insert(t5.layers.end(), static_cast<size_t>(model.decoder_layers()), kDecoder);
  t5.head = LanguageHead(model, norm);
  // The published models with a tied table were trained with this factor.
  if (t5.head.tied) {
    t5.head.input_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(model.hidden())));
  }
  return t5;
}

void OfSmall(v1::ModelSpec* model) { model->set_head_dim(64); }
void OfVersion11(v1::ModelSpec* model) {
  model->set_head_dim(64);
  model->set_gated_mlp(true);
  model->set_activation(v1::ACTIVATION_GELU_TANH);
}

}  // namespace

const ArchitectureFacts& T5Facts() {
  static const auto* const facts = new ArchitectureFacts{
      .architecture = v1::ARCHITECTURE_T5,
      .describe = DescribeT5,
      .bias = false,
      .grouped_keys = false,
      .norm_eps = 1e-6,
      .activation = v1::ACTIVATION_RELU,
      .further_activations = {v1::ACTIVATION_GELU_TANH, v1::ACTIVATION_GELU, v1::ACTIVATION_SILU},
      .keys = {"activation", "head_dim", "decoder_layers", "decoder_context", "relative_buckets",
               "relative_distance", "gated_mlp"},
      .presets =
          // Raffel et al. 2020, and the released configurations of T5 1.1.
      {{"t5-small", 6, 512, 8, 8, 2048, 512, 32128, 0, true, OfSmall},
       {"t5-base", 12, 768, 12, 12, 3072, 512, 32128, 0, true, OfSmall},
       {"t5-large", 24, 1024, 16, 16, 4096, 512, 32128, 0, true, OfSmall},
       {"t5-v1.1-small", 8, 512, 6, 6, 1024, 512, 32128, 0, false, OfVersion11},
       {"t5-v1.1-base", 12, 768, 12, 12, 2048, 512, 32128, 0, false, OfVersion11},
       {"t5-v1.1-large", 24, 1024, 16, 16, 2816, 512, 32128, 0, false, OfVersion11}},
  };
  return *facts;
}

}  // namespace tercio::model

#include "tests/parity/drawn_architecture.h"

#include <cmath>
#include <random>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/random.h"
#include "model/architectures/parts.h"

namespace tercio::testing {
namespace {

class Drawer {
 public:
  explicit Drawer(const v1::ModelSpec& spec) : spec_(spec) {
    uint64_t seed = 0;
    TERCIO_CHECK(absl::SimpleAtoi(spec.from(), &seed));
    random_.seed(seed);
  }

  model::Architecture Draw() {
    norm_.rms = Coin();
    norm_.bias = !norm_.rms && Coin();
    norm_.unit_offset = norm_.rms && Coin();
    model::Architecture drawn = model::RepeatedLayer(spec_, DrawLayer());
    const int kinds = Between(1, 3);
    while (static_cast<int>(drawn.kinds.size()) < kinds) drawn.kinds.push_back(DrawLayer());
    for (int& kind : drawn.layers) kind = Between(0, kinds - 1);
    DrawRelativeBias(0, &drawn);
    if (spec_.decoder_layers() > 0) {
      AddDecoder(&drawn);
    } else {
      DrawEmbedding(&drawn.embedding);
    }
    if (Coin()) drawn.embedding.scale = 3.5f;
    drawn.head = model::LanguageHead(spec_, norm_);
    if (Coin()) drawn.head.norm.reset();
    if (drawn.head.norm.has_value() && Coin()) drawn.head.input_scale = 0.4f;
    drawn.head.language->bias = Coin();
    drawn.head.language->softcap = Coin() ? 5.0f : 0.0f;
    return drawn;
  }

 private:
  int Between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Coin() { return Between(0, 1) == 1; }

  void DrawEmbedding(model::EmbeddingOptions* embedding) {
    if (Coin()) {
      embedding->first_position = Between(0, 2);
      embedding->positions = spec_.context() + embedding->first_position;
    }
    if (Coin()) embedding->norm = model::Norm{"embedding.norm", norm_};
  }

  // A second stream, whose layers attend to the first one.
  void AddDecoder(model::Architecture* drawn) {
    drawn->streams.push_back({spec_.decoder_context()});
    const auto first_kind = static_cast<int>(drawn->kinds.size());
    const int kinds = Between(1, 2);
    for (int i = 0; i < kinds; ++i) {
      model::Layer layer = DrawLayer();
      layer.stream = 1;
      model::Branch cross;
      cross.name = "cross_attention";
      if (Coin()) cross.norm = model::Norm{"cross_attention_norm", norm_};
      cross.block = DrawCrossAttention();
      cross.dropout_site = kernels::kSiteCrossAttentionOutput;
      const int at = Between(0, static_cast<int>(layer.sublayers.size()));
      layer.sublayers.insert(layer.sublayers.begin() + at, {.branches = {cross}});
      if (Coin())
        layer.sublayers[static_cast<size_t>(at)].sum_norm = model::Norm{"cross_sum", norm_};
      drawn->kinds.push_back(layer);
    }
    const size_t begin = drawn->layers.size();
    for (int i = 0; i < spec_.decoder_layers(); ++i) {
      drawn->layers.push_back(first_kind + Between(0, kinds - 1));
    }
    DrawRelativeBias(begin, drawn);
  }

  // One attention of the kind of layer `first` may have a bias, which all layers of the kind share.
  void DrawRelativeBias(size_t first, model::Architecture* drawn) {
    const auto kind = static_cast<size_t>(drawn->layers[first]);
    for (model::Sublayer& sublayer : drawn->kinds[kind].sublayers) {
      for (model::Branch& branch : sublayer.branches) {
        auto* attention = std::get_if<model::AttentionOptions>(&branch.block);
        if (attention == nullptr || attention->softcap > 0 || !Coin()) continue;
        attention->relative = model::RelativeBiasOptions{
            .buckets = 2 * Between(1, 8),
            .distance = Between(8, 40),
            .shared = absl::StrCat("layers.", first, ".", branch.name, ".relative_bias.weight")};
        return;
      }
    }
  }

  model::Layer DrawLayer() {
    model::Layer layer;
    const int count = Between(1, 3);
    for (int i = 0; i < count; ++i) {
      model::Sublayer sublayer;
      const std::string name = absl::StrCat("part", i);
      const int branches = Between(1, 3);
      for (int j = 0; j < branches; ++j) {
        sublayer.branches.push_back(DrawBranch(absl::StrCat(name, "_", j)));
      }
      if (Coin()) sublayer.sum_norm = model::Norm{name + "_sum_norm", norm_};
      layer.sublayers.push_back(sublayer);
    }
    return layer;
  }

  model::Branch DrawBranch(const std::string& name) {
    model::Branch branch;
    branch.name = name;
    if (Coin()) branch.norm = model::Norm{name + "_norm", norm_};
    if (Between(0, 3) == 0) branch.result_norm = model::Norm{name + "_result_norm", norm_};
    const bool biased = !branch.result_norm.has_value() && Coin();
    if (Coin()) {
      branch.block = DrawAttention(biased);
      branch.dropout_site = kernels::kSiteAttentionOutput;
    } else {
      branch.block = DrawMlp(biased);
      branch.dropout_site = kernels::kSiteMlpOutput;
    }
    return branch;
  }

  model::AttentionOptions DrawAttention(bool biased) {
    model::AttentionOptions attention = model::AttentionOf(spec_);
    attention.bias = Coin();
    attention.output_bias = biased;
    if (Coin()) {
      attention.rotary = model::RotaryOf(spec_);
      attention.rotary->interleaved = Coin();
    }
    if (Coin()) attention.head_norm = model::NormOptions{.rms = true, .bias = false};
    if (Coin()) attention.window = Between(1, spec_.context() + 2);
    if (Coin()) attention.softcap = 2.0f;
    if (Coin()) attention.scale = 0.3f;
    return attention;
  }

  model::CrossAttentionOptions DrawCrossAttention() {
    const model::AttentionOptions attention = model::AttentionOf(spec_);
    return {.hidden = attention.hidden,
            .heads = attention.heads,
            .head_dim = attention.head_dim,
            .scale = Coin() ? 0.3f : 0.0f};
  }

  model::MlpOptions DrawMlp(bool biased) {
    constexpr model::Activation kActivations[] = {
        model::Activation::kGeluTanh, model::Activation::kGelu, model::Activation::kRelu,
        model::Activation::kSilu};
    model::MlpOptions mlp = model::MlpOf(spec_, kActivations[Between(0, 3)]);
    mlp.gated = Coin();
    mlp.bias = biased;
    return mlp;
  }

  const v1::ModelSpec& spec_;
  std::mt19937_64 random_;
  model::NormOptions norm_;
};

model::Architecture Describe(const v1::ModelSpec& model) { return Drawer(model).Draw(); }

}  // namespace

const model::ArchitectureFacts& DrawnArchitecture() {
  static const auto* const facts =
      new model::ArchitectureFacts{.architecture = v1::ARCHITECTURE_OPT, .describe = Describe};
  return *facts;
}

void WithSeed(uint64_t seed, v1::ModelSpec* model) {
  model->set_architecture(DrawnArchitecture().architecture);
  model->set_from(absl::StrCat(seed));
}

}  // namespace tercio::testing

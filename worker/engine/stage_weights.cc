#include "worker/engine/stage_weights.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace tercio {
namespace {

WeightRef Find(const plan::StageTensors& tensors, const std::string& name, plan::TensorRole role) {
  for (const plan::StageTensor& entry : tensors.tensors) {
    if (entry.tensor.name == name && entry.role == role) {
      return {entry.parameter_offset, entry.gradient_offset, entry.elements};
    }
  }
  return {};
}

WeightRef Find(const plan::StageTensors& tensors, const std::string& name) {
  return Find(tensors, name, plan::TensorRole::kPlain);
}

// Three equal tensors that follow each other.
WeightRef Joined(WeightRef first) { return {first.parameter, first.gradient, first.elements * 3}; }

}  // namespace

StageWeights FindWeights(const plan::StageTensors& tensors, int first_layer, int layers) {
  StageWeights weights;
  weights.token = Find(tensors, "embedding.token.weight", plan::TensorRole::kLookup);
  weights.head = Find(tensors, "embedding.token.weight", plan::TensorRole::kHead);
  weights.position = Find(tensors, "embedding.position.weight");
  weights.final_norm = Find(tensors, "final_norm.weight");
  weights.final_norm_bias = Find(tensors, "final_norm.bias");
  for (int i = first_layer; i < first_layer + layers; ++i) {
    const std::string at = absl::StrCat("layers.", i, ".");
    LayerWeights layer;
    layer.norm1 = Find(tensors, at + "attention_norm.weight");
    layer.norm1_bias = Find(tensors, at + "attention_norm.bias");
    layer.qkv = Joined(Find(tensors, at + "attention.query.weight"));
    layer.qkv_bias = Joined(Find(tensors, at + "attention.query.bias"));
    layer.output = Find(tensors, at + "attention.output.weight");
    layer.output_bias = Find(tensors, at + "attention.output.bias");
    layer.norm2 = Find(tensors, at + "mlp_norm.weight");
    layer.norm2_bias = Find(tensors, at + "mlp_norm.bias");
    layer.up = Find(tensors, at + "mlp.up.weight");
    layer.up_bias = Find(tensors, at + "mlp.up.bias");
    layer.down = Find(tensors, at + "mlp.down.weight");
    layer.down_bias = Find(tensors, at + "mlp.down.bias");
    weights.layers.push_back(layer);
  }
  return weights;
}

}  // namespace tercio

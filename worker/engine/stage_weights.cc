#include "worker/engine/stage_weights.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace tercio::engine {
namespace {

// A tensor that the model lacks is an empty reference, which operations see as a null pointer.
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

// Tensors that follow each other without a gap, as one; those that the model lacks have no
// elements.
WeightRef Joined(const plan::StageTensors& tensors, const std::vector<std::string>& names) {
  WeightRef joined;
  for (const std::string& name : names) {
    const WeightRef part = Find(tensors, name);
    if (joined.elements == 0) {
      joined = part;
    } else {
      joined.elements += part.elements;
    }
  }
  return joined;
}

// The token table of a tied head has another role than that of an untied one.
WeightRef Either(WeightRef first, WeightRef second) { return first.elements > 0 ? first : second; }

OutputWeights FindOutput(const plan::StageTensors& tensors) {
  OutputWeights output;
  // A tied head multiplies with the token table, in the role that has a gradient of its own.
  output.head = Either(Find(tensors, "embedding.token.weight", plan::TensorRole::kHead),
                       Find(tensors, "head.weight"));
  output.head_bias = Find(tensors, "head.bias");
  output.final_norm = Find(tensors, "final_norm.weight");
  output.final_norm_bias = Find(tensors, "final_norm.bias");
  output.transform = Find(tensors, "head.transform.weight");
  output.transform_bias = Find(tensors, "head.transform.bias");
  output.norm = Find(tensors, "head.norm.weight");
  output.norm_bias = Find(tensors, "head.norm.bias");
  output.pooler = Find(tensors, "pooler.weight");
  output.pooler_bias = Find(tensors, "pooler.bias");
  // No model has both tasks, so the head needs one place for them.
  output.classes =
      Either(Find(tensors, "classifier.weight"), Find(tensors, "sentence_order.weight"));
  output.classes_bias =
      Either(Find(tensors, "classifier.bias"), Find(tensors, "sentence_order.bias"));
  return output;
}

}  // namespace

StageWeights FindWeights(const plan::StageTensors& tensors, absl::Span<const int> layers) {
  StageWeights weights;
  const std::string token = "embedding.token.weight";
  weights.token = Either(Find(tensors, token, plan::TensorRole::kLookup), Find(tensors, token));
  weights.position = Find(tensors, "embedding.position.weight");
  weights.type = Find(tensors, "embedding.type.weight");
  weights.embedding_norm = Find(tensors, "embedding.norm.weight");
  weights.embedding_norm_bias = Find(tensors, "embedding.norm.bias");
  weights.output = FindOutput(tensors);
  // Names count the model's layers, places in the vector those of this stage.
  for (const int model_layer : layers) {
    const std::string at = absl::StrCat("layers.", model_layer, ".");
    LayerWeights layer;
    layer.norm1 = Find(tensors, at + "attention_norm.weight");
    layer.norm1_bias = Find(tensors, at + "attention_norm.bias");
    const std::string attention = at + "attention.";
    // plan/model_tensors.h lays these without gaps, so that one product replaces three.
    layer.qkv = Joined(tensors, {attention + "query.weight", attention + "key.weight",
                                 attention + "value.weight"});
    layer.qkv_bias = Joined(
        tensors, {attention + "query.bias", attention + "key.bias", attention + "value.bias"});
    layer.output = Find(tensors, at + "attention.output.weight");
    layer.output_bias = Find(tensors, at + "attention.output.bias");
    layer.norm2 = Find(tensors, at + "mlp_norm.weight");
    layer.norm2_bias = Find(tensors, at + "mlp_norm.bias");
    // Models without a gate have just the second part.
    layer.up = Joined(tensors, {at + "mlp.gate.weight", at + "mlp.up.weight"});
    layer.up_bias = Find(tensors, at + "mlp.up.bias");
    layer.down = Find(tensors, at + "mlp.down.weight");
    layer.down_bias = Find(tensors, at + "mlp.down.bias");
    weights.layers.push_back(layer);
  }
  return weights;
}

}  // namespace tercio::engine

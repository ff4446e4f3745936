// The places of a stage's tensors in its flat buffers, by their use in the model.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/values.h"
#include "plan/model_tensors.h"

namespace tercio::engine {

// A buffer of gradients that begins with those of element `first` of the stage.
struct Gradients {
  float* data = nullptr;
  int64_t first = 0;
};

// A run of elements in the parameter and gradient buffers. Absent (a bias of a model without
// biases): no elements.
struct WeightRef {
  int64_t parameter = 0;
  int64_t gradient = 0;
  int64_t elements = 0;

  kernels::ConstValues In(kernels::ConstValues parameters) const {
    return elements == 0 ? nullptr : parameters + parameter;
  }
  float* GradientIn(const Gradients& gradients) const {
    return elements == 0 ? nullptr : gradients.data + (gradient - gradients.first);
  }
};

struct LayerWeights {
  WeightRef norm1, norm1_bias;
  WeightRef qkv, qkv_bias;  // query, key and value as one matrix
  WeightRef output, output_bias;
  WeightRef norm2, norm2_bias;
  WeightRef up, up_bias;  // in a gated MLP, gate and up as one matrix
  WeightRef down, down_bias;
};

// Outside the model's layers; all but `head` and the final norm are bert's alone.
struct OutputWeights {
  WeightRef final_norm, final_norm_bias;
  WeightRef head, head_bias;  // to the vocabulary
  WeightRef transform, transform_bias, norm, norm_bias;
  WeightRef pooler, pooler_bias, classes, classes_bias;
};

struct StageWeights {
  WeightRef token, position, type, embedding_norm, embedding_norm_bias;  // first stage
  std::vector<LayerWeights> layers;                                      // ascending
  OutputWeights output;                                                  // last stage
};

// `layers`: the model's layers that the stage holds.
StageWeights FindWeights(const plan::StageTensors& tensors, absl::Span<const int> layers);

}  // namespace tercio::engine

// Which rank holds what of each tensor. Two rules give it for any model: layers are dealt to stages
// (LayersOfStage; the embedding is with the first, the head with the last), and a tensor is cut
// over the tensor ranks of its stage as its declaration says. Data ranks hold copies. Pure.
#pragma once

#include <vector>

#include "plan/model_tensors.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

struct TensorPart {
  TensorShard shard;
  std::vector<int> ranks;  // ascending
};

struct TensorPlaces {
  LogicalTensor tensor;
  std::vector<TensorPart> parts;  // by their first rows and columns
};

// All tensors of the model, in canonical order. REQUIRES: CheckLayout accepts the layout;
// model.vocab_size > 0.
std::vector<TensorPlaces> PlacesOfTensors(const v1::ModelSpec& model, const v1::Layout& layout);

}  // namespace tercio::plan

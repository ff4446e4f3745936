// The feed-forward part: declarations. Pure.
#pragma once

#include "model/adapters.h"
#include "model/description.h"

namespace tercio::model {

// Order of its fields: what the activation reads (in a gated one the gate, then up), what it makes.
struct MlpFields {
  enum { kUp, kActivated };
};
struct MlpProducts {
  enum { kUp, kDown };
};

// REQUIRES: tensor divides the width.
BlockDescription Describe(const MlpOptions& options, int tensor);
std::vector<AdaptablePart> AdaptablePartsOf(const MlpOptions& options);

}  // namespace tercio::model

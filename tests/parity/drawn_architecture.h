// Random lists of units: models that no architecture has, with everything that the declarations of
// model/options.h can say of a causal model, in every combination. What the plan and the engine
// make of them shows whether either knows more of a model than it declares.
#pragma once

#include <cstdint>

#include "model/architectures/registry.h"

namespace tercio::testing {

// Sizes are the spec's, everything else is drawn from its seed (WithSeed). One value for
// model::ScopedArchitecture; it stands for opt.
const model::ArchitectureFacts& DrawnArchitecture();

// The spec of a drawn model: its architecture, and the seed, which `from` carries.
void WithSeed(uint64_t seed, v1::ModelSpec* model);

}  // namespace tercio::testing

// The angles of rotary position embedding for every position of a model's context.
#pragma once

#include <vector>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::blocks {

// (context, R), R the channels of a head that are turned: of each position R/2 cosines, then R/2
// sines, of position * frequency i, i < R/2. Frequency i is theta^(-2i/R) (Su et al. 2021, section
// 3.2.2; where only some channels are turned, as in GPT-J, GPT-NeoX and Phi-2), stretched if
// rope_scaling is given: wavelengths above original_context / low_freq_factor by `factor`, those
// below original_context / high_freq_factor not at all, those between by degrees (Llama 3.1).
// Angles are rounded to float where PyTorch rounds them, so that imported models see the same
// angles.
std::vector<float> RotaryTable(const v1::ModelSpec& model);

}  // namespace tercio::blocks

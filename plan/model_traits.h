// What an architecture is made of: the one place that knows how gpt2 and llama differ. Pure.
#pragma once

#include <cstdint>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

struct ModelTraits {
  bool learned_positions = true;  // a table added to the embedding; else rotary, inside attention
  bool rms_norm = false;          // else LayerNorm
  bool gated_mlp = false;         // down(silu(gate x) * up x); else down(gelu(up x))
  bool tied_head = true;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float norm_eps = 1e-5f;
};

// gpt2: Radford et al. 2019. llama: Touvron et al. 2023 (RMSNorm, rotary positions, SwiGLU), with
// the grouped-query attention of Ainslie et al. 2023. REQUIRES: one of these; heads > 0.
ModelTraits TraitsOf(const v1::ModelSpec& model);

}  // namespace tercio::plan

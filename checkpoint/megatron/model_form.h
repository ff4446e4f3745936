// What Megatron-LM's arguments and tensor names need to know of a model, as its blocks say it.
// Pure.
#pragma once

#include <cstdint>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

struct MegatronForm {
  bool learned_positions = true;  // a table added to the embedding; else rotary, inside attention
  bool rms_norm = false;
  bool gated_mlp = false;
  bool causal = true;
  bool post_norm = false;
  bool exact_gelu = false;
  bool tied_head = true;
  bool predicts_tokens = true;  // else classes of whole sequences only
  int64_t token_types = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double norm_eps = 1e-5;
  const char* lacks = nullptr;  // what Megatron-LM's form has no words for; null: nothing
};

// REQUIRES: layers of attention and a feed-forward part.
MegatronForm MegatronFormOf(const v1::ModelSpec& model);

}  // namespace tercio::checkpoint

// The building blocks of each architecture: the one place that knows how gpt2, llama and bert
// differ. Pure.
#pragma once

#include <cstdint>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// The prediction of the last stage.
enum class Head {
  kNextToken,    // tokens at every position
  kMaskedToken,  // tokens at chosen positions, behind a transform (Devlin et al. 2019)
  kNone,         // no token: classes of whole sequences only
};

struct ModelTraits {
  bool learned_positions = true;  // a table added to the embedding; else rotary, inside attention
  bool rms_norm = false;          // else LayerNorm
  bool gated_mlp = false;         // down(silu(gate x) * up x); else down(gelu(up x))
  bool causal = true;             // else every token attends to all tokens of its sequence
  bool post_norm = false;  // norms follow the residual additions, and the embedding; else precede
  bool exact_gelu = false;
  int64_t token_types = 0;
  Head head = Head::kNextToken;
  int64_t classes = 0;  // for whole sequences, from the first token through a pooler; 0: none
  bool tied_head = true;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float norm_eps = 1e-5f;
};

// gpt2: Radford et al. 2019. llama: Touvron et al. 2023 (RMSNorm, rotary positions, SwiGLU), with
// the grouped-query attention of Ainslie et al. 2023. bert: Devlin et al. 2019, or with the norms
// where Megatron-LM has them (Shoeybi et al. 2019, section 5.3); sentence order: Lan et al. 2020.
// REQUIRES: one of these; heads > 0.
ModelTraits TraitsOf(const v1::ModelSpec& model);

}  // namespace tercio::plan

#include "kernels/ops.h"

namespace tercio::kernels {

void Ops::RunChain(const Chain& chain) {
  if (chain.residual) Residual(*chain.residual);
  if (chain.norm) {
    LayerNormArgs norm = *chain.norm;
    if (chain.residual) norm.x = chain.residual->out;
    LayerNorm(norm);
  }
  if (chain.product) Matmul(*chain.product);
  if (chain.scaled_product) ScaledMatmul(*chain.scaled_product);
  if (chain.input_gradient) MatmulBackwardInput(*chain.input_gradient);
  if (chain.activation) Activate(*chain.activation);
  if (chain.gated) Gated(*chain.gated);
  if (chain.activation_gradient) ActivateBackward(*chain.activation_gradient);
  if (chain.gated_gradient) GatedBackward(*chain.gated_gradient);
  if (chain.quantize) Quantize(*chain.quantize);
}

void Ops::CrossEntropy(const CrossEntropyArgs& a) {
  CrossEntropyLocal({.logits = a.logits,
                     .targets = a.targets,
                     .stats = a.stats,
                     .rows = a.rows,
                     .valid = a.valid,
                     .stride = a.stride,
                     .vocabulary_begin = 0,
                     .sums = a.smoothing.amount > 0});
  CrossEntropyCombine({.stats = a.stats,
                       .lse = a.lse,
                       .loss = a.loss,
                       .rows = a.rows,
                       .ranks = 1,
                       .smoothing = a.smoothing});
  AddLosses({.loss = a.loss,
             .sums = a.sums,
             .rows = a.rows,
             .first_row = a.first_row,
             .rows_per_sum = a.rows_per_sum});
  CrossEntropyBackward({.logits = a.logits,
                        .lse = a.lse,
                        .targets = a.targets,
                        .rows = a.rows,
                        .valid = a.valid,
                        .stride = a.stride,
                        .vocabulary_begin = 0,
                        .scale = a.scale,
                        .smoothing = a.smoothing,
                        .softcap = a.softcap});
}

}  // namespace tercio::kernels

#include "worker/blocks/token_losses.h"

#include "common/check.h"

namespace tercio::blocks {

void TokenLosses(kernels::Ops& ops, device::Stream& stream, collective::Communicator& tensor_group,
                 const TokenRows& r) {
  ops.CrossEntropyLocal({.logits = r.logits,
                         .targets = r.targets,
                         .stats = r.stats,
                         .rows = r.rows,
                         .valid = r.valid,
                         .stride = r.stride,
                         .vocabulary_begin = r.vocabulary_begin,
                         .sums = r.smoothing.amount > 0});
  // A rank that is alone has all of them.
  const float* all_stats = r.stats;
  if (tensor_group.size() > 1) {
    tensor_group.AllGather(stream, r.stats, r.all_stats, r.rows * kernels::kCrossEntropyStats);
    all_stats = r.all_stats;
  }
  ops.CrossEntropyCombine({.stats = all_stats,
                           .lse = r.lse,
                           .loss = r.loss,
                           .rows = r.rows,
                           .ranks = tensor_group.size(),
                           .smoothing = r.smoothing});
  ops.AddLosses({.loss = r.loss,
                 .sums = r.sums,
                 .rows = r.rows,
                 .first_row = r.first_row,
                 .rows_per_sum = r.rows_per_sum});
}

void TokenLossesAndGradients(kernels::Ops& ops, device::Stream& stream,
                             collective::Communicator& tensor_group, const TokenRows& r,
                             float scale) {
  if (tensor_group.size() == 1) {
    // One operation takes the vocabulary as whole, and so from its first token.
    TERCIO_CHECK_EQ(r.vocabulary_begin, 0);
    return ops.CrossEntropy({.logits = r.logits,
                             .targets = r.targets,
                             .stats = r.stats,
                             .lse = r.lse,
                             .loss = r.loss,
                             .sums = r.sums,
                             .rows = r.rows,
                             .valid = r.valid,
                             .stride = r.stride,
                             .scale = scale,
                             .smoothing = r.smoothing,
                             .first_row = r.first_row,
                             .rows_per_sum = r.rows_per_sum,
                             .softcap = r.softcap});
  }
  TokenLosses(ops, stream, tensor_group, r);
  ops.CrossEntropyBackward({.logits = r.logits,
                            .lse = r.lse,
                            .targets = r.targets,
                            .rows = r.rows,
                            .valid = r.valid,
                            .stride = r.stride,
                            .vocabulary_begin = r.vocabulary_begin,
                            .scale = scale,
                            .smoothing = r.smoothing,
                            .softcap = r.softcap});
}

}  // namespace tercio::blocks

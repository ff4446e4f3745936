// The cross-entropy of rows whose vocabulary is cut over tensor ranks: a rank has the logits of its
// part, and every rank gets the log-sum-exps and losses of all of it.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"

namespace tercio::blocks {

struct TokenRows {
  kernels::Values logits;  // (rows, stride), columns from `valid` on are padding
  const int32_t* targets;
  float* stats;      // (rows, kCrossEntropyStats)
  float* all_stats;  // the same of each tensor rank, where there are several
  float* lse;        // (rows)
  float* loss;       // (rows)
  double* sums;      // as AddLossesArgs
  int64_t rows, valid, stride;
  int64_t vocabulary_begin;
  kernels::LabelSmoothing smoothing;
  float softcap;  // of the logits, which have it already; 0: none
  int64_t first_row, rows_per_sum;
};

// Writes lse and loss, and adds the losses to their sums.
void TokenLosses(kernels::Ops& ops, device::Stream& stream, collective::Communicator& tensor_group,
                 const TokenRows& rows);

// TokenLosses; the logits become their gradient times `scale`. A rank that is alone does it in one
// operation.
void TokenLossesAndGradients(kernels::Ops& ops, device::Stream& stream,
                             collective::Communicator& tensor_group, const TokenRows& rows,
                             float scale);

}  // namespace tercio::blocks

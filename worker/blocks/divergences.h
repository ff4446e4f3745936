// How far a student's distributions are from a teacher's (plan/distillation.h), of rows whose
// vocabulary is cut over tensor ranks. As with the cross-entropy, a rank has the logits of its
// part, and every rank gets the divergences of all of it.
#pragma once

#include "kernels/ops.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/blocks/block.h"
#include "worker/blocks/token_losses.h"
#include "worker/device/device.h"

namespace tercio::blocks {

class Divergences {
 public:
  // REQUIRES: the stage's memory has the buffers of a head that learns from a teacher.
  Divergences(const v1::DistillationSpec& spec, const Tools& tools, device::Stream& stream);

  // Adds the divergences of `rows` to `sums`, as losses are added. teacher (rows, stride).
  void Add(const TokenRows& rows, kernels::ConstValues teacher, double* sums);
  // After Add of these rows, and TokenLosses: the logits become the gradient of both parts of the
  // loss, times `scale`.
  void Gradients(const TokenRows& rows, kernels::ConstValues teacher, float scale);

 private:
  const Tools& tools_;
  device::Stream& stream_;
  const float temperature_;
  const float weight_;
  const bool reverse_;
  float* const stats_;        // (rows, kDistillationStats)
  float* const all_stats_;    // the same of each tensor rank, where there are several
  float* const student_lse_;  // (rows)
  float* const teacher_lse_;  // (rows)
  float* const divergence_;   // (rows)
};

}  // namespace tercio::blocks

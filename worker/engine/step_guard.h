// Decides what becomes of a step, given whether its numbers are finite: the weights are updated,
// the step is skipped, or the job stops. Every rank decides by the same numbers and so the same.
// Pure.
//
// Counts the skipped steps: learning rate and AdamW's bias correction go by the steps that were
// taken. All of it is state of the training (plan::MaySkipSteps) and lies in checkpoints.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plan/precision.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/engine/loss_scaler.h"

namespace tercio {

// The logical tensor of a checkpoint that holds the state; others than fp16 and on_nan: skip jobs
// have none.
inline constexpr char kGuardTensor[] = "training.scaler";

class StepGuard {
 public:
  // So many steps skipped in a row, with the loss scale where it was, are no accident.
  static constexpr int64_t kMostSkipped = 100;

  explicit StepGuard(const v1::JobSpec& job)
      : scales_(plan::ScalesLoss(job.training())),
        skips_(job.fault_tolerance().on_nan() == "skip") {}

  // What the gradient of the loss is multiplied by; 1 but for fp16.
  double loss_scale() const { return scales_ ? scaler_.scale() : 1; }
  bool scales() const { return scales_; }

  // The number of this step among those that were taken, if it is taken.
  int64_t TakenStep(int64_t step) const { return std::max<int64_t>(1, step - skipped_); }

  // Whether the weights are to be updated. A step that is not taken is counted.
  // FAILED_PRECONDITION when the job cannot go on; `where` says where the numbers went bad first.
  absl::StatusOr<bool> Judge(bool loss_is_finite, bool gradients_are_finite,
                             const std::string& where);

  // {scale, good steps, chances, skipped steps, skipped in a row}
  using State = std::array<float, plan::kGuardStateElements>;
  State state() const;
  // INVALID_ARGUMENT when it is not one that state() could have given.
  absl::Status Restore(absl::Span<const float> state);

 private:
  absl::StatusOr<bool> Skip(const std::string& where);

  bool scales_;
  bool skips_;
  LossScaler scaler_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0;
};

}  // namespace tercio

// Decides the fate of a step, given its loss and gradient norm: the weights are updated, the step
// is skipped, the run goes back, or the job stops. Every rank decides by the same numbers and so
// the same. Pure.
//
// Counts the skipped steps: learning rate and AdamW's bias correction depend on the number of steps
// that were taken. All of it is state of the training and is stored in checkpoints: the counts if
// steps may be skipped (plan::MaySkipSteps), the numbers of previous steps if a spike changes the
// run (plan::ActsOnSpikes). If spikes are only reported, a resumed run learns again what is usual.
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
#include "worker/engine/spikes.h"

namespace tercio::engine {

// The logical tensor of a checkpoint that holds the counts; only jobs with fp16, on_nan: skip or
// on_spike: skip have it.
inline constexpr char kGuardTensor[] = "training.scaler";

struct StepVerdict {
  bool taken = true;        // the weights are to be updated
  bool rolls_back = false;  // the run is to go back; the step is not taken
  std::string spike;        // the values far above those of previous steps; empty: none
};

class StepGuard {
 public:
  // This many steps skipped in a row, with the loss scale unchanged, are no accident.
  static constexpr int64_t kMostSkipped = 100;

  // After this many spikes in a row that were only reported, their level is the new normal.
  static constexpr int64_t kNewLevel = 32;

  explicit StepGuard(const v1::JobSpec& job)
      : scales_(plan::ScalesLoss(job.training())),
        skips_(job.fault_tolerance().on_nan() == v1::ON_NAN_SKIP),
        on_spike_(job.fault_tolerance().on_spike()),
        spikes_(job.fault_tolerance().spike_threshold()) {}

  // The factor of the loss's gradient; 1 except for fp16.
  double loss_scale() const { return scales_ ? scaler_.scale() : 1; }
  bool scales() const { return scales_; }

  // The number of this step among those that were taken, if it is taken.
  int64_t TakenStep(int64_t step) const { return std::max<int64_t>(1, step - skipped_); }

  // FAILED_PRECONDITION if the job cannot continue; `where` names the step, and where its numbers
  // first went bad.
  absl::StatusOr<StepVerdict> Judge(double loss, double grad_norm, const std::string& where);

  // {scale, good steps, chances, skipped steps, skipped in a row}
  using State = std::array<float, plan::kGuardStateElements>;
  State state() const;
  // INVALID_ARGUMENT if `state` is not a possible result of state().
  absl::Status Restore(absl::Span<const float> state);

  SpikeDetector& spikes() { return spikes_; }
  const SpikeDetector& spikes() const { return spikes_; }

 private:
  // Whether the step is taken, given which of its numbers are finite.
  absl::StatusOr<bool> JudgeFinite(bool loss_is_finite, bool gradients_are_finite,
                                   const std::string& where);
  absl::Status JudgeSpike(double loss, double grad_norm, const std::string& where,
                          StepVerdict* verdict);
  absl::Status Skip(const std::string& where);

  bool scales_;
  bool skips_;
  v1::OnSpike on_spike_;
  SpikeDetector spikes_;
  LossScaler scaler_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0;
  int64_t reported_in_a_row_ = 0;  // spikes
};

}  // namespace tercio::engine

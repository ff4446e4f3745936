#include "worker/engine/step_guard.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio::engine {

absl::StatusOr<StepVerdict> StepGuard::Judge(double loss, double grad_norm,
                                             const std::string& where) {
  StepVerdict verdict;
  const bool good_loss = std::isfinite(loss);
  const bool good_gradients = std::isfinite(grad_norm);
  TERCIO_ASSIGN_OR_RETURN(verdict.taken, JudgeFinite(good_loss, good_gradients, where));
  // The window of usual values must not hold a NaN, whose median would never be exceeded.
  if (good_loss && good_gradients) {
    TERCIO_RETURN_IF_ERROR(JudgeSpike(loss, grad_norm, where, &verdict));
  }
  // Only a step that trains shows that the job recovers.
  if (verdict.taken) in_a_row_ = 0;
  return verdict;
}

absl::StatusOr<bool> StepGuard::JudgeFinite(bool loss_is_finite, bool gradients_are_finite,
                                            const std::string& where) {
  if (loss_is_finite && gradients_are_finite) {
    if (scales_) scaler_.Update(LossScaler::Outcome::kFinite);
    return true;
  }
  // The scale does not enter the loss, so it is not to blame if the loss itself is bad.
  if (scales_ && loss_is_finite) {
    const double scale = scaler_.scale();
    scaler_.Update(LossScaler::Outcome::kOverflow);
    // A scale that has become the lowest by this very step has not been tried yet.
    if (scale <= LossScaler::kLeastScale && scaler_.exhausted()) {
      return absl::FailedPreconditionError(
          absl::StrCat(where, ": the gradients overflow fp16 even at the lowest loss scale ",
                       LossScaler::kLeastScale,
                       "; lower training.optimizer.learning_rate or use training.precision: bf16"));
    }
    if (scaler_.scale() != scale) in_a_row_ = -1;  // counting starts again with a new scale
  } else if (!skips_) {
    return absl::FailedPreconditionError(
        absl::StrCat(where,
                     "; lower training.optimizer.learning_rate, clip gradients "
                     "(training.clip_grad_norm: 1 is usual), or skip such steps with "
                     "fault_tolerance.on_nan: skip"));
  }
  TERCIO_RETURN_IF_ERROR(Skip(where));
  return false;
}

absl::Status StepGuard::JudgeSpike(double loss, double grad_norm, const std::string& where,
                                   StepVerdict* verdict) {
  if (on_spike_ == v1::ON_SPIKE_UNSPECIFIED || on_spike_ == v1::ON_SPIKE_OFF)
    return absl::OkStatus();
  verdict->spike = spikes_.Judge(loss, grad_norm);
  if (verdict->spike.empty()) {
    reported_in_a_row_ = 0;
    return absl::OkStatus();
  }
  verdict->taken = on_spike_ == v1::ON_SPIKE_REPORT;
  verdict->rolls_back = on_spike_ == v1::ON_SPIKE_ROLLBACK;
  if (on_spike_ == v1::ON_SPIKE_SKIP) return Skip(absl::StrCat(where, ": ", verdict->spike));
  // Spikes never enter the window. A run that settles on
  // a higher level would report every step to its end.
  if (verdict->taken && ++reported_in_a_row_ >= kNewLevel) {
    reported_in_a_row_ = 0;
    spikes_.Forget();
  }
  return absl::OkStatus();
}

absl::Status StepGuard::Skip(const std::string& where) {
  ++skipped_;
  ++in_a_row_;
  // A job that skips every step costs as much as one that learns.
  if (in_a_row_ < kMostSkipped) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(where, ": ", in_a_row_, " steps in a row had to be skipped"));
}

StepGuard::State StepGuard::state() const {
  return {static_cast<float>(scaler_.scale()), static_cast<float>(scaler_.good_steps()),
          static_cast<float>(scaler_.chances()), static_cast<float>(skipped_),
          static_cast<float>(in_a_row_)};
}

absl::Status StepGuard::Restore(absl::Span<const float> state) {
  // Checkpoints come from outside: numbers beyond these bounds
  // would overflow the casts below, or stop the job at once.
  bool possible = state.size() == State().size();
  for (const float value : state) possible = possible && std::trunc(value) == value;
  possible = possible && state[0] >= LossScaler::kLeastScale && std::isfinite(state[0]) &&
             state[1] >= 0 && state[1] < LossScaler::kWindow &&
             state[2] <= LossScaler::kHysteresis && state[2] > -1e9f && state[3] >= 0 &&
             state[3] < 1e9f && state[4] >= 0 && state[4] <= state[3];
  if (!possible) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", kGuardTensor, " does not hold the state of a loss scaler"));
  }
  scaler_ = LossScaler(state[0], static_cast<int>(state[1]), static_cast<int>(state[2]));
  skipped_ = static_cast<int64_t>(state[3]);
  in_a_row_ = static_cast<int64_t>(state[4]);
  return absl::OkStatus();
}

}  // namespace tercio::engine

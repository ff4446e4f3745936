#include "worker/trainer/step_record.h"

namespace tercio::trainer {

v1::StepRecord StepRecordOf(const StepIdentity& identity, const engine::StepResult& result,
                            double seconds) {
  v1::StepRecord record;
  record.set_step(identity.step);
  record.set_attempt(identity.attempt);
  record.set_loss(result.loss);
  record.set_grad_norm(result.grad_norm);
  record.set_learning_rate(result.learning_rate);
  record.set_tokens(identity.tokens);
  record.set_step_seconds(seconds);
  record.set_skipped(result.skipped);
  record.set_spike(result.spike);
  if (result.figures.has_value()) *record.mutable_figures() = *result.figures;
  if (result.loss_scale > 0) record.set_loss_scale(result.loss_scale);
  return record;
}

}  // namespace tercio::trainer

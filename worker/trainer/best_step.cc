#include "worker/trainer/best_step.h"

#include "common/check.h"
#include "plan/names.h"
#include "plan/quality.h"

namespace tercio::trainer {

BestStep::BestStep(v1::QualityMetric metric, const v1::BestEvaluation& known) : metric_(metric) {
  if (known.step() > 0) best_ = known;
}

bool BestStep::BeatsValue(const v1::StepRecord& step, const v1::BestEvaluation* value) const {
  // A job of a later version may name a metric that this one does not know.
  if (!plan::IsNamed(metric_)) return false;
  const std::optional<double> mine = plan::ValueOf(metric_, step);
  return mine.has_value() && plan::BeatsBest(metric_, *mine, value);
}

bool BestStep::Beats(const v1::StepRecord& step) const {
  return BeatsValue(step, best_.has_value() ? &*best_ : nullptr);
}

bool BestStep::BeatsCandidate(const v1::StepRecord& step) const {
  TERCIO_CHECK(candidate_.has_value());
  return BeatsValue(step, &*candidate_);
}

void BestStep::SaveBegins(const v1::StepRecord& step) {
  candidate_.emplace();
  candidate_->set_step(step.step());
  candidate_->set_value(plan::ValueOf(metric_, step).value_or(0));
}

void BestStep::Settle(bool committed) {
  TERCIO_CHECK(candidate_.has_value());
  if (committed) best_ = candidate_;
  candidate_.reset();
}

}  // namespace tercio::trainer

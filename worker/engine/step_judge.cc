#include "worker/engine/step_judge.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/engine/bad_numbers.h"

namespace tercio::engine {

absl::StatusOr<StepVerdict> StepJudge::Judge(int64_t step, const ExchangeVector& exchange,
                                             StepResult* result) {
  ExchangeVector::Totals totals;
  exchange.AddTotals(training_.global_batch(), &totals);
  result->loss = ExchangeVector::MeanLoss(totals);
  result->figures = totals.Figures();
  result->signal = exchange.KnownSignal();
  result->grad_norm = std::sqrt(exchange.KnownSquares()) / guard_.loss_scale();
  if (guard_.scales()) result->loss_scale = guard_.loss_scale();
  result->learning_rate = LearningRate(training_, guard_.TakenStep(step));
  // The sign of a NaN has no meaning, but would be printed.
  for (double* value : {&result->loss, &result->grad_norm}) {
    if (std::isnan(*value)) *value = std::abs(*value);
  }
  const std::string where = absl::StrCat("step ", step, DescribeFault(exchange, *result));
  TERCIO_ASSIGN_OR_RETURN(StepVerdict verdict,
                          guard_.Judge(result->loss, result->grad_norm, where));
  result->rolls_back = verdict.rolls_back;
  result->skipped = !verdict.taken;
  result->spike = verdict.spike;
  result->reason = verdict.spike.empty() ? where : absl::StrCat(where, ": ", verdict.spike);
  return verdict;
}

std::string StepJudge::DescribeFault(const ExchangeVector& exchange,
                                     const StepResult& result) const {
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return "";
  return absl::StrCat(
      ": ", DescribeBadNumbers(exchange.KnownLosses(), exchange.KnownNotFinite(), plan_),
      guard_.scales() ? absl::StrFormat(" at loss scale %.0f", result.loss_scale) : "");
}

}  // namespace tercio::engine

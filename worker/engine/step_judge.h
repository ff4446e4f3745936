// What all ranks learn of a step becomes its result: loss, gradient norm, and what is to be done.
//
// Threads: that of the engine.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/engine/exchange_vector.h"
#include "worker/engine/step_guard.h"
#include "worker/engine/training_engine.h"

namespace tercio::engine {

class StepJudge {
 public:
  // The arguments outlive it.
  StepJudge(const v1::JobSpec& spec, const v1::RankPlan& plan, StepGuard& guard)
      : training_(spec.training()), plan_(plan), guard_(guard) {}

  // Fills the result but for its times. REQUIRES: `exchange` is known. FAILED_PRECONDITION: the job
  // cannot continue; every rank judges the same numbers, so all of them take, skip or fail the step
  // together.
  absl::StatusOr<StepVerdict> Judge(int64_t step, const ExchangeVector& exchange,
                                    StepResult* result);

 private:
  // Where the numbers went bad; empty: all of them are finite.
  std::string DescribeFault(const ExchangeVector& exchange, const StepResult& result) const;

  const v1::TrainingSpec& training_;
  const v1::RankPlan& plan_;
  StepGuard& guard_;
};

}  // namespace tercio::engine

// A step in the form in which it is reported, stored and shown. Pure.
#pragma once

#include <cstdint>

#include "proto/tercio/v1/events.pb.h"
#include "worker/engine/training_engine.h"

namespace tercio::trainer {

struct StepIdentity {
  int64_t step;
  int attempt;
  int64_t tokens;  // of the job, up to the end of the step
};

// All but what memory holds after the step.
v1::StepRecord StepRecordOf(const StepIdentity& identity, const engine::StepResult& result,
                            double seconds);

}  // namespace tercio::trainer

// What training.precision and fault_tolerance.on_nan mean for buffers and state. Pure.
#pragma once

#include "kernels/ops.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// What activations, their gradients and the weights that the model reads are rounded to. Master
// weights, weight gradients and moments are fp32 in every precision.
inline kernels::Format FormatOf(const v1::TrainingSpec& training) {
  if (training.precision() == "bf16") return kernels::Format::kBfloat16;
  if (training.precision() == "fp16") return kernels::Format::kFloat16;
  return kernels::Format::kFloat32;
}

// The loss gradient is multiplied by a scale, lest small gradients become zero.
inline bool ScalesLoss(const v1::TrainingSpec& training) {
  return FormatOf(training) == kernels::Format::kFloat16;
}

// Whether a step may leave the weights as they are. How often it did belongs to the state then.
inline bool MaySkipSteps(const v1::JobSpec& job) {
  return ScalesLoss(job.training()) || job.fault_tolerance().on_nan() == "skip";
}

// Numbers of that state in a checkpoint (worker/engine/step_guard.h).
inline constexpr int64_t kGuardStateElements = 5;

}  // namespace tercio::plan

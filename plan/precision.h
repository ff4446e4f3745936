// The meaning of training.precision, fault_tolerance.on_nan and on_spike for buffers and state.
// Pure.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// The format that activations, their gradients and the weights that the model reads are rounded to.
// Master weights, weight gradients and moments are fp32 in every precision.
inline kernels::Format FormatOf(const v1::TrainingSpec& training) {
  switch (training.precision()) {
    case v1::PRECISION_BF16:
      return kernels::Format::kBfloat16;
    case v1::PRECISION_FP16:
      return kernels::Format::kFloat16;
    case v1::PRECISION_UNSPECIFIED:
    case v1::PRECISION_AUTO:
    case v1::PRECISION_FP32:
    case v1::Precision_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Precision_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return kernels::Format::kFloat32;
}

inline bool OnGpu(const v1::JobSpec& job) {
  return job.resources().device() == v1::DEVICE_KIND_CUDA;
}

// And what a device stores them as: 16 bits on a GPU; the CPU rounds floats (kernels/values.h).
struct Precision {
  kernels::Format format = kernels::Format::kFloat32;
  kernels::Format stored = kernels::Format::kFloat32;

  int64_t bytes() const { return kernels::BytesOf(stored); }
};
inline Precision PrecisionOf(const v1::JobSpec& job) {
  const kernels::Format format = FormatOf(job.training());
  return {format, OnGpu(job) ? format : kernels::Format::kFloat32};
}

// training.weight_format and gradient_format.
inline kernels::BlockFormat BlockFormatOf(v1::BlockFormat format) {
  switch (format) {
    case v1::BLOCK_FORMAT_INT8:
      return kernels::BlockFormat::kInt8;
    case v1::BLOCK_FORMAT_INT4:
      return kernels::BlockFormat::kInt4;
    case v1::BLOCK_FORMAT_UNSPECIFIED:
    case v1::BLOCK_FORMAT_NONE:
    case v1::BlockFormat_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::BlockFormat_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return kernels::BlockFormat::kNone;
}
inline kernels::BlockFormat WeightFormatOf(const v1::JobSpec& job) {
  return BlockFormatOf(job.training().weight_format());
}
inline kernels::BlockFormat GradientFormatOf(const v1::JobSpec& job) {
  return BlockFormatOf(job.training().gradient_format());
}

// Whether the model reads copies of the master weights, which are rounded: in fp32 it may read
// these themselves.
inline bool RoundsWeights(const v1::JobSpec& job) {
  return FormatOf(job.training()) != kernels::Format::kFloat32 ||
         WeightFormatOf(job) != kernels::BlockFormat::kNone;
}

// Whether products of layers have factors of 8 bits (plan/fp8.h).
inline bool HasFp8(const v1::JobSpec& job) { return job.training().fp8(); }

// The loss gradient is multiplied by a scale, lest small gradients become zero.
inline bool ScalesLoss(const v1::TrainingSpec& training) {
  return FormatOf(training) == kernels::Format::kFloat16;
}

// Whether a step may leave the weights unchanged. The count of such steps is then part of the
// state.
inline bool MaySkipSteps(const v1::JobSpec& job) {
  return ScalesLoss(job.training()) || job.fault_tolerance().on_nan() == v1::ON_NAN_SKIP ||
         job.fault_tolerance().on_spike() == v1::ON_SPIKE_SKIP;
}

// Numbers of that state in a checkpoint (worker/engine/step_guard.h).
inline constexpr int64_t kGuardStateElements = 5;

// Whether previous steps decide how a step is handled. They are then part of the state.
inline bool ActsOnSpikes(const v1::JobSpec& job) {
  const v1::OnSpike policy = job.fault_tolerance().on_spike();
  return policy == v1::ON_SPIKE_SKIP || policy == v1::ON_SPIKE_ROLLBACK;
}

// Steps remembered, and the numbers they take in a checkpoint (worker/engine/spikes.h).
inline constexpr int64_t kSpikeWindow = 128;
inline constexpr int64_t kSpikeStateElements = 1 + 2 * kSpikeWindow;

// Numbers that a checkpoint holds beside the tensors.
inline int64_t StateElements(const v1::JobSpec& job) {
  return (MaySkipSteps(job) ? kGuardStateElements : 0) +
         (ActsOnSpikes(job) ? kSpikeStateElements : 0);
}

}  // namespace tercio::plan

// State of a rank that lies in no buffer of its arena: the step guard's, and the scales of FP8. It
// is saved and loaded beside tensors, as tensors of its own.
//
// Threads: that of the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/blocks/fp8_scaling.h"
#include "worker/engine/step_guard.h"

namespace tercio::engine {

class StatePart {
 public:
  virtual ~StatePart() = default;

  // Its tensor in a checkpoint, which may lack it.
  virtual std::string tensor() const = 0;
  virtual std::vector<int64_t> shape() const = 0;
  // Whether this rank saves it, among those that have it.
  virtual bool IsSaved() const = 0;

  // The slice of the tensor that it is: all of it, but where a rank has a part.
  virtual v1::TensorSlice Slice() const;

  virtual std::vector<float> Values() const = 0;
  // INVALID_ARGUMENT if `values` are not a possible result of Values().
  virtual absl::Status Restore(absl::Span<const float> values) = 0;
  // Whether it is large, and restored in pieces: values from the one with number `first` on.
  virtual bool TakesPieces() const { return false; }
  virtual absl::Status RestorePiece(int64_t first, absl::Span<const float> values);
};

// Those that the job has. `guard` and `scaling` outlive them.
std::vector<std::unique_ptr<StatePart>> StatePartsOf(const v1::JobSpec& job,
                                                     const v1::RankPlan& plan, StepGuard& guard,
                                                     blocks::Fp8Scaling& scaling);

}  // namespace tercio::engine

// The source of a rank's state before its first step: a checkpoint, behind the coordinator or in a
// directory, or the weights of another model.
//
// Threads: one at a time; Cancel from any.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::trainer {

class StateSource {
 public:
  virtual ~StateSource() = default;

  // Whether it has the weights of a model that a job begins with, and nothing of a job's own:
  // engine::TrainingEngine::InitialSlices are read then, else NeededSlices.
  virtual bool IsOfModel() const { return false; }
  // Whether the slice is to be read at all; the same on every rank.
  virtual bool Wants(const v1::TensorSlice&) const { return true; }
  // Whether the engine keeps its own values if the source lacks the tensor.
  virtual bool MayLack(const v1::TensorSlice& slice) const = 0;

  // Fills `values` with those of the slice, row-major. `arrived` is called as bytes arrive.
  // NOT_FOUND: there is no such tensor.
  using Arrived = std::function<void(int64_t bytes)>;
  // Verifies the data that Read has not: called once, in any thread, while the values are where
  // they were read to, and before they are used.
  using Check = std::function<absl::Status()>;
  virtual absl::Status Read(const v1::TensorSlice& slice, absl::Span<float> values,
                            const Arrived& arrived, Check* check) = 0;

  // The bytes that all calls together have read from storage or the network; a byte that was read
  // twice counts twice.
  virtual int64_t bytes_read() const = 0;

  // Ends a Read in progress, if possible.
  virtual void Cancel() {}
};

}  // namespace tercio::trainer

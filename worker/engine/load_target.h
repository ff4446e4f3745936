// Memory of a rank that is filled with tensors from storage: the training state of an engine, or
// the weights of a teacher beside it.
//
// Threads: that of the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::engine {

class LoadTarget {
 public:
  virtual ~LoadTarget() = default;

  // The slices that this rank needs to resume from a checkpoint: call Load until each slice has all
  // its values. Those of the step guard and of FP8's scales may be left out (IsOptionalState): a
  // checkpoint of a job that did not use them has none.
  virtual const std::vector<v1::TensorSlice>& NeededSlices() const = 0;
  // Those, and behind them slices of what is quantised as it is loaded (plan::QuantizedTensor),
  // with which a job begins that starts from the weights of a model: their values take the place of
  // its codes among NeededSlices. Load takes numbers of this list. On each rank the values of a
  // slice come in order, on tensor ranks those of the slices as well: it may be collective over
  // them.
  virtual const std::vector<v1::TensorSlice>& InitialSlices() const { return NeededSlices(); }
  // Values [first, first + values.size()) of the slice, row-major; of an optional slice all at
  // once. INVALID_ARGUMENT: it has no such values.
  virtual absl::Status Load(int64_t slice_index, int64_t first, absl::Span<const float> values) = 0;

  // The place to which Load copies the values of the slice: values that are already there are not
  // copied. It belongs to the loading threads until the slice is loaded, and outlives the target.
  // Null: the memory is not the host's, or the values are converted.
  virtual std::shared_ptr<float> LoadPlace(int64_t slice_index) = 0;
};

}  // namespace tercio::engine

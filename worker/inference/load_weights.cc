#include "worker/inference/load_weights.h"

#include <utility>
#include <vector>

#include "common/ordered_parts.h"
#include "common/status_macros.h"

namespace tercio::inference {
namespace {

// Threads share the parts: one large tensor alone would keep the others waiting.
constexpr int64_t kPartElements = int64_t{1} << 20;

// A part of a tensor and its destination.
struct WeightPart {
  v1::TensorSlice slice;
  float* out;
};

}  // namespace

absl::Status LoadWeights(const checkpoint::WeightSource& source, const plan::StageTensors& tensors,
                         int threads, float* parameters) {
  std::vector<WeightPart> parts;
  for (const plan::StageTensor& entry : tensors.tensors) {
    if (!entry.own_parameter) continue;
    v1::TensorSlice slice;
    slice.set_tensor(entry.tensor.name);
    slice.add_shape(entry.tensor.rows);
    if (!entry.tensor.is_vector) slice.add_shape(entry.tensor.columns);
    slice.set_row_end(entry.tensor.rows);
    slice.set_column_end(entry.tensor.columns);
    // The only rank holds whole tensors, so rows lie as they do in the file.
    float* out = parameters + entry.parameter_offset;
    for (v1::TensorSlice& part : checkpoint::DivideSlice(slice, kPartElements)) {
      const int64_t at = part.row_begin() * entry.tensor.columns + part.column_begin();
      parts.push_back({std::move(part), out + at});
    }
  }
  // The error of the first part is reported, whichever thread comes first.
  std::vector<absl::Status> outcomes(parts.size());
  ForEachOnThreads(static_cast<int64_t>(parts.size()), threads, [&](int64_t i) {
    const WeightPart& part = parts[static_cast<size_t>(i)];
    outcomes[static_cast<size_t>(i)] = checkpoint::ReadSliceFor(source, part.slice, part.out);
  });
  for (absl::Status& outcome : outcomes) TERCIO_RETURN_IF_ERROR(std::move(outcome));
  return absl::OkStatus();
}

}  // namespace tercio::inference

#include "worker/trainer/initial_weights.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/weight_source.h"
#include "common/status_macros.h"
#include "plan/model_tensors.h"
#include "worker/engine/state_slices.h"

namespace tercio {

absl::Status LoadInitialWeights(const v1::ModelSpec& model, TrainingEngine& engine) {
  // The agent has read every byte before it started this rank.
  TERCIO_ASSIGN_OR_RETURN(const auto source,
                          checkpoint::OpenWeightSource(model.from(), /*digests=*/false));
  if (absl::Status same = checkpoint::CheckStartsFrom(model, source->model()); !same.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model.from ", model.from(), ": ", std::string(same.message())));
  }
  std::vector<float> values;
  for (size_t i = 0; i < engine.NeededSlices().size(); ++i) {
    const v1::TensorSlice& slice = engine.NeededSlices()[i];
    if (absl::StartsWith(slice.tensor(), "adamw.") || IsOptionalState(slice.tensor())) continue;
    if (plan::BelongsToTask(slice.tensor()) && !source->Has(slice.tensor())) continue;
    values.resize(static_cast<size_t>((slice.row_end() - slice.row_begin()) *
                                      (slice.column_end() - slice.column_begin())));
    TERCIO_RETURN_IF_ERROR(checkpoint::ReadSliceFor(*source, slice, values.data()));
    TERCIO_RETURN_IF_ERROR(engine.Load(static_cast<int64_t>(i), values));
  }
  return absl::OkStatus();
}

}  // namespace tercio

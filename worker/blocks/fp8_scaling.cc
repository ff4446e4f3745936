#include "worker/blocks/fp8_scaling.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace tercio::blocks {

std::string Fp8Tensor(int model_layer) { return absl::StrCat(kFp8TensorPrefix, model_layer); }

// Zeros fill a history that has not begun, and a factor of zeros says nothing about the next.
bool Fp8Scaling::Knows(int slot) const {
  const absl::Span<const float> history = HistoryOf(slot);
  return *std::max_element(history.begin(), history.end()) > 0;
}

std::vector<kernels::Scale> Fp8Scaling::Scales() const {
  std::vector<kernels::Scale> scales;
  for (int slot = 0; slot < slots(); ++slot) {
    const absl::Span<const float> history = HistoryOf(slot);
    // Gradients need the range of E5M2, inputs the precision of E4M3.
    const bool input = slot % plan::kFp8Roles == static_cast<int>(plan::Fp8Role::kInput);
    scales.push_back(kernels::ScaleFor(input ? kernels::Format::kE4m3 : kernels::Format::kE5m2,
                                       *std::max_element(history.begin(), history.end())));
  }
  return scales;
}

void Fp8Scaling::Record(absl::Span<const float> largest) {
  // Each rank gave a number for each slot, in the order of slots.
  TERCIO_CHECK_EQ(static_cast<int>(largest.size()) % slots(), 0);
  for (int slot = 0; slot < slots(); ++slot) {
    float most = 0;
    bool finite = true;
    // Each rank has seen a part of the factor; the largest magnitude of all parts counts.
    for (size_t i = static_cast<size_t>(slot); i < largest.size();
         i += static_cast<size_t>(slots())) {
      finite = finite && std::isfinite(largest[i]);
      most = std::max(most, largest[i]);
    }
    // One infinite number would rule the scale for kFp8History steps.
    if (!finite) continue;
    float* history = history_.data() + slot * plan::kFp8History;
    std::copy_backward(history, history + plan::kFp8History - 1, history + plan::kFp8History);
    *history = most;
  }
}

absl::Span<const float> Fp8Scaling::state(int layer) const {
  return absl::MakeConstSpan(history_).subspan(static_cast<size_t>(layer * plan::kFp8StateOfLayer),
                                               plan::kFp8StateOfLayer);
}

absl::Status Fp8Scaling::Restore(int layer, absl::Span<const float> state) {
  // Checkpoints come from outside, and a NaN would become a scale.
  const bool possible =
      state.size() == static_cast<size_t>(plan::kFp8StateOfLayer) &&
      std::all_of(state.begin(), state.end(), [](float x) { return x >= 0 && std::isfinite(x); });
  if (!possible) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor ", kFp8TensorPrefix, "* does not hold magnitudes of FP8 factors"));
  }
  std::copy(state.begin(), state.end(), history_.begin() + layer * plan::kFp8StateOfLayer);
  return absl::OkStatus();
}

}  // namespace tercio::blocks

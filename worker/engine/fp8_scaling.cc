#include "worker/engine/fp8_scaling.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace tercio::engine {

std::string Fp8Tensor(int model_layer) { return absl::StrCat(kFp8TensorPrefix, model_layer); }

bool Fp8Scaling::Knows(int slot) const {
  const absl::Span<const float> history = HistoryOf(slot);
  return *std::max_element(history.begin(), history.end()) > 0;
}

std::vector<kernels::Scale> Fp8Scaling::Scales() const {
  std::vector<kernels::Scale> scales;
  for (int slot = 0; slot < slots(); ++slot) {
    const absl::Span<const float> history = HistoryOf(slot);
    const bool input = slot % plan::kFp8Roles == static_cast<int>(plan::Fp8Role::kInput);
    scales.push_back(kernels::ScaleFor(input ? kernels::Format::kE4m3 : kernels::Format::kE5m2,
                                       *std::max_element(history.begin(), history.end())));
  }
  return scales;
}

void Fp8Scaling::Record(absl::Span<const float> largest) {
  TERCIO_CHECK_EQ(static_cast<int>(largest.size()) % slots(), 0);
  for (int slot = 0; slot < slots(); ++slot) {
    float most = 0;
    bool finite = true;
    for (size_t i = static_cast<size_t>(slot); i < largest.size();
         i += static_cast<size_t>(slots())) {
      finite = finite && std::isfinite(largest[i]);
      most = std::max(most, largest[i]);
    }
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

}  // namespace tercio::engine

#include "worker/inference/generator.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio::inference {

absl::Status CheckIds(absl::Span<const int32_t> ids, int32_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is outside the model's vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPrompts(absl::Span<const std::vector<int32_t>> prompts, int32_t vocab_size) {
  for (const std::vector<int32_t>& prompt : prompts) {
    if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
    TERCIO_RETURN_IF_ERROR(CheckIds(prompt, vocab_size));
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(absl::Span<const float> logits) {
  if (std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "the model's outputs are not finite; its weights are damaged or have diverged");
}

}  // namespace tercio::inference

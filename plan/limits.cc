#include "plan/limits.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace tercio::plan {
namespace {

// Most activations, all micro-batches of a step together, as gpipe keeps them.
constexpr double kMostActivations = 0x1p59;

}  // namespace

absl::Status CheckSizes(const v1::JobSpec& job) {
  const v1::ModelSpec& model = job.model();
  const struct {
    const char* key;
    int64_t value;
    int64_t most;
  } sizes[] = {{"model.layers", model.layers(), kMostLayers},
               {"model.decoder_layers", model.decoder_layers(), kMostLayers - model.layers()},
               {"model.decoder_context", model.decoder_context(), kMostContext},
               {"model.hidden", model.hidden(), kMostHidden},
               {"model.ffn_hidden", model.ffn_hidden(), kMostFfn},
               {"model.context", model.context(), kMostContext},
               {"model.vocab_size", model.vocab_size(), kMostVocabulary},
               {"training.global_batch", job.training().global_batch(), kMostSequences},
               {"training.micro_batch", job.training().micro_batch(), kMostSequences},
               {"resources.ranks", job.resources().ranks(), kMostRanks}};
  // Each size is checked alone before their product is formed.
  for (const auto& [key, value, most] : sizes) {
    if (value <= most) continue;
    return absl::InvalidArgumentError(absl::StrCat(key, ": ", value, ", at most ", most));
  }
  // A double cannot overflow here, and its rounding does not matter near 2^59.
  const double tokens = static_cast<double>(job.training().global_batch()) *
                        (1.0 * model.context() + model.decoder_context());
  // Some sixteen values of hidden and four of the feed-forward width are kept per token and layer.
  const double width = 16.0 * model.hidden() + 4.0 * model.ffn_hidden();
  if (tokens * width * (1.0 * model.layers() + model.decoder_layers()) <= kMostActivations)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "too large: the activations of ", job.training().global_batch(),
      " sequences (training.global_batch) of ", model.context(), " tokens (model.context) in ",
      model.layers(), " layers of ", model.hidden(), " (model.hidden) fit in no memory"));
}

}  // namespace tercio::plan

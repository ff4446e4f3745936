#include "plan/span_lengths.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "plan/limits.h"

namespace tercio::plan {
namespace {

// A kept token, a masked one, its sentinel and the end.
constexpr int64_t kLeastRaw = 2;
constexpr int64_t kLeastInputs = 3;

// Half to even, as the published code rounds.
int64_t Rounded(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

// REQUIRES: raw >= kLeastRaw.
SpanLengths LengthsOfRaw(int64_t raw, double probability, double mean_span) {
  SpanLengths lengths;
  lengths.raw = raw;
  lengths.noise = std::clamp<int64_t>(Rounded(static_cast<double>(raw) * probability), 1, raw - 1);
  // A kept token stands before every span, so that no two spans are neighbours.
  lengths.spans = std::clamp<int64_t>(Rounded(static_cast<double>(lengths.noise) / mean_span), 1,
                                      raw - lengths.noise);
  lengths.inputs = raw - lengths.noise + lengths.spans + 1;
  lengths.targets = lengths.noise + lengths.spans + 1;
  return lengths;
}

}  // namespace

absl::StatusOr<SpanLengths> SpanLengthsOf(int64_t context, const v1::MaskingSpec& masking) {
  const double probability =
      masking.probability() > 0 ? masking.probability() : kUsualMaskingProbability;
  const double mean_span = masking.mean_span() > 0 ? masking.mean_span() : kUsualMeanSpan;
  // Specifications also come from other clients, whose numbers no reader of job files has checked.
  if (!(probability < 1) || !(mean_span >= 1) || !std::isfinite(mean_span)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.masking: probability is ", probability, " and mean_span ", mean_span,
                     "; expected a probability below 1 and a mean_span of at least 1"));
  }
  if (context < kLeastInputs || context > kMostContext) {
    return absl::InvalidArgumentError(absl::StrCat("model.context is ", context,
                                                   ", but a sample of masked spans has from ",
                                                   kLeastInputs, " to ", kMostContext, " tokens"));
  }
  // The inputs never become shorter when a raw token is added, so the largest number can be halved
  // in on. The upper end has more kept tokens than the context.
  int64_t raw = kLeastRaw;
  int64_t beyond = static_cast<int64_t>(static_cast<double>(context + 2) / (1 - probability)) + 4;
  while (beyond - raw > 1) {
    const int64_t middle = raw + (beyond - raw) / 2;
    (LengthsOfRaw(middle, probability, mean_span).inputs <= context ? raw : beyond) = middle;
  }
  const SpanLengths lengths = LengthsOfRaw(raw, probability, mean_span);
  // With most tokens masked, one more kept token may also be one more span.
  if (lengths.inputs != context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.context is ", context, ", but no sample has that length with data.masking ",
        "{probability: ", probability, ", mean_span: ", mean_span, "}; use a context of ",
        lengths.inputs, ", or a lower probability"));
  }
  if (lengths.targets > kMostContext) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.masking.probability ", probability, " and model.context ", context,
                     " give samples ", "with ", lengths.targets, " tokens in the decoder, at most ",
                     kMostContext, " are supported; lower one of the two"));
  }
  return lengths;
}

}  // namespace tercio::plan

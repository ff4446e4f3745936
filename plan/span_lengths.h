// How many tokens a sample of span corruption has (Raffel et al. 2020, section 3.1.4): spans of the
// raw tokens are replaced by one sentinel each in the encoder's sequence, and the decoder predicts
// them.
//
//   noise    raw * probability, rounded half to even; from 1 to raw - 1
//   spans    noise / mean span, rounded half to even; from 1 to the tokens that are kept
//   inputs   raw - noise + spans + 1     kept tokens, sentinels, and the end
//   targets  noise + spans + 1           sentinels, masked tokens, and the end
//
// `raw` is the largest number whose inputs fit the encoder. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

inline constexpr double kUsualMaskingProbability = 0.15;
inline constexpr double kUsualMeanSpan = 3;

struct SpanLengths {
  int64_t raw = 0;
  int64_t noise = 0;
  int64_t spans = 0;
  int64_t inputs = 0;
  int64_t targets = 0;
};

// The lengths whose inputs are exactly `context` tokens. Zeros in `masking` are the usual values.
// INVALID_ARGUMENT naming the keys of the job: no sample has that length, or the decoder's sequence
// is longer than any that is supported.
absl::StatusOr<SpanLengths> SpanLengthsOf(int64_t context, const v1::MaskingSpec& masking);

}  // namespace tercio::plan

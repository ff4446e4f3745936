// How the next id of a text is chosen from the model's logits. Pure.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace tercio::inference {

struct GenerateOptions {
  int64_t tokens = 100;
  double temperature = 1.0;  // 0: always the most likely
  int64_t top_k = 0;         // 0: all
  double top_p = 1;          // the most likely that together have this probability; 1: all
  uint64_t seed = 1337;
  // A decoder begins with the one, and its answer ends before the other; -1: nothing ends it.
  int32_t start = 0;
  int32_t end = -1;
};

// The id that follows, from one logit for each id of the vocabulary. `number` counts the text's new
// ids from 0: the draw depends on it and the seed alone, so that a text can be made again.
// REQUIRES: finite logits, at least one.
int32_t SampleId(absl::Span<const float> logits, const GenerateOptions& options, int64_t number);

}  // namespace tercio::inference

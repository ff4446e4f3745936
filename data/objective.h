// What the samples of a job are, from its data and model. Pure.
#pragma once

#include <cstdint>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::data {

enum class Objective {
  kCausal,    // each token predicts the next
  kMasked,    // bert
  kLabelled,  // bert with labels: a class for each sequence
  kSpans,     // t5: the decoder predicts spans that the encoder does not see
  kChat,      // conversations, of which only some tokens are predicted
  kAnswers,   // answers that are better or worse
};
Objective ObjectiveOf(const v1::DataSpec& data, const v1::ModelSpec& model);

// The largest id of data.special_tokens; -1 if the job names none.
int32_t HighestSpecialToken(const v1::DataSpec& data);

}  // namespace tercio::data

// The evaluations of `tercio evaluate` besides the loss of a text.
//
// Errors: INVALID_ARGUMENT naming file and line.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/events.pb.h"
#include "worker/inference/encoder_model.h"
#include "worker/inference/language_model.h"

namespace tercio::inference {

// Evaluates the labelled file data.train(), or the files that match it as a pattern
// (data/labelled_dataset.h), several examples in a pass.
// The loss is the mean over the examples; step is 0. INVALID_ARGUMENT if the model has no classes
// or no tokenizer. `context` as in PassSize; `progress` counts examples.
absl::StatusOr<v1::Evaluation> EvaluateClasses(const OpenedModel& opened, const v1::DataSpec& data,
                                               int threads, int64_t context,
                                               const LanguageModel::Progress& progress = {});

struct LastWords {
  int64_t passages = 0;
  int64_t right = 0;   // every token of the last word was the most likely
  int64_t tokens = 0;  // tokens of last words
  double loss = 0;     // mean over those tokens, nats
};

// The cloze test of Paperno et al. 2016 (LAMBADA), in its strict form: predicts the last word of
// each passage, which is everything after its last space, from the text before it. A passage is a
// line of a text, or the text of a .jsonl line under `text_key` (empty: "text"). `progress` counts
// passages.
absl::StatusOr<LastWords> EvaluateLastWords(LanguageModel& model, const std::string& path,
                                            const std::string& text_key = "",
                                            const LanguageModel::Progress& progress = {});

}  // namespace tercio::inference

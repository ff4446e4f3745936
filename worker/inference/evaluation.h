// The evaluations of `tercio evaluate` besides the loss of a text.
//
// Errors: INVALID_ARGUMENT naming file and line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/inference/encoder_model.h"
#include "worker/inference/language_model.h"

namespace tercio::inference {

// How often examples of a class (row) were predicted as a class (column).
using Confusion = std::vector<std::vector<int64_t>>;

struct ClassScores {
  double precision = 0;  // 0 where the class was never predicted
  double recall = 0;     // 0 where the class never occurs
  double f1 = 0;         // the harmonic mean of both; 0 where both are 0
  int64_t support = 0;   // examples of the class
};

struct ClassificationReport {
  double accuracy = 0;
  // Scores of the second class if there are two (as GLUE reports them), else the mean over classes.
  ClassScores overall;
  std::vector<ClassScores> classes;
  Confusion confusion;
  double loss = 0;  // mean cross-entropy over the examples, nats
  int64_t examples = 0;
};

// Pure. REQUIRES: a square matrix of at least two classes with at least one example.
ClassificationReport ReportOf(const Confusion& confusion);

// Evaluates a labelled .jsonl file (data/labelled_dataset.h). INVALID_ARGUMENT if the model has no
// classes or no tokenizer. `progress` counts examples.
absl::StatusOr<ClassificationReport> EvaluateClasses(EncoderModel& model, const v1::DataSpec& data,
                                                     const LanguageModel::Progress& progress = {});

struct LastWords {
  int64_t passages = 0;
  int64_t right = 0;   // every token of the last word was the most likely
  int64_t tokens = 0;  // tokens of last words
  double loss = 0;     // mean over those tokens, nats
};

// The cloze test of Paperno et al. 2016 (LAMBADA), in its strict form: predicts the last word of
// each passage, which is everything after its last space, from the text before it. A passage is a
// line of a text, or the "text" of a .jsonl line. `progress` counts passages.
absl::StatusOr<LastWords> EvaluateLastWords(LanguageModel& model, const std::string& path,
                                            const LanguageModel::Progress& progress = {});

}  // namespace tercio::inference

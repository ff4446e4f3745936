// A trained model, loaded from a checkpoint of any layout, for generation and evaluation on this
// machine.
//
// Threads: one thread uses a model at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/token_dataset.h"
#include "tokenizer/tokenizer.h"
#include "worker/inference/generator.h"
#include "worker/inference/text_batch.h"
#include "worker/inference/whole_model.h"

namespace tercio::inference {

class LanguageModel : public Generator {
 public:
  // `pass.sequences`: texts that are generated at once. Errors as OpenModel and WholeModel::Load;
  // INVALID_ARGUMENT for a bert, and for a model with a decoder.
  static absl::StatusOr<std::unique_ptr<LanguageModel>> Load(
      const std::string& directory, int threads, PassSize pass = {},
      std::optional<tokenizer::Tokenizer> tokenizer = std::nullopt);
  static absl::StatusOr<std::unique_ptr<LanguageModel>> Load(const OpenedModel& opened, int threads,
                                                             PassSize pass);

  bool continues_prompts() const override { return true; }

  // Texts that grow together, as many as the model was loaded for (`PassSize::sequences`). While
  // one is in the batch no other function that computes may be called.
  virtual TextBatch& texts() = 0;

  // One logit for each id of the vocabulary, for the id after `ids` (at least one; the last
  // `context` of them count). Valid until the next call.
  virtual absl::StatusOr<absl::Span<const float>> NextLogits(absl::Span<const int32_t> ids) = 0;

  struct Evaluation {
    double loss = 0;     // mean over predicted tokens, nats
    int64_t tokens = 0;  // predicted
  };
  // Evaluates windows of `context` tokens that begin every `stride` tokens: in each, only the
  // tokens count that no window before it had, so that every token but the first is predicted once.
  // stride = context: windows do not overlap. INVALID_ARGUMENT for fewer than two tokens or ids
  // outside the vocabulary. REQUIRES: 1 <= stride <= context. `progress` gets the tokens that are
  // done, and their total; it may be empty.
  using Progress = std::function<void(int64_t done, int64_t total)>;
  virtual absl::StatusOr<Evaluation> Evaluate(const data::TokenDataset& tokens, int64_t stride,
                                              const Progress& progress) = 0;
  absl::StatusOr<Evaluation> Evaluate(const data::TokenDataset& tokens, int64_t stride) {
    return Evaluate(tokens, stride, {});
  }

  struct Prediction {
    double loss = 0;         // the sum over `wanted`, nats
    bool likeliest = false;  // each of them was the most likely id
  };
  // How well `wanted` is predicted after `given`; each id sees those before it. INVALID_ARGUMENT if
  // one of them is empty, an id is outside the vocabulary, or `wanted` is longer than the context.
  virtual absl::StatusOr<Prediction> Predict(absl::Span<const int32_t> given,
                                             absl::Span<const int32_t> wanted) = 0;
};

}  // namespace tercio::inference

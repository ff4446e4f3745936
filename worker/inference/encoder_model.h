// A trained bert, loaded from a checkpoint of any layout: predicts classes of sequences, and masked
// tokens.
//
// Threads: one thread uses a model at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/sample_source.h"
#include "worker/inference/whole_model.h"

namespace tercio::inference {

class EncoderModel {
 public:
  // Errors as WholeModel::Load; INVALID_ARGUMENT for a model that is not a bert.
  static absl::StatusOr<std::unique_ptr<EncoderModel>> Load(
      const std::string& directory, int threads, int64_t context = 0,
      std::optional<tokenizer::Tokenizer> tokenizer = std::nullopt);

  const v1::ModelSpec& spec() const { return model_->spec(); }
  const tokenizer::Tokenizer* tokenizer() const { return model_->tokenizer(); }

  // One logit for each class. Valid until the next call. REQUIRES: spec().labels() > 0 or
  // sentence_order; a sample of the model's context. INVALID_ARGUMENT for ids or types outside the
  // model's tables.
  absl::StatusOr<absl::Span<const float>> ClassLogits(const data::Sample& sample);

  // One logit for each id of the vocabulary, as predictions of the token at `position`. REQUIRES: a
  // model without labels.
  absl::StatusOr<absl::Span<const float>> TokenLogits(const data::Sample& sample, int64_t position);

 private:
  explicit EncoderModel(std::unique_ptr<WholeModel> model) : model_(std::move(model)) {}
  absl::StatusOr<engine::MicroBatch> Forward(const data::Sample& sample, int32_t predicted);

  std::unique_ptr<WholeModel> model_;
  int32_t predicted_ = 0;
  int32_t predicted_count_ = 0;
};

}  // namespace tercio::inference

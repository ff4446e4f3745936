// A trained bert, loaded from a checkpoint of any layout: predicts classes of sequences, and masked
// tokens.
//
// Threads: one thread uses a model at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/sample_source.h"
#include "worker/inference/whole_model.h"

namespace tercio::inference {

class EncoderModel {
 public:
  // Errors as WholeModel::Load; INVALID_ARGUMENT for a model that is not a bert.
  static absl::StatusOr<std::unique_ptr<EncoderModel>> Load(const OpenedModel& opened, int threads,
                                                            PassSize pass = {});
  // Opens the directory first, whose errors are those of OpenModel; for one sequence at a time.
  static absl::StatusOr<std::unique_ptr<EncoderModel>> Load(const std::string& directory,
                                                            int threads);

  const v1::ModelSpec& spec() const { return model_->spec(); }

  // One logit for each sample and class: samples x classes, valid until the next call. The logits
  // of a sample do not depend on those beside it. REQUIRES: spec().labels() > 0 or sentence_order;
  // 1 to PassSize::sequences samples of the model's context. INVALID_ARGUMENT for ids or types
  // outside the model's tables.
  absl::StatusOr<absl::Span<const float>> ClassLogits(absl::Span<const data::Sample> samples);

  // One logit for each id of the vocabulary, as predictions of the token at `position`. REQUIRES: a
  // model without labels.
  absl::StatusOr<absl::Span<const float>> TokenLogits(const data::Sample& sample, int64_t position);

 private:
  explicit EncoderModel(std::unique_ptr<WholeModel> model);
  absl::StatusOr<blocks::MicroBatch> Forward(absl::Span<const data::Sample> samples);

  std::unique_ptr<WholeModel> model_;
  // The micro-batch of a pass, which its operations read where it is.
  std::vector<int32_t> inputs_;
  std::vector<int32_t> types_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> first_rows_;  // of each sequence's first token
  std::vector<int32_t> predicted_counts_;
  int32_t predicted_ = 0;  // of the first sequence
  int64_t classes_ = 0;
};

// INVALID_ARGUMENT naming the directory if the model is not a bert.
absl::Status CheckIsEncoder(const OpenedModel& opened);

}  // namespace tercio::inference

#include "worker/inference/encoder_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "plan/names.h"

namespace tercio::inference {
namespace {

// The values index tables of the model, and come from people's files.
absl::Status CheckRange(const std::vector<int32_t>& values, int32_t count, const char* what) {
  for (const int32_t value : values) {
    if (value < 0 || value >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " ", value, " is not one of the model's ", count));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<EncoderModel>> EncoderModel::Load(
    const std::string& directory, int threads, int64_t context,
    std::optional<tokenizer::Tokenizer> tokenizer) {
  TERCIO_ASSIGN_OR_RETURN(auto model,
                          WholeModel::Load(directory, threads, context, std::move(tokenizer)));
  // A causal model has neither of the heads that are asked here.
  if (model->shape().causal) {
    return absl::InvalidArgumentError(absl::StrCat(directory, " holds a ",
                                                   plan::TextOf(model->spec().architecture()),
                                                   ", but a bert is needed"));
  }
  return std::unique_ptr<EncoderModel>(new EncoderModel(std::move(model)));
}

absl::StatusOr<engine::MicroBatch> EncoderModel::Forward(const data::Sample& sample,
                                                         int32_t predicted) {
  // The operations would read beyond the end of a shorter sample.
  TERCIO_CHECK_EQ(static_cast<int64_t>(sample.inputs.size()), model_->shape().tokens);
  TERCIO_RETURN_IF_ERROR(CheckRange(sample.inputs, spec().vocab_size(), "token id"));
  TERCIO_RETURN_IF_ERROR(CheckRange(sample.types, spec().token_types(), "token type"));
  // The batch refers to these two members, which therefore live longer than it does.
  predicted_ = std::max(0, predicted);
  predicted_count_ = predicted < 0 ? 0 : 1;
  engine::MicroBatch batch;
  batch.training = false;
  batch.inputs = sample.inputs.data();
  batch.types = sample.types.data();
  // The model is on the CPU, so nothing is copied: its operations read the sample itself.
  batch.lengths = &sample.length;
  batch.predicted = &predicted_;
  batch.predicted_counts = &predicted_count_;
  model_->stage().Forward(batch);
  return batch;
}

absl::StatusOr<absl::Span<const float>> EncoderModel::ClassLogits(const data::Sample& sample) {
  // A class is read from the first token, so no position is predicted.
  TERCIO_ASSIGN_OR_RETURN(const engine::MicroBatch batch, Forward(sample, -1));
  return absl::MakeConstSpan(model_->stage().ClassLogits(batch).floats(),
                             static_cast<size_t>(model_->shape().classes));
}

absl::StatusOr<absl::Span<const float>> EncoderModel::TokenLogits(const data::Sample& sample,
                                                                  int64_t position) {
  TERCIO_ASSIGN_OR_RETURN(const engine::MicroBatch batch,
                          Forward(sample, static_cast<int32_t>(position)));
  // Rows have more columns than the vocabulary, which is padded.
  return absl::MakeConstSpan(model_->stage().TokenLogits(batch).floats(),
                             static_cast<size_t>(spec().vocab_size()));
}

}  // namespace tercio::inference

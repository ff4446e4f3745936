#include "worker/inference/encoder_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "model/architecture.h"
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

absl::Status CheckIsEncoder(const OpenedModel& opened) {
  // A causal model has neither of the heads that are asked here.
  if (!model::ArchitectureOf(opened.spec()).causal) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(opened.directory, " holds a ",
                                                 plan::TextOf(opened.spec().architecture()),
                                                 ", but a bert is needed"));
}

EncoderModel::EncoderModel(std::unique_ptr<WholeModel> model)
    : model_(std::move(model)),
      inputs_(static_cast<size_t>(model_->shape().streams.front().rows)),
      types_(inputs_.size()),
      lengths_(static_cast<size_t>(model_->shape().sequences)),
      first_rows_(lengths_.size()),
      predicted_counts_(lengths_.size()) {
  const model::Head head = model::ArchitectureOf(spec()).head;
  if (head.classes.has_value()) classes_ = head.classes->classes;
}

absl::StatusOr<std::unique_ptr<EncoderModel>> EncoderModel::Load(const OpenedModel& opened,
                                                                 int threads, PassSize pass) {
  TERCIO_RETURN_IF_ERROR(CheckIsEncoder(opened));
  TERCIO_ASSIGN_OR_RETURN(auto model, WholeModel::Load(opened, threads, pass));
  return std::unique_ptr<EncoderModel>(new EncoderModel(std::move(model)));
}

absl::StatusOr<std::unique_ptr<EncoderModel>> EncoderModel::Load(const std::string& directory,
                                                                 int threads) {
  TERCIO_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(directory, std::nullopt));
  return Load(opened, threads);
}

absl::StatusOr<blocks::MicroBatch> EncoderModel::Forward(absl::Span<const data::Sample> samples) {
  const auto context = static_cast<size_t>(model_->shape().streams.front().tokens);
  TERCIO_CHECK(!samples.empty() && samples.size() <= lengths_.size());
  int64_t longest = 0;
  for (const data::Sample& sample : samples) longest = std::max<int64_t>(longest, sample.length);
  if (predicted_counts_.front() > 0) longest = std::max<int64_t>(longest, predicted_ + 1);
  const int64_t tokens = plan::ComputedTokens(model_->shape(), longest);
  for (size_t i = 0; i < lengths_.size(); ++i) {
    // A pass has all of its sequences: the first sample stands in for those that are missing.
    const data::Sample& sample = samples[i < samples.size() ? i : 0];
    // The operations would read beyond the end of a shorter sample.
    TERCIO_CHECK_EQ(sample.inputs.size(), context);
    TERCIO_RETURN_IF_ERROR(CheckRange(sample.inputs, spec().vocab_size(), "token id"));
    TERCIO_RETURN_IF_ERROR(CheckRange(sample.types, spec().token_types(), "token type"));
    const int64_t row = static_cast<int64_t>(i) * tokens;
    std::copy_n(sample.inputs.begin(), tokens, inputs_.begin() + row);
    std::copy_n(sample.types.begin(), tokens, types_.begin() + row);
    lengths_[i] = sample.length;
    first_rows_[i] = static_cast<int32_t>(row);
  }
  blocks::MicroBatch batch;
  batch.training = false;
  batch.tokens = tokens;
  // The model is on the CPU, so nothing is copied: its operations read these members.
  batch.inputs = inputs_.data();
  batch.types = types_.data();
  batch.lengths = lengths_.data();
  batch.first_rows = first_rows_.data();
  batch.predicted = &predicted_;
  batch.predicted_counts = predicted_counts_.data();
  model_->stage().Forward(batch);
  return batch;
}

absl::StatusOr<absl::Span<const float>> EncoderModel::ClassLogits(
    absl::Span<const data::Sample> samples) {
  // A class is read from the first token, so no position is predicted.
  predicted_counts_.front() = 0;
  TERCIO_ASSIGN_OR_RETURN(const blocks::MicroBatch batch, Forward(samples));
  return absl::MakeConstSpan(model_->stage().ClassLogits(batch).floats(),
                             samples.size() * static_cast<size_t>(classes_));
}

absl::StatusOr<absl::Span<const float>> EncoderModel::TokenLogits(const data::Sample& sample,
                                                                  int64_t position) {
  predicted_ = static_cast<int32_t>(position);
  predicted_counts_.front() = 1;
  TERCIO_ASSIGN_OR_RETURN(const blocks::MicroBatch batch, Forward(absl::MakeConstSpan(&sample, 1)));
  // Rows have more columns than the vocabulary, which is padded.
  return absl::MakeConstSpan(model_->stage().TokenLogits(batch).floats(),
                             static_cast<size_t>(spec().vocab_size()));
}

}  // namespace tercio::inference

// Logits of a model in a directory beside those that transformers computed (tests/huggingface).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/inference/encoder_model.h"
#include "worker/inference/language_model.h"

namespace tercio::checkpoint {

// The largest difference between rows that should be equal, relative to the largest value.
class LogitDifference {
 public:
  void Add(const absl::StatusOr<absl::Span<const float>>& ours, const nlohmann::json& theirs) {
    EXPECT_TRUE(ours.ok()) << ours.status();
    if (!ours.ok()) return;
    const auto row = theirs.get<std::vector<double>>();
    EXPECT_EQ(row.size(), ours->size());
    for (size_t i = 0; i < row.size(); ++i) {
      error_ = std::max(error_, std::abs(static_cast<double>((*ours)[i]) - row[i]));
      largest_ = std::max(largest_, std::abs(row[i]));
    }
  }
  double relative() const { return error_ / largest_; }

 private:
  double error_ = 0;
  double largest_ = 0;
};

inline double BertLogitError(const std::string& directory, const nlohmann::json& expected) {
  const auto model = inference::EncoderModel::Load(directory, 1);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return INFINITY;
  data::Sample sample((*model)->spec().context());
  const auto tokens = expected["tokens"].get<std::vector<int32_t>>();
  const auto types = expected["types"].get<std::vector<int32_t>>();
  std::copy(tokens.begin(), tokens.end(), sample.inputs.begin());
  std::copy(types.begin(), types.end(), sample.types.begin());
  sample.length = expected["length"].get<int32_t>();
  LogitDifference difference;
  difference.Add((*model)->ClassLogits({&sample, 1}), expected["classes"]);
  for (int32_t at = 0; expected.contains("logits") && at < sample.length; ++at) {
    difference.Add((*model)->TokenLogits(sample, at), expected["logits"][static_cast<size_t>(at)]);
  }
  return difference.relative();
}

// All rows of the decoder at once.
inline double DecoderLogitError(const std::string& directory, const nlohmann::json& expected) {
  const auto tokens = expected["tokens"].get<std::vector<int32_t>>();
  const auto decoder_tokens = expected["decoder_tokens"].get<std::vector<int32_t>>();
  const auto opened = inference::OpenModel(directory, std::nullopt);
  EXPECT_TRUE(opened.ok()) << opened.status();
  if (!opened.ok()) return INFINITY;
  const auto model =
      inference::WholeModel::Load(*opened, 1,
                                  {.context = static_cast<int64_t>(tokens.size()),
                                   .decoder_context = static_cast<int64_t>(decoder_tokens.size())});
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return INFINITY;
  blocks::MicroBatch batch;
  batch.training = false;
  batch.inputs = tokens.data();
  batch.decoder_inputs = decoder_tokens.data();
  (*model)->stage().Forward(batch);
  LogitDifference difference;
  for (size_t row = 0; row < decoder_tokens.size(); ++row) {
    const float* logits = (*model)->stage().Logits(batch, static_cast<int64_t>(row), 1).floats();
    difference.Add(absl::MakeConstSpan(logits, static_cast<size_t>((*model)->spec().vocab_size())),
                   expected["logits"][row]);
  }
  return difference.relative();
}

// The largest difference to transformers' logits, relative to the largest of them. `expected` has
// tokens and logits, for bert also types, length and classes, for a decoder its tokens; `context`
// shortens the model's.
inline double LogitErrorOf(const std::string& directory, const nlohmann::json& expected,
                           int64_t context = 0) {
  if (expected.contains("types")) return BertLogitError(directory, expected);
  if (expected.contains("decoder_tokens")) return DecoderLogitError(directory, expected);
  const auto model = inference::LanguageModel::Load(directory, 1, {.context = context});
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return INFINITY;
  const auto tokens = expected["tokens"].get<std::vector<int32_t>>();
  LogitDifference difference;
  for (size_t count = 1; count <= tokens.size(); ++count) {
    difference.Add((*model)->NextLogits(absl::MakeConstSpan(tokens.data(), count)),
                   expected["logits"][count - 1]);
  }
  return difference.relative();
}

}  // namespace tercio::checkpoint

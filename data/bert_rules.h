// The rules for making BERT's samples (masked_dataset.h, labelled_dataset.h), from the job and its
// tokenizer.
//
// Pure; safe from any thread. Errors: INVALID_ARGUMENT naming the key of the job, and how to fix
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "data/labelled_dataset.h"
#include "data/masked_dataset.h"
#include "proto/tercio/v1/job.pb.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data {

// `vocab_size` is that of the data. Special tokens are those of data.special_tokens, else of the
// tokenizer.
absl::StatusOr<MaskingRules> MaskingRulesOf(const v1::DataSpec& data, const v1::ModelSpec& model,
                                            const std::optional<tokenizer::Tokenizer>& tokenizer,
                                            int32_t vocab_size);
absl::StatusOr<LabelRules> LabelRulesOf(const v1::DataSpec& data, const v1::ModelSpec& model,
                                        const tokenizer::Tokenizer& tokenizer);

// Everything in the rules that decides samples, for digests.
std::string Describe(const MaskingRules& rules);
std::string Describe(const LabelRules& rules);

}  // namespace tercio::data

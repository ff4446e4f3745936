// The rules for making samples of span corruption (span_dataset.h), from the job and its tokenizer.
//
// Special tokens are those of data.special_tokens. Without the key they are the tokenizer's <pad>
// and end of text, and its <extra_id_0>, <extra_id_1>, .. with descending ids. What is missing is
// placed behind the vocabulary: the pad and the end together, then 100 sentinels, the first one
// highest.
//
// Pure; safe from any thread. Errors: INVALID_ARGUMENT naming the key of the job, and how to fix
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "data/span_dataset.h"
#include "proto/tercio/v1/job.pb.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data {

struct SpanVocabulary {
  int32_t data_ids = 0;    // the tokens of the data are below
  int32_t vocab_size = 0;  // with the special tokens
  int32_t pad = 0;
  int32_t eos = 0;
  int32_t first_sentinel = 0;
  int32_t sentinels = 0;
};

// Without a tokenizer the vocabulary is `given` (model.vocab_size), special tokens included, or,
// where that is 0, follows from the highest id of the data.
absl::StatusOr<SpanVocabulary> SpanVocabularyOf(
    const v1::DataSpec& data, const std::optional<tokenizer::Tokenizer>& tokenizer, int32_t given,
    int32_t highest);

absl::StatusOr<SpanRules> SpanRulesOf(const v1::DataSpec& data, const v1::ModelSpec& model,
                                      const SpanVocabulary& vocabulary);

// Everything in the rules that decides samples, for digests.
std::string Describe(const SpanRules& rules);

}  // namespace tercio::data

// Reads Hugging Face's `tokenizer.json`: byte-level BPE with the pre-tokenizers of GPT-2 and of
// Llama 3 (or none, if there are no merges), BERT's WordPiece, and vocabularies of single
// characters as Tercio exports them; huggingface_pieces.h for Llama 2 and Mistral. Anything else in
// such a file is refused by name.
//
// `post_processor` puts tokens around a text, which is the caller's business here; `truncation` and
// `padding` belong to a call, not to a tokenizer. They do not change ids.
//
// Thread safety: pure functions.
// Errors:        INVALID_ARGUMENT naming the key.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tokenizer/tokenizer_model.h"
#include "tokenizer/vocabulary.h"

namespace tercio::tokenizer {

// `config` is the content of tokenizer_config.json and special_tokens_map.json (may be empty).
absl::StatusOr<std::shared_ptr<const TokenizerModel>> ParseHuggingFaceJson(
    const nlohmann::json& root, const nlohmann::json& config);

// An entry of `merges`, of either form, as "left right".
absl::StatusOr<std::string> MergeLine(const nlohmann::json& merge);

// Two tokens of a merge as ids, given as "left right".
absl::StatusOr<std::pair<int32_t, int32_t>> ParseMerge(const Vocabulary& vocabulary,
                                                       std::string_view line);

// The token that `config` names for a role such as "eos_token"; empty if it names none.
std::string ConfiguredToken(const nlohmann::json& config, const char* role);

// Special ids: those that `config` names, else tokens with the usual names.
SpecialIds FindSpecialIds(const nlohmann::json& config, const Vocabulary& vocabulary,
                          const std::vector<AddedToken>& added);

}  // namespace tercio::tokenizer

// Byte-level BPE, the tokenizers of GPT-2, RoBERTa and Llama 3: words (word_scanner.h) are made of
// bytes, and the neighbours with the lowest rank are merged until no rule applies.
//
// Tokens are written as Hugging Face does: each byte is one printable character (0x20 is U+0120).
// Added tokens are matched in the text first. Nothing is put before or after a text.
//
// Stored JSON: {"kind":"byte_level_bpe","pattern":"gpt2"|"llama3","add_prefix_space":b,
//   "ignore_merges":b,"unknown":id|null,"vocabulary":[token or null, ...],
//   "merges":[left id, right id, left id, ...],"added_tokens":[...],"special":{...}}
//
// Thread safety: immutable; each thread keeps a cache of words (2 MiB) shared by all models.
// Errors:        INVALID_ARGUMENT: a file that contradicts itself; text with a byte that is not in
//                the vocabulary; an id without a token.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tokenizer/added_tokens.h"
#include "tokenizer/tokenizer_model.h"
#include "tokenizer/vocabulary.h"
#include "tokenizer/word_scanner.h"

namespace tercio::tokenizer {

struct ByteLevelBpe {
  WordPattern pattern = WordPattern::kGpt2;
  bool add_prefix_space = false;
  bool ignore_merges = false;      // a word that is a token is not assembled by merges
  std::optional<int32_t> unknown;  // for bytes that the vocabulary lacks
  Vocabulary vocabulary;
  std::vector<std::pair<int32_t, int32_t>> merges;  // by rank
  std::vector<AddedToken> added;
  SpecialIds special;
};

absl::StatusOr<std::shared_ptr<const TokenizerModel>> MakeByteLevelBpe(ByteLevelBpe definition);
absl::StatusOr<std::shared_ptr<const TokenizerModel>> ByteLevelBpeFromJson(
    const nlohmann::json& json);

}  // namespace tercio::tokenizer

// WordPiece, the tokenizer of BERT: a text is cleaned, cut at white space and punctuation, and each
// word is covered from left to right with the longest tokens that fit; those that do not begin a
// word are written with ## before them. A word that cannot be covered becomes the unknown token.
//
// Stored JSON: {"kind":"word_piece","clean_text":b,"space_chinese":b,"strip_accents":b,
//   "lowercase":b,"continuation":"##","unknown":"[UNK]","most_characters":100,"tidy_decoded":b,
//   "vocabulary":[token or null, ...],"added_tokens":[...],"special":{...}}
//
// Decode puts spaces between words, and with tidy_decoded removes those before punctuation: text
// that was lost in cleaning does not return.
//
// Thread safety: immutable; each thread keeps a cache of words (word_cache.h).
// Errors:        INVALID_ARGUMENT: a file that contradicts itself, an id without a token. A byte
//                that is not UTF-8 counts as U+FFFD.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tokenizer/added_tokens.h"
#include "tokenizer/tokenizer_model.h"
#include "tokenizer/vocabulary.h"

namespace tercio::tokenizer {

struct WordPiece {
  bool clean_text = true;     // control characters are removed, white space becomes a space
  bool space_chinese = true;  // each Chinese character is a word
  bool strip_accents = true;
  bool lowercase = true;
  std::string continuation = "##";
  std::string unknown = "[UNK]";
  int32_t most_characters = 100;  // a longer word is unknown
  bool tidy_decoded = true;
  Vocabulary vocabulary;
  std::vector<AddedToken> added;
  SpecialIds special;
};

absl::StatusOr<std::shared_ptr<const TokenizerModel>> MakeWordPiece(WordPiece definition);
absl::StatusOr<std::shared_ptr<const TokenizerModel>> WordPieceFromJson(const nlohmann::json& json);

}  // namespace tercio::tokenizer

// SentencePiece: a text is normalized as a whole (sentence_piece_normalizer.h), then covered with
// pieces. Unigram takes the cover with the highest sum of scores; BPE joins the two neighbours that
// make the piece with the highest score, until none do. T5 is unigram, Llama 2 is BPE.
//
// Characters that no piece covers become the unknown piece, one for a run of them, or with byte
// fallback a piece for each byte. Control pieces (<s>, </s>) are never found in a text. Ids are
// those of the SentencePiece library (0.2.3). It sums unigram's scores in fp32 from the beginning
// of a text; here the sums start over at the first word after each 128 KiB (if no piece holds a
// space after another character), so that long texts lose no precision.
//
// Stored JSON: {"kind":"sentence_piece","algorithm":"unigram"|"bpe","byte_fallback":b,
//   "add_dummy_prefix":b,"remove_extra_whitespaces":b,"escape_whitespaces":b,
//   "whitespace_as_suffix":b,"charsmap":base64,"unknown_surface":text,"pieces":[text, ...],
//   "scores":[number, ...],"types":[1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
//   6 byte, ...],"special":{...},"added_tokens":[...] (where there are any),
//   "metaspace":{"first_only":b,"splits":b} (where there is one)}
//
// Thread safety: immutable; each thread keeps a cache of words (word_cache.h).
// Errors:        INVALID_ARGUMENT: a file that contradicts itself or requires something that
//                is not supported (word and character models, denormalization); an id without a
//                piece.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tokenizer/added_tokens.h"
#include "tokenizer/sentence_piece_normalizer.h"
#include "tokenizer/tokenizer_model.h"

namespace tercio::tokenizer {

struct SentencePiece {
  enum class Algorithm { kUnigram, kBpe };
  enum class Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };

  Algorithm algorithm = Algorithm::kUnigram;
  bool byte_fallback = false;
  std::string unknown_surface = " \u2047 ";  // the text of the unknown piece when decoded
  std::vector<Piece> pieces;                 // by id
  SentencePieceRules rules;
  // Found in a text before anything else (added_tokens.h); the text between them is normalized
  // separately. Each is a piece, too. Only without rules that replace characters or collapse white
  // space.
  std::vector<AddedToken> added;
  // The differences of Hugging Face's pre-tokenizer Metaspace from SentencePiece: the dummy prefix
  // is left out if there is a space already. Only for BPE, under the same restrictions.
  struct Metaspace {
    bool first_only = false;  // no prefix after an added token
    bool splits = false;      // every space begins a word, even one after another
  };
  std::optional<Metaspace> metaspace;
  SpecialIds special;
};

absl::StatusOr<std::shared_ptr<const TokenizerModel>> MakeSentencePiece(SentencePiece definition);
// The content of a `.model` file (sentence_piece_file.cc).
absl::StatusOr<SentencePiece> ParseSentencePieceFile(std::string_view bytes);
absl::StatusOr<std::shared_ptr<const TokenizerModel>> SentencePieceFromJson(
    const nlohmann::json& json);

}  // namespace tercio::tokenizer

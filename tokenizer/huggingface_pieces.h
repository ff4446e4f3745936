// Reads a `tokenizer.json` that was made from a SentencePiece BPE model, as Llama 2 and Mistral
// have it: spaces become U+2581, by a normalizer or by the pre-tokenizer Metaspace, and bytes stand
// for unknown characters. It becomes a SentencePiece tokenizer (sentence_piece.h) that gives the
// same ids.
//
// Such a file lists which two tokens may be joined, and in which order; SentencePiece joins any two
// that make a piece, in the order of the pieces' scores. The two agree, and the file is accepted,
// if every pair that makes a token is among its merges, those of one token stand together, and none
// joins the tokens of bytes.
//
// Thread safety: pure functions.
// Errors:        INVALID_ARGUMENT naming the key, or the tokens of a merge.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tokenizer/tokenizer_model.h"

namespace tercio::tokenizer {

// Whether a BPE file is of this kind, and not of bytes.
bool HoldsPieces(const nlohmann::json& root);

// `config` is the content of tokenizer_config.json and special_tokens_map.json (may be empty).
absl::StatusOr<std::shared_ptr<const TokenizerModel>> ParseHuggingFacePieces(
    const nlohmann::json& root, const nlohmann::json& config);

}  // namespace tercio::tokenizer

// Converts a SentencePiece tokenizer as checkpoints hold it (tokenizer/sentence_piece.h) to the
// `.model` file that the SentencePiece library reads (proto/tercio/sentencepiece/model.proto).
//
// Everything that takes part in encoding or decoding is kept: reading the file gives the same
// tokenizer. The settings of its training (its input, its sizes) are not stored, and not written.
//
// Thread safety: pure functions.
// Errors:        none; nullopt for JSON that is no such tokenizer.
#pragma once

#include <optional>
#include <string>

#include "nlohmann/json.hpp"

namespace tercio::tokenizer {

struct SentencePieceModel {
  std::string pieces;  // the fields of all pieces, with which the library's own files begin
  std::string rest;
  std::string unknown;  // the unknown piece
};

std::optional<SentencePieceModel> SentencePieceModelOf(const nlohmann::json& tokenizer);

}  // namespace tercio::tokenizer

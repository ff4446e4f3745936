// A SentencePiece tokenizer as checkpoints hold it (tokenizer/sentence_piece.h) becomes the
// `.model` file that the SentencePiece library reads: a protobuf message, written by hand, since
// Debian's libsentencepiece brings a second protobuf library with it.
//
// Nothing that takes part in encoding or decoding is lost: reading the file gives the same
// tokenizer. What training was told (its input, its sizes) is not stored, and not written.
//
// Thread safety: pure functions.
// Errors:        none; nullopt for JSON that is no such tokenizer.
#pragma once

#include <optional>
#include <string>

#include "nlohmann/json.hpp"

namespace tercio::checkpoint {

struct SentencePieceModel {
  std::string pieces;  // the fields of all pieces, with which the library's own files begin
  std::string rest;
  std::string unknown;  // the unknown piece
};

std::optional<SentencePieceModel> SentencePieceModelOf(const nlohmann::json& tokenizer);

}  // namespace tercio::checkpoint

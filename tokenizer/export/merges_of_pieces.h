// Converts the pieces of SentencePiece's BPE to equivalent merges of Hugging Face's BPE.
//
// SentencePiece joins two neighbours that make a piece, the one with the highest score first; a
// tokenizer.json lists the pairs that may be joined, in order. The list can express the scores if
// texts are only changed in their spaces, all characters that pieces are made of are pieces, and no
// two pieces have the same score.
//
// Thread safety: pure functions.
// Errors:        none; nullopt for what such a list cannot say.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace tercio::tokenizer {

using Merge = std::pair<std::string_view, std::string_view>;  // views of the JSON's texts

// `tokenizer` is a SentencePiece tokenizer as checkpoints hold it, and must outlive the result.
std::optional<std::vector<Merge>> MergesOfPieces(const nlohmann::json& tokenizer);

}  // namespace tercio::tokenizer

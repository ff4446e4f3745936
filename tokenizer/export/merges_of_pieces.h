// The merges with which Hugging Face's BPE does what SentencePiece's BPE does with its pieces.
//
// SentencePiece joins two neighbours where they make a piece, that with the highest score first; a
// tokenizer.json lists the pairs that may be joined, in their order. The second can say the first
// where texts are not changed but for their spaces, all characters that pieces are made of are
// pieces, and no two pieces have one score.
//
// Thread safety: pure functions.
// Errors:        none; nullopt for what such a list cannot say.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace tercio::checkpoint {

using Merge = std::pair<std::string_view, std::string_view>;  // views of the JSON's texts

// `tokenizer` is a SentencePiece tokenizer as checkpoints hold it, and must outlive the result.
std::optional<std::vector<Merge>> MergesOfPieces(const nlohmann::json& tokenizer);

}  // namespace tercio::checkpoint

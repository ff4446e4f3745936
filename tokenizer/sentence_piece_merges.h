// The merging of SentencePiece's BPE: two neighbours are joined if they make a piece, the one with
// the highest score first, of equal ones the leftmost. Time n log n in the number of symbols.
//
// A piece may be for use within the merging only; if one is left at the end it is taken apart into
// the two that made it.
//
// Thread safety: pure functions.
// Errors:        none.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"

namespace tercio::tokenizer {

struct PieceSymbol {
  std::string_view text;
  bool frozen;  // never joined
};

struct PieceScore {
  float score;
  bool unused;  // taken apart at the end
};

// The symbols that remain, which lie one after the other in one text. `score_of` returns the score
// of a text as a piece, nullopt if it is not one.
std::vector<std::string_view> MergePieces(
    std::vector<PieceSymbol> symbols,
    absl::FunctionRef<std::optional<PieceScore>(std::string_view)> score_of);

}  // namespace tercio::tokenizer

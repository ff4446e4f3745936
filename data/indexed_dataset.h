// Megatron's indexed data set, a pair of files PREFIX.bin (tokens, no header) and PREFIX.idx
// (element type, sequence lengths and offsets, documents); the byte layout is in docs/formats.md.
// `tercio data tokenize` writes it (data/indexed_dataset_writer.h), training reads it, and the
// node's token cache consists of it.
//
// A third file of our own, PREFIX.tokenizer.json, may lie beside them: the tokenizer that made the
// ids.
//
// Errors: NOT_FOUND for a missing file, INVALID_ARGUMENT for wrong content (naming file, field, and
// what was expected), else the system's error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "data/document_borders.h"
#include "data/token_dataset.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data {

struct IndexedDataset {
  std::string prefix;
  TokenType type = TokenType::kInt32;
  int64_t sequences = 0;
  int64_t documents = 0;
  TokenDataset tokens;                            // all documents, one after the other
  DocumentBorders borders;                        // borders in `tokens`
  std::optional<tokenizer::Tokenizer> tokenizer;  // PREFIX.tokenizer.json, if it exists
};

// Maps and checks both files: magic, version, element type, sizes, offsets that are the running sum
// of the lengths, document borders. Does not look at the ids (TokenDataset::HighestToken does).
absl::StatusOr<IndexedDataset> OpenIndexedDataset(const std::string& prefix);

}  // namespace tercio::data

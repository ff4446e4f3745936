// Megatron's indexed data set, a pair of files PREFIX.bin (tokens, no header) and PREFIX.idx
// (element type, sequence lengths and offsets, documents); the byte layout is in docs/formats.md.
// `tercio data tokenize` writes it, training reads it, and the node's token cache is made of it.
//
// A third file of our own, PREFIX.tokenizer.json, may lie beside them: the tokenizer that made the
// ids.
//
// Errors: NOT_FOUND for a missing file, INVALID_ARGUMENT for wrong content (naming file, field, and
// what was expected), RESOURCE_EXHAUSTED for a full disk, else what the system said.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/token_dataset.h"
#include "worker/data/tokenizer.h"

namespace tercio::data {

struct IndexedDataset {
  std::string prefix;
  TokenType type = TokenType::kInt32;
  int64_t sequences = 0;
  int64_t documents = 0;
  TokenDataset tokens;                 // all documents, one after the other
  std::optional<Tokenizer> tokenizer;  // of PREFIX.tokenizer.json, where it exists
};

// Maps and checks both files: magic, version, element type, sizes, offsets that are the running sum
// of the lengths, document borders. Does not look at the ids (HighestToken does).
absl::StatusOr<IndexedDataset> OpenIndexedDataset(const std::string& prefix);

// The largest id, -1 when there is none. INVALID_ARGUMENT for an id below 0 or above 2^31-1, naming
// its place.
absl::StatusOr<int32_t> HighestToken(const IndexedDataset& dataset);

// uint16 below 65,500 ids, else int32 (Megatron's rule).
TokenType TokenTypeFor(int32_t vocab_size);

// Writes PREFIX.bin, PREFIX.idx and PREFIX.tokenizer.json with all ids as one document of one
// sequence. Existing files are replaced. The index is written last, so a torn write is never taken
// for a data set.
absl::Status WriteIndexedDataset(const std::string& prefix, absl::Span<const int32_t> ids,
                                 const Tokenizer& tokenizer);

// What `tercio data tokenize` does: reads the text file, encodes it with `tokenizer` ("bytes" |
// "chars"), writes PREFIX.*. Errors as above; INVALID_ARGUMENT also for an empty text and an
// unknown tokenizer.
absl::Status TokenizeFile(const std::string& text_path, const std::string& tokenizer,
                          const std::string& prefix);

// What `tercio data inspect` prints.
struct DatasetSummary {
  int64_t documents = 0;
  int64_t tokens = 0;
  std::string dtype;       // "uint16", "int32", ...
  int32_t vocab_size = 0;  // of the tokenizer beside the files, else the largest id + 1
};
absl::StatusOr<DatasetSummary> InspectDataset(const std::string& prefix);

}  // namespace tercio::data

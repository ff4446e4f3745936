// The files of a data set and their kind, and token files of any kind, opened.
//
// Thread safety: thread-safe. Errors: NOT_FOUND | PERMISSION_DENIED | INVALID_ARGUMENT, each naming
// the path and how to fix it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/document_borders.h"
#include "data/token_dataset.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data {

enum class DataKind { kText, kIndexed, kLlmc };

struct DataFiles {
  DataKind kind = DataKind::kText;
  std::vector<std::string> paths;  // in the order of their names; PREFIX for a Megatron data set
};

// A file, a Megatron PREFIX (or its .bin or .idx), or a pattern with * ? [...]; several become one
// data set, in the order of their names. INVALID_ARGUMENT if text and token files are mixed.
absl::StatusOr<DataFiles> FindDataFiles(absl::Span<const std::string> given);

// A token data set, Megatron's or llm.c's.
struct TokenFiles {
  TokenDataset tokens;
  DocumentBorders borders;                        // an llm.c file is one document
  std::optional<int64_t> documents;               // absent for llm.c files, which do not store it
  std::string dtype;                              // "uint16", ...; of the first file
  std::optional<tokenizer::Tokenizer> tokenizer;  // that lies beside the files
  std::string digest;                             // hex SHA-256 of ids as stored, and tokenizer
  std::string index_digest;  // hex SHA-256 of the ends of documents and sequences
};

// Whether token files are read from end to end, for their digests and for impossible ids. Once on
// each node for each attempt is enough: they may be larger than its memory.
enum class ContentCheck { kHere, kDone };

// REQUIRES: files.kind is not kText. INVALID_ARGUMENT if the tokenizers beside the files differ.
// Digests are empty if the content was checked before.
absl::StatusOr<TokenFiles> OpenTokenFiles(const DataFiles& files, ContentCheck check);

// The output of `tercio data inspect`. Values that the files do not contain stay empty.
struct DatasetSummary {
  std::string format;  // "megatron", "llm.c", "jsonl", "text"
  std::optional<int64_t> documents;
  std::optional<int64_t> tokens;
  std::string dtype;  // "uint16", "int32", ...; empty: text
  // That of the tokenizer beside the files, else the largest id + 1.
  std::optional<int32_t> vocab_size;
  int64_t bad_lines = 0;       // bad lines of .jsonl files
  std::string first_bad_line;  // "a.jsonl:7: ..."
};
absl::StatusOr<DatasetSummary> InspectDataset(const std::string& path, const std::string& text_key);

}  // namespace tercio::data

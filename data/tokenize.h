// Texts to a Megatron indexed data set: what `tercio data tokenize` does, and what a node does once
// with the raw text of a job.
//
// Threads share the pieces of data/text_source.h; ids are written in the order of the
// documents, so the files do not depend on the number of threads. Memory is bounded by a batch of
// pieces (and by the longest document where the tokenizer needs it whole). A run that was
// interrupted goes on where it stopped (data/indexed_dataset_writer.h).
//
// Errors: INVALID_ARGUMENT for texts that cannot be used, naming file and line; CANCELLED when the
// caller stopped it; those of TextSource and IndexedDatasetWriter.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/tokenizer_choice.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data {

struct TokenizeProgress {
  int64_t bytes_done = 0;
  int64_t bytes = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t skipped_lines = 0;
  bool resumed = false;  // an earlier run had done a part
};

struct TokenizeOptions {
  TextOptions text;
  // The end-of-text id after every document. Otherwise only after those of .jsonl files, where the
  // tokenizer has one.
  bool append_end_of_text = false;
  // Every sentence (sentences.h) is a sequence of its document, and no document has an end-of-text
  // id: what the order of sentences is learned from.
  bool split_sentences = false;
  // Bytes of ids between two places where a run can go on.
  int64_t block_bytes = 16 << 20;
  // Called after every batch; false stops the run after it has saved its place.
  std::function<bool(const TokenizeProgress&)> progress;
};

struct TokenizeReport {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t skipped_lines = 0;
  std::string first_skipped;  // "a.jsonl:7: ...", empty when none was
  bool resumed = false;
};

// Writes PREFIX.bin, PREFIX.idx and PREFIX.tokenizer.json. Existing files are replaced at the end.
absl::StatusOr<TokenizeReport> TokenizeTexts(const std::vector<std::string>& paths,
                                             const Tokenizer& tokenizer, const std::string& prefix,
                                             const TokenizeOptions& options);

}  // namespace tercio::data

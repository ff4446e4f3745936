// Converts texts to a Megatron indexed data set: for `tercio data tokenize`, and on a node once for
// the raw text of a job.
//
// Threads share the pieces of data/text_source.h; ids are written in the order of the documents, so
// the files do not depend on the number of threads. Memory is bounded by a batch of pieces (and by
// the longest document if the tokenizer needs it whole). An interrupted run resumes where it
// stopped (data/indexed_dataset_writer.h).
//
// Errors: INVALID_ARGUMENT for texts that cannot be used, naming file and line; CANCELLED if the
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
  bool resumed = false;  // an earlier run had completed a part
};

struct TokenizeOptions {
  TextOptions text;
  // Puts the end-of-text id after every document. Otherwise only after those of .jsonl files, if
  // the tokenizer has one.
  bool append_end_of_text = false;
  // Every sentence (sentences.h) is a sequence of its document, and no document has an end-of-text
  // id: for learning the order of sentences.
  bool split_sentences = false;
  // Bytes of ids between two positions at which a run can be resumed.
  int64_t block_bytes = 16 << 20;
  // Called after every batch; false stops the run after it has saved its position.
  std::function<bool(const TokenizeProgress&)> progress;
};

struct TokenizeReport {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t skipped_lines = 0;
  std::string first_skipped;  // "a.jsonl:7: ...", empty if none was skipped
  bool resumed = false;
};

// Writes PREFIX.bin, PREFIX.idx and PREFIX.tokenizer.json. Existing files are replaced at the end.
absl::StatusOr<TokenizeReport> TokenizeTexts(const std::vector<std::string>& paths,
                                             const tokenizer::Tokenizer& tokenizer,
                                             const std::string& prefix,
                                             const TokenizeOptions& options);

}  // namespace tercio::data

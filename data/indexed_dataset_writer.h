// Writes a Megatron indexed data set (data/indexed_dataset.h) block by block: memory is bounded by
// the blocks, and a writer that was killed resumes after its last block and ends with the same
// bytes.
//
// A document is one sequence, or several that EndSequence ends: sentences.
//
// While writing, everything lies in the directory PREFIX.partial: `tokens` and `lengths` grow (a
// length of n that does not begin a document is stored as -n), and each Commit adds a line to
// `journal` with the sizes of both, the SHA-256 of the data that the block added, and the caller's
// note (its position in the input). Open reads the journal, keeps the blocks whose digests are
// right and cuts off the rest. Finish renames the files into place, the index last, so a data set
// is there completely or not at all.
//
// Thread safety: thread-compatible. One process at a time: PREFIX.partial is locked. Errors:
// FAILED_PRECONDITION if another process writes PREFIX, RESOURCE_EXHAUSTED for a full disk,
// INVALID_ARGUMENT for a sequence of 2^31 tokens, else the system's error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/file.h"
#include "data/append_file.h"
#include "data/token_dataset.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data {

// uint16 below 65,500 ids, else int32 (Megatron's rule).
TokenType TokenTypeFor(int32_t vocab_size);

class IndexedDatasetWriter {
 public:
  // `key` identifies the content: a PREFIX.partial with another key is deleted.
  static absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> Open(const std::string& prefix,
                                                                    TokenType type,
                                                                    const std::string& key);

  // The note of the last block of the previous run, if there was one.
  const std::optional<std::string>& resumed_note() const { return resumed_note_; }

  // Adds ids to the current document. REQUIRES: the ids fit the type.
  absl::Status Append(absl::Span<const int32_t> ids);
  // A sequence or document without tokens is left out.
  void EndSequence();
  void EndDocument();
  // Bytes that Commit would write.
  int64_t uncommitted_bytes() const { return static_cast<int64_t>(block_.size()); }
  absl::Status Commit(const std::string& note);

  // Commits nothing more; makes the data set appear. REQUIRES: no document is open.
  absl::Status Finish(const tokenizer::Tokenizer& tokenizer);

  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }

 private:
  IndexedDatasetWriter(std::string prefix, TokenType type)
      : prefix_(std::move(prefix)), directory_(prefix_ + ".partial"), type_(type) {}

  std::string Part(const char* name) const { return directory_ + "/" + name; }
  // The data that the journal's good lines cover.
  struct Kept {
    int64_t journal_bytes = 0;
    int64_t token_bytes = 0;
    int64_t sequences = 0;
  };
  absl::StatusOr<Kept> Recover(const std::string& header);
  bool TakeBlock(const std::string& line, std::string_view tokens, std::string_view lengths,
                 Kept* kept);
  absl::Status WriteIndex() const;

  std::string prefix_;
  std::string directory_;
  TokenType type_;
  std::unique_ptr<FileLock> lock_;
  std::optional<AppendFile> tokens_file_;
  std::optional<AppendFile> lengths_file_;
  std::optional<AppendFile> journal_;
  std::optional<std::string> resumed_note_;
  std::string block_;          // token bytes not written yet
  std::string block_lengths_;  // lengths not written yet
  int64_t tokens_ = 0;
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  int64_t open_tokens_ = 0;     // tokens of the open sequence
  int64_t open_sequences_ = 0;  // sequences of the open document
};

}  // namespace tercio::data

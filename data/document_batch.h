// The pieces of texts, batch after batch, each batch worked on by several threads: the loop that
// tokenising and the collection of a vocabulary have in common.
//
// Threads: `work` is called on threads of its own, for different pieces at the same time; `take` on
// the caller's, for each piece in order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/text_source.h"
#include "data/tokenizer_choice.h"

namespace tercio::data {

// The document's text of a piece; `storage` holds it if it is not in the file. INVALID_ARGUMENT
// without a place if a .jsonl line holds none.
absl::StatusOr<std::string_view> TextOf(const TextPiece& piece, const TextOptions& options,
                                        std::string* storage);

// "a.jsonl:7: " or "a.txt: ", the prefix of messages about a piece.
std::string PlaceOf(const TextSource& source, const TextPiece& piece);

// Calls work(i) for 0 <= i < count on up to `threads` threads, and returns when all are done.
void ForEachOnThreads(int64_t count, int threads, const std::function<void(int64_t)>& work);

// The pieces of the next batch: enough for the threads, bounded in bytes. Empty at the end.
std::vector<TextPiece> NextBatch(TextSource& source, int threads);

// For each batch: result = work(piece) on threads, take(piece, result) in order, batch_done(). The
// first error of `take` or `batch_done` ends it.
template <typename Result>
absl::Status ForEachPiece(TextSource& source, int threads,
                          const std::function<Result(const TextPiece&)>& work,
                          const std::function<absl::Status(const TextPiece&, Result)>& take,
                          const std::function<absl::Status()>& batch_done) {
  while (true) {
    const std::vector<TextPiece> batch = NextBatch(source, threads);
    if (batch.empty()) return absl::OkStatus();
    std::vector<Result> results(batch.size());
    ForEachOnThreads(static_cast<int64_t>(batch.size()), threads, [&](int64_t i) {
      results[static_cast<size_t>(i)] = work(batch[static_cast<size_t>(i)]);
    });
    for (size_t i = 0; i < batch.size(); ++i) {
      if (absl::Status status = take(batch[i], std::move(results[i])); !status.ok()) return status;
    }
    if (absl::Status status = batch_done(); !status.ok()) return status;
  }
}

}  // namespace tercio::data

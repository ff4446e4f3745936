#include "data/document_batch.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "data/jsonl.h"

namespace tercio::data {
namespace {

// Each thread gets pieces of at least this many bytes, so that starting threads costs little.
constexpr int64_t kBytesPerThread = 1 << 20;
// Many short lines cost memory for their views and results, which bytes do not show.
constexpr size_t kMostPieces = 1 << 16;

}  // namespace

absl::StatusOr<std::string_view> TextOf(const TextPiece& piece, const TextOptions& options,
                                        std::string* storage) {
  if (!piece.json) return piece.text;
  TERCIO_ASSIGN_OR_RETURN(*storage, TextOfJsonLine(piece.text, options.text_key));
  return std::string_view(*storage);
}

std::string PlaceOf(const TextSource& source, const TextPiece& piece) {
  // Lines are what an editor shows for .jsonl files; a part of a text is found by its byte.
  const std::string& path = source.path(piece.begin.input);
  if (piece.json || piece.table.has_value()) {
    return absl::StrCat(path, ":", piece.begin.line, ": ");
  }
  return piece.begin.offset == 0
             ? absl::StrCat(path, ": ")
             : absl::StrCat(path, ": in the part from byte ", piece.begin.offset, ": ");
}

void ForEachOnThreads(int64_t count, int threads, const std::function<void(int64_t)>& work) {
  // Whoever is done takes the next piece, since pieces differ much in what they cost.
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> others;
  for (int64_t t = 1; t < std::min<int64_t>(threads, count); ++t) others.emplace_back(run);
  // The caller works, too, so that one thread needs no other.
  run();
  for (std::thread& thread : others) thread.join();
}

std::vector<TextPiece> NextBatch(TextSource& source, int threads) {
  std::vector<TextPiece> batch;
  int64_t bytes = 0;
  TextPiece piece;
  // The batch grows with the threads, but its memory stays bounded.
  while (bytes < kBytesPerThread * std::max(1, threads) && batch.size() < kMostPieces &&
         source.Next(&piece)) {
    bytes += static_cast<int64_t>(piece.text.size());
    batch.push_back(piece);
  }
  return batch;
}

}  // namespace tercio::data

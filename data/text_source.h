// The texts of a data set, cut into pieces of work in the order of the documents: one line of a
// .jsonl file is one document, any other file is one document. Threads share the pieces, and an
// interrupted run resumes at a position between two of them.
//
// A .jsonl line is one piece, and so is each record behind the header of a table
// (data/delimited.h), where tables have records. A text is one piece, too, unless `split_bytes`
// allows cutting it anywhere between two characters (the tokenizers `bytes` and `chars` give the
// same ids then).
//
// Thread safety: thread-compatible. Pieces point into memory-mapped files, which live as long as
// the source.
// Errors: NOT_FOUND | PERMISSION_DENIED | INVALID_ARGUMENT (a directory, an empty file, a table
// whose header cannot be read), each naming the path.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file.h"
#include "data/delimited.h"

namespace tercio::data {

// Size of the parts into which a text is cut, if it may be.
inline constexpr int64_t kTextPieceBytes = 1 << 18;

// The position of the next piece.
struct TextPlace {
  int64_t input = 0;   // index of the file
  int64_t offset = 0;  // byte in that file
  int64_t line = 1;    // line of a .jsonl file or table, for messages
};

struct TextPiece {
  std::string_view text;  // a .jsonl line or a record without its end, or a part of a text
  bool json = false;
  std::optional<TableKind> table;  // the text is a record
  bool ends_document = true;
  TextPlace begin;
  TextPlace end;
};

// A language model reads a table as a text like any other, a classifier record by record.
enum class Tables { kAreTexts, kHaveRecords };

class TextSource {
 public:
  // `split_bytes` 0: a text is never cut.
  static absl::StatusOr<TextSource> Open(const std::vector<std::string>& paths, int64_t split_bytes,
                                         Tables tables = Tables::kAreTexts);

  // False at the end. Skips blank lines.
  bool Next(TextPiece* piece);

  // REQUIRES: a place that a piece of the same files gave as its end.
  void GoTo(const TextPlace& place) { place_ = place; }
  // Whether GoTo may be called with a place that was read from a file.
  bool Has(const TextPlace& place) const;

  int64_t bytes() const { return bytes_; }
  // Bytes before the next piece.
  int64_t bytes_done() const;
  const std::string& path(int64_t input) const { return files_[static_cast<size_t>(input)].path; }
  std::string_view content(int64_t input) const {
    return files_[static_cast<size_t>(input)].file->content();
  }
  int64_t inputs() const { return static_cast<int64_t>(files_.size()); }
  bool json(int64_t input) const { return files_[static_cast<size_t>(input)].json; }
  // Names of the columns; empty: the file has no records.
  const std::vector<std::string>& header(int64_t input) const {
    return files_[static_cast<size_t>(input)].header;
  }
  // "a.tsv:1: ", where the header stands.
  std::string PlaceOfHeader(int64_t input) const;

 private:
  struct File {
    std::string path;
    std::shared_ptr<const MappedFile> file;
    bool json = false;
    std::optional<TableKind> table;
    std::vector<std::string> header;
    int64_t header_line = 1;
    int64_t body = 0;  // byte behind the header
    int64_t body_line = 1;
  };
  static absl::Status ReadHeader(File* file);
  bool NextLine(const File& file, TextPiece* piece);
  bool NextRecord(const File& file, TextPiece* piece);
  void NextPart(const File& file, TextPiece* piece);

  std::vector<File> files_;
  int64_t split_bytes_ = 0;
  int64_t bytes_ = 0;
  TextPlace place_;
};

// Whether a file is read line by line.
bool IsJsonl(std::string_view path);
// Whether a file may hold labelled texts: .jsonl, or a table.
bool MayHaveLabels(std::string_view path);

// A memory-mapped text that exists and is readable, not a directory and not empty.
absl::StatusOr<std::shared_ptr<const MappedFile>> OpenText(const std::string& path);

}  // namespace tercio::data

#include "data/text_source.h"

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "data/jsonl.h"

namespace tercio::data {

bool IsJsonl(std::string_view path) {
  return absl::EndsWith(absl::string_view(path.data(), path.size()), ".jsonl");
}

bool MayHaveLabels(std::string_view path) { return IsJsonl(path) || TableKindOf(path).has_value(); }

absl::StatusOr<std::shared_ptr<const MappedFile>> OpenText(const std::string& path) {
  std::error_code error;
  // A directory can be opened like a file, and would fail later with a message about mapping it.
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is a directory, not a text; name a file in it, or several with a pattern like ",
        path, "/*.jsonl"));
  }
  TERCIO_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
  // An empty file cannot be mapped, and is a mistake more often than intended.
  if (file->content().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the file is empty; name a file that holds text"));
  }
  return file;
}

absl::StatusOr<TextSource> TextSource::Open(const std::vector<std::string>& paths,
                                            int64_t split_bytes, Tables tables) {
  TextSource source;
  source.split_bytes_ = split_bytes;
  for (const std::string& path : paths) {
    File& file = source.files_.emplace_back();
    file.path = path;
    file.json = IsJsonl(path);
    // All files are opened at once, so that a missing one is found before hours of work.
    TERCIO_ASSIGN_OR_RETURN(file.file, OpenText(path));
    source.bytes_ += static_cast<int64_t>(file.file->content().size());
    if (tables == Tables::kAreTexts) continue;
    file.table = TableKindOf(path);
    if (file.table.has_value()) TERCIO_RETURN_IF_ERROR(ReadHeader(&file));
  }
  return source;
}

absl::Status TextSource::ReadHeader(File* file) {
  const std::string_view content = file->file->content();
  const auto fault = [file](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(file->path, ":", file->header_line, ": ", what));
  };
  // Spreadsheet programs write it, and a header of which every second byte is 0 would only puzzle.
  if (content.starts_with("\xFF\xFE") || content.starts_with("\xFE\xFF")) {
    return fault("the file is UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)");
  }
  size_t at = ByteOrderMark(content);
  Record record;
  for (int64_t line = 1; record.text.empty(); line += record.lines) {
    if (at >= content.size()) return fault("the file is empty; a header names its columns");
    record = FirstRecord(content.substr(at), *file->table);
    at += record.bytes;
    file->header_line = line;
    file->body_line = line + record.lines;
  }
  file->body = static_cast<int64_t>(at);
  absl::StatusOr<std::vector<std::string>> header = FieldsOf(record.text, *file->table);
  if (!header.ok()) return fault(std::string(header.status().message()));
  file->header = *std::move(header);
  return absl::OkStatus();
}

std::string TextSource::PlaceOfHeader(int64_t input) const {
  const File& file = files_[static_cast<size_t>(input)];
  return absl::StrCat(file.path, ":", file.header_line, ": ");
}

bool TextSource::Next(TextPiece* piece) {
  while (place_.input < inputs()) {
    const File& file = files_[static_cast<size_t>(place_.input)];
    if (place_.offset >= static_cast<int64_t>(file.file->content().size())) {
      // A new file begins with line 1, which messages name.
      place_ = {place_.input + 1, 0, 1};
    } else if (file.json) {
      if (NextLine(file, piece)) return true;
    } else if (file.table.has_value()) {
      if (NextRecord(file, piece)) return true;
    } else {
      NextPart(file, piece);
      return true;
    }
  }
  return false;
}

// Place and line advance over blank lines as well, so that messages name the line of an editor.
bool TextSource::NextLine(const File& file, TextPiece* piece) {
  const std::string_view rest = file.file->content().substr(static_cast<size_t>(place_.offset));
  const size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  const TextPlace begin = place_;
  place_.offset += static_cast<int64_t>(line.size()) + (end == std::string_view::npos ? 0 : 1);
  ++place_.line;
  if (IsBlank(line)) return false;
  // The end is kept with the piece, since a run that resumes begins at the end of the last one.
  *piece = {line, /*json=*/true, /*table=*/std::nullopt, /*ends_document=*/true, begin, place_};
  return true;
}

bool TextSource::NextRecord(const File& file, TextPiece* piece) {
  if (place_.offset < file.body) {
    place_.offset = file.body;
    place_.line = file.body_line;
    if (file.body >= static_cast<int64_t>(file.file->content().size())) return false;
  }
  const Record record =
      FirstRecord(file.file->content().substr(static_cast<size_t>(place_.offset)), *file.table);
  const TextPlace begin = place_;
  place_.offset += static_cast<int64_t>(record.bytes);
  place_.line += record.lines;
  // White space is a record of fields, if only of empty ones: a tab separates two.
  if (record.text.empty()) return false;
  *piece = {record.text, /*json=*/false, file.table, /*ends_document=*/true, begin, place_};
  return true;
}

void TextSource::NextPart(const File& file, TextPiece* piece) {
  const std::string_view rest = file.file->content().substr(static_cast<size_t>(place_.offset));
  size_t size = rest.size();
  if (split_bytes_ > 0 && size > static_cast<size_t>(split_bytes_)) {
    size = static_cast<size_t>(split_bytes_);
    // Avoids cutting within a character: the bytes after its first one begin with the bits 10.
    // The step back stops after three bytes, the most that continue a character: what is not UTF-8
    // is cut anywhere.
    for (int back = 0; back < 3 && (static_cast<uint8_t>(rest[size]) & 0xC0) == 0x80; ++back) {
      if (size > 1) --size;
    }
  }
  const TextPlace begin = place_;
  place_.offset += static_cast<int64_t>(size);
  *piece = {rest.substr(0, size),
            /*json=*/false,
            /*table=*/std::nullopt,
            /*ends_document=*/size == rest.size(),
            begin,
            place_};
}

bool TextSource::Has(const TextPlace& place) const {
  // The place comes from a journal on disk, where anything may stand.
  if (place.input < 0 || place.offset < 0 || place.line < 1 || place.input > inputs()) return false;
  if (place.input == inputs()) return place.offset == 0;
  return place.offset <= static_cast<int64_t>(content(place.input).size());
}

int64_t TextSource::bytes_done() const {
  int64_t done = place_.offset;
  for (int64_t i = 0; i < place_.input && i < inputs(); ++i) {
    done += static_cast<int64_t>(content(i).size());
  }
  return done;
}

}  // namespace tercio::data

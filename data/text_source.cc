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
                                            int64_t split_bytes) {
  TextSource source;
  source.split_bytes_ = split_bytes;
  for (const std::string& path : paths) {
    // All files are opened at once, so that a missing one is found before hours of work.
    TERCIO_ASSIGN_OR_RETURN(auto file, OpenText(path));
    source.bytes_ += static_cast<int64_t>(file->content().size());
    source.files_.push_back({path, std::move(file), IsJsonl(path)});
  }
  return source;
}

bool TextSource::Next(TextPiece* piece) {
  while (place_.input < inputs()) {
    const File& file = files_[static_cast<size_t>(place_.input)];
    if (place_.offset >= static_cast<int64_t>(file.file->content().size())) {
      // A new file begins with line 1, which messages name.
      place_ = {place_.input + 1, 0, 1};
    } else if (file.json) {
      if (NextLine(file, piece)) return true;
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
  *piece = {line, true, true, begin, place_};
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
  *piece = {rest.substr(0, size), false, size == rest.size(), begin, place_};
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

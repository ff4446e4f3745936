#include "data/tokenizer_choice.h"

#include <array>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "data/document_batch.h"
#include "data/text_source.h"

namespace tercio::data {
namespace {

absl::Status ChoiceFault(const std::string& where, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(where, std::string(status.message())));
}

// The distinct characters of a text, as the bytes that the first byte of each announces; CharsOf
// checks whether they are UTF-8.
std::set<std::string> DistinctCharacters(std::string_view text) {
  // Most characters are ASCII, for which an array is much cheaper than a set of strings.
  std::array<bool, 128> ascii = {};
  std::set<std::string_view> longer;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<uint8_t>(text[i]);
    if (first < 0x80) {
      ascii[first] = true;
      ++i;
      continue;
    }
    const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    longer.insert(text.substr(i, size));
    i += size;
  }
  std::set<std::string> distinct(longer.begin(), longer.end());
  for (size_t c = 0; c < ascii.size(); ++c) {
    if (ascii[c]) distinct.insert(std::string(1, static_cast<char>(c)));
  }
  return distinct;
}

// The error of the first text that is not UTF-8, with its place. A .jsonl line cannot be at fault:
// its parser has checked it.
absl::Status NotUtf8(const TextSource& source) {
  for (int64_t i = 0; i < source.inputs(); ++i) {
    if (source.json(i)) continue;
    const absl::Status status = tokenizer::Tokenizer::CharsOf({source.content(i)}).status();
    if (!status.ok()) return ChoiceFault(source.path(i) + ": ", status);
  }
  return absl::InternalError("a text changed while it was read");
}

// A line that holds no document adds no character: whether that is an error is decided when it is
// tokenised.
absl::StatusOr<tokenizer::Tokenizer> CharsOfFiles(const std::vector<std::string>& texts,
                                                  const TextOptions& options) {
  using Characters = std::set<std::string>;
  TERCIO_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(texts, kTextPieceBytes));
  Characters all;
  const std::function<Characters(const TextPiece&)> work = [&](const TextPiece& piece) {
    std::string storage;
    const absl::StatusOr<std::string_view> text = TextOf(piece, options, &storage);
    return text.ok() ? DistinctCharacters(*text) : Characters();
  };
  const std::function<absl::Status(const TextPiece&, Characters)> take = [&](const TextPiece&,
                                                                             Characters found) {
    all.merge(found);
    return absl::OkStatus();
  };
  TERCIO_RETURN_IF_ERROR(
      ForEachPiece(source, options.threads, work, take, [] { return absl::OkStatus(); }));
  absl::StatusOr<tokenizer::Tokenizer> tokenizer =
      tokenizer::Tokenizer::CharsOf(std::vector<std::string_view>(all.begin(), all.end()));
  return tokenizer.ok() ? tokenizer : NotUtf8(source);
}

}  // namespace

absl::StatusOr<tokenizer::Tokenizer> ChooseTokenizer(const std::string& name,
                                                     const std::vector<std::string>& texts,
                                                     const TextOptions& options) {
  // These two names take precedence over files of the same name.
  if (name == "bytes") return tokenizer::Tokenizer::Bytes();
  if (name == "chars") return CharsOfFiles(texts, options);
  if (!PathExists(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name.empty() ? "a text needs a tokenizer"
                                  : absl::StrCat("there is no tokenizer at '", name, "'"),
                     "; use bytes, chars, a tokenizer's file, or the directory that holds it"));
  }
  // Checkpoints hold tokenizers in a form of our own, under a name that others use, too.
  for (const std::string& path : {name, name + "/tokenizer.json"}) {
    const absl::StatusOr<std::string> json = ReadFile(path);
    if (!json.ok()) continue;
    if (absl::StatusOr<tokenizer::Tokenizer> stored = tokenizer::Tokenizer::FromJson(*json);
        stored.ok())
      return stored;
  }
  return tokenizer::Tokenizer::Load(name);
}

std::optional<int32_t> EndOfText(const tokenizer::Tokenizer& tokenizer) {
  return tokenizer.end_of_text();
}

bool MayCutText(const tokenizer::Tokenizer& tokenizer) {
  return tokenizer.kind() == "bytes" || tokenizer.kind() == "chars";
}

}  // namespace tercio::data

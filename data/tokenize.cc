#include "data/tokenize.h"

#include <sys/stat.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "data/document_batch.h"
#include "data/indexed_dataset_writer.h"
#include "data/jsonl.h"
#include "data/sentences.h"
#include "data/text_source.h"
#include "nlohmann/json.hpp"

namespace tercio::data {
namespace {

// The inputs that must be equal for a run to continue with the files of another. Inputs count by
// name, size and time of change.
std::string KeyOf(const std::vector<std::string>& paths, const tokenizer::Tokenizer& tokenizer,
                  const TokenizeOptions& options) {
  nlohmann::json key = {{"tokenizer", tokenizer.ToJson()},
                        {"text_key", options.text.text_key},
                        {"skip_bad_lines", options.text.skip_bad_lines},
                        {"append_end_of_text", options.append_end_of_text},
                        {"split_sentences", options.split_sentences}};
  for (const std::string& path : paths) {
    // A missing file leaves zeros here, and has been reported when the texts were opened.
    struct stat info = {};
    stat(path.c_str(), &info);
    key["inputs"].push_back(
        // A digest stands for the path, which may not be UTF-8. The number of the file tells a file
        // from another that was renamed to its name.
        {Sha256Hex(path), info.st_size, info.st_ino, info.st_mtim.tv_sec, info.st_mtim.tv_nsec});
  }
  return Sha256Hex(key.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// The result of a thread for a piece.
// Threads only encode; what depends on the order is left to the thread that takes the results.
struct Encoded {
  std::vector<int32_t> ids;
  std::vector<size_t> sentence_ends;       // positions in `ids`, except the last
  absl::Status line = absl::OkStatus();    // the line holds no document
  absl::Status status = absl::OkStatus();  // the text cannot be encoded
};

class Run {
 public:
  Run(TextSource source, const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options,
      std::unique_ptr<IndexedDatasetWriter> writer)
      : source_(std::move(source)),
        tokenizer_(tokenizer),
        options_(options),
        writer_(std::move(writer)),
        end_of_text_(EndOfText(tokenizer)) {}

  // Continues at the position of an earlier run.
  absl::Status Continue(const std::string& prefix);
  absl::StatusOr<TokenizeReport> ToEnd();

 private:
  Encoded Encode(const TextPiece& piece) const;
  absl::Status Take(const TextPiece& piece, Encoded encoded);
  absl::Status BatchDone();
  std::string Note() const;

  TextSource source_;
  const tokenizer::Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  std::unique_ptr<IndexedDatasetWriter> writer_;
  std::optional<int32_t> end_of_text_;
  TextPlace taken_;  // everything before it has been given to the writer
  TokenizeReport report_;
};

Encoded Run::Encode(const TextPiece& piece) const {
  Encoded encoded;
  std::string storage;
  const absl::StatusOr<std::string_view> text = TextOf(piece, options_.text, &storage);
  if (!text.ok()) {
    // Whether a bad line is an error is decided in order, so that the first one is reported.
    encoded.line = text.status();
    return encoded;
  }
  const std::vector<std::string_view> parts =
      options_.split_sentences ? Sentences(*text) : std::vector<std::string_view>{*text};
  for (const std::string_view part : parts) {
    absl::StatusOr<std::vector<int32_t>> ids = tokenizer_.Encode(part);
    if (!ids.ok()) {
      encoded.status = ids.status();
      return encoded;
    }
    // The end of the last sentence is the end of the document, which Take knows.
    if (!encoded.ids.empty()) encoded.sentence_ends.push_back(encoded.ids.size());
    encoded.ids.insert(encoded.ids.end(), ids->begin(), ids->end());
  }
  if (options_.split_sentences) return encoded;
  // A part of a cut text is no document, so only its last part may get the id.
  const bool ends = piece.ends_document && (piece.json || options_.append_end_of_text);
  // A .jsonl line without text is no document, and gets no id of its own.
  const bool empty = piece.json && encoded.ids.empty();
  if (ends && !empty && end_of_text_.has_value()) encoded.ids.push_back(*end_of_text_);
  return encoded;
}

// This runs on one thread, in the order of the documents, whatever the number of threads is.
absl::Status Run::Take(const TextPiece& piece, Encoded encoded) {
  if (!encoded.line.ok()) {
    const std::string what =
        absl::StrCat(PlaceOf(source_, piece), std::string(encoded.line.message()));
    if (!options_.text.skip_bad_lines) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, "; fix the line, or skip such lines (data.skip_bad_lines: true, ",
                       "--skip-bad-lines)"));
    }
    if (report_.skipped_lines++ == 0) report_.first_skipped = what;
  } else if (!encoded.status.ok()) {
    return absl::Status(encoded.status.code(), absl::StrCat(PlaceOf(source_, piece),
                                                            std::string(encoded.status.message())));
  } else {
    const absl::Span<const int32_t> ids = encoded.ids;
    size_t begin = 0;
    for (const size_t end : encoded.sentence_ends) {
      TERCIO_RETURN_IF_ERROR(writer_->Append(ids.subspan(begin, end - begin)));
      writer_->EndSequence();
      begin = end;
    }
    TERCIO_RETURN_IF_ERROR(writer_->Append(ids.subspan(begin)));
    if (piece.ends_document) writer_->EndDocument();
  }
  // The place is taken before the commit, whose note would name the piece again otherwise.
  taken_ = piece.end;
  // Blocks bound what a run that was killed has to repeat.
  if (writer_->uncommitted_bytes() < options_.block_bytes) return absl::OkStatus();
  return writer_->Commit(Note());
}

absl::Status Run::BatchDone() {
  if (!options_.progress) return absl::OkStatus();
  const TokenizeProgress progress = {source_.bytes_done(),  source_.bytes(),
                                     writer_->documents(),  writer_->tokens(),
                                     report_.skipped_lines, report_.resumed};
  if (options_.progress(progress)) return absl::OkStatus();
  // Stopping saves what the last block does not hold yet, so the next run repeats nothing.
  TERCIO_RETURN_IF_ERROR(writer_->Commit(Note()));
  return absl::CancelledError("stopped; run the same command again to continue from here");
}

std::string Run::Note() const {
  return nlohmann::json({{"input", taken_.input},
                         {"offset", taken_.offset},
                         {"line", taken_.line},
                         {"skipped_lines", report_.skipped_lines},
                         {"first_skipped", report_.first_skipped}})
      // The place of a skipped line may be in a file whose name is not UTF-8.
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status Run::Continue(const std::string& prefix) {
  // Without a journal of an earlier run everything starts at the beginning.
  if (!writer_->resumed_note().has_value()) return absl::OkStatus();
  const nlohmann::json note =
      nlohmann::json::parse(*writer_->resumed_note(), nullptr, /*allow_exceptions=*/false);
  // The journal's digests protect the note from damage, but not from a writer of another version.
  bool good =
      note.is_object() && note.contains("first_skipped") && note["first_skipped"].is_string();
  for (const char* key : {"input", "offset", "line", "skipped_lines"}) {
    good = good && note.contains(key) && note[key].is_number_integer();
  }
  if (good) taken_ = {note["input"], note["offset"], note["line"]};
  if (!good || !source_.Has(taken_)) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, ".partial/journal: the position to resume from is damaged; remove ",
                     prefix, ".partial and start again"));
  }
  report_.skipped_lines = note["skipped_lines"];
  report_.first_skipped = note["first_skipped"];
  report_.resumed = true;
  // The source skips what the writer has kept; together they give the bytes of one single run.
  source_.GoTo(taken_);
  return absl::OkStatus();
}

absl::StatusOr<TokenizeReport> Run::ToEnd() {
  const std::function<Encoded(const TextPiece&)> encode = [this](const TextPiece& piece) {
    return Encode(piece);
  };
  const std::function<absl::Status(const TextPiece&, Encoded)> take =
      [this](const TextPiece& piece, Encoded encoded) { return Take(piece, std::move(encoded)); };
  TERCIO_RETURN_IF_ERROR(
      ForEachPiece(source_, options_.text.threads, encode, take, [this] { return BatchDone(); }));
  // Finish requires that nothing is uncommitted.
  TERCIO_RETURN_IF_ERROR(writer_->Commit(Note()));
  report_.documents = writer_->documents();
  report_.tokens = writer_->tokens();
  // The data set is not finished, so an earlier one of this name stays.
  if (report_.tokens == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_.path(0), source_.inputs() > 1 ? " and the other files" : "",
                     ": no text to train on",
                     report_.skipped_lines > 0
                         ? "; " + SkippedLinesNotice(report_.skipped_lines, report_.first_skipped)
                         : "; name a file that holds text"));
  }
  TERCIO_RETURN_IF_ERROR(writer_->Finish(tokenizer_));
  return report_;
}

}  // namespace

absl::StatusOr<TokenizeReport> TokenizeTexts(const std::vector<std::string>& paths,
                                             const tokenizer::Tokenizer& tokenizer,
                                             const std::string& prefix,
                                             const TokenizeOptions& options) {
  if (options.append_end_of_text && !EndOfText(tokenizer).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer '", tokenizer.kind(),
                     "' has no end-of-text id; omit --append-eod or use another tokenizer"));
  }
  if (prefix.empty() || prefix.back() == '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("the output '", prefix, "' is not a PREFIX of file names; use one such as ",
                     prefix, "corpus"));
  }
  if (options.append_end_of_text && options.split_sentences) {
    return absl::InvalidArgumentError(
        "the index stores where sentences end, without end-of-text ids; omit --append-eod or "
        "--split-sentences");
  }
  // A sentence may span a cut, so texts whose sentences matter stay whole.
  const bool may_cut = MayCutText(tokenizer) && !options.split_sentences;
  TERCIO_ASSIGN_OR_RETURN(TextSource source,
                          TextSource::Open(paths, may_cut ? kTextPieceBytes : 0));
  TERCIO_ASSIGN_OR_RETURN(auto writer,
                          IndexedDatasetWriter::Open(prefix, TokenTypeFor(tokenizer.vocab_size()),
                                                     KeyOf(paths, tokenizer, options)));
  Run run(std::move(source), tokenizer, options, std::move(writer));
  // The writer has recovered by now, so its note tells where to continue.
  TERCIO_RETURN_IF_ERROR(run.Continue(prefix));
  return run.ToEnd();
}

}  // namespace tercio::data

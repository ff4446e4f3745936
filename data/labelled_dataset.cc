#include "data/labelled_dataset.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "data/delimited.h"
#include "data/document_batch.h"
#include "data/jsonl.h"
#include "data/text_source.h"

namespace tercio::data {
namespace {

// The wrong column may hold long texts.
constexpr size_t kMostLabelShown = 40;

// The result of a thread for a line.
struct Line {
  std::vector<int32_t> first;
  std::optional<std::vector<int32_t>> second;
  int32_t label = 0;
};

// The lengths to which two texts are cut, so that both together are at most `most` tokens.
// Each text keeps at least half of the space, so that a long one cannot displace the other.
std::pair<size_t, size_t> LongestFirst(size_t first, size_t second, size_t most) {
  if (first + second <= most) return {first, second};
  const size_t half = most / 2;
  if (first <= half) return {first, most - first};
  if (second <= half) return {most - second, second};
  return {most - half, half};  // the second is cut if both are as long
}

std::string NamesOf(const LabelRules& rules) {
  return absl::StrCat("model.labels (", absl::StrJoin(rules.label_names, ", "), ")");
}

absl::StatusOr<int32_t> LabelOfNumber(int64_t number, const LabelRules& rules) {
  if (number >= 0 && number < rules.labels) return static_cast<int32_t>(number);
  return absl::InvalidArgumentError(absl::StrCat("label ", number, " is outside 0 to ",
                                                 rules.labels - 1,
                                                 "; model.labels is the number of classes"));
}

std::optional<int32_t> ClassNamed(const std::string& name, const LabelRules& rules) {
  const auto found = std::find(rules.label_names.begin(), rules.label_names.end(), name);
  if (found == rules.label_names.end()) return std::nullopt;
  return static_cast<int32_t>(found - rules.label_names.begin());
}

absl::StatusOr<int32_t> LabelOf(const JsonValue& value, const LabelRules& rules) {
  if (const auto* name = std::get_if<std::string>(&value)) {
    // A text is always a name, even if it looks like a number.
    if (const auto label = ClassNamed(*name, rules)) return *label;
    return absl::InvalidArgumentError(absl::StrCat(
        "label '", *name, "' is ",
        rules.label_names.empty()
            ? absl::StrCat("a name, but model.labels names no classes; list all ", rules.labels,
                           " names there, or use numbers from 0 to ", rules.labels - 1)
            : absl::StrCat("not one of ", NamesOf(rules))));
  }
  // A value that is not a name is a number: MembersOfJsonLine returns nothing else.
  return LabelOfNumber(std::get<int64_t>(value), rules);
}

// Tables have no numbers, only texts that may look like one.
absl::StatusOr<int32_t> LabelOfField(const std::string& field, const LabelRules& rules) {
  if (const auto label = ClassNamed(field, rules)) return *label;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number);
  if (error == std::errc() && end == field.data() + field.size()) {
    return LabelOfNumber(number, rules);
  }
  const std::string numbers = absl::StrCat("a number from 0 to ", rules.labels - 1);
  return absl::InvalidArgumentError(absl::StrCat(
      field.empty() ? "the label is empty"
                    : absl::StrCat("label '", ForDisplay(field.substr(0, kMostLabelShown)),
                                   field.size() > kMostLabelShown ? "...'" : "'", " is not known"),
      "; expected ",
      rules.label_names.empty() ? numbers
                                : absl::StrCat("one of ", NamesOf(rules), ", or ", numbers)));
}

// An example as its file has it.
struct Labelled {
  std::string text;
  std::optional<std::string> text_pair;
  int32_t label = 0;
};

absl::StatusOr<std::string> TextAt(std::optional<JsonValue> value, const std::string& key,
                                   const char* setting) {
  if (!value.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the object has no key '", key, "'; name the key with data.", setting));
  }
  if (auto* text = std::get_if<std::string>(&*value)) return std::move(*text);
  return absl::InvalidArgumentError(
      absl::StrCat("the value of '", key, "' is a number, expected text"));
}

absl::StatusOr<Labelled> ReadObject(std::string_view line, const LabelRules& rules) {
  // Three members in one pass over the line, since reading it is most of the work.
  const std::string keys[] = {rules.text_key, rules.text_pair_key, rules.label_key};
  TERCIO_ASSIGN_OR_RETURN(auto members, MembersOfJsonLine(line, keys));
  Labelled read;
  TERCIO_ASSIGN_OR_RETURN(read.text, TextAt(std::move(members[0]), rules.text_key, "text_key"));
  // Without a label a line teaches nothing, and guessing one would spoil the training.
  if (!members[2].has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("the object has no key '", rules.label_key,
                                                   "'; name the key with data.label_key"));
  }
  TERCIO_ASSIGN_OR_RETURN(read.label, LabelOf(*members[2], rules));
  // Only some lines need a second text: one file may mix both forms.
  if (members[1].has_value()) {
    TERCIO_ASSIGN_OR_RETURN(read.text_pair,
                            TextAt(std::move(members[1]), rules.text_pair_key, "text_pair_key"));
  }
  return read;
}

// Where a table has what an example needs.
struct Columns {
  size_t all = 0;
  size_t text = 0;
  std::optional<size_t> text_pair;
  size_t label = 0;
};

// Every file has a header of its own, and may order its columns in its own way.
absl::StatusOr<Columns> FindColumns(const std::vector<std::string>& header,
                                    const LabelRules& rules) {
  Columns columns;
  columns.all = header.size();
  TERCIO_ASSIGN_OR_RETURN(columns.text,
                          FindColumn(header, rules.text_key, "data.text_key, --text-key"));
  absl::StatusOr<size_t> label = FindColumn(header, rules.label_key, "data.label_key, --label-key");
  if (!label.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(label.status().message()),
        "; every file of a classifier needs labels. The test sets that GLUE publishes have none: ",
        "use a part of the labelled data instead"));
  }
  columns.label = *label;
  const bool has_pairs =
      std::find(header.begin(), header.end(), rules.text_pair_key) != header.end();
  // A name that a person gave must exist, while most tables have no second text.
  if (has_pairs || rules.text_pair_key != kTextPairKey) {
    TERCIO_ASSIGN_OR_RETURN(columns.text_pair, FindColumn(header, rules.text_pair_key,
                                                          "data.text_pair_key, --text-pair-key"));
  }
  return columns;
}

absl::Status InColumn(const std::string& column, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("column '", column, "': ", what));
}

absl::StatusOr<Labelled> ReadFields(const TextPiece& record, const Columns& columns,
                                    const LabelRules& rules) {
  TERCIO_ASSIGN_OR_RETURN(std::vector<std::string> fields, FieldsOf(record.text, *record.table));
  if (fields.size() != columns.all) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", fields.size(), fields.size() == 1 ? " field" : " fields",
                     ", but the header names ", columns.all, " columns"));
  }
  Labelled read;
  absl::StatusOr<int32_t> label = LabelOfField(fields[columns.label], rules);
  if (!label.ok()) return InColumn(rules.label_key, std::string(label.status().message()));
  read.label = *label;
  // Another encoding would be trained on as if its letters were noise.
  const auto check = [](const std::string& text, const std::string& column) {
    return IsUtf8(text) ? absl::OkStatus() : InColumn(column, "not UTF-8; convert the file");
  };
  TERCIO_RETURN_IF_ERROR(check(fields[columns.text], rules.text_key));
  read.text = std::move(fields[columns.text]);
  if (IsBlank(read.text)) return InColumn(rules.text_key, "the text is empty");
  if (columns.text_pair.has_value() && !fields[*columns.text_pair].empty()) {
    TERCIO_RETURN_IF_ERROR(check(fields[*columns.text_pair], rules.text_pair_key));
    read.text_pair = std::move(fields[*columns.text_pair]);
  }
  return read;
}

absl::StatusOr<Line> Encode(const Labelled& read, const tokenizer::Tokenizer& tokenizer) {
  // An empty text would be a sample of special tokens only.
  if (IsBlank(read.text)) return absl::InvalidArgumentError("the text is empty");
  Line line;
  line.label = read.label;
  TERCIO_ASSIGN_OR_RETURN(line.first, tokenizer.Encode(read.text));
  if (line.first.empty()) return absl::InvalidArgumentError("the text has no tokens");
  if (read.text_pair.has_value()) {
    TERCIO_ASSIGN_OR_RETURN(line.second, tokenizer.Encode(*read.text_pair));
  }
  return line;
}

// Reads the examples of open files, in their order.
class ExampleReader {
 public:
  ExampleReader(TextSource source, std::vector<Columns> columns,
                const tokenizer::Tokenizer& tokenizer, const LabelRules& rules)
      : source_(std::move(source)),
        columns_(std::move(columns)),
        tokenizer_(tokenizer),
        rules_(rules),
        lines_(static_cast<size_t>(source_.inputs())) {}

  absl::StatusOr<LabelledExamples> ToEnd();

 private:
  // On any thread.
  absl::StatusOr<Line> ReadPiece(const TextPiece& piece) const;
  // On the caller's thread, in the order of the lines: the result needs no lock and does not depend
  // on the number of threads.
  absl::Status Take(const TextPiece& piece, absl::StatusOr<Line> line);

  TextSource source_;
  const std::vector<Columns> columns_;  // of each file; unused for .jsonl
  const tokenizer::Tokenizer& tokenizer_;
  const LabelRules& rules_;
  std::vector<int64_t> lines_;  // of each file
  LabelledExamples all_;
};

void Append(const Line& line, const LabelRules& rules, LabelledExamples* out) {
  const bool pair = line.second.has_value();
  // The special tokens around the texts take two places, or three for a pair.
  const auto most = static_cast<size_t>(rules.context - (pair ? 3 : 2));
  const auto [first, second] =
      LongestFirst(line.first.size(), pair ? line.second->size() : 0, most);
  // Examples are cut when they are read, since the ids behind the cut are never used.
  out->examples.push_back({static_cast<int64_t>(out->ids.size()), static_cast<int32_t>(first),
                           static_cast<int32_t>(second), line.label, pair});
  const auto append = [out](const std::vector<int32_t>& ids, size_t count) {
    out->ids.insert(out->ids.end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count));
  };
  append(line.first, first);
  if (pair) append(*line.second, second);
}

absl::StatusOr<Line> ExampleReader::ReadPiece(const TextPiece& piece) const {
  absl::StatusOr<Labelled> read =
      piece.json ? ReadObject(piece.text, rules_)
                 : ReadFields(piece, columns_[static_cast<size_t>(piece.begin.input)], rules_);
  if (!read.ok()) return read.status();
  return Encode(*read, tokenizer_);
}

absl::Status ExampleReader::Take(const TextPiece& piece, absl::StatusOr<Line> line) {
  ++lines_[static_cast<size_t>(piece.begin.input)];
  if (line.ok()) {
    Append(*line, rules_, &all_);
    return absl::OkStatus();
  }
  const std::string what =
      absl::StrCat(PlaceOf(source_, piece), std::string(line.status().message()));
  // Skipping what never ends would skip all the rest of the file as one line.
  if (absl::IsOutOfRange(line.status())) return absl::InvalidArgumentError(what);
  // By default a bad line ends the job, since data that shrinks unnoticed is worse.
  if (!rules_.skip_bad_lines) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "; fix the line, or skip such lines (data.skip_bad_lines: true)"));
  }
  if (all_.skipped_lines++ == 0) all_.first_skipped = what;
  return absl::OkStatus();
}

absl::StatusOr<LabelledExamples> ExampleReader::ToEnd() {
  using Result = absl::StatusOr<Line>;
  const std::function<Result(const TextPiece&)> work = [this](const TextPiece& piece) {
    return ReadPiece(piece);
  };
  const std::function<absl::Status(const TextPiece&, Result)> take =
      [this](const TextPiece& piece, Result line) { return Take(piece, std::move(line)); };
  TERCIO_RETURN_IF_ERROR(
      ForEachPiece(source_, rules_.threads, work, take, [] { return absl::OkStatus(); }));
  for (int64_t i = 0; i < source_.inputs(); ++i) {
    if (lines_[static_cast<size_t>(i)] > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        source_.path(i), ": no example", source_.json(i) ? "" : " behind the line of the header"));
  }
  return std::move(all_);
}

}  // namespace

absl::StatusOr<LabelledExamples> ReadLabelledExamples(const std::vector<std::string>& paths,
                                                      const tokenizer::Tokenizer& tokenizer,
                                                      const LabelRules& rules) {
  // Below that a pair would have no place for a token of each text.
  TERCIO_CHECK_GE(rules.context, 4);
  for (const std::string& path : paths) {
    if (MayHaveLabels(path)) continue;
    // Other files have no labels, and are refused before any of them is read.
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": a classifier (model.labels) learns from .jsonl, .csv or .tsv files with a text ",
        "and a label in each line"));
  }
  TERCIO_ASSIGN_OR_RETURN(TextSource source,
                          TextSource::Open(paths, /*split_bytes=*/0, Tables::kHaveRecords));
  std::vector<Columns> columns(paths.size());
  for (int64_t i = 0; i < source.inputs(); ++i) {
    if (source.json(i)) continue;
    absl::StatusOr<Columns> found = FindColumns(source.header(i), rules);
    if (!found.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(source.PlaceOfHeader(i), std::string(found.status().message())));
    }
    columns[static_cast<size_t>(i)] = *found;
  }
  return ExampleReader(std::move(source), std::move(columns), tokenizer, rules).ToEnd();
}

int64_t LongestSample(const LabelledExamples& all) {
  int64_t longest = 0;
  for (const LabelledExamples::Example& example : all.examples) {
    longest = std::max<int64_t>(longest, example.first + example.second + (example.pair ? 3 : 2));
  }
  return longest;
}

// The key is not used, for such a sample contains no random decision.
void LabelledDataset::Read(int64_t sample, SampleKey, Sample* out) const {
  TERCIO_CHECK(sample >= 0 && sample < samples());
  const LabelledExamples::Example& example = all_->examples[static_cast<size_t>(begin_ + sample)];
  // Every field is written, because callers pass the same sample again.
  const auto context = static_cast<size_t>(rules_.context);
  out->inputs.assign(context, rules_.pad);
  out->targets.assign(context, kNoTarget);
  out->types.assign(context, 0);
  out->label = example.label;
  const int32_t* const ids = all_->ids.data() + example.begin;
  int32_t* place = out->inputs.data();
  *place++ = rules_.cls;
  place = std::copy(ids, ids + example.first, place);
  *place++ = rules_.sep;
  if (example.pair) {
    const auto types_begin = place - out->inputs.data();
    place = std::copy(ids + example.first, ids + example.first + example.second, place);
    *place++ = rules_.sep;
    // A model with one token type has no second row in its table.
    std::fill(out->types.begin() + types_begin, out->types.begin() + (place - out->inputs.data()),
              rules_.token_types > 1 ? 1 : 0);
  }
  out->length = static_cast<int32_t>(place - out->inputs.data());
}

int64_t LabelledDataset::tokens() const {
  int64_t sum = 0;
  for (int64_t i = begin_; i < end_; ++i) {
    const LabelledExamples::Example& example = all_->examples[static_cast<size_t>(i)];
    // The special tokens are left out, so that the number is one of the data and not of the model.
    sum += example.first + example.second;
  }
  return sum;
}

void LabelledDataset::CountLabels(std::vector<int64_t>* counts) const {
  for (int64_t i = begin_; i < end_; ++i) {
    ++(*counts)[static_cast<size_t>(all_->examples[static_cast<size_t>(i)].label)];
  }
}

}  // namespace tercio::data

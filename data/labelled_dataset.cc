#include "data/labelled_dataset.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "data/document_batch.h"
#include "data/jsonl.h"
#include "data/text_source.h"

namespace tercio::data {
namespace {

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

absl::StatusOr<int32_t> LabelOf(const JsonValue& value, const LabelRules& rules) {
  if (const auto* name = std::get_if<std::string>(&value)) {
    // A text is always a name, even if it looks like a number.
    const auto found = std::find(rules.label_names.begin(), rules.label_names.end(), *name);
    if (found != rules.label_names.end()) {
      return static_cast<int32_t>(found - rules.label_names.begin());
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "label '", *name, "' is ",
        rules.label_names.empty()
            ? absl::StrCat("a name, but model.labels names no classes; list all ", rules.labels,
                           " names there, or use numbers from 0 to ", rules.labels - 1)
            : absl::StrCat("not one of ", NamesOf(rules))));
  }
  // A value that is not a name is a number: MembersOfJsonLine returns nothing else.
  const int64_t number = std::get<int64_t>(value);
  if (number >= 0 && number < rules.labels) return static_cast<int32_t>(number);
  return absl::InvalidArgumentError(absl::StrCat("label ", number, " is outside 0 to ",
                                                 rules.labels - 1,
                                                 "; model.labels is the number of classes"));
}

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

absl::StatusOr<Line> ReadLine(std::string_view text, const tokenizer::Tokenizer& tokenizer,
                              const LabelRules& rules) {
  // Three members in one pass over the line, since reading it is most of the work.
  const std::string keys[] = {rules.text_key, rules.text_pair_key, rules.label_key};
  TERCIO_ASSIGN_OR_RETURN(auto members, MembersOfJsonLine(text, keys));
  TERCIO_ASSIGN_OR_RETURN(const std::string first,
                          TextAt(std::move(members[0]), rules.text_key, "text_key"));
  Line line;
  // Without a label a line teaches nothing, and guessing one would spoil the training.
  if (!members[2].has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("the object has no key '", rules.label_key,
                                                   "'; name the key with data.label_key"));
  }
  TERCIO_ASSIGN_OR_RETURN(line.label, LabelOf(*members[2], rules));
  TERCIO_ASSIGN_OR_RETURN(line.first, tokenizer.Encode(first));
  // An empty text would be a sample of special tokens only.
  if (line.first.empty()) return absl::InvalidArgumentError("the text has no tokens");
  // Only some lines need a second text: one file may mix both forms.
  if (members[1].has_value()) {
    TERCIO_ASSIGN_OR_RETURN(const std::string second,
                            TextAt(std::move(members[1]), rules.text_pair_key, "text_pair_key"));
    TERCIO_ASSIGN_OR_RETURN(line.second, tokenizer.Encode(second));
  }
  return line;
}

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

}  // namespace

absl::StatusOr<LabelledExamples> ReadLabelledExamples(const std::vector<std::string>& paths,
                                                      const tokenizer::Tokenizer& tokenizer,
                                                      const LabelRules& rules) {
  // Below that a pair would have no place for a token of each text.
  TERCIO_CHECK_GE(rules.context, 4);
  for (const std::string& path : paths) {
    if (IsJsonl(path)) continue;
    // Other files have no labels, and are refused before any of them is read.
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": a classifier (model.labels) learns from .jsonl files with a text and a label in ",
        "each line"));
  }
  TERCIO_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(paths, /*split_bytes=*/0));
  LabelledExamples all;
  using Result = absl::StatusOr<Line>;
  const std::function<Result(const TextPiece&)> work = [&](const TextPiece& piece) {
    return ReadLine(piece.text, tokenizer, rules);
  };
  // This runs on the caller's thread in the order of the lines, so `all` needs no lock and does not
  // depend on the number of threads.
  const std::function<absl::Status(const TextPiece&, Result)> take = [&](const TextPiece& piece,
                                                                         Result line) {
    if (line.ok()) {
      Append(*line, rules, &all);
      return absl::OkStatus();
    }
    const std::string what =
        absl::StrCat(PlaceOf(source, piece), std::string(line.status().message()));
    // By default a bad line ends the job, since data that shrinks unnoticed is worse.
    if (!rules.skip_bad_lines) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, "; fix the line, or skip such lines (data.skip_bad_lines: true)"));
    }
    if (all.skipped_lines++ == 0) all.first_skipped = what;
    return absl::OkStatus();
  };
  TERCIO_RETURN_IF_ERROR(
      ForEachPiece(source, rules.threads, work, take, [] { return absl::OkStatus(); }));
  return all;
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

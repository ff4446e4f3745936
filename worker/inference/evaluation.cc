#include "worker/inference/evaluation.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "data/bert_rules.h"
#include "data/jsonl.h"
#include "data/labelled_dataset.h"
#include "data/text_source.h"
#include "worker/inference/cross_entropy.h"

namespace tercio::inference {
namespace {

// Classes that never occur, or are never predicted,
// have no rate: 0 is what scikit-learn gives them.
double Ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

ClassScores ScoresOf(const Confusion& confusion, size_t label) {
  int64_t predicted = 0;
  ClassScores scores;
  for (size_t i = 0; i < confusion.size(); ++i) {
    predicted += confusion[i][label];
    scores.support += confusion[label][i];
  }
  const int64_t right = confusion[label][label];
  scores.precision = Ratio(right, predicted);
  scores.recall = Ratio(right, scores.support);
  // F1 is 2 TP / (2 TP + FP + FN); predicted is TP + FP, and support is TP + FN.
  scores.f1 = Ratio(2 * right, predicted + scores.support);
  return scores;
}

struct Passage {
  std::string text;
  int64_t line;
};

absl::Status NoTokenizer() {
  return absl::InvalidArgumentError(
      "the model has no tokenizer that is supported by this version; name one with --tokenizer "
      "PATH");
}

absl::StatusOr<std::vector<Passage>> ReadPassages(const std::string& path) {
  TERCIO_ASSIGN_OR_RETURN(const auto file, data::OpenText(path));
  std::vector<Passage> passages;
  const std::string_view content = file->content();
  int64_t line = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view text = content.substr(begin, end - begin);
    ++line;
    begin = end + 1;
    // Blank lines are no passages, but count for the numbers that messages name.
    if (data::IsBlank(text)) continue;
    Passage passage{std::string(text), line};
    if (data::IsJsonl(path)) {
      absl::StatusOr<std::string> member = data::TextOfJsonLine(text, "text");
      if (!member.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ":", line, ": ", std::string(member.status().message())));
      }
      passage.text = *std::move(member);
    }
    // The last word is what follows the last space.
    absl::StripTrailingAsciiWhitespace(&passage.text);
    passages.push_back(std::move(passage));
  }
  return passages;
}

}  // namespace

ClassificationReport ReportOf(const Confusion& confusion) {
  ClassificationReport report;
  report.confusion = confusion;
  int64_t right = 0;
  const auto classes = static_cast<double>(confusion.size());
  for (size_t label = 0; label < confusion.size(); ++label) {
    const ClassScores scores = ScoresOf(confusion, label);
    report.classes.push_back(scores);
    report.examples += scores.support;
    right += confusion[label][label];
    // Each class counts alike, however rare it is (the macro average).
    report.overall.precision += scores.precision / classes;
    report.overall.recall += scores.recall / classes;
    report.overall.f1 += scores.f1 / classes;
  }
  report.accuracy = Ratio(right, report.examples);
  // With two classes GLUE's scores are those of the second one alone.
  if (report.classes.size() == 2) report.overall = report.classes[1];
  return report;
}

absl::StatusOr<ClassificationReport> EvaluateClasses(EncoderModel& model, const v1::DataSpec& data,
                                                     const LanguageModel::Progress& progress) {
  if (model.spec().labels() == 0) {
    return absl::InvalidArgumentError("the model has no classes (model.labels)");
  }
  if (model.tokenizer() == nullptr) return NoTokenizer();
  TERCIO_ASSIGN_OR_RETURN(data::LabelRules rules,
                          data::LabelRulesOf(data, model.spec(), *model.tokenizer()));
  TERCIO_ASSIGN_OR_RETURN(data::LabelledExamples read,
                          data::ReadLabelledExamples({data.train()}, *model.tokenizer(), rules));
  const auto count = static_cast<int64_t>(read.examples.size());
  if (count == 0) return absl::InvalidArgumentError(data.train() + ": contains no examples");
  const data::LabelledDataset examples(std::make_shared<data::LabelledExamples>(std::move(read)), 0,
                                       count, std::move(rules));
  const auto classes = static_cast<size_t>(model.spec().labels());
  Confusion confusion(classes, std::vector<int64_t>(classes));
  double loss = 0;
  data::Sample sample(model.spec().context());
  for (int64_t i = 0; i < count; ++i) {
    // With this key a sample is the same in every evaluation, whatever is drawn for it in training.
    examples.Read(i, data::kValidationKey, &sample);
    TERCIO_ASSIGN_OR_RETURN(const absl::Span<const float> logits, model.ClassLogits(sample));
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    // The true class comes first, as in the header.
    ++confusion[static_cast<size_t>(sample.label)][static_cast<size_t>(best)];
    // The loss also shows how sure the model was, which the table of predictions does not.
    loss += CrossEntropy(logits, sample.label);
    if (progress) progress(i + 1, count);
  }
  ClassificationReport report = ReportOf(confusion);
  report.loss = loss / static_cast<double>(count);
  return report;
}

absl::StatusOr<LastWords> EvaluateLastWords(LanguageModel& model, const std::string& path,
                                            const LanguageModel::Progress& progress) {
  if (model.tokenizer() == nullptr) return NoTokenizer();
  TERCIO_ASSIGN_OR_RETURN(const std::vector<Passage> passages, ReadPassages(path));
  LastWords result;
  double sum = 0;
  for (const Passage& passage : passages) {
    // People look for the line in their file.
    const auto fault = [&](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", passage.line, ": ", what));
    };
    const size_t space = passage.text.find_last_of(" \t");
    // The test asks what follows a text, so there has to be one.
    if (space == std::string::npos) return fault("a single word, with nothing to predict it from");
    TERCIO_ASSIGN_OR_RETURN(const std::vector<int32_t> all,
                            model.tokenizer()->Encode(passage.text));
    TERCIO_ASSIGN_OR_RETURN(const std::vector<int32_t> before,
                            model.tokenizer()->Encode(passage.text.substr(0, space)));
    // The ids that the word changes: a tokenizer may merge it with its space, or more.
    const auto differs = std::mismatch(all.begin(), all.end(), before.begin(), before.end()).first;
    const auto known = static_cast<size_t>(differs - all.begin());
    const auto ids = absl::MakeConstSpan(all);
    const absl::StatusOr<LanguageModel::Prediction> prediction =
        model.Predict(ids.subspan(0, known), ids.subspan(known));
    if (!prediction.ok()) return fault(std::string(prediction.status().message()));
    ++result.passages;
    // A word is right if each of its ids is the most likely one.
    result.right += prediction->likeliest ? 1 : 0;
    result.tokens += static_cast<int64_t>(all.size() - known);
    sum += prediction->loss;
    if (progress) progress(result.passages, static_cast<int64_t>(passages.size()));
  }
  if (result.passages == 0) return absl::InvalidArgumentError(path + ": contains no passages");
  // The mean is over tokens, so that long words count for more, as in a text.
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace tercio::inference

#include "worker/inference/evaluation.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "data/bert_rules.h"
#include "data/data_files.h"
#include "data/jsonl.h"
#include "data/labelled_dataset.h"
#include "data/text_source.h"
#include "plan/quality.h"
#include "worker/inference/cross_entropy.h"

namespace tercio::inference {
namespace {

// Tokens of a pass: enough for products of full speed, with activations of moderate size.
constexpr int64_t kTokensOfPass = 1024;
// Their table of predictions is 128 MiB.
constexpr int kMostClasses = 4096;

struct Passage {
  std::string text;
  int64_t line;
};

absl::Status NoTokenizer() {
  return absl::InvalidArgumentError(
      "the model has no tokenizer that is supported by this version; name one with --tokenizer "
      "PATH");
}

absl::StatusOr<std::vector<Passage>> ReadPassages(const std::string& path,
                                                  const std::string& text_key) {
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
      absl::StatusOr<std::string> member =
          data::TextOfJsonLine(text, text_key.empty() ? "text" : text_key);
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

absl::StatusOr<v1::Evaluation> EvaluateClasses(const OpenedModel& opened, const v1::DataSpec& data,
                                               int threads, int64_t context,
                                               const LanguageModel::Progress& progress) {
  TERCIO_RETURN_IF_ERROR(CheckIsEncoder(opened));
  v1::ModelSpec spec = opened.spec();
  if (spec.labels() == 0) {
    return absl::InvalidArgumentError("the model has no classes (model.labels)");
  }
  if (spec.labels() > kMostClasses) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model has ", spec.labels(), " classes; this version scores up to ", kMostClasses));
  }
  if (!opened.tokenizer.has_value()) return NoTokenizer();
  TERCIO_RETURN_IF_ERROR(CheckContext(opened, context));
  if (context > 0) spec.set_context(static_cast<int32_t>(context));
  TERCIO_ASSIGN_OR_RETURN(data::LabelRules rules,
                          data::LabelRulesOf(data, spec, *opened.tokenizer));
  rules.threads = threads;
  TERCIO_ASSIGN_OR_RETURN(const data::DataFiles files, data::FindDataFiles({data.train()}));
  TERCIO_ASSIGN_OR_RETURN(data::LabelledExamples read,
                          data::ReadLabelledExamples(files.paths, *opened.tokenizer, rules));
  const auto count = static_cast<int64_t>(read.examples.size());
  if (count == 0) return absl::InvalidArgumentError(data.train() + ": contains no examples");
  // No pass computes padding behind the longest example; texts are most often much shorter than the
  // context.
  rules.context = data::LongestSample(read);
  const PassSize pass = {.sequences = std::clamp<int64_t>(kTokensOfPass / rules.context, 1, count),
                         .context = rules.context};
  TERCIO_ASSIGN_OR_RETURN(const auto model, EncoderModel::Load(opened, threads, pass));
  const data::LabelledDataset examples(std::make_shared<data::LabelledExamples>(std::move(read)), 0,
                                       count, rules);
  v1::Evaluation evaluation;
  *evaluation.mutable_confusion() = plan::EmptyConfusion(spec.labels());
  const auto classes = static_cast<size_t>(spec.labels());
  std::vector<data::Sample> samples(static_cast<size_t>(pass.sequences),
                                    data::Sample(rules.context));
  double loss = 0;
  for (int64_t first = 0; first < count; first += pass.sequences) {
    const auto in_pass = static_cast<size_t>(std::min(pass.sequences, count - first));
    for (size_t i = 0; i < in_pass; ++i) {
      // With this key a sample is the same in every evaluation, whatever is drawn for it in
      // training.
      examples.Read(first + static_cast<int64_t>(i), data::kValidationKey, &samples[i]);
    }
    TERCIO_ASSIGN_OR_RETURN(const absl::Span<const float> all,
                            model->ClassLogits(absl::MakeConstSpan(samples).first(in_pass)));
    for (size_t i = 0; i < in_pass; ++i) {
      const auto logits = all.subspan(i * classes, classes);
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      plan::Count(samples[i].label, static_cast<int>(best), evaluation.mutable_confusion());
      // The loss also shows how sure the model was, which the table of predictions does not.
      loss += CrossEntropy(logits, samples[i].label);
    }
    if (progress) progress(first + static_cast<int64_t>(in_pass), count);
  }
  evaluation.set_loss(loss / static_cast<double>(count));
  return evaluation;
}

absl::StatusOr<LastWords> EvaluateLastWords(LanguageModel& model, const std::string& path,
                                            const std::string& text_key,
                                            const LanguageModel::Progress& progress) {
  if (model.tokenizer() == nullptr) return NoTokenizer();
  TERCIO_ASSIGN_OR_RETURN(const std::vector<Passage> passages, ReadPassages(path, text_key));
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

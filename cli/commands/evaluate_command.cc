// Evaluation of a trained model on this machine.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/model_description.h"
#include "cli/commands/checkpoint_path.h"
#include "cli/commands/commands.h"
#include "cli/commands/evaluation_job.h"
#include "cli/commands/loaded_model.h"
#include "cli/commands/logits_command.h"
#include "cli/evaluation_json.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/machine.h"
#include "common/status_macros.h"
#include "common/temp_dir.h"
#include "data/data_files.h"
#include "data/indexed_dataset.h"
#include "data/text_source.h"
#include "data/tokenize.h"
#include "plan/quality.h"
#include "worker/inference/encoder_model.h"
#include "worker/inference/evaluation.h"
#include "worker/inference/language_model.h"

namespace tercio::cli {
namespace {

// The documents of .jsonl files, or several texts, tokenised as for training, into a directory that
// may be removed immediately, since the data stays mapped.
absl::StatusOr<data::TokenDataset> TokenizedDocuments(const std::vector<std::string>& paths,
                                                      const tokenizer::Tokenizer& tokenizer,
                                                      const std::string& text_key) {
  const TempDir directory;
  const std::string prefix = directory.path() + "/tokens";
  // All cores are taken: nothing else runs in this process.
  data::TokenizeOptions options;
  options.text.threads = MachineCores();
  if (!text_key.empty()) options.text.text_key = text_key;
  TERCIO_RETURN_IF_ERROR(data::TokenizeTexts(paths, tokenizer, prefix, options).status());
  TERCIO_ASSIGN_OR_RETURN(const data::IndexedDataset dataset, data::OpenIndexedDataset(prefix));
  return dataset.tokens;
}

// Data as for training: token files, or texts tokenised with the model's tokenizer.
absl::StatusOr<data::TokenDataset> OpenEvaluationData(const EvaluateOptions& options,
                                                      const tokenizer::Tokenizer* tokenizer) {
  const std::string& path = options.data;
  TERCIO_ASSIGN_OR_RETURN(const data::DataFiles files, data::FindDataFiles({path}));
  // Token files say by themselves how to read them.
  if (files.kind != data::DataKind::kText) {
    TERCIO_ASSIGN_OR_RETURN(data::TokenFiles tokens,
                            data::OpenTokenFiles(files, data::ContentCheck::kHere));
    return std::move(tokens.tokens);
  }
  if (tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has no tokenizer that is supported by this version, and ", path,
                     " is text; name one with --tokenizer PATH, or give token ids: a Megatron "
                     "PREFIX, or an llm.c .bin"));
  }
  const std::string& first = files.paths.front();
  // Documents have borders that a single text has not.
  if (files.paths.size() > 1 || data::IsJsonl(first)) {
    return TokenizedDocuments(files.paths, *tokenizer, options.text_key);
  }
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(first));
  TERCIO_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode(text));
  // The data set shares the ids, so that they live as long as it does.
  auto owner = std::make_shared<std::vector<int32_t>>(std::move(ids));
  return data::TokenDataset(owner, owner->data(), data::TokenType::kInt32,
                            static_cast<int64_t>(owner->size()));
}

void PrintMetric(const EvaluateOptions& options, double value, double loss,
                 std::optional<int64_t> tokens, Json more) {
  if (options.format() == Output::kTable) {
    std::cout << options.metric << " " << value << " (loss " << loss
              << (tokens.has_value() ? absl::StrCat(", ", *tokens, " tokens") : "") << ")\n";
    return;
  }
  Json json = {{"metric", options.metric},
               {"value", value},
               {"loss", loss},
               {"tokens", tokens.has_value() ? Json(*tokens) : Json(nullptr)}};
  json.update(more);
  PrintJson(json, options.format());
}

void PrintTextMetric(const EvaluateOptions& options, double loss, std::optional<int64_t> tokens) {
  // Perplexity is the exponential of the mean loss per token.
  PrintMetric(options, options.metric == "loss" ? loss : std::exp(loss), loss, tokens,
              Json::object());
}

// Returns `evaluate(progress)`, with a progress bar meanwhile.
template <typename Body>
auto WithBar(const char* unit, const Body& evaluate) {
  ProgressBar bar("evaluate", {unit, 1});
  return evaluate([&bar](int64_t done, int64_t total) { bar.Show(done, total); });
}

absl::StatusOr<int> EvaluateText(const EvaluateOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const auto model, LoadLanguageModel(options));
  // Tokens that no window covers would be missing from the result without a word.
  if (options.stride > model->context()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--stride ", options.stride, " is above the context of ", model->context(),
                     ": tokens between two windows would be skipped"));
  }
  TERCIO_ASSIGN_OR_RETURN(const data::TokenDataset tokens,
                          OpenEvaluationData(options, model->tokenizer()));
  const int64_t stride = options.stride > 0 ? options.stride : model->context();
  const auto evaluated = WithBar("tokens", [&](const inference::LanguageModel::Progress& progress) {
    return model->Evaluate(tokens, stride, progress);
  });
  TERCIO_ASSIGN_OR_RETURN(const inference::LanguageModel::Evaluation result, evaluated);
  PrintTextMetric(options, result.loss, result.tokens);
  return kExitOk;
}

absl::StatusOr<int> EvaluateLastWord(const EvaluateOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const auto model, LoadLanguageModel(options));
  const auto evaluated =
      WithBar("passages", [&](const inference::LanguageModel::Progress& progress) {
        return inference::EvaluateLastWords(*model, options.data, options.text_key, progress);
      });
  TERCIO_ASSIGN_OR_RETURN(const inference::LastWords words, evaluated);
  const double value = static_cast<double>(words.right) / static_cast<double>(words.passages);
  PrintMetric(options, value, words.loss, words.tokens,
              {{"examples", words.passages}, {"right", words.right}});
  return kExitOk;
}

Json ScoresToJson(const plan::ClassScores& scores) {
  return {{"precision", scores.precision},
          {"recall", scores.recall},
          {"f1", scores.f1},
          {"support", scores.support}};
}

void PrintReport(const plan::Quality& quality, double loss, const v1::ModelSpec& model) {
  std::vector<std::vector<std::string>> rows = {{"CLASS", "PRECISION", "RECALL", "F1", "EXAMPLES"}};
  // Precision and recall are shown for each class, as an average hides a class that is never found.
  const auto add = [&](const std::string& name, const plan::ClassScores& scores, int64_t examples) {
    rows.push_back({name, absl::StrFormat("%.4f", scores.precision),
                    absl::StrFormat("%.4f", scores.recall), absl::StrFormat("%.4f", scores.f1),
                    absl::StrCat(examples)});
  };
  for (size_t i = 0; i < quality.classes.size(); ++i) {
    add(LabelText(model, static_cast<int>(i)), quality.classes[i], quality.classes[i].support);
  }
  add("all", quality.overall, quality.macro.support);
  std::cout << Table(rows) << absl::StrFormat("accuracy %.4f, loss %.4f\n", quality.accuracy, loss);
}

// The scores of a classifier, whether this process or the ranks of a job have evaluated it.
void PrintScores(const EvaluateOptions& options, const v1::Evaluation& evaluation,
                 const v1::ModelSpec& model) {
  const plan::Quality quality = plan::QualityOf(evaluation.confusion());
  if (options.format() == Output::kTable) {
    PrintReport(quality, evaluation.loss(), model);
    return;
  }
  // Programs get the matrix as well, from which every other figure follows.
  Json classes = Json::array();
  for (size_t i = 0; i < quality.classes.size(); ++i) {
    classes.push_back(ScoresToJson(quality.classes[i]));
    classes.back()["label"] = LabelText(model, static_cast<int>(i));
  }
  Json more = ScoresToJson(quality.overall);
  // The sum over classes is the number of examples, which has a key of its own.
  more.erase("support");
  more["accuracy"] = quality.accuracy;
  more["examples"] = quality.macro.support;
  more["classes"] = classes;
  const Json all = EvaluationToJson(evaluation, model);
  for (const char* key : {"per_class", "macro", "weighted", "confusion"}) more[key] = all[key];
  const double value = more[options.metric].get<double>();
  // A classifier does not predict tokens, hence 0.
  PrintMetric(options, value, evaluation.loss(), 0, more);
}

absl::StatusOr<int> EvaluateLabels(const EvaluateOptions& options, const std::string& directory) {
  TERCIO_ASSIGN_OR_RETURN(std::optional<tokenizer::Tokenizer> tokenizer, NamedTokenizer(options));
  TERCIO_ASSIGN_OR_RETURN(const inference::OpenedModel opened,
                          inference::OpenModel(directory, std::move(tokenizer)));
  v1::DataSpec data;
  data.set_train(options.data);
  data.set_text_key(options.text_key);
  data.set_text_pair_key(options.text_pair_key);
  data.set_label_key(options.label_key);
  const auto evaluated =
      WithBar("examples", [&](const inference::LanguageModel::Progress& progress) {
        return inference::EvaluateClasses(opened, data, MachineCores(), options.context, progress);
      });
  TERCIO_ASSIGN_OR_RETURN(const v1::Evaluation evaluation, evaluated);
  PrintScores(options, evaluation, opened.spec());
  return kExitOk;
}

bool IsTextMetric(const std::string& metric) { return metric == "perplexity" || metric == "loss"; }

absl::StatusOr<int> EvaluateByJob(const EvaluateOptions& options, const std::string& directory) {
  return EvaluateAsJob(options, directory, [&](const JobEvaluation& found) {
    if (IsTextMetric(options.metric)) {
      PrintTextMetric(options, found.evaluation.loss(), found.tokens);
    } else {
      PrintScores(options, found.evaluation, found.model);
    }
  });
}

absl::Status CheckMetric(const EvaluateOptions& options, const v1::ModelSpec& model) {
  const std::string& metric = options.metric;
  const bool classes =
      metric == "accuracy" || metric == "precision" || metric == "recall" || metric == "f1";
  if (!classes && !IsTextMetric(metric) && metric != "last_word_accuracy") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--metric ", metric, " is not supported by this version; use perplexity, loss, ",
        "last_word_accuracy, or for classifiers accuracy, precision, recall, f1"));
  }
  if (options.stride > 0 && !IsTextMetric(metric)) {
    // The others look at each example by itself, so that there are no windows.
    return absl::InvalidArgumentError("--stride applies only to --metric perplexity and loss");
  }
  // A job can evaluate models of every kind, and would then have other figures than those asked
  // for.
  if (!options.job_file.empty() && classes != (model.labels() > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metric ", metric, ": ",
                     classes ? "the model has no classes (model.labels)"
                             : "the model is a classifier; use accuracy, precision, recall or f1"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> EvaluateModel(EvaluateOptions options) {
  if (!options.write_logits.empty()) {
    TERCIO_ASSIGN_OR_RETURN(const std::string teacher, FindCheckpoint(options.checkpoint, 0));
    return WriteTeacherLogits(options, teacher);
  }
  if (options.top_k > 0) {
    return absl::InvalidArgumentError("--top-k applies only to --write-logits; leave it out");
  }
  if (options.data.empty() && options.job_file.empty()) {
    return absl::InvalidArgumentError(
        "--data is missing; it can be left out only with --job, whose data.test is evaluated then");
  }
  TERCIO_ASSIGN_OR_RETURN(const std::string directory, FindCheckpoint(options.checkpoint, 0));
  TERCIO_ASSIGN_OR_RETURN(const v1::ModelSpec model, checkpoint::DescribeModel(directory));
  if (options.metric.empty()) options.metric = model.labels() > 0 ? "accuracy" : "perplexity";
  TERCIO_RETURN_IF_ERROR(CheckMetric(options, model));
  if (!options.job_file.empty()) return EvaluateByJob(options, directory);
  if (IsTextMetric(options.metric)) return EvaluateText(options);
  if (options.metric == "last_word_accuracy") return EvaluateLastWord(options);
  return EvaluateLabels(options, directory);
}

int CodeOrFailure(const absl::StatusOr<int>& code) {
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace

int Evaluate(const EvaluateOptions& options) { return CodeOrFailure(EvaluateModel(options)); }

}  // namespace tercio::cli

// Verbs that need no coordinator: plans, data, generation, evaluation.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/checkpoint_path.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "common/daemon.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "config/job_file.h"
#include "coordinator/planner/planner.h"
#include "plan/memory_map.h"
#include "worker/data/indexed_dataset.h"
#include "worker/inference/language_model.h"

namespace tercio::cli {
namespace {

int Cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

absl::StatusOr<std::unique_ptr<LanguageModel>> LoadModel(const Options& options) {
  TERCIO_ASSIGN_OR_RETURN(const std::string directory, FindCheckpoint(options.checkpoint, 0));
  return LanguageModel::Load(directory, Cores(), options.context);
}

void PrintPlan(const v1::PlanReport& report) {
  std::vector<std::vector<std::string>> rows = {{"", "TENSOR", "PIPELINE", "DATA", "MICRO-BATCH",
                                                 "STEP", "TOKENS/S", "MEMORY", "BUBBLE", "NOTE"}};
  for (int i = 0; i < report.layouts_size(); ++i) {
    const v1::LayoutCandidate& candidate = report.layouts(i);
    const v1::Prediction& predicted = candidate.predicted();
    const bool valid = candidate.predicted_valid();
    rows.push_back(
        {i == report.chosen() ? "*" : "", absl::StrCat(candidate.layout().tensor()),
         absl::StrCat(candidate.layout().pipeline()), absl::StrCat(candidate.layout().data()),
         absl::StrCat(candidate.layout().micro_batch()),
         valid ? absl::StrFormat("%.3f s", predicted.step_seconds()) : "-",
         valid ? absl::StrFormat("%.0f", predicted.tokens_per_second()) : "-",
         valid ? absl::StrFormat("%.1f MiB",
                                 static_cast<double>(predicted.memory_bytes_peak()) / (1 << 20))
               : "-",
         valid ? absl::StrFormat("%.2f", predicted.bubble_ratio()) : "-", candidate.rejected()});
  }
  std::cout << Table(rows);
}

absl::StatusOr<int> PlanJob(const Options& options) {
  std::vector<std::string> changes = options.set;
  if (options.ranks > 0) changes.push_back(absl::StrCat("resources.ranks=", options.ranks));
  TERCIO_ASSIGN_OR_RETURN(const v1::JobSpec spec, config::ParseJobFile(options.job_file, changes));
  if (options.effective) {
    std::cout << config::EffectiveYaml(spec);
    return kExitOk;
  }
  if (!options.cluster.empty()) {
    return absl::InvalidArgumentError("--cluster is not supported by this version");
  }
  const int64_t memory = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  int ranks = std::max(1, spec.resources().ranks());
  if (!spec.parallelism().automatic()) {
    TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, [&] {
      v1::JobSpec known = spec;
      if (known.model().vocab_size() == 0) known.mutable_model()->set_vocab_size(256);
      return plan::LayoutOfJob(known);
    }());
    ranks = layout.tensor() * layout.pipeline() * layout.data();
  }
  const coordinator::Cluster cluster =
      coordinator::LocalCluster(ranks, Cores(), memory, spec.resources().threads_per_rank());
  const v1::PlanReport report = coordinator::PlanLayouts(spec, cluster);
  if (options.format() != Output::kTable) {
    std::cout << PlanReportToJson(report).dump(2) << std::endl;
  } else {
    PrintPlan(report);
  }
  if (report.chosen() >= 0) return kExitOk;
  return Fail(absl::InvalidArgumentError(
      std::string(coordinator::ChooseLayout(spec, cluster).status().message())));
}

absl::StatusOr<std::vector<int32_t>> PromptOf(const Options& options, const LanguageModel& model) {
  if (!options.prompt_ids.empty()) return options.prompt_ids;
  if (model.tokenizer() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.checkpoint,
                     " has no tokenizer that is supported by this version; "
                     "give token ids with --prompt-ids 1,2,3"));
  }
  return model.tokenizer()->Encode(options.prompt);
}

void PrintGenerated(const Options& options, const std::vector<int32_t>& prompt,
                    const std::vector<int32_t>& ids, const std::optional<std::string>& text) {
  if (options.format() != Output::kTable) {
    const Json json = {
        {"prompt", options.prompt_ids.empty() ? Json(Printable(options.prompt)) : Json(nullptr)},
        {"prompt_ids", prompt},
        {"text", text ? Json(Printable(*text)) : Json(nullptr)},
        {"tokens", ids}};
    std::cout << json.dump(2) << std::endl;
  } else if (text) {
    std::cout << options.prompt << Printable(*text) << std::endl;
  } else {
    std::cout << absl::StrJoin(ids, ",") << std::endl;
  }
}

absl::StatusOr<int> GenerateText(const Options& options) {
  if (options.prompt.empty() && options.prompt_ids.empty()) {
    return absl::InvalidArgumentError("there is no prompt; give --prompt TEXT or --prompt-ids 1,2");
  }
  TERCIO_ASSIGN_OR_RETURN(const auto model, LoadModel(options));
  TERCIO_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, PromptOf(options, *model));
  GenerateOptions generate;
  generate.tokens = options.tokens;
  generate.temperature = options.temperature;
  generate.top_k = options.top_k;
  generate.top_p = options.top_p;
  generate.seed = options.seed;
  std::vector<int32_t> ids;
  TERCIO_RETURN_IF_ERROR(model->Generate(prompt, generate, [&ids](int32_t id) {
    ids.push_back(id);
    return true;
  }));
  std::optional<std::string> text;
  if (model->tokenizer() != nullptr) {
    TERCIO_ASSIGN_OR_RETURN(text, model->tokenizer()->Decode(ids));
  }
  PrintGenerated(options, prompt, ids, text);
  return kExitOk;
}

// A Megatron data set, or a text in the checkpoint's own tokens.
absl::StatusOr<data::TokenDataset> OpenEvaluationData(const std::string& path,
                                                      const data::Tokenizer* tokenizer) {
  if (PathExists(path + ".idx")) {
    TERCIO_ASSIGN_OR_RETURN(const data::IndexedDataset dataset, data::OpenIndexedDataset(path));
    return dataset.tokens;
  }
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  if (tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has no tokenizer that is supported by this version, so ", path,
                     " must be token ids: a Megatron PREFIX"));
  }
  TERCIO_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode(text));
  auto owner = std::make_shared<std::vector<int32_t>>(std::move(ids));
  return data::TokenDataset(owner, owner->data(), data::TokenType::kInt32,
                            static_cast<int64_t>(owner->size()));
}

absl::StatusOr<int> EvaluateModel(const Options& options) {
  if (options.metric != "perplexity" && options.metric != "loss") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--metric ", options.metric, " is not supported by this version; use perplexity"));
  }
  TERCIO_ASSIGN_OR_RETURN(const auto model, LoadModel(options));
  TERCIO_ASSIGN_OR_RETURN(const data::TokenDataset tokens,
                          OpenEvaluationData(options.data, model->tokenizer()));
  TERCIO_ASSIGN_OR_RETURN(const LanguageModel::Evaluation result, model->Evaluate(tokens));
  const double value = options.metric == "loss" ? result.loss : std::exp(result.loss);
  if (options.format() != Output::kTable) {
    const Json json = {{"metric", options.metric},
                       {"value", value},
                       {"loss", result.loss},
                       {"tokens", result.tokens}};
    std::cout << json.dump(2) << std::endl;
  } else {
    std::cout << options.metric << " " << value << " (loss " << result.loss << ", " << result.tokens
              << " tokens)\n";
  }
  return kExitOk;
}

int Report(const absl::StatusOr<int>& code) { return code.ok() ? *code : Fail(code.status()); }

constexpr char kVerbs[] =
    "plan submit run list get watch logs events history wait cancel resume checkpoint nodes data "
    "generate evaluate completion version";

}  // namespace

int Plan(const Options& options) { return Report(PlanJob(options)); }

int Generate(const Options& options) { return Report(GenerateText(options)); }

int Evaluate(const Options& options) { return Report(EvaluateModel(options)); }

int Completion(const Options& options) {
  if (options.shell == "bash") {
    std::cout << "_tercio() {\n"
                 "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                 "    COMPREPLY=($(compgen -W \""
              << kVerbs
              << "\" -- \"${COMP_WORDS[1]}\"))\n"
                 "  else\n"
                 "    COMPREPLY=($(compgen -f -- \"${COMP_WORDS[$COMP_CWORD]}\"))\n"
                 "  fi\n"
                 "}\n"
                 "complete -F _tercio tercio\n";
  } else {
    std::cout << "#compdef tercio\n"
                 "_tercio() {\n"
                 "  if (( CURRENT == 2 )); then\n"
                 "    compadd "
              << kVerbs
              << "\n"
                 "  else\n"
                 "    _files\n"
                 "  fi\n"
                 "}\n"
                 "compdef _tercio tercio\n";
  }
  return kExitOk;
}

int Version(const Options& options) {
  if (options.format() != Output::kTable) {
    std::cout << Json({{"version", kVersion}}).dump(2) << std::endl;
  } else {
    std::cout << "tercio " << kVersion << "\n";
  }
  return kExitOk;
}

}  // namespace tercio::cli

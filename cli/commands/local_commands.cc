// Verbs that need neither a coordinator nor a model: plans, completion, version.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands/cluster_plan.h"
#include "cli/commands/commands.h"
#include "cli/commands/explained_program.h"
#include "cli/commands/explained_tensors.h"
#include "cli/commands/job_source.h"
#include "cli/commands/local_cluster.h"
#include "cli/commands/plan_options.h"
#include "cli/completion.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/report/numbers.h"
#include "cli/report/plan_parts.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/gpus/gpus.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "config/job_file.h"
#include "config/notices.h"
#include "data/prepared_data.h"
#include "plan/distillation.h"
#include "plan/epochs.h"
#include "plan/gpu_figures.h"
#include "plan/memory_map.h"
#include "plan/names.h"
#include "plan/offload.h"
#include "plan/plan_builder.h"
#include "plan/planner/planner.h"
#include "plan/precision.h"

namespace tercio::cli {
namespace {

// What data ranks could divide, beside what they do.
void PrintDivisions(const v1::PlanReport& report) {
  if (report.divisions().empty()) return;
  const int own = report.layouts(std::max(0, report.chosen())).layout().zero_stage();
  std::vector<std::vector<std::string>> rows = {
      {"", "ZERO STAGE", "MEMORY", "STATE", "BYTES/PARAMETER", "SENT/STEP", "NOTE"}};
  const auto mib = [](int64_t bytes) {
    return bytes > 0 ? absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20)) : "-";
  };
  for (const v1::Division& division : report.divisions()) {
    rows.push_back({division.zero_stage() == own ? "*" : "", absl::StrCat(division.zero_stage()),
                    mib(division.memory_bytes_peak()), mib(division.state_bytes()),
                    absl::StrFormat("%.2f", division.bytes_per_parameter()),
                    mib(division.sent_bytes_per_step()), division.rejected()});
  }
  std::cout << "\n" << Table(rows);
}

void PrintPlan(const v1::PlanReport& report) {
  std::vector<std::vector<std::string>> rows = {{"", "TENSOR", "PIPELINE", "DATA", "MICRO-BATCH",
                                                 "WITH", "STEP", "TOKENS/S", "MEMORY", "BUBBLE",
                                                 "NOTE"}};
  for (int i = 0; i < report.layouts_size(); ++i) {
    const v1::LayoutCandidate& candidate = report.layouts(i);
    const v1::Prediction& predicted = candidate.predicted();
    const bool valid = candidate.predicted_valid();
    // Rejected layouts stay in the table with their reason, which is what people look for.
    rows.push_back(
        {i == report.chosen() ? "*" : "", absl::StrCat(candidate.layout().tensor()),
         PipelineText(candidate.layout()), absl::StrCat(candidate.layout().data()),
         absl::StrCat(candidate.layout().micro_batch()), SettingsText(candidate.layout()),
         valid ? absl::StrFormat("%.3f s", predicted.step_seconds()) : "-",
         valid ? absl::StrFormat("%.0f", predicted.tokens_per_second()) : "-",
         valid ? absl::StrFormat("%.1f MiB",
                                 static_cast<double>(predicted.memory_bytes_peak()) / (1 << 20))
               : "-",
         valid ? absl::StrFormat("%.2f", predicted.bubble_ratio()) : "-", candidate.rejected()});
  }
  std::cout << Table(rows);
  PrintDivisions(report);
}

// Sets the vocabulary, on which memory and time depend. It is unknown here if only the nodes can
// read the tokenizer.
void FillVocabulary(v1::JobSpec* spec) {
  // A size that the job names is not guessed.
  if (spec->model().vocab_size() > 0) return;
  const absl::StatusOr<int32_t> vocabulary = data::ExpectedVocabulary(spec->data(), spec->model());
  // A new student has its teacher's, which is known where the data's is not.
  const int32_t known = plan::VocabularyOf(*spec, vocabulary.value_or(0));
  if (known > 0) return spec->mutable_model()->set_vocab_size(known);
  std::fprintf(stderr,
               "notice: the size of the vocabulary is unknown here and assumed to be %d (set "
               "model.vocab_size): %s\n",
               plan::kUnknownVocabulary, std::string(vocabulary.status().message()).c_str());
}

// For the layout that is chosen: its micro-batch counts, too.
std::vector<std::string> NoticesOnAttention(v1::JobSpec spec, const v1::PlanReport& report,
                                            const ClusterHere& here) {
  if (!plan::OnGpu(spec) || report.chosen() < 0) return {};
  // Shapes have a vocabulary, which attention does not depend on.
  if (spec.model().vocab_size() == 0) {
    spec.mutable_model()->set_vocab_size(plan::kUnknownVocabulary);
  }
  const v1::Layout& layout = report.layouts(report.chosen()).layout();
  const auto figures = plan::FiguresOf(here.model);
  const std::string notice =
      plan::WhyOwnAttention(spec, layout, figures.has_value() ? figures->capability : 0);
  if (notice.empty()) return {};
  return {notice};
}

// What the memory of a rank does not show.
std::vector<std::string> NoticesOnOffload(v1::JobSpec spec, const v1::PlanReport& report,
                                          const ClusterHere& here) {
  if (report.chosen() < 0) return {};
  if (spec.model().vocab_size() == 0) {
    spec.mutable_model()->set_vocab_size(plan::kUnknownVocabulary);
  }
  const v1::Layout& layout = report.layouts(report.chosen()).layout();
  int64_t most = 0;
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    const v1::MemoryTable table =
        plan::MemoryOfStage(spec, layout, stage, here.cluster.threads_per_rank);
    most = std::max(most, table.disk_bytes());
  }
  std::vector<std::string> notices;
  if (plan::ChoosesOffloadShare(spec)) {
    notices.push_back(absl::StrCat("offload: ", 100 * plan::OffloadedShare(spec, layout),
                                   " % of the optimizer's state lies there (",
                                   plan::TextOf(spec.offload().optimizer()),
                                   "), as little as lets the job fit"));
  }
  if (most > 0) {
    notices.push_back(absl::StrFormat(
        "offload: each rank needs up to %.1f MiB in its agent's --scratch directory",
        static_cast<double>(most) / (1 << 20)));
  }
  return notices;
}

void PrintTensors(v1::ModelSpec model, const v1::Layout& layout, const PlanOptions& options) {
  // The notice of FillVocabulary has named the size that is assumed.
  if (model.vocab_size() == 0) model.set_vocab_size(plan::kUnknownVocabulary);
  if (options.format() != Output::kTable) {
    PrintJson(ExplainedTensorsJson(model, layout), options.format());
  } else {
    std::cout << ExplainedTensorsText(model, layout);
  }
}

void PrintProgram(const v1::JobSpec& spec, const v1::Layout& layout, const PlanOptions& options) {
  if (options.format() != Output::kTable) {
    PrintJson(ProgramJson(spec, layout), options.format());
  } else {
    std::cout << ProgramText(spec, layout);
  }
}

std::string PartText(const std::optional<double>& value, const std::string& unit) {
  if (!value.has_value()) return "-";
  if (unit == "s") return absl::StrFormat("%.4f s", *value);
  if (unit == "bytes") return absl::StrFormat("%.1f MiB", *value / (1 << 20));
  return absl::StrFormat("%.0f %s", *value, unit);
}

std::string PlanPartsText(const std::vector<report::PlanPart>& parts) {
  std::vector<std::vector<std::string>> rows = {
      {"PART", "PREDICTED", "MEASURED", "MEASURED / PREDICTED"}};
  for (const report::PlanPart& part : parts) {
    const bool both = part.predicted.value_or(0) > 0 && part.measured.has_value();
    rows.push_back({part.name, PartText(part.predicted, part.unit),
                    PartText(part.measured, part.unit),
                    both ? absl::StrFormat("%.2f", *part.measured / *part.predicted) : "-"});
  }
  return Table(rows);
}

// What was predicted for a job, beside what it measured.
absl::StatusOr<int> CompareWithPlan(const PlanOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const auto jobs, GatherJobs(options, {options.job}, GatheredData::kAll));
  const report::JobData& job = jobs.front();
  if (!job.status.plan().has_predicted()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", options.job, " has no plan yet; see `tercio get ", options.job, "`"));
  }
  const auto parts = report::PlanPartsOf(job, report::NumbersOf(job));
  if (options.format() != Output::kTable) {
    PrintJson({{"job", job.status.id()},
               {"layout", LayoutToJson(job.status.plan().layout())},
               {"parts", report::PlanPartsJson(parts)}},
              options.format());
  } else {
    std::cout << PlanPartsText(parts);
  }
  return kExitOk;
}

absl::StatusOr<int> PlanJob(const PlanOptions& options) {
  TERCIO_RETURN_IF_ERROR(CheckPlanOptions(options));
  if (!options.job.empty()) return CompareWithPlan(options);
  std::vector<std::string> changes = options.set;
  // The option is the key of the job file, so that both are checked alike.
  if (options.ranks > 0) changes.push_back(absl::StrCat("resources.ranks=", options.ranks));
  TERCIO_ASSIGN_OR_RETURN(v1::JobSpec spec, config::ParseJobFile(options.job_file, changes));
  // The plan is for this machine, whose GPUs decide what `auto` means.
  if (spec.resources().device() == v1::DEVICE_KIND_AUTO) {
    TERCIO_ASSIGN_OR_RETURN(const Gpus gpus, FindGpus());
    config::ResolveDevice(&spec,
                          gpus.list.empty() ? config::AutoDevice::kCpu : config::AutoDevice::kCuda);
  }
  PrintNotices(config::KeysWithoutEffect(spec));
  // The file is printed after its checks: what cannot be parsed has no complete form.
  if (options.effective) {
    std::cout << config::EffectiveYaml(spec);
    return kExitOk;
  }
  if (!plan::KnowsSteps(spec.training())) {
    PrintNotices({absl::StrCat("the number of steps follows from the data: training.epochs (",
                               spec.training().epochs(),
                               ") times its training samples, over training.global_batch")});
  }
  FillVocabulary(&spec);
  if (!options.cluster.empty()) return PlanOnCluster(spec, options);
  int ranks = std::max(1, spec.resources().ranks());
  if (!spec.parallelism().automatic()) {
    TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, plan::LayoutOfJob(spec));
    // The layout that is named has a number of ranks of its own.
    ranks = layout.tensor() * layout.pipeline() * layout.data();
  }
  TERCIO_ASSIGN_OR_RETURN(const ClusterHere here, FindClusterHere(spec, ranks));
  // The notice says which GPUs were assumed, since a plan is often made elsewhere.
  if (!here.gpus.empty()) PrintNotices({here.gpus});
  if (!here.measured.empty()) PrintNotices({here.measured});
  v1::PlanReport report = plan::PlanLayouts(spec, here.cluster);
  plan::AddDivisions(spec, here.cluster, &report);
  PrintNotices(NoticesOnAttention(spec, report, here));
  PrintNotices(NoticesOnOffload(spec, report, here));
  if (options.explain_tensors && report.chosen() >= 0) {
    PrintTensors(spec.model(), report.layouts(report.chosen()).layout(), options);
  } else if (options.program && report.chosen() >= 0) {
    PrintProgram(spec, report.layouts(report.chosen()).layout(), options);
  } else if (options.format() != Output::kTable) {
    PrintJson(PlanReportToJson(report), options.format());
  } else {
    PrintPlan(report);
  }
  if (report.chosen() >= 0) return kExitOk;
  // The error of the choice holds the memory table, which the report does not.
  return Fail(absl::InvalidArgumentError(
      std::string(plan::ChooseLayout(spec, here.cluster).status().message())));
}

int CodeOf(const absl::StatusOr<int>& code) { return code.ok() ? *code : Fail(code.status()); }

}  // namespace

int Plan(const PlanOptions& options) { return CodeOf(PlanJob(options)); }

int Completion(const CompletionOptions& options) {
  std::cout << CompletionScript(options.shell);
  return kExitOk;
}

std::string VersionLine() { return absl::StrCat("tercio ", kVersion, " commit ", kCommit); }

int Version(const VersionOptions& options) {
  if (options.format() != Output::kTable) {
    PrintJson({{"version", kVersion}, {"commit", kCommit}}, options.format());
  } else {
    std::cout << VersionLine() << "\n";
  }
  return kExitOk;
}

}  // namespace tercio::cli

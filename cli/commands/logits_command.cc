#include "cli/commands/logits_command.h"

#include <filesystem>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "common/exit_codes.h"
#include "common/machine.h"
#include "common/status_macros.h"
#include "common/temp_dir.h"
#include "config/job_file.h"
#include "data/prepared_data.h"
#include "nlohmann/json.hpp"
#include "worker/inference/stored_logits.h"
#include "worker/inference/teacher_check.h"

namespace tercio::cli {
namespace {

constexpr int64_t kUsualLogits = 64;

std::string AbsolutePath(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

// The job says which samples there are and how they are read.
absl::Status CheckLogitsOptions(const EvaluateOptions& options) {
  const std::pair<const char*, bool> others[] = {
      {"--data", !options.data.empty()},
      {"--metric", !options.metric.empty()},
      {"--stride", options.stride > 0},
      {"--context", options.context > 0},
      {"--tokenizer", !options.tokenizer.empty()},
      {"--text-key", !options.text_key.empty()},
      {"--text-pair-key", !options.text_pair_key.empty()},
      {"--label-key", !options.label_key.empty()}};
  for (const auto& [name, given] : others) {
    if (!given) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        ": --write-logits takes the samples as the job file of --job has them; leave it out"));
  }
  if (!options.job_file.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--write-logits needs --job JOB.yaml, the job of the student, whose samples are taken");
}

// The student's job before there are logits: with the teacher itself, which is compared with it.
absl::StatusOr<v1::JobSpec> StudentJob(const EvaluateOptions& options, const std::string& teacher) {
  const std::string name = nlohmann::json(AbsolutePath(teacher))
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  TERCIO_ASSIGN_OR_RETURN(
      v1::JobSpec job,
      config::ParseJobFile(options.job_file,
                           {"training.distillation.logits=null", "training.distillation.top_k=null",
                            absl::StrCat("training.distillation.teacher=", name)}));
  if (job.training().objective() == v1::TRAINING_OBJECTIVE_DISTILL) return job;
  return absl::InvalidArgumentError(
      absl::StrCat(options.job_file, ": training.objective: only distill learns from logits"));
}

void PrintLogits(const EvaluateOptions& options, int64_t k, const inference::LogitsReport& report) {
  if (options.format() != Output::kTable) {
    PrintJson({{"logits", options.write_logits},
               {"samples", report.samples},
               {"tokens", report.rows},
               {"top_k", k},
               {"bytes", report.bytes},
               {"resumed_samples", report.resumed_samples}},
              options.format());
    return;
  }
  std::cout << options.write_logits << ": " << k << " logits of each of " << report.rows
            << " tokens in " << report.samples << " samples, "
            << absl::StrFormat("%.1f MB", static_cast<double>(report.bytes) / 1e6);
  if (report.resumed_samples > 0) std::cout << " (" << report.resumed_samples << " resumed)";
  std::cout << "\n";
}

}  // namespace

absl::StatusOr<int> WriteTeacherLogits(const EvaluateOptions& options, const std::string& teacher) {
  TERCIO_RETURN_IF_ERROR(CheckLogitsOptions(options));
  TERCIO_ASSIGN_OR_RETURN(const v1::JobSpec job, StudentJob(options, teacher));
  const int64_t k = options.top_k > 0 ? options.top_k : kUsualLogits;
  const TempDir cache;
  TERCIO_ASSIGN_OR_RETURN(data::PreparedData prepared,
                          data::PrepareData(job.data(), job.model(), cache.path()));
  PrintNotices(prepared.notices);
  TERCIO_RETURN_IF_ERROR(inference::CheckTeacher(job.training().distillation(),
                                                 prepared.tokenizer_json, prepared.vocab_size));
  TERCIO_ASSIGN_OR_RETURN(const inference::OpenedModel opened,
                          inference::OpenModel(AbsolutePath(teacher), std::nullopt));
  ProgressBar bar("logits", {"tokens", 1});
  const absl::StatusOr<inference::LogitsReport> report = inference::WriteLogits(
      opened, job, std::move(prepared),
      {.directory = options.write_logits,
       .k = k,
       .threads = MachineCores(),
       .progress = [&bar](int64_t done, int64_t total) { bar.Show(done, total); }});
  TERCIO_RETURN_IF_ERROR(report.status());
  if (report->removed_others) {
    PrintNotices({absl::StrCat(options.write_logits, ".partial held unfinished logits of another ",
                               "teacher or other samples, which were removed")});
  }
  PrintLogits(options, k, *report);
  return kExitOk;
}

}  // namespace tercio::cli

// checkpoint import and export: Hugging Face directories in and out, on this machine.
#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/export.h"
#include "checkpoint/huggingface/import.h"
#include "cli/client.h"
#include "cli/commands/checkpoint_path.h"
#include "cli/commands/commands.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "plan/names.h"

namespace tercio::cli {
namespace {

absl::Status CheckFormat(const std::string& model_format) {
  // The option exists from the start, so that another format is no new verb.
  if (model_format == "hf") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--format ", model_format, " is not supported by this version; use hf"));
}

absl::StatusOr<int> Import(const CheckpointImportOptions& options) {
  TERCIO_RETURN_IF_ERROR(CheckFormat(options.model_format));
  absl::StatusOr<checkpoint::ImportResult> imported;
  // The block ends the bar before anything else is printed.
  {
    ProgressBar bar(options.directory);
    imported = checkpoint::ImportHuggingFace(
        options.source, options.directory,
        [&bar](int64_t done, int64_t total) { bar.Show(done, total); });
  }
  TERCIO_ASSIGN_OR_RETURN(const checkpoint::ImportResult result, std::move(imported));
  if (options.format() != Output::kTable) {
    const Json json = {{"path", options.directory},
                       {"architecture", plan::TextOf(result.model.architecture())},
                       {"parameters", result.parameters},
                       {"bytes", result.bytes},
                       {"kept", result.kept}};
    PrintJson(json, options.format());
  } else {
    std::cout << options.directory << ": " << plan::TextOf(result.model.architecture()) << ", "
              << result.parameters << " parameters\n";
  }
  return kExitOk;
}

absl::StatusOr<checkpoint::FloatFormat> DtypeNamed(const std::string& name) {
  if (name == "fp32") return checkpoint::FloatFormat::kF32;
  if (name == "bf16") return checkpoint::FloatFormat::kBF16;
  if (name == "fp16") return checkpoint::FloatFormat::kF16;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype ", name, " is not supported; use fp32, bf16 or fp16"));
}

// The path of the job's checkpoint. It must be on this machine: exports are made where the data is.
absl::StatusOr<std::string> CheckpointOfJob(const CheckpointExportOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const auto client, Client::Connect(options));
  TERCIO_ASSIGN_OR_RETURN(const auto checkpoints, client->Checkpoints(options.job));
  // The list is in the order of the steps, so that the newest is the last to match.
  std::string path;
  for (const v1::CheckpointInfo& checkpoint : checkpoints) {
    if (options.step == 0 || checkpoint.step() == options.step) path = checkpoint.path();
  }
  if (path.empty()) {
    return absl::NotFoundError(
        options.step > 0
            ? absl::StrCat("job ", options.job, " has no checkpoint of step ", options.step)
            : absl::StrCat("job ", options.job, " has no checkpoint"));
  }
  // The path is one of the coordinator's machine, which may be another.
  if (!PathExists(path + "/manifest.json")) {
    return absl::NotFoundError(
        absl::StrCat("the checkpoint ", path,
                     path.front() == '/'
                         ? " is not on this machine; export it where the coordinator runs"
                         : " is relative to the directory where the coordinator was started, and "
                           "does not exist in this one; change to that directory, or give the "
                           "checkpoint's directory instead of the job"));
  }
  return path;
}

absl::StatusOr<int> Export(const CheckpointExportOptions& options) {
  TERCIO_RETURN_IF_ERROR(CheckFormat(options.model_format));
  checkpoint::ExportOptions how;
  // Sizes have units, as in the option of transformers that has this name.
  if (!options.max_shard_size.empty()) {
    TERCIO_ASSIGN_OR_RETURN(how.max_shard_bytes, ParseSize(options.max_shard_size));
  }
  // Without it the weights keep the dtype in which they were imported.
  if (!options.dtype.empty()) {
    TERCIO_ASSIGN_OR_RETURN(how.dtype, DtypeNamed(options.dtype));
  }
  // A folder with the job's name that holds no checkpoint is something else.
  const absl::StatusOr<std::string> here = FindCheckpoint(options.job, options.step);
  const bool is_path = here.ok() || options.job.find('/') != std::string::npos;
  TERCIO_ASSIGN_OR_RETURN(const std::string path, is_path ? here : CheckpointOfJob(options));
  // A directory of Hugging Face is what an export makes.
  if (!PathExists(path + "/manifest.json")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is already a Hugging Face directory, not a checkpoint"));
  }
  absl::StatusOr<checkpoint::ExportResult> exported;
  {
    ProgressBar bar(options.directory);
    how.progress = [&bar](int64_t done, int64_t total) { bar.Show(done, total); };
    exported = checkpoint::ExportHuggingFace(path, options.directory, how);
  }
  TERCIO_ASSIGN_OR_RETURN(const checkpoint::ExportResult result, std::move(exported));
  // Notes are for people; programs read the result.
  for (const std::string& note : result.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  if (options.format() != Output::kTable) {
    const Json json = {
        {"path", options.directory}, {"checkpoint", path},
        {"step", result.step},       {"architecture", plan::TextOf(result.model.architecture())},
        {"bytes", result.bytes},     {"files", result.files}};
    PrintJson(json, options.format());
  } else {
    std::cout << options.directory << ": " << plan::TextOf(result.model.architecture())
              << " of step " << result.step << ", " << result.files.size() << " files\n";
  }
  return kExitOk;
}

}  // namespace

int CheckpointImport(const CheckpointImportOptions& options) {
  // Faults become exit codes in one place.
  const absl::StatusOr<int> code = Import(options);
  return code.ok() ? *code : Fail(code.status());
}

int CheckpointExport(const CheckpointExportOptions& options) {
  const absl::StatusOr<int> code = Export(options);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace tercio::cli

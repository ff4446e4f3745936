// checkpoint import and export: Hugging Face directories and Megatron-LM checkpoints in and out, on
// this machine.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/export.h"
#include "checkpoint/huggingface/import.h"
#include "checkpoint/huggingface/peft_adapter.h"
#include "checkpoint/huggingface/peft_export.h"
#include "checkpoint/huggingface/peft_import.h"
#include "checkpoint/megatron/export.h"
#include "checkpoint/megatron/import.h"
#include "checkpoint/model_description.h"
#include "cli/client.h"
#include "cli/commands/checkpoint_path.h"
#include "cli/commands/commands.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "plan/names.h"
#include "tokenizer/tokenizer.h"

namespace tercio::cli {
namespace {

using checkpoint::ModelFormat;

absl::StatusOr<ModelFormat> FormatNamed(const std::string& name) {
  if (name == "hf") return ModelFormat::kHuggingFace;
  if (name == "megatron") return ModelFormat::kMegatron;
  if (name == "peft") return ModelFormat::kPeft;
  return absl::InvalidArgumentError(absl::StrCat(
      "--format ", name, " is not supported by this version; use hf, megatron or peft"));
}

// Notes are for people; programs read the result.
void PrintNotes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    std::fprintf(stderr, "note: %s\n", ForTerminal(note).c_str());
  }
}

absl::StatusOr<checkpoint::ImportResult> ImportFrom(ModelFormat format,
                                                    const CheckpointImportOptions& options,
                                                    const checkpoint::ImportOptions& how) {
  if (format == ModelFormat::kPeft) {
    return checkpoint::ImportPeft(options.source, options.base, options.directory, how);
  }
  if (format == ModelFormat::kMegatron) {
    return checkpoint::ImportMegatron(options.source, options.directory, how);
  }
  return checkpoint::ImportHuggingFace(options.source, options.directory, how);
}

// Where an import's tokenizer is: adapters mostly come without one.
std::string TokenizerSource(ModelFormat format, const CheckpointImportOptions& options) {
  if (format != ModelFormat::kPeft) return options.source;
  if (!options.base.empty()) return options.base;
  return checkpoint::TokenizerDirectoryOf(options.source);
}

absl::StatusOr<int> Import(const CheckpointImportOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const ModelFormat format, FormatNamed(options.model_format));
  if (!options.base.empty() && format != ModelFormat::kPeft) {
    return absl::InvalidArgumentError("--base belongs to --format peft");
  }
  checkpoint::ImportOptions how;
  const auto tokenizer = tokenizer::Tokenizer::Load(TokenizerSource(format, options));
  if (tokenizer.ok()) how.tokenizer_json = tokenizer->ToJson();
  absl::StatusOr<checkpoint::ImportResult> imported;
  // The block ends the bar before anything else is printed.
  {
    ProgressBar bar(options.directory);
    how.progress = [&bar](int64_t done, int64_t total) { bar.Show(done, total); };
    imported = ImportFrom(format, options, how);
  }
  TERCIO_ASSIGN_OR_RETURN(const checkpoint::ImportResult result, std::move(imported));
  PrintNotes(result.notes);
  if (!tokenizer.ok()) {
    PrintNotes({absl::StrCat(std::string(tokenizer.status().message()),
                             "; the import has no tokenizer, so name one where texts are read")});
  }
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

// The options of one format have no meaning in the other.
absl::Status CheckOptions(ModelFormat format, const CheckpointExportOptions& options) {
  const struct {
    const char* name;
    bool given;
    ModelFormat format;
  } bound[] = {{"--max-shard-size", !options.max_shard_size.empty(), ModelFormat::kHuggingFace},
               {"--tensor", options.tensor > 0, ModelFormat::kMegatron},
               {"--pipeline", options.pipeline > 0, ModelFormat::kMegatron},
               {"--layout", !options.layout.empty(), ModelFormat::kMegatron},
               {"--merge", options.merge, ModelFormat::kHuggingFace}};
  for (const auto& option : bound) {
    if (!option.given || option.format == format) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(option.name, " belongs to --format ",
                     option.format == ModelFormat::kMegatron ? "megatron" : "hf"));
  }
  return absl::OkStatus();
}

// REQUIRES: CheckOptions of the format.
absl::StatusOr<checkpoint::ExportResult> ExportTo(ModelFormat format, const std::string& path,
                                                  const CheckpointExportOptions& options) {
  if (format == ModelFormat::kPeft) {
    if (!options.dtype.empty()) {
      return absl::InvalidArgumentError("--dtype: adapters are written in fp32; leave it out");
    }
    return checkpoint::ExportPeft(path, options.directory);
  }
  std::optional<checkpoint::FloatFormat> dtype;
  // Without it the weights keep the dtype in which they were imported.
  if (!options.dtype.empty()) {
    TERCIO_ASSIGN_OR_RETURN(dtype, DtypeNamed(options.dtype));
  }
  ProgressBar bar(options.directory);
  const auto show = [&bar](int64_t done, int64_t total) { bar.Show(done, total); };
  if (format == ModelFormat::kMegatron) {
    const auto layout = options.layout == "core" ? checkpoint::MegatronLayout::kCore
                                                 : checkpoint::MegatronLayout::kLegacy;
    return checkpoint::ExportMegatron(path, options.directory,
                                      {.tensor = std::max(options.tensor, 1),
                                       .pipeline = std::max(options.pipeline, 1),
                                       .layout = layout,
                                       .dtype = dtype,
                                       .progress = show});
  }
  checkpoint::ExportOptions how;
  // Sizes have units, as in the option of transformers that has this name.
  if (!options.max_shard_size.empty()) {
    TERCIO_ASSIGN_OR_RETURN(how.max_shard_bytes, ParseSize(options.max_shard_size));
  }
  how.dtype = dtype;
  how.merge = options.merge;
  how.progress = show;
  return checkpoint::ExportHuggingFace(path, options.directory, how);
}

absl::StatusOr<int> Export(const CheckpointExportOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const ModelFormat format, FormatNamed(options.model_format));
  TERCIO_RETURN_IF_ERROR(CheckOptions(format, options));
  // A folder with the job's name that holds no checkpoint is something else.
  const absl::StatusOr<std::string> here = FindCheckpoint(options.job, options.step);
  const bool is_path = here.ok() || options.job.find('/') != std::string::npos;
  TERCIO_ASSIGN_OR_RETURN(const std::string path, is_path ? here : CheckpointOfJob(options));
  // Both are what an export makes.
  if (!PathExists(path + "/manifest.json")) {
    const bool megatron = !PathExists(path + "/config.json");
    return absl::InvalidArgumentError(
        absl::StrCat(path, megatron ? " is a Megatron-LM checkpoint; import it first"
                                    : " is already a Hugging "
                                      "Face directory, not a checkpoint"));
  }
  absl::StatusOr<checkpoint::ExportResult> exported = ExportTo(format, path, options);
  TERCIO_ASSIGN_OR_RETURN(const checkpoint::ExportResult result, std::move(exported));
  PrintNotes(result.notes);
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

#include "cli/commands/evaluation_job.h"

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands/private_run.h"
#include "cli/format.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"
#include "common/temp_dir.h"
#include "config/job_file.h"
#include "data/tokenizer_choice.h"
#include "model/architecture.h"
#include "nlohmann/json.hpp"

namespace tercio::cli {
namespace {

std::string Absolute(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

// A text as YAML. Bytes that are not UTF-8 are replaced, and such a path is not found then.
std::string Setting(const std::string& key, const std::string& text) {
  return absl::StrCat(
      key, "=",
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// The job file's model must be that of the checkpoint: a key that contradicts it is a fault. All
// that belongs to training is taken away, with the places where the trained job writes.
std::vector<std::string> ChangesFor(const EvaluateOptions& options, const std::string& checkpoint) {
  std::vector<std::string> changes = {Setting("model.from", checkpoint),
                                      "model.preset=null",
                                      "data.train=null",
                                      "data.validation=null",
                                      "training.steps=0",
                                      "training.epochs=null",
                                      "training.evaluate=null",
                                      "training.trace_step=null",
                                      "checkpoint=null",
                                      "tensorboard=null"};
  if (options.context > 0) changes.push_back(absl::StrCat("model.context=", options.context));
  if (!options.data.empty()) changes.push_back(Setting("data.test", Absolute(options.data)));
  for (const auto& [key, text] : {std::pair("data.text_key", &options.text_key),
                                  std::pair("data.text_pair_key", &options.text_pair_key),
                                  std::pair("data.label_key", &options.label_key)}) {
    if (!text->empty()) changes.push_back(Setting(key, *text));
  }
  const std::string& tokenizer = options.tokenizer;
  if (!tokenizer.empty()) {
    changes.push_back(
        Setting("data.tokenizer", tokenizer == "bytes" ? tokenizer : Absolute(tokenizer)));
  } else if (data::ChooseTokenizer(checkpoint, {}, {}).ok()) {
    // The weights were trained with it; `chars` in the job file would be that of other texts.
    changes.push_back(Setting("data.tokenizer", checkpoint));
  }
  return changes;
}

absl::Status CheckOptions(const EvaluateOptions& options) {
  if (options.stride > 0) {
    return absl::InvalidArgumentError(
        "--stride: the ranks of a job evaluate windows that do not overlap; leave --stride or "
        "--job out");
  }
  if (options.metric == "last_word_accuracy") {
    return absl::InvalidArgumentError(
        "--metric last_word_accuracy: the ranks of a job evaluate losses and classes; leave --job "
        "out");
  }
  return absl::OkStatus();
}

// A causal sample predicts each token of the head's sequence, one of a masked model a part of them.
std::optional<int64_t> TokensOf(const v1::ModelSpec& model, int64_t samples) {
  const model::Architecture architecture = model::ArchitectureOf(model);
  if (!architecture.causal) return std::nullopt;
  // An encoder's tokens are read only.
  return samples * architecture.streams.back().tokens;
}

int CodeOfFailure(const PrivateEnd& end) {
  if (!end.status.error().empty()) {
    std::fprintf(stderr, "error: %s\n", ForTerminal(end.status.error()).c_str());
  }
  if (end.signal == SIGINT) return kExitInterrupted;
  if (end.signal == SIGTERM) return kExitTerminated;
  return ExitCodeOfState(end.status.state());
}

}  // namespace

absl::StatusOr<int> EvaluateAsJob(const EvaluateOptions& options, const std::string& checkpoint,
                                  absl::FunctionRef<void(const JobEvaluation& found)> print) {
  TERCIO_RETURN_IF_ERROR(CheckOptions(options));
  absl::StatusOr<v1::JobSpec> spec =
      config::ParseJobFile(options.job_file, ChangesFor(options, Absolute(checkpoint)));
  if (!spec.ok() && options.data.empty()) {
    return absl::Status(spec.status().code(),
                        absl::StrCat(std::string(spec.status().message()),
                                     "\n(without --data the job file's data.test is evaluated)"));
  }
  if (!spec.ok()) return spec.status();
  TERCIO_RETURN_IF_ERROR(ChooseDevice(&*spec));
  const TempDir state;
  return RunPrivately(
      *spec, state.path(), Announce::kNo, EndRanks::kNo,
      [&](Client&, const PrivateEnd& end) -> absl::StatusOr<int> {
        if (end.status.state() != v1::JOB_STATE_SUCCEEDED) return CodeOfFailure(end);
        if (!end.status.has_test()) {
          return absl::InternalError("the job has succeeded without evaluating its test data");
        }
        print({end.status.test(), spec->model(), TokensOf(spec->model(), end.test_samples)});
        return kExitOk;
      });
}

}  // namespace tercio::cli

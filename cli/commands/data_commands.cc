// tercio data tokenize, tercio data inspect.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/machine.h"
#include "common/status_macros.h"
#include "data/data_files.h"
#include "data/jsonl.h"
#include "data/tokenize.h"

namespace tercio::cli {
namespace {

volatile std::sig_atomic_t stop_signal = 0;

// The first signal lets the run save its place, the second ends it immediately.
void OnStopSignal(int signal) {
  if (stop_signal != 0) _exit(signal == SIGTERM ? kExitTerminated : kExitInterrupted);
  stop_signal = signal;
}

absl::StatusOr<std::vector<std::string>> InputFiles(const std::string& input) {
  // A name may hold a comma.
  const std::vector<std::string> names = PathExists(input)
                                             ? std::vector<std::string>{input}
                                             : absl::StrSplit(input, ',', absl::SkipEmpty());
  // What kind of data it is, is decided as for training.
  TERCIO_ASSIGN_OR_RETURN(const data::DataFiles files, data::FindDataFiles(names));
  if (files.kind == data::DataKind::kText) return files.paths;
  return absl::InvalidArgumentError(absl::StrCat(
      files.paths.front(), ": already holds tokens; --input takes text or .jsonl files"));
}

absl::StatusOr<data::TokenizeReport> Tokenize(const DataTokenizeOptions& options) {
  data::TokenizeOptions tokenize;
  tokenize.text.text_key = options.text_key;
  tokenize.text.skip_bad_lines = options.skip_bad_lines;
  // Tokenising is what this machine is for at the moment.
  tokenize.text.threads = options.threads > 0 ? options.threads : MachineCores();
  tokenize.append_end_of_text = options.append_eod;
  tokenize.split_sentences = options.split_sentences;
  TERCIO_ASSIGN_OR_RETURN(const std::vector<std::string> paths, InputFiles(options.input));
  TERCIO_ASSIGN_OR_RETURN(const tokenizer::Tokenizer tokenizer,
                          // `chars` has to read the texts to know its characters.
                          data::ChooseTokenizer(options.tokenizer, paths, tokenize.text));
  // The handlers come when there is something to save.
  std::signal(SIGINT, OnStopSignal);
  std::signal(SIGTERM, OnStopSignal);
  ProgressBar bar(options.prefix);
  tokenize.progress = [&bar, &options,
                       // The notice is printed once, not with each report of progress.
                       told = false](const data::TokenizeProgress& progress) mutable {
    if (progress.resumed && !std::exchange(told, true)) {
      std::fprintf(stderr, "%s: resuming an earlier run\n", options.prefix.c_str());
    }
    bar.Show(progress.bytes_done, progress.bytes,
             absl::StrCat(progress.documents, " documents  ", progress.tokens, " tokens"));
    // The run ends at the next document, with everything before it kept.
    return stop_signal == 0;
  };
  return data::TokenizeTexts(paths, tokenizer, options.prefix, tokenize);
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

template <typename T>
std::string OrUnknown(const std::optional<T>& value) {
  return value.has_value() ? absl::StrCat(*value) : "?";
}

}  // namespace

int DataTokenize(const DataTokenizeOptions& options) {
  const absl::StatusOr<data::TokenizeReport> report = Tokenize(options);
  // An interrupted run can be resumed, which an error cannot.
  if (absl::IsCancelled(report.status())) {
    std::fprintf(stderr, "%s: interrupted; run the same command again to resume\n",
                 options.prefix.c_str());
    return stop_signal == SIGTERM ? kExitTerminated : kExitInterrupted;
  }
  if (!report.ok()) return Fail(report.status());
  std::fprintf(stderr, "%s: %ld documents, %ld tokens\n", options.prefix.c_str(),
               static_cast<long>(report->documents), static_cast<long>(report->tokens));
  if (report->skipped_lines > 0) {
    std::fprintf(stderr, "%s: %s\n", options.prefix.c_str(),
                 data::SkippedLinesNotice(report->skipped_lines, report->first_skipped).c_str());
  }
  return kExitOk;
}

int DataInspect(const DataInspectOptions& options) {
  const auto summary = data::InspectDataset(options.prefix, options.text_key);
  if (!summary.ok()) return Fail(summary.status());
  // Lines without a document would stop a training that does not skip them.
  if (summary->bad_lines > 0) {
    std::fprintf(stderr, "%s: %ld lines hold no document, the first is %s\n",
                 options.prefix.c_str(), static_cast<long>(summary->bad_lines),
                 summary->first_bad_line.c_str());
  }
  if (options.format() != Output::kTable) {
    const Json json = {{"documents", OrNull(summary->documents)},
                       {"tokens", OrNull(summary->tokens)},
                       {"dtype", summary->dtype.empty() ? Json(nullptr) : Json(summary->dtype)},
                       {"vocab_size", OrNull(summary->vocab_size)}};
    PrintJson(json, options.format());
  } else if (summary->tokens.has_value()) {
    std::cout << summary->format << ": " << OrUnknown(summary->documents) << " documents, "
              << *summary->tokens << " tokens of " << summary->dtype << ", vocabulary "
              << OrUnknown(summary->vocab_size) << "\n";
  } else {
    std::cout << summary->format << ": " << OrUnknown(summary->documents)
              << " documents, not tokenised\n";
  }
  return kExitOk;
}

}  // namespace tercio::cli

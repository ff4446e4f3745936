// tercio data preview.
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/chat_preview.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"
#include "config/job_file.h"
#include "data/prepared_data.h"

namespace tercio::cli {
namespace {

absl::StatusOr<v1::JobSpec> ChatJob(const DataPreviewOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(v1::JobSpec spec, config::ParseJobFile(options.job_file, options.set));
  if (spec.data().has_chat()) return spec;
  return absl::InvalidArgumentError(
      absl::StrCat(options.job_file, ": data preview shows conversations, but the job does not ",
                   "learn from any; set training.objective: sft"));
}

// "3 conversations, " where samples may hold several.
std::string ConversationsOf(const v1::JobSpec& spec, const std::vector<PreviewToken>& tokens) {
  if (!spec.data().chat().packing()) return "";
  const int count = Conversations(tokens);
  return absl::StrCat(count, count == 1 ? " conversation, " : " conversations, ");
}

absl::Status Preview(const DataPreviewOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const v1::JobSpec spec, ChatJob(options));
  // Conversations are read into memory, so that no cache is needed.
  TERCIO_ASSIGN_OR_RETURN(const data::PreparedData prepared,
                          data::PrepareData(spec.data(), spec.model(), /*cache_dir=*/""));
  TERCIO_ASSIGN_OR_RETURN(const tokenizer::Tokenizer tokenizer,
                          tokenizer::Tokenizer::FromJson(prepared.tokenizer_json));
  PrintNotices(prepared.notices);
  const bool colours = isatty(STDOUT_FILENO) != 0 && WantsColour();
  const int64_t first = options.first;
  const int64_t all = prepared.train_sample_count;
  if (first > all) {
    return absl::InvalidArgumentError(
        absl::StrCat("--first ", first, " is behind the last of ", all, " samples"));
  }
  JsonStream json(options.format());
  data::Sample sample(spec.model().context());
  for (int64_t number = first; number < first + std::min<int64_t>(options.samples, all - first + 1);
       ++number) {
    prepared.train_samples.ReadInOrder(number - 1, &sample);
    TERCIO_ASSIGN_OR_RETURN(const std::vector<PreviewToken> tokens,
                            PreviewTokens(sample, tokenizer));
    if (options.format() != Output::kTable) {
      json.Add(PreviewJson(number, tokens, spec.data().chat().packing()));
      continue;
    }
    std::cout << "sample " << number << " of " << all << ": " << ConversationsOf(spec, tokens)
              << tokens.size() << " tokens, " << CountedTokens(tokens) << " count\n"
              << PreviewText(tokens, colours ? CountedMarks::kColours : CountedMarks::kBrackets)
              << "\n\n";
  }
  if (options.format() != Output::kTable) json.Finish();
  return absl::OkStatus();
}

}  // namespace

int DataPreview(const DataPreviewOptions& options) {
  const absl::Status status = Preview(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tercio::cli

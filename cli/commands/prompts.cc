#include "cli/commands/prompts.h"

#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/format.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace tercio::cli {
namespace {

absl::StatusOr<Prompt> PromptFromJson(const std::string& line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  Prompt prompt;
  if (json.is_object() && json.contains("prompt") && json["prompt"].is_string()) {
    prompt.text = json["prompt"].get<std::string>();
    return prompt;
  }
  if (json.is_object() && json.contains("prompt_ids") && json["prompt_ids"].is_array()) {
    for (const Json& id : json["prompt_ids"]) {
      const int64_t value = id.is_number_integer() ? id.get<int64_t>() : -1;
      // A larger number would come out of the conversion as another id.
      if (value < 0 || value > std::numeric_limits<int32_t>::max()) break;
      prompt.ids.push_back(static_cast<int32_t>(value));
    }
    if (prompt.ids.size() == json["prompt_ids"].size()) return prompt;
  }
  return absl::InvalidArgumentError(
      R"(not an object with "prompt" (a text) or "prompt_ids" (a list of token ids))");
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> PromptsInFile(const std::string& path) {
  TERCIO_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  std::vector<Prompt> prompts;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    const std::string text(absl::StripSuffix(line, "\r"));
    if (text.empty()) continue;
    if (!absl::EndsWith(path, ".jsonl")) {
      prompts.push_back({.text = text, .ids = {}});
      continue;
    }
    absl::StatusOr<Prompt> prompt = PromptFromJson(text);
    if (!prompt.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": ", std::string(prompt.status().message())));
    }
    prompts.push_back(*std::move(prompt));
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no prompt; write one on each line"));
  }
  return prompts;
}

absl::Status EncodePrompts(const std::string& checkpoint, const tokenizer::Tokenizer* tokenizer,
                           std::vector<Prompt>* prompts) {
  for (Prompt& prompt : *prompts) {
    if (!prompt.text.has_value()) continue;
    if (tokenizer == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint,
                       " has no tokenizer that is supported by this version; name one with "
                       "--tokenizer PATH, or give token ids with --prompt-ids 1,2,3"));
    }
    TERCIO_ASSIGN_OR_RETURN(prompt.ids, tokenizer->Encode(*prompt.text));
  }
  return absl::OkStatus();
}

}  // namespace tercio::cli

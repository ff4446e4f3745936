#include "cli/chat_preview.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace tercio::cli {
namespace {

// Behind the last position of the document that begins at `begin`.
size_t EndOfDocument(const data::Sample& sample, size_t begin) {
  const auto length = static_cast<size_t>(sample.length);
  if (sample.document_starts.empty()) return length;
  size_t end = begin + 1;
  while (end < length && sample.document_starts[end] == sample.document_starts[begin]) ++end;
  return end;
}

}  // namespace

absl::StatusOr<std::vector<PreviewToken>> PreviewTokens(const data::Sample& sample,
                                                        const tokenizer::Tokenizer& tokenizer) {
  std::vector<PreviewToken> tokens;
  int conversation = 0;
  const auto append = [&](int32_t id, bool counts) -> absl::Status {
    TERCIO_ASSIGN_OR_RETURN(std::string text, tokenizer.Decode({&id, 1}));
    tokens.push_back({id, std::move(text), counts, conversation});
    return absl::OkStatus();
  };
  const auto length = static_cast<size_t>(sample.length);
  for (size_t begin = 0; begin < length; ++conversation) {
    const size_t end = EndOfDocument(sample, begin);
    bool counts = false;  // nothing predicts the first token
    for (size_t i = begin; i < end; ++i) {
      TERCIO_RETURN_IF_ERROR(append(sample.inputs[i], counts));
      counts = sample.targets[i] != data::kNoTarget;
    }
    if (counts) TERCIO_RETURN_IF_ERROR(append(sample.targets[end - 1], counts));
    begin = end;
  }
  return tokens;
}

int Conversations(const std::vector<PreviewToken>& tokens) {
  return tokens.empty() ? 0 : tokens.back().conversation + 1;
}

std::string PreviewText(const std::vector<PreviewToken>& tokens, CountedMarks marks) {
  const bool colours = marks == CountedMarks::kColours;
  std::string all;
  for (size_t begin = 0; begin < tokens.size();) {
    // Tokens are put together before they are shown, since a character may lie in several.
    std::string run;
    size_t end = begin;
    while (end < tokens.size() && tokens[end].counts == tokens[begin].counts &&
           tokens[end].conversation == tokens[begin].conversation) {
      run += tokens[end++].text;
    }
    if (begin > 0 && tokens[begin].conversation != tokens[begin - 1].conversation) {
      absl::StrAppend(&all, "\n--- conversation ", tokens[begin].conversation + 1, "\n");
    }
    const std::string shown = ForDisplay(run, "\n\t");
    all += !tokens[begin].counts ? shown
           : colours             ? "\x1b[32m" + shown + "\x1b[0m"
                                 : "[[" + shown + "]]";
    begin = end;
  }
  return all;
}

Json PreviewJson(int64_t sample, const std::vector<PreviewToken>& tokens, bool packed) {
  Json list = Json::array();
  for (const PreviewToken& token : tokens) {
    Json entry = {{"id", token.id}, {"text", token.text}, {"counts", token.counts}};
    if (packed) entry["conversation"] = token.conversation + 1;
    list.push_back(std::move(entry));
  }
  return {{"sample", sample}, {"counted", CountedTokens(tokens)}, {"tokens", std::move(list)}};
}

int64_t CountedTokens(const std::vector<PreviewToken>& tokens) {
  return std::count_if(tokens.begin(), tokens.end(),
                       [](const PreviewToken& token) { return token.counts; });
}

}  // namespace tercio::cli

#include "cli/chat_preview.h"

#include <algorithm>

#include "common/status_macros.h"
#include "common/utf8.h"

namespace tercio::cli {

absl::StatusOr<std::vector<PreviewToken>> PreviewTokens(const data::Sample& sample,
                                                        const tokenizer::Tokenizer& tokenizer) {
  std::vector<PreviewToken> tokens;
  const auto append = [&](int32_t id, bool counts) -> absl::Status {
    TERCIO_ASSIGN_OR_RETURN(std::string text, tokenizer.Decode({&id, 1}));
    tokens.push_back({id, std::move(text), counts});
    return absl::OkStatus();
  };
  bool counts = false;  // nothing predicts the first token
  const auto length = static_cast<size_t>(sample.length);
  for (size_t i = 0; i < length; ++i) {
    TERCIO_RETURN_IF_ERROR(append(sample.inputs[i], counts));
    counts = sample.targets[i] != data::kNoTarget;
  }
  if (counts) TERCIO_RETURN_IF_ERROR(append(sample.targets[length - 1], counts));
  return tokens;
}

std::string PreviewText(const std::vector<PreviewToken>& tokens, CountedMarks marks) {
  const bool colours = marks == CountedMarks::kColours;
  std::string all;
  for (size_t begin = 0; begin < tokens.size();) {
    // Tokens are put together before they are shown, since a character may lie in several.
    std::string run;
    size_t end = begin;
    while (end < tokens.size() && tokens[end].counts == tokens[begin].counts) {
      run += tokens[end++].text;
    }
    const std::string shown = ForDisplay(run, "\n\t");
    all += !tokens[begin].counts ? shown
           : colours             ? "\x1b[32m" + shown + "\x1b[0m"
                                 : "[[" + shown + "]]";
    begin = end;
  }
  return all;
}

Json PreviewJson(int64_t sample, const std::vector<PreviewToken>& tokens) {
  Json list = Json::array();
  for (const PreviewToken& token : tokens) {
    list.push_back({{"id", token.id}, {"text", token.text}, {"counts", token.counts}});
  }
  return {{"sample", sample}, {"counted", CountedTokens(tokens)}, {"tokens", std::move(list)}};
}

int64_t CountedTokens(const std::vector<PreviewToken>& tokens) {
  return std::count_if(tokens.begin(), tokens.end(),
                       [](const PreviewToken& token) { return token.counts; });
}

}  // namespace tercio::cli

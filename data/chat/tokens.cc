#include "data/chat/tokens.h"

#include <algorithm>
#include <optional>

#include "common/status_macros.h"

namespace tercio::data::chat {
namespace {

using tokenizer::Tokenizer;

// The text of a token alone; nullopt if it cannot be decoded.
std::optional<std::string> TextOf(const Tokenizer& tokenizer, int32_t id) {
  absl::StatusOr<std::string> text = tokenizer.Decode({&id, 1});
  return text.ok() ? std::optional(*std::move(text)) : std::nullopt;
}

// SentencePiece's .model files know <s> and </s>, but find them in no text, and give them none:
// they are cut out before.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    const auto add = [&](std::string_view text, std::optional<int32_t> id) {
      if (!id.has_value() || TextOf(tokenizer, *id) != "") return;
      cut_.push_back({std::string(text), *id});
    };
    add("<s>", tokenizer.beginning());
    add("</s>", tokenizer.end_of_text());
  }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const {
    if (cut_.empty()) return tokenizer_.Encode(text);
    std::vector<int32_t> ids;
    while (!text.empty()) {
      size_t at = std::string_view::npos;
      const Cut* next = nullptr;
      for (const Cut& cut : cut_) {
        const size_t found = text.find(cut.text);
        if (found >= at) continue;
        at = found;
        next = &cut;
      }
      const std::string_view plain = text.substr(0, at);
      if (!plain.empty()) {
        TERCIO_ASSIGN_OR_RETURN(const std::vector<int32_t> part, tokenizer_.Encode(plain));
        ids.insert(ids.end(), part.begin(), part.end());
      }
      if (next == nullptr) break;
      ids.push_back(next->id);
      text.remove_prefix(at + next->text.size());
    }
    return ids;
  }

 private:
  struct Cut {
    std::string text;
    int32_t id;
  };
  const Tokenizer& tokenizer_;
  std::vector<Cut> cut_;
};

// Where each token begins in the text, and the text's size. Nullopt if the texts of single tokens
// are not what the text consists of, as with SentencePiece's spaces.
std::optional<std::vector<size_t>> OffsetsOf(std::string_view text, const std::vector<int32_t>& ids,
                                             const Tokenizer& tokenizer) {
  std::vector<size_t> offsets = {0};
  for (const int32_t id : ids) {
    const std::optional<std::string> token = TextOf(tokenizer, id);
    if (!token.has_value() || text.substr(offsets.back(), token->size()) != *token)
      return std::nullopt;
    offsets.push_back(offsets.back() + token->size());
  }
  if (offsets.back() != text.size()) return std::nullopt;
  return offsets;
}

struct TokenRange {
  size_t begin;
  size_t end;
};

// Tokens with at least a byte of the range.
TokenRange TokensOf(const TextRange& range, const std::vector<size_t>& offsets) {
  const auto begin = std::upper_bound(offsets.begin(), offsets.end(), range.begin) - 1;
  const auto end = std::lower_bound(offsets.begin(), offsets.end(), range.end);
  return {static_cast<size_t>(begin - offsets.begin()), static_cast<size_t>(end - offsets.begin())};
}

// The same by the tokens of the text before an edge: as many as both have in common lie before it
// whole. What the edge cuts is one token.
absl::StatusOr<size_t> TokensBefore(std::string_view text, size_t edge, bool with_cut_one,
                                    const std::vector<int32_t>& ids, const Encoder& encoder) {
  if (edge == 0) return 0;
  if (edge == text.size()) return ids.size();
  TERCIO_ASSIGN_OR_RETURN(const std::vector<int32_t> before, encoder.Encode(text.substr(0, edge)));
  const auto common = std::mismatch(before.begin(), before.end(), ids.begin(), ids.end());
  const auto whole = static_cast<size_t>(common.first - before.begin());
  return with_cut_one && whole < before.size() ? std::min(whole + 1, ids.size()) : whole;
}

}  // namespace

absl::StatusOr<ChatTokens> Tokenize(const Rendered& rendered, LossOn loss_on,
                                    const Tokenizer& tokenizer) {
  const Encoder encoder(tokenizer);
  ChatTokens out;
  TERCIO_ASSIGN_OR_RETURN(out.ids, encoder.Encode(rendered.text));
  out.counts.assign(out.ids.size(), loss_on == LossOn::kAll);
  if (loss_on == LossOn::kAll || rendered.assistant.empty()) return out;
  const auto first =
      loss_on == LossOn::kLast ? rendered.assistant.end() - 1 : rendered.assistant.begin();
  const std::optional<std::vector<size_t>> offsets = OffsetsOf(rendered.text, out.ids, tokenizer);
  for (auto range = first; range != rendered.assistant.end(); ++range) {
    if (range->begin == range->end) continue;
    TokenRange tokens{};
    if (offsets.has_value()) {
      tokens = TokensOf(*range, *offsets);
    } else {
      TERCIO_ASSIGN_OR_RETURN(tokens.begin,
                              TokensBefore(rendered.text, range->begin, false, out.ids, encoder));
      TERCIO_ASSIGN_OR_RETURN(tokens.end,
                              TokensBefore(rendered.text, range->end, true, out.ids, encoder));
    }
    for (size_t i = tokens.begin; i < tokens.end; ++i) out.counts[i] = true;
  }
  return out;
}

RenderOptions OptionsFor(const Template& chat_template, const Tokenizer& tokenizer) {
  const auto text_of = [&](std::optional<int32_t> id, std::string_view otherwise) {
    const std::string text = id.has_value() ? TextOf(tokenizer, *id).value_or("") : "";
    return text.empty() ? std::string(otherwise) : text;
  };
  return {.bos = text_of(tokenizer.beginning(), chat_template.bos),
          .eos = text_of(tokenizer.end_of_text(), chat_template.eos)};
}

std::vector<std::string> MissingTokens(const Template& chat_template, const Tokenizer& tokenizer) {
  std::vector<std::string> missing;
  for (const std::string_view token : chat_template.special) {
    const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(token);
    if (ids.ok() && ids->size() != 1) missing.emplace_back(token);
  }
  return missing;
}

}  // namespace tercio::data::chat

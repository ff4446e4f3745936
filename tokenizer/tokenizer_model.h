// The implementation behind a Tokenizer: one kind of tokenizer with its vocabulary.
//
// A text is encoded in parts if that gives the ids of the whole: Prepare does the work that needs
// the whole text, FindBorder finds positions where the prepared text may be cut, EncodePart encodes
// the text between them, and Join puts ids together. Each kind explains in its .cc why its borders
// are safe; a kind without borders is one part.
//
// Thread safety: immutable after construction.
// Errors:        INVALID_ARGUMENT: text or ids that the vocabulary does not have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace tercio::tokenizer {

// Special ids, if the vocabulary has them.
struct SpecialIds {
  std::optional<int32_t> end_of_text;
  std::optional<int32_t> beginning;
  std::optional<int32_t> pad;
  std::optional<int32_t> mask;
  std::optional<int32_t> cls;
  std::optional<int32_t> separator;
};

class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;

  virtual const std::string& kind() const = 0;
  virtual int32_t vocab_size() const = 0;
  virtual const SpecialIds& special() const = 0;

  // The text that is cut and encoded; nullopt: the text as it is.
  virtual std::optional<std::string> Prepare(std::string_view) const { return std::nullopt; }
  virtual absl::StatusOr<std::vector<int32_t>> EncodePart(std::string_view prepared) const = 0;
  // A position in (from, size) of the prepared text where it may be cut, or its size.
  virtual size_t FindBorder(std::string_view prepared, size_t) const { return prepared.size(); }
  virtual void Join(const std::vector<int32_t>& next, std::vector<int32_t>* ids) const {
    ids->insert(ids->end(), next.begin(), next.end());
  }

  virtual absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const = 0;

  // By id: whether a token continues the word of the token before it. nullopt if the ids do not
  // show that. The usual form: a token that begins with white space begins a word.
  virtual std::optional<std::vector<bool>> WordContinuations() const;

  // Everything that the kind's reader needs to make the same model.
  virtual std::string ToJson() const = 0;
};

inline std::optional<std::vector<bool>> TokenizerModel::WordContinuations() const {
  std::vector<bool> continues(static_cast<size_t>(vocab_size()), false);
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const absl::StatusOr<std::string> text = Decode({&id, 1});
    if (!text.ok() || text->empty()) continue;
    continues[static_cast<size_t>(id)] =
        std::string_view(" \t\r\n\f\v").find(text->front()) == std::string_view::npos;
  }
  for (const std::optional<int32_t> id : {special().end_of_text, special().beginning, special().pad,
                                          special().mask, special().cls, special().separator}) {
    if (id.has_value()) continues[static_cast<size_t>(*id)] = false;
  }
  return continues;
}

inline absl::Status UnknownId(int32_t id, int32_t vocab_size) {
  return absl::InvalidArgumentError(
      absl::StrCat("id ", id, " is not in the vocabulary of ", vocab_size));
}

}  // namespace tercio::tokenizer

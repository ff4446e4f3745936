// The text of token ids as they come, in pieces that end with whole characters.
//
// A token is decoded together with those before it, since some tokenizers decide about spaces by
// them. Bytes that begin a character are held back until the rest is there.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tercio::tokenizer {

// Whether the text ends inside a character, whose other bytes are in the next token.
bool EndsInsideCharacter(std::string_view text);

class TextStream {
 public:
  using Decode = std::function<absl::StatusOr<std::string>(absl::Span<const int32_t> ids)>;

  // The text after `before`, which may be empty.
  TextStream(Decode decode, std::vector<int32_t> before)
      : decode_(std::move(decode)), ids_(std::move(before)), shown_(ids_.size()) {}

  // What the id adds to the text; empty while a character is incomplete. Errors of the tokenizer.
  absl::StatusOr<std::string> Add(int32_t id);
  // What was held back, whether it is a character or not.
  absl::StatusOr<std::string> Finish();

 private:
  enum class Text { kContinues, kHasEnded };
  absl::StatusOr<std::string> Next(Text text);

  const Decode decode_;
  std::vector<int32_t> ids_;
  size_t begin_ = 0;  // start of the ids that are decoded together
  size_t shown_;
};

}  // namespace tercio::tokenizer

// Tokens that are found in a text as they are written, before anything else is done to it: special
// tokens such as <|endoftext|>, and those that were added to a vocabulary later.
//
// At each place the longest one counts, from left to right. Those with normalized = false are
// looked for in the text itself, the others in what lies between after normalization.
//
// Thread safety: immutable after Create.
// Errors:        INVALID_ARGUMENT naming the token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tokenizer/byte_trie.h"

namespace tercio::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool left_strip = false;   // takes the white space before it
  bool right_strip = false;  // takes the white space after it
  bool normalized = false;
};

// The form of `tokenizer.json`, which ToJson uses too. single_word is refused.
absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const nlohmann::json& json);
nlohmann::json AddedTokensToJson(const std::vector<AddedToken>& tokens);

// Finds the added tokens in a text: ids, and plain text between them.
class AddedTokenMatcher {
 public:
  // `normalize` gives the form of a token with normalized = true that is searched for.
  using Normalize = absl::FunctionRef<std::string(std::string_view)>;
  static absl::StatusOr<AddedTokenMatcher> Create(const std::vector<AddedToken>& tokens,
                                                  Normalize normalize);

  using OnPlain = absl::FunctionRef<void(std::string_view)>;
  using OnId = absl::FunctionRef<void(int32_t)>;
  void SplitRaw(std::string_view text, OnPlain on_plain, OnId on_id) const {
    raw_.Split(text, on_plain, on_id);
  }
  void SplitNormalized(std::string_view text, OnPlain on_plain, OnId on_id) const {
    normalized_.Split(text, on_plain, on_id);
  }

  // Whether no token reaches across white space that follows another character, so that a text may
  // be cut between such two.
  bool allows_cuts_at_spaces() const { return allows_cuts_; }

 private:
  struct Part {
    void Split(std::string_view text, OnPlain on_plain, OnId on_id) const;
    ByteTrie trie;
    std::vector<AddedToken> tokens;  // by the trie's value
  };
  Part raw_;
  Part normalized_;
  bool allows_cuts_ = true;
};

}  // namespace tercio::tokenizer

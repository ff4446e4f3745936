// SentencePiece's treatment of a text before it is cut into pieces: characters are replaced by
// rules of the model file, white space is collapsed, a space is put before the text, and spaces
// become U+2581.
//
// The rules are a double-array trie, whose values are offsets into a block of replacements that end
// with a zero byte: u32 size of the trie, the trie as u32 units, the replacements; little-endian.
// The longest rule at each position counts. Without rules the text stays as it is.
//
// Thread safety: immutable after Create.
// Errors:        INVALID_ARGUMENT: rules that are damaged. A byte that is not UTF-8 becomes U+FFFD.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/byte_trie.h"

namespace tercio::tokenizer {

inline constexpr std::string_view kSpaceSymbol = "\u2581";

struct SentencePieceRules {
  std::string charsmap;  // may be empty
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;  // the dummy prefix goes after the text
};

class SentencePieceNormalizer {
 public:
  // `untouched`: pieces that no rule changes (user-defined symbols).
  static absl::StatusOr<SentencePieceNormalizer> Create(SentencePieceRules rules,
                                                        const std::vector<std::string>& untouched);

  std::string Normalize(std::string_view text) const;

  const SentencePieceRules& rules() const { return rules_; }

 private:
  struct Prefix {
    std::string_view replacement;
    size_t length;  // bytes of the text that it replaces, at least 1
  };
  Prefix ReplacePrefix(std::string_view text) const;
  Prefix LongestRule(std::string_view text) const;

  SentencePieceRules rules_;
  std::vector<uint32_t> units_;
  std::string replacements_;  // ends with a zero byte if there are rules
  ByteTrie untouched_;
};

}  // namespace tercio::tokenizer

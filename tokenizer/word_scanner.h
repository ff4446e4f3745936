// Cuts a text into the words of byte-level BPE, like the two regular expressions that nearly all
// such tokenizers use. They are written out as scanners, since they need a lookahead that RE2
// lacks, and since this is the larger part of the work of encoding.
//
// A byte that is not UTF-8 counts as a character that is neither letter, number nor white space.
//
// Thread safety: pure functions.
// Errors:        none.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace tercio::tokenizer {

enum class WordPattern {
  kGpt2,    // runs of letters, of numbers, of others, with a space before; white space
  kLlama3,  // at most three digits, any character before letters, line ends after punctuation
};

// The pattern with this name ("gpt2", "llama3"), or this regular expression.
std::optional<WordPattern> WordPatternNamed(std::string_view name);
std::optional<WordPattern> WordPatternOfRegex(std::string_view regex);
std::string_view NameOf(WordPattern pattern);

// The end of the word that begins at text[at]. Requires: at < text.size().
size_t WordEnd(WordPattern pattern, std::string_view text, size_t at);

// Whether words end before text[at] whatever comes elsewhere, so that both sides give the same
// words when cut there. Requires: 0 < at < text.size().
bool IsWordBorder(WordPattern pattern, std::string_view text, size_t at);

}  // namespace tercio::tokenizer

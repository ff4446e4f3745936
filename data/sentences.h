// The sentences of a text, by a rule that needs no language: a sentence ends
//
//   behind . ! or ? and the closing quotes and brackets that follow it, where white space follows
//   and then an upper-case letter, a digit, or an opening quote or bracket;
//   before an empty line.
//
// White space between two sentences belongs to the second, so that they are the text together.
// Abbreviations ("Dr. Who") end sentences here, too: learning the order of sentences does not need
// better ones.
//
// Pure; safe from any thread. Bytes that are not UTF-8 are characters of their own.
#pragma once

#include <string_view>
#include <vector>

namespace tercio::data {

// Views of `text`, none of them empty. White space alone is not a sentence: it belongs to its
// neighbours, or to nothing if there are none.
std::vector<std::string_view> Sentences(std::string_view text);

}  // namespace tercio::data

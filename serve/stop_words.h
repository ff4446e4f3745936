// Ends a text before the first of its stop words, wherever tokens begin and end: what may be the
// begin of a stop word is held back until more is known.
//
// Pure. Threads: one at a time.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tercio::serve {

class StopWords {
 public:
  // REQUIRES: none of them is empty.
  explicit StopWords(std::vector<std::string> words) : words_(std::move(words)) {}

  // What can be shown now. Nothing, once a word has been found.
  std::string Add(std::string_view piece);
  // What was held back, as the text has ended without a stop word.
  std::string Finish();
  bool found() const { return found_; }

 private:
  const std::vector<std::string> words_;
  std::string held_;
  bool found_ = false;
};

}  // namespace tercio::serve

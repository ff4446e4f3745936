#include "serve/stop_words.h"

#include <algorithm>

namespace tercio::serve {
namespace {

// The length of the longest end of the text that begins the word, without being all of it.
size_t BegunAtTheEnd(std::string_view text, std::string_view word) {
  for (size_t length = std::min(text.size(), word.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == word.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

std::string StopWords::Add(std::string_view piece) {
  if (found_) return "";
  held_.append(piece);
  size_t end = std::string::npos;
  size_t kept = 0;
  for (const std::string& word : words_) {
    end = std::min(end, held_.find(word));
    kept = std::max(kept, BegunAtTheEnd(held_, word));
  }
  if (end != std::string::npos) {
    found_ = true;
    std::string last = held_.substr(0, end);
    held_.clear();
    return last;
  }
  std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopWords::Finish() { return std::exchange(held_, ""); }

}  // namespace tercio::serve

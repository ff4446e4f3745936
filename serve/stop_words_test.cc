#include "serve/stop_words.h"

#include "gtest/gtest.h"

namespace tercio::serve {
namespace {

// The text that is shown of one that comes in pieces of `size` bytes.
std::string Shown(std::string_view text, const std::vector<std::string>& words, size_t size,
                  bool* found) {
  StopWords stop(words);
  std::string shown;
  for (size_t at = 0; at < text.size() && !stop.found(); at += size) {
    shown += stop.Add(text.substr(at, size));
  }
  *found = stop.found();
  return shown + stop.Finish();
}

TEST(StopWords, EndATextWhereverPiecesAreCut) {
  struct Case {
    std::string text;
    std::vector<std::string> words;
    std::string shown;
    bool found;
  };
  const std::vector<Case> cases = {
      {"one two three", {"two"}, "one ", true},
      {"one two three", {"four"}, "one two three", false},
      {"aaab", {"aab"}, "a", true},
      {"ababac", {"abac"}, "ab", true},
      // The first one in the text counts, not the first of the list.
      {"x END y STOP", {"STOP", "END"}, "x ", true},
      {"ends with ST", {"STOP"}, "ends with ST", false},
      {"no words", {}, "no words", false},
  };
  for (const Case& one : cases) {
    for (size_t size = 1; size <= one.text.size(); ++size) {
      bool found = false;
      EXPECT_EQ(Shown(one.text, one.words, size, &found), one.shown) << size;
      EXPECT_EQ(found, one.found) << one.text << " in pieces of " << size;
    }
  }
}

TEST(StopWords, HoldBackOnlyWhatMayBeginOne) {
  StopWords stop({"STOP"});
  EXPECT_EQ(stop.Add("a S"), "a ");
  EXPECT_EQ(stop.Add("T"), "");
  EXPECT_EQ(stop.Add("x"), "STx");
}

}  // namespace
}  // namespace tercio::serve

// Suggestions for mistyped words.
//
// Pure.
#pragma once

#include <string>
#include <vector>

namespace tercio {

// The number of letters to insert, remove or replace to turn one into the other (Levenshtein).
int EditDistance(const std::string& a, const std::string& b);

// The candidate with the least distance to `word`, the first of several; empty where that is above
// `most`, or there are no candidates.
std::string Nearest(const std::string& word, const std::vector<std::string>& candidates, int most);

// The greatest distance at which a word of this length is likely a mistyped form of another.
int LikelyDistance(const std::string& word);

// "; did you mean 'X'?" with the nearest likely candidate; empty where there is none.
std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace tercio

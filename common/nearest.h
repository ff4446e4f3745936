// The word that somebody may have meant.
//
// Pure.
#pragma once

#include <string>
#include <vector>

namespace tercio {

// Letters to insert, remove or replace that make one of the other (Levenshtein).
int EditDistance(const std::string& a, const std::string& b);

// The candidate with the least distance to `word`, the first of several; empty where that is above
// `most`, or there are no candidates.
std::string Nearest(const std::string& word, const std::vector<std::string>& candidates, int most);

// How far apart words of this one's length are that may be meant for each other.
int LikelyDistance(const std::string& word);

// "; did you mean 'X'?" with the nearest likely candidate; empty where there is none.
std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace tercio

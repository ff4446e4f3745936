// Completion of a command line for shells, which call it at every press of the Tab key.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace tercio::cli {

struct Candidate {
  std::string word;
  std::string description;
};

enum class NameKind { kNone, kJob, kNode };

struct Offers {
  std::vector<Candidate> candidates;  // that begin with the incomplete last word
  bool files = false;                 // or a path
  NameKind names = NameKind::kNone;   // or a name that only a coordinator knows
};

// `words` are those after the program's name; the last is being typed, and may be empty. Pure.
Offers Complete(const CLI::App& app, const std::vector<std::string>& words);

// The completion script for `shell`: "bash", "zsh" or "fish".
std::string CompletionScript(const std::string& shell);

// Prints the candidates, one per line: word, tab, description; ":files" stands for paths. Names
// come from the coordinator that the words or the environment name, if it answers within 300 ms.
// Never fails, since an error message would disturb the command line.
int PrintCompletion(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace tercio::cli

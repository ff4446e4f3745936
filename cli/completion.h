// What may follow on a command line: for shells, which ask with every press of the Tab key.
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
  std::vector<Candidate> candidates;  // that begin with what is there of the last word
  bool files = false;                 // or a path
  NameKind names = NameKind::kNone;   // or a name that only a coordinator knows
};

// `words` are those after the program's name; the last is what is being written, and may be empty.
// Pure.
Offers Complete(const CLI::App& app, const std::vector<std::string>& words);

// A script that makes `shell` ask: "bash", "zsh" or "fish".
std::string CompletionScript(const std::string& shell);

// Prints what may follow, a line each: word, tab, description; ":files" stands for paths. Names
// come from the coordinator that the words or the environment name, if it answers within 300 ms.
// Never fails, since nobody wants an error between two keys.
int PrintCompletion(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace tercio::cli

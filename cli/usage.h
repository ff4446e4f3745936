// Diagnoses of words that the command line does not accept, with hints for fixing them.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace tercio::cli {

// The first word that is not a verb or option or is one too many, or the verb that is missing, with
// the likely intended word: "tercio has no verb 'lst'; did you mean 'list'?". Empty if every word
// is valid. `words` are those after the program's name. Pure.
std::string MisplacedWord(const CLI::App& app, const std::vector<std::string>& words);

// The verb that the words name, as far as they do. Pure.
const CLI::App& VerbNamed(const CLI::App& app, const std::vector<std::string>& words);

// The option of this name, such as "-o" or "--output"; null: the verb has none.
const CLI::Option* OptionNamed(const CLI::App& verb, const std::string& name);

// "tercio checkpoint list"
std::string FullName(const CLI::App& verb);

}  // namespace tercio::cli

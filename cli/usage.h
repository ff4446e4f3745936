// What is wrong with words that the command line does not take, said so that it can be mended.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace tercio::cli {

// The first word that no verb or option is called, that is too many, or the verb that is missing,
// with what may have been meant: "tercio has no verb 'lst'; did you mean 'list'?". Empty where each
// word has its place. `words` are those after the program's name. Pure.
std::string MisplacedWord(const CLI::App& app, const std::vector<std::string>& words);

// The verb that the words name, as far as they do. Pure.
const CLI::App& VerbNamed(const CLI::App& app, const std::vector<std::string>& words);

// By any of its names, as "-o" or "--output"; null: the verb has none.
const CLI::Option* OptionNamed(const CLI::App& verb, const std::string& name);

// "tercio checkpoint list"
std::string FullName(const CLI::App& verb);

}  // namespace tercio::cli

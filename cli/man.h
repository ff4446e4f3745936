// `tercio man`: the manual of the command line, made from its own description of itself.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace tercio::cli {

// Prints the page of a verb ("checkpoint", "list"), or of the program where there are no words.
// With a directory writes the pages of all into it, as NAME.1. Returns the exit code.
int Man(const CLI::App& app, const std::vector<std::string>& words, const std::string& directory);

}  // namespace tercio::cli

// `tercio man`: the manual pages, generated from the definition of the command line.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace tercio::cli {

// Prints the page of a verb ("checkpoint", "list"), or of the program if there are no words. With a
// directory, writes all pages into it, as NAME.1. Returns the exit code.
int Man(const CLI::App& app, const std::vector<std::string>& words, const std::string& directory);

}  // namespace tercio::cli

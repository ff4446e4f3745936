// Man pages from the definition of a program's command line, the source of --help: troff for
// man(1), with the macros of man(7).
//
// Pure. Hidden options and verbs (without a group) are left out.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"

namespace tercio {

struct ManOptions {
  int section = 1;
  // Environment variables in addition to those that options read: name, meaning.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> see_also;  // beside its own verbs: "tercio-agent(8)"
};

// "tercio-checkpoint-list": the words of the command line up to this verb.
std::string ManName(const CLI::App& app);

// The page of one program or verb.
std::string ManPage(const CLI::App& app, const ManOptions& options);

// The direct subcommands that are not hidden.
std::vector<const CLI::App*> VerbsOf(const CLI::App& app);

}  // namespace tercio

// The tables of all verbs: names, help, examples, and the options that each takes. The order here
// is the order of help, completion and manual pages.
#pragma once

#include "cli/command_line.h"

namespace tercio::cli {

// `line` must outlive its own Run, since one verb prints what the others are.
void DeclareVerbs(CommandLine& line);

}  // namespace tercio::cli

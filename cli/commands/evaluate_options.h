// The options of `tercio evaluate`, beside those that other verbs have, too.
#pragma once

#include "cli/command_line.h"
#include "cli/commands/commands.h"

namespace tercio::cli {

// `options` outlives the table.
OptionTable EvaluationRows(EvaluateOptions& options);

}  // namespace tercio::cli

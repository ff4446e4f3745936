// The options of `tercio serve` beside those that name its model.
#pragma once

#include "cli/command_line.h"
#include "cli/commands/commands.h"

namespace tercio::cli {

OptionTable ServeRows(ServeOptions& o);

}  // namespace tercio::cli

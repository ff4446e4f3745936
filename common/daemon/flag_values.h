// Validators for the values of flags, for all programs.
#pragma once

#include "CLI/CLI.hpp"

namespace tercio {

// A transformation: "5s", "500ms", "2m", "1h", "30d", or a number of seconds.
CLI::Validator InSeconds();

// A check: a number from `least` to `most`. (CLI::Range takes what is not a number for one in its
// range.)
CLI::Validator Between(double least, double most);

}  // namespace tercio

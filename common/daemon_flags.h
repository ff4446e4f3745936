// The command line of a daemon: flags, and the file that --config names. How lines are logged is
// among them, and done here.
#pragma once

#include "CLI/CLI.hpp"

namespace tercio {

// Parses into what was bound to `app`. The exit code; *done when there is nothing more to do, after
// --help or an error, which is then on stderr.
int ParseDaemonFlags(CLI::App& app, int argc, char** argv, bool* done);

}  // namespace tercio

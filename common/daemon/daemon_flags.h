// The command line of a daemon: flags, and the file that --config names. Logging options are
// included, and applied here.
#pragma once

#include <map>
#include <set>
#include <string>

#include "CLI/CLI.hpp"

namespace tercio {

// Parses into the variables bound to `app`. Returns the exit code; *done if there is nothing more
// to do, after --help or after an error, which is then on stderr.
int ParseDaemonFlags(CLI::App& app, int argc, char** argv, bool* done);

// The settings of a parsed `app` by flag name, as texts, for comparison.
using DaemonSettings = std::map<std::string, std::string>;
DaemonSettings SettingsOf(const CLI::App& app);

// Logs which settings have changed in a reload of flags, environment and file: those in `live`
// apply immediately, the others after a restart. Names only: values may be secrets.
void LogReload(const DaemonSettings& before, const DaemonSettings& after,
               const std::set<std::string>& live);

}  // namespace tercio

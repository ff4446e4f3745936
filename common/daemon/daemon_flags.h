// The command line of a daemon: flags, and the file that --config names. How lines are logged is
// among them, and done here.
#pragma once

#include <map>
#include <set>
#include <string>

#include "CLI/CLI.hpp"

namespace tercio {

// Parses into what was bound to `app`. The exit code; *done when there is nothing more to do, after
// --help or an error, which is then on stderr.
int ParseDaemonFlags(CLI::App& app, int argc, char** argv, bool* done);

// The settings of a parsed `app`, by the names of their flags, as texts: to be compared.
using DaemonSettings = std::map<std::string, std::string>;
DaemonSettings SettingsOf(const CLI::App& app);

// Logs which settings another reading of flags, environment and file has changed: those in `live`
// count from now on, the others from the next start. Names only: values may be secrets.
void LogReload(const DaemonSettings& before, const DaemonSettings& after,
               const std::set<std::string>& live);

}  // namespace tercio

// What both daemons do alike: settings from flags, environment and a YAML file, signals, parent
// death.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio {

// The command line with the settings of the file that --config names put before it, so that flags
// win: `listen: x` in the file is `--listen=x`, a list several of them, `true` and `false` are for
// flags without a value; a key without a value is as if it were not there. INVALID_ARGUMENT when
// the file is not a map of texts and lists of texts, or has a key twice.
absl::StatusOr<std::vector<std::string>> WithConfigFile(int argc, char** argv);

// Takes the places of standard streams that are closed, so that no file gets their numbers, and
// with them what is printed. Called before files are opened.
void HoldStandardStreams();

// Blocks SIGINT and SIGTERM in this and all later threads. Called first.
void BlockStopSignals();
// The same for a daemon, with SIGHUP, `more` and `others`. Returns those that end it
// (common/daemon/daemon_loop.h), which `more` do and `others` do not: SIGHUP is among them only
// where a terminal is the input, since there it says that the terminal is gone.
std::vector<int> BlockDaemonSignals(const std::vector<int>& more = {},
                                    const std::vector<int>& others = {});

// As many open files as the system allows this process: connections are files, too, and those of
// strangers must not keep the daemon from opening its own.
void RaiseFileLimit();

// Memory of a message that was freed is used for the next. By default glibc gives blocks of a
// megabyte back to the kernel, which clears every page again for the next message. Called first.
void KeepFreedMemory();

// SIGTERM comes when the process that started this one ends.
void DieWithParent();

// The directory of this program's file.
std::string ProgramDirectory();

}  // namespace tercio

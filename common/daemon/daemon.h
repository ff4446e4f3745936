// The common parts of both daemons: settings from flags, environment and a YAML file, signals,
// parent death.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio {

// Puts the settings of the file that --config names before the command line, so that flags take
// precedence: `listen: x` in the file is `--listen=x`, a list is the flag given several times,
// `true` and `false` are for flags without a value; a key without a value is ignored.
// INVALID_ARGUMENT if the file is not a map of texts and lists of texts, or has a key twice.
absl::StatusOr<std::vector<std::string>> WithConfigFile(int argc, char** argv);

// Occupies the descriptors of closed standard streams, so that no file gets one of them, and with
// it the program's output. Called before files are opened.
void HoldStandardStreams();

// Blocks SIGINT and SIGTERM in this and all later threads. Called first.
void BlockStopSignals();
// The same for a daemon, with SIGHUP, `more` and `others`. Returns the signals that end it
// (common/daemon/daemon_loop.h), which include `more` but not `others`. SIGHUP is among them only
// if stdin is a terminal, where it means that the terminal is gone.
std::vector<int> BlockDaemonSignals(const std::vector<int>& more = {},
                                    const std::vector<int>& others = {});

// Raises the limit of open files to the maximum for this process: connections are files, and
// strangers' connections must not keep the daemon from opening its own files.
void RaiseFileLimit();

// Reuses the memory of freed messages. By default glibc returns blocks of a megabyte to the kernel,
// which clears every page again for the next message. Called first.
void KeepFreedMemory();

// Requests SIGTERM for this process when its parent ends.
void DieWithParent();

// The directory that contains this program.
std::string ProgramDirectory();

}  // namespace tercio

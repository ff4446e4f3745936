// `tercio-coordinator init | token | revoke | access`: an operator's commands on the access
// directory of a coordinator, whether it runs or not.
#pragma once

namespace tercio::coordinator {

// Whether the first argument is one of them.
bool IsAccessCommand(int argc, char** argv);
// Returns the exit code; all output has been printed.
int RunAccessCommand(int argc, char** argv);

}  // namespace tercio::coordinator

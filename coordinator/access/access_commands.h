// `tercio-coordinator init | token | revoke | access`: what an operator does to the access
// directory of a coordinator, whether it runs or not.
#pragma once

namespace tercio::coordinator {

// Whether the first argument is one of them.
bool IsAccessCommand(int argc, char** argv);
// The exit code; has printed what there is to say.
int RunAccessCommand(int argc, char** argv);

}  // namespace tercio::coordinator

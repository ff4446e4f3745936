// Version and commit of all programs, and which versions work together.
//
// Both texts are set when a program is linked: `kVersion` by common/version.cc (a test may link
// another one), `kCommit` by //common:commit, which only programs have.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tercio {

extern const char* const kVersion;  // MAJOR.MINOR.PATCH
extern const char* const kCommit;   // "unknown" if built outside a repository

// The name under which a trainer sends its version to the agent, in the metadata of its call.
inline constexpr char kVersionMetadata[] = "tercio-version";

// Programs of the same major version whose minor versions are equal or adjacent work together, so
// that a cluster is upgraded one program at a time. FAILED_PRECONDITION with both versions
// otherwise, or if one of them is not a version. `theirs_name` and `ours_name` name the programs in
// the message, such as "node a" and "the coordinator".
absl::Status CheckVersions(const std::string& theirs_name, const std::string& theirs,
                           const std::string& ours_name, const std::string& ours = kVersion);

}  // namespace tercio

// What all programs report of themselves, and which of them work together.
//
// Both texts are set when a program is linked: `kVersion` by common/version.cc (a test may link
// another one), `kCommit` by //common:commit, which only programs have.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tercio {

extern const char* const kVersion;  // MAJOR.MINOR.PATCH
extern const char* const kCommit;   // "unknown" where there was no repository

// Under this name a trainer says its version to the agent, in the metadata of its call.
inline constexpr char kVersionMetadata[] = "tercio-version";

// Programs of the same major version whose minor versions are equal or next to each other work
// together, so that a cluster is upgraded one program at a time. FAILED_PRECONDITION with both
// versions otherwise, or where one of them is none. `theirs_name` and `ours_name` say whose they
// are, such as "node a" and "the coordinator".
absl::Status CheckVersions(const std::string& theirs_name, const std::string& theirs,
                           const std::string& ours_name, const std::string& ours = kVersion);

}  // namespace tercio

// Which nodes a token may enrol: patterns of names, such as "gpu-*,login-?", where * stands for any
// characters and ? for one.
//
// Threads: any; pure.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tercio::coordinator {

// INVALID_ARGUMENT: a pattern is empty, too long, has characters that no name of a node has, or
// fits every name (it has neither letter nor digit).
absl::Status CheckNodePatterns(const std::string& patterns);

// REQUIRES: CheckNodePatterns(patterns).ok().
bool FitsNodePatterns(const std::string& patterns, const std::string& node);

}  // namespace tercio::coordinator

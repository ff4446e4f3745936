// The adapters that `tercio serve --adapter` names. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::cli {

struct NamedAdapter {
  std::string name;  // in requests
  std::string directory;
};

// The last part of a path, which is the name of what lies there; empty: it has none.
std::string LastPartOf(const std::string& path);

// `options`: DIR, or NAME=DIR, where no / precedes the =. `model`: the name of the base.
// INVALID_ARGUMENT for an option without a name or directory, and for two of one name.
absl::StatusOr<std::vector<NamedAdapter>> NamedAdapters(const std::vector<std::string>& options,
                                                        const std::string& model);

}  // namespace tercio::cli

// The places that job files may have a node read: data, tokenizers and models must lie in one of
// the agent's data roots, after resolving all symbolic links. A path outside is refused in the same
// words whether or not it exists.
//
// Threads: const methods from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::agent {

class AllowedPaths {
 public:
  // Allows everything.
  AllowedPaths() = default;
  // Allows these directories; if there are none, nothing. INVALID_ARGUMENT: one is not a directory.
  static absl::StatusOr<AllowedPaths> Under(const std::vector<std::string>& roots);

  // The same object in another process, from the `any` and `roots` of the first.
  static AllowedPaths Again(bool any, std::vector<std::string> roots);
  bool any() const { return any_; }
  const std::vector<std::string>& roots() const { return roots_; }

  // PERMISSION_DENIED, with the job's key and the path.
  absl::Status Check(const v1::JobSpec& spec) const;

 private:
  absl::Status CheckPath(const std::string& key, const std::string& path) const;
  bool IsInside(const std::string& path) const;
  bool AllInside(const std::string& path) const;

  bool any_ = true;
  std::vector<std::string> roots_;  // without links, each with a slash at its end
};

}  // namespace tercio::agent

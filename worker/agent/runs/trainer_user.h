// The user that trainers run as if the agent is root: they compute on untrusted data and models,
// and need none of root's rights.
//
// Threads: any.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tercio::agent {

struct TrainerUser {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
};

// `name` empty: tercio-trainer, if the agent is root and there is such a user, else nullopt:
// trainers run as the agent's own user. NOT_FOUND: there is no user of that name;
// PERMISSION_DENIED: the agent is not root.
absl::StatusOr<std::optional<TrainerUser>> FindTrainerUser(const std::string& name);

// Makes the user the owner of the file or directory. FAILED_PRECONDITION: it is a link, or a file
// with a second name: the user may have made it, of a file that is not theirs.
absl::Status GiveTo(const TrainerUser& user, const std::string& path);

// Lets others traverse the directory, to files whose names they know.
absl::Status LetPass(const std::string& directory);

}  // namespace tercio::agent

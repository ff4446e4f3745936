// The user under whom trainers run where the agent is root: they compute on data and models of
// strangers, and need none of root's rights.
//
// Threads: any.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tercio {

struct TrainerUser {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
};

// `name` empty: tercio-trainer, where the agent is root and there is such a user, else nobody in
// particular (nullopt: trainers run as the agent does). NOT_FOUND: there is no user of that name;
// PERMISSION_DENIED: the agent is not root.
absl::StatusOr<std::optional<TrainerUser>> FindTrainerUser(const std::string& name);

// The file or directory becomes the user's. FAILED_PRECONDITION: it is a link, or a file with a
// second name: the user may have made it, of a file that is not theirs.
absl::Status GiveTo(const TrainerUser& user, const std::string& path);

// Others may pass through the directory to what they know the name of.
absl::Status LetPass(const std::string& directory);

}  // namespace tercio

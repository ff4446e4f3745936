// Following a job to its end.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/client.h"

namespace tercio::cli {

struct FollowOptions {
  bool show_progress =
      true;            // on stderr: one refreshing line on a terminal that can, else plain lines
  bool ranks = false;  // the status that is returned is to have them
  std::function<void(const v1::JobStatus&)> on_status = {};  // called for each
  absl::Duration timeout = absl::InfiniteDuration();
  // Whether a coordinator that cannot be reached will come back. Null: for some seconds.
  std::function<bool()> hope = {};
};

// What somebody who presses Ctrl-C is told who follows a job of a coordinator that lives on.
std::string GoesOn(const std::string& job);

// Waits until the job has ended, and returns its last status. DEADLINE_EXCEEDED after the timeout.
// The connection may break and come back meanwhile.
absl::StatusOr<v1::JobStatus> FollowJob(Client& client, const std::string& job,
                                        const FollowOptions& options);

// DEADLINE_EXCEEDED: the job goes on.
absl::Status NotInTime(const std::string& job);

}  // namespace tercio::cli

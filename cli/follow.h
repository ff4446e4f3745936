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
      true;  // on stderr: one refreshing line on a terminal that can, else plain lines
  std::string title = {};  // begins each line of progress; empty: none
  bool ranks = false;      // whether the returned status must have them
  std::function<void(const v1::JobStatus&)> on_status = {};  // called for each status
  absl::Duration timeout = absl::InfiniteDuration();
  // Whether an unreachable coordinator is expected back. Null: for some seconds.
  std::function<bool()> hope = {};
};

// The message at Ctrl-C for a user who follows a job of a coordinator that keeps running.
std::string StillRunsNotice(const std::string& job);

// Waits until the job has ended, and returns its last status. DEADLINE_EXCEEDED after the timeout.
// Reconnects if the connection breaks meanwhile.
absl::StatusOr<v1::JobStatus> FollowJob(Client& client, const std::string& job,
                                        const FollowOptions& options);

// The DEADLINE_EXCEEDED status for a job that continues.
absl::Status NotInTime(const std::string& job);

}  // namespace tercio::cli

// The coordinator and the agent of `tercio run` and `resume`, which run as long as this process
// needs them. Only this user can connect to the coordinator (private_socket.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/child.h"
#include "cli/private_socket.h"

namespace tercio::cli {

class PrivatePair {
 public:
  // The name of the agent's node.
  static constexpr char kNode[] = "local";

  // Prints the addresses to stderr. FAILED_PRECONDITION, naming the job, if another job runs in the
  // state directory.
  static absl::StatusOr<std::unique_ptr<PrivatePair>> Start(const std::string& state_dir, int slots,
                                                            const std::string& device);
  ~PrivatePair();

  std::string coordinator() const { return socket_->address(); }

  // Restarts a process that has died, and reports it. Trainers continue meanwhile, as in a cluster,
  // where the machine's service manager does this. Called periodically, by one thread at a time.
  // ABORTED: it keeps dying.
  absl::Status Supervise();

 private:
  // The limit of restarts in a run, and the pause between them.
  static constexpr int kMostRestarts = 10;
  static constexpr absl::Duration kPause = absl::Seconds(1);

  PrivatePair(std::string state_dir, int slots, std::string device,
              std::unique_ptr<PrivateSocket> socket);
  absl::Status StartCoordinator();
  absl::Status StartAgent();
  absl::Status Revive(std::unique_ptr<Child>* child, const char* name,
                      absl::Status (PrivatePair::*start)());

  const std::string state_dir_;
  const int slots_;
  const std::string device_;
  const std::unique_ptr<PrivateSocket> socket_;
  std::unique_ptr<Child> coordinator_;
  std::unique_ptr<Child> agent_;
  int restarts_ = 0;
  absl::Time not_before_ = absl::InfinitePast();
};

}  // namespace tercio::cli

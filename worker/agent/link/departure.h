// How an agent leaves its cluster with its trainers: the coordinator is notified when the node will
// be gone, its jobs save and continue elsewhere, and whatever is still there in the end is stopped.
//
// It begins at SIGTERM, after which the agent ends, or before that at SIGUSR2, after which the
// agent stays until SIGTERM: for a hook that runs beside an agent whose end would end the hook, too
// (`tercio-agent --leave`, the preStop hook of a pod). The hook finds the agent, and learns that
// its jobs are gone, by a file in the agent's state directory.
//
// Threads: Message from any thread, the others from the first thread of the agent.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "worker/agent/link/node_link.h"
#include "worker/agent/runs/run_manager.h"

namespace tercio::agent {

// From SIGTERM to SIGKILL for trainers that are still there when the time to leave is up.
inline constexpr double kKillSeconds = 5;

class Departure {
 public:
  static constexpr int kSignal = SIGUSR2;

  // The link and the runs must outlive it.
  Departure(NodeLink& link, RunManager& runs, const std::string& state_dir);

  // Makes the file in which AskToLeave finds this process.
  absl::Status Announce();

  // Notifies the coordinator that the node will be gone after `grace_seconds`. Further calls have
  // no effect.
  void Begin(double grace_seconds);
  bool begun() const { return gone_at_ > 0; }
  // The message for the coordinator on a new connection; nullopt while the node stays.
  std::optional<v1::AgentMessage> Message() const;
  // Called periodically after Begin: records in the file when no run is left, or when there is no
  // more time for any.
  void Look();

  // Begins, waits until the runs have ended, stops those that remain. `give_up` ends the waiting.
  void Finish(double grace_seconds, const std::function<bool()>& give_up);

 private:
  double SecondsLeft() const;
  enum class Presence { kHere, kLeft };
  absl::Status Write(Presence presence) const;

  NodeLink& link_;
  RunManager& runs_;
  const std::string path_;
  std::atomic<double> gone_at_ = 0;  // seconds of the steady clock; 0 while the node stays
  bool left_ = false;
};

// Asks the agent that runs on `state_dir` to leave, and returns when its jobs are gone or the time
// that it gives them (--stop-grace) is over; also when no agent runs there. PERMISSION_DENIED (an
// agent of another user) | CANCELLED (`give_up`).
absl::Status AskToLeave(const std::string& state_dir, const std::function<bool()>& give_up);

}  // namespace tercio::agent

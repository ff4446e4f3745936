// The loop of a daemon's first thread: waits for signals, reloads the configuration at SIGHUP, and
// reports to systemd and to health checks that the daemon makes progress.
//
// Threads: the functions of a DaemonLoop are called from the thread that runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/daemon/service_manager.h"

namespace tercio {

struct DaemonLoop {
  // Incremented on every pass of the loop that does the daemon's work. The systemd watchdog is
  // notified only when it has changed.
  std::function<uint64_t()> rounds;
  // Whether the daemon is ready to serve.
  std::function<bool()> ready;
  // A line for `systemctl status`; called only if systemd listens.
  std::function<std::string()> status;
  // Called at SIGHUP.
  std::function<void()> reload;
  // Called at the first beat, and when one of them has changed. `alive`: the loop has made progress
  // within `stuck_after`.
  std::function<void(bool alive, bool ready)> health = [](bool, bool) {};
  std::function<void()> each_beat = [] {};
  std::vector<int> stop_signals;  // blocked in all threads, as SIGHUP is
  // Handlers of other signals, after which the daemon continues; these signals are blocked, too.
  std::map<int, std::function<void()>> other_signals;
  absl::Duration beat = absl::Seconds(1);
  absl::Duration stuck_after = absl::Seconds(30);
};

// Reports to systemd that the service is ready, runs until a signal ends it, reports that too, and
// returns the signal.
int RunDaemonLoop(const ServiceManager& manager, const DaemonLoop& loop);

}  // namespace tercio

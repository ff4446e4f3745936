// What the first thread of a daemon does between its start and its end: waits for signals, reads
// the configuration again at SIGHUP, and tells systemd and whoever asks for its health that the
// daemon moves.
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
  // Whether the daemon does for others what it is there for.
  std::function<bool()> ready;
  // A line for `systemctl status`; asked only where systemd listens.
  std::function<std::string()> status;
  // SIGHUP.
  std::function<void()> reload;
  // Told at the first beat, and when one of them has changed. `alive`: the loop has moved within
  // `stuck_after`.
  std::function<void(bool alive, bool ready)> health = [](bool, bool) {};
  std::function<void()> each_beat = [] {};
  std::vector<int> stop_signals;  // blocked in all threads, as SIGHUP is
  // What else is done at a signal, after which the daemon goes on; blocked, too.
  std::map<int, std::function<void()>> other_signals;
  absl::Duration beat = absl::Seconds(1);
  absl::Duration stuck_after = absl::Seconds(30);
};

// Says that the service is ready, and returns the signal that ends it, after saying so.
int RunDaemonLoop(const ServiceManager& manager, const DaemonLoop& loop);

}  // namespace tercio

#include "common/daemon/daemon_loop.h"

#include <algorithm>
#include <csignal>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "common/steady_time.h"

namespace tercio {
namespace {

// One of the signals, or 0 if none has arrived within `patience`.
int WaitForSignal(const sigset_t& signals, absl::Duration patience) {
  const timespec wait = absl::ToTimespec(patience);
  // An interrupt by another signal counts as none.
  return std::max(0, sigtimedwait(&signals, nullptr, &wait));
}

// Watches the progress of the daemon's work, and reports it to systemd and the health server.
class Pulse {
 public:
  Pulse(const ServiceManager& manager, const DaemonLoop& loop) : manager_(manager), loop_(loop) {}

  void Beat() {
    const absl::Time now = SteadyNow();
    const uint64_t rounds = loop_.rounds();
    // The watchdog is told only of progress: a loop that hangs must not look alive.
    if (rounds != rounds_) {
      rounds_ = rounds;
      moved_ = now;
      manager_.Alive();
    }
    const std::pair health = {now - moved_ < loop_.stuck_after, loop_.ready()};
    // Changes alone are passed on, as listeners are woken by them.
    if (health != told_) loop_.health(health.first, health.second);
    told_ = health;
    if (!manager_.listens()) return;
    std::string status = loop_.status();
    // systemd is spared what it has been told already.
    if (status == status_) return;
    manager_.Status(status);
    status_ = std::move(status);
  }

 private:
  const ServiceManager& manager_;
  const DaemonLoop& loop_;
  uint64_t rounds_ = 0;
  absl::Time moved_ = SteadyNow();
  std::string status_;
  std::optional<std::pair<bool, bool>> told_;  // alive, ready
};

}  // namespace

int RunDaemonLoop(const ServiceManager& manager, const DaemonLoop& loop) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGHUP);
  for (const int signal : loop.stop_signals) sigaddset(&signals, signal);
  for (const auto& [signal, unused] : loop.other_signals) sigaddset(&signals, signal);
  Pulse pulse(manager, loop);
  // The state is known before readiness is reported.
  pulse.Beat();
  manager.Ready();
  while (true) {
    const int signal = WaitForSignal(signals, std::min(loop.beat, manager.ping_interval()));
    const bool stops = std::find(loop.stop_signals.begin(), loop.stop_signals.end(), signal) !=
                       loop.stop_signals.end();
    if (stops) {
      manager.Stopping();
      return signal;
    }
    // A reload is over when it is reported as such.
    if (signal == SIGHUP) {
      manager.Reloading();
      loop.reload();
      manager.Ready();
    }
    if (const auto other = loop.other_signals.find(signal); other != loop.other_signals.end()) {
      other->second();
    }
    loop.each_beat();
    pulse.Beat();
  }
}

}  // namespace tercio

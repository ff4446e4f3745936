// What systemd is told of this process, by the protocol of sd_notify(3): lines NAME=value in one
// datagram to the socket that NOTIFY_SOCKET names. Where there is none, nobody is told.
//
// Threads: all methods of a const object from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace tercio {

class ServiceManager {
 public:
  // Tells nobody.
  ServiceManager() = default;
  // Takes the variables of the protocol out of the environment, so that no child speaks for this
  // process. Called before threads are started.
  static ServiceManager FromEnvironment();

  bool listens() const { return !socket_.empty(); }
  // Alive() at least so often: half of what the watchdog waits; infinite when there is none.
  absl::Duration ping_interval() const { return ping_interval_; }

  void Ready() const { Say("READY=1"); }
  void Alive() const { Say("WATCHDOG=1", When::kNowOrNever); }
  // One line for people.
  void Status(const std::string& text) const;
  // Ready() follows when it is done.
  void Reloading() const;
  void Stopping() const { Say("STOPPING=1"); }

 private:
  // Where messages cannot be delivered that is logged, once: systemd acts as if they were never
  // sent.
  enum class When { kSoon, kNowOrNever };
  void Say(const std::string& state, When when = When::kSoon) const;

  std::string socket_;
  absl::Duration ping_interval_ = absl::InfiniteDuration();
  std::shared_ptr<std::atomic<bool>> failing_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace tercio

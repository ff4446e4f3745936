// Notifications to systemd about this process, by the protocol of sd_notify(3): lines NAME=value in
// one datagram to the socket that NOTIFY_SOCKET names. Without that variable nothing is sent.
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
  // Sends nothing.
  ServiceManager() = default;
  // Removes the variables of the protocol from the environment, so that no child notifies in the
  // name of this process. Called before threads are started.
  static ServiceManager FromEnvironment();

  bool listens() const { return !socket_.empty(); }
  // The interval at which Alive() must be called at least: half the watchdog's timeout; infinite if
  // there is no watchdog.
  absl::Duration ping_interval() const { return ping_interval_; }

  void Ready() const { Notify("READY=1"); }
  void Alive() const { Notify("WATCHDOG=1", When::kNowOrNever); }
  // A line of text for people.
  void Status(const std::string& text) const;
  // Followed by Ready() when it is done.
  void Reloading() const;
  void Stopping() const { Notify("STOPPING=1"); }

 private:
  // Sends a message. A failed delivery is logged, once: systemd acts as if the message had never
  // been sent.
  enum class When { kSoon, kNowOrNever };
  void Notify(const std::string& state, When when = When::kSoon) const;

  std::string socket_;
  absl::Duration ping_interval_ = absl::InfiniteDuration();
  std::shared_ptr<std::atomic<bool>> failing_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace tercio

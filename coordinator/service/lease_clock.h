// The coordinator's time, by which leases, waits and back-offs run: seconds since 1970 as the wall
// clock had them when the process started, and from there on by the monotonic clock. A wall clock
// that is set meanwhile neither kills nodes nor keeps dead ones; it counts again after a restart,
// which no wait outlasts (coordinator/core).
//
// Threads: any.
#pragma once

#include <functional>
#include <utility>

namespace tercio::coordinator {

class LeaseClock {
 public:
  using Read = std::function<double()>;  // seconds

  LeaseClock(Read wall, Read monotonic)
      : wall_(std::move(wall)), monotonic_(std::move(monotonic)), offset_(wall_() - monotonic_()) {}
  // Uses the clocks of this machine.
  LeaseClock();

  double Now() const { return offset_ + monotonic_(); }
  // By how much the wall clock is ahead of this one: 0 until it is set.
  double WallAhead() const { return wall_() - Now(); }

 private:
  Read wall_;
  Read monotonic_;
  double offset_;
};

}  // namespace tercio::coordinator

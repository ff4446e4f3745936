#include "coordinator/service/lease_clock.h"

#include "absl/time/clock.h"
#include "common/steady_time.h"

namespace tercio::coordinator {

// The two clocks meet once, in the constructor: all later times follow the monotonic one.
LeaseClock::LeaseClock()
    : LeaseClock([] { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); },
                 [] { return absl::ToDoubleSeconds(SteadyNow() - absl::UnixEpoch()); }) {}

}  // namespace tercio::coordinator

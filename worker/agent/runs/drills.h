// Fault drills on the trainers of this node: kills or freezes a trainer, flips a bit of its
// weights, or makes it slow for a while. Faults of the agent itself or of its connection are
// injected by their owners.
//
// A slow rank is stopped during every second slice of time: slices are short, so that every step
// has its share. Its trainer may end and another start meanwhile, so this names ranks and leaves it
// to the caller to find their processes.
//
// Threads: not thread-safe; used under its owner's lock. Owns no process.
// No clock: callers pass the time, in seconds of a clock that never goes back.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/agent/core/agent_core.h"

namespace tercio::agent {

class Drills {
 public:
  // The trainer that a fault is meant for.
  struct Target {
    std::function<void(int signal)> signal;                // empty: it does not run here
    std::function<void(const v1::TrainerCommand&)> write;  // empty: it is not connected
  };
  // A signal for the trainer of a rank, if it runs.
  struct Pulse {
    RunKey run;
    int rank = 0;
    int signal = 0;
  };

  // NOT_FOUND: the rank does not run here | UNAVAILABLE: the fault needs a trainer that is
  // connected | UNIMPLEMENTED: there is no such fault.
  absl::Status Inject(const v1::InjectFault& fault, const Target& target, double now);

  // Whether any rank is slow; then Pulses is due every few milliseconds.
  bool SlowsDown() const { return !slow_.empty(); }
  // The signals that begin the next slice.
  std::vector<Pulse> Pulses(double now);

 private:
  struct SlowRank {
    RunKey run;
    int rank = 0;
    double until = 0;
    bool stopped = false;
  };

  std::vector<SlowRank> slow_;
};

}  // namespace tercio::agent

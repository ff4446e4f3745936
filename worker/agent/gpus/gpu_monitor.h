// Polls the node's GPUs every few seconds, in a thread of its own, since a driver that hangs must
// not hang the agent: queries are answered from the last poll, or with the fact that there is none.
//
// Threads: all methods from any thread; Start, then Stop, once each. Callbacks come from the
// monitor's thread, none after Stop. A thread that hangs in the driver by then is abandoned.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/gpus/gpu_faults.h"
#include "common/gpus/gpus.h"

namespace tercio::agent {

// The last known state of one GPU.
struct GpuReading {
  Gpu gpu;
  std::optional<GpuSample> sample;  // absent before the first, and while the driver is silent
  double age_seconds = 0;           // since the last look, or the start
  std::optional<GpuFault> fault;
  std::map<int, int64_t> xids;  // how often each was reported since the start
};

class GpuMonitor {
 public:
  struct Options {
    Gpus gpus;
    std::string unusable;  // why trainers cannot run on any of them; empty: they can
    bool shared = false;   // several ranks are to use one GPU
    // Memory that foreign processes may use on a GPU before it stops taking ranks.
    int64_t others_bytes = int64_t{1} << 30;
    absl::Duration interval = absl::Seconds(5);
    absl::Duration silence = absl::Seconds(30);  // then the driver counts as not answering
    // Memory in use may belong to ranks that have ended for up to this long.
    absl::Duration release = absl::Seconds(10);
    std::function<absl::StatusOr<std::unique_ptr<GpuSession>>()> open = GpuSession::Open;
  };
  struct Callbacks {
    // The GPUs that ranks are on, as places in `Options::gpus.list`.
    std::function<std::set<int>()> in_use;
    // Called when other GPUs are faulty than before, or in another way.
    std::function<void()> on_change;
  };
  // Recent reports of the driver about a GPU.
  struct Trouble {
    std::string text;        // "XID 79 (the GPU has fallen off the bus)"; empty: nothing
    bool of_device = false;  // not caused by any program
  };

  explicit GpuMonitor(Options options);
  ~GpuMonitor() { Stop(); }

  void Start(Callbacks callbacks);
  void Stop();

  // Polls now. Returns when that and on_change are done, or after `patience`.
  void Look(absl::Duration patience);
  // Readings of each GPU, in the order of `Options::gpus.list`.
  std::vector<GpuReading> Readings() const;
  // Trouble of the GPU at this index within the last `window`, after a fresh look.
  Trouble TroubleOf(int gpu, absl::Duration window, absl::Duration patience);

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace tercio::agent

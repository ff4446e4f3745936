// The agent's metrics for Prometheus, about its trainers, its GPUs and itself: one page for all
// ranks of the node.
//
// The gauges of a rank vanish when it ends; its counters stay for `linger`, so that their final
// values are scraped, and then vanish. The same rank of a later attempt continues them.
//
// Thread-safe. A rank's report holds a lock while it is copied.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/agent/gpus/gpu_monitor.h"

namespace tercio::agent {

struct RankLabels {
  std::string job_id;
  std::string job_name;
  int rank = 0;
  // Its place in the grid, and its device on the node.
  int tensor = 0;
  int pipeline = 0;
  int data = 0;
  int device = 0;
};

struct AgentMetricsOptions {
  absl::Duration linger = absl::Seconds(60);
  std::string state_dir;
  // PEM files, for their dates; empty without TLS.
  std::string certificate;
  std::string authority;
};

// Sources that the page queries at each scrape; a missing one has no series.
struct AgentSources {
  std::function<bool()> connected;  // to the coordinator
  std::function<int64_t()> spool_bytes;
  std::function<std::vector<GpuReading>()> gpus;
  std::string gpu_driver;
};

// How a rank has ended: all of its job was done, or not.
enum class RankEnd { kGood, kFault };

class AgentMetrics {
 public:
  // Serves /metrics on `address` (HOST:PORT, port 0 picks one). INVALID_ARGUMENT (no such address)
  // | FAILED_PRECONDITION when it is in use.
  static absl::StatusOr<std::unique_ptr<AgentMetrics>> Serve(const std::string& address,
                                                             AgentMetricsOptions options = {});
  ~AgentMetrics();

  // HOST:PORT that really listens.
  const std::string& address() const { return address_; }

  // The current page, without the server's own metrics.
  std::string Page() const;

  // `steps` and `tokens` are those since the rank's last report.
  void Step(const RankLabels& labels, const v1::TrainerStep& step, int64_t steps, int64_t tokens);
  void Figures(const RankLabels& labels, const v1::RankFigures& figures);
  void Memory(const RankLabels& labels, const v1::TrainerMemory& memory);
  void Checkpoint(const RankLabels& labels, const v1::CheckpointProgress& progress);
  // Records how long a rank took to load the state from which it continues, from "memory" (a copy
  // of a snapshot) or "disk" (a checkpoint, or the weights of model.from).
  void Loaded(const RankLabels& labels, const std::string& source, double seconds);
  // Adds to the number of log lines that are missing: not written, or not sent.
  void LogLinesLost(const RankLabels& labels, int64_t lines);
  void Exited(const RankLabels& labels, RankEnd end);
  void SetRunning(int trainers);
  void SetSnapshotBytes(int64_t bytes);
  // From now on the page queries these sources; once this returns, no others.
  void Show(AgentSources sources);

 private:
  struct State;
  AgentMetrics();

  std::unique_ptr<State> state_;
  std::string address_;
};

}  // namespace tercio::agent

// What the agent exports to Prometheus about its trainers: one page for all ranks of the node.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/agent/gpu_monitor.h"

namespace tercio {

struct RankLabels {
  std::string job_id;
  std::string job_name;
  int rank = 0;
};

class AgentMetrics {
 public:
  // Serves /metrics on `address` (HOST:PORT, port 0 picks one). FAILED_PRECONDITION when it is in
  // use.
  static absl::StatusOr<std::unique_ptr<AgentMetrics>> Serve(const std::string& address);
  ~AgentMetrics();

  // HOST:PORT that really listens.
  const std::string& address() const { return address_; }

  // `steps` and `tokens` are those since the rank's last report.
  void Step(const RankLabels& labels, const v1::TrainerStep& step, int64_t steps, int64_t tokens);
  void Memory(const RankLabels& labels, const v1::TrainerMemory& memory);
  void Checkpoint(const RankLabels& labels, const v1::CheckpointProgress& progress);
  void Exited(const RankLabels& labels, bool fault);
  // How long a rank has taken to load the state from which it goes on, from "memory" (a copy of a
  // snapshot) or "disk" (a checkpoint, or the weights of model.from).
  void Loaded(const RankLabels& labels, const std::string& source, double seconds);
  void LogLinesLost(const RankLabels& labels, int64_t lines);
  void SetRunning(int trainers);
  void SetSnapshotBytes(int64_t bytes);
  // From now on the page also shows what `read` returns at each scrape. Called once; `read` must be
  // good for as long as this object.
  void ShowGpus(std::function<std::vector<GpuReading>()> read, const std::string& driver);
  // Gauges of a rank go when it ends, so that nothing stale is shown.
  void Forget(const RankLabels& labels);

 private:
  struct Families;
  AgentMetrics();

  std::unique_ptr<Families> families_;
  std::string address_;
};

}  // namespace tercio

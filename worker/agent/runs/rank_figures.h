// What this node's ranks report about themselves: takes their figures (throughput, memory, time to
// load) into the agent's metrics, and puts those of ranks that have made progress into a heartbeat.
//
// A rank is known from its first report, or its adoption, until its run is forgotten. The state of
// its run is the core's (core/agent_core.h); callers pass it as it was before the report.
//
// Threads: not thread-safe; used under its owner's lock. The metrics must outlive it.
// Errors: none. Requires that the run has a state for the rank.
// No clock: callers pass the time, in seconds of a clock that never goes back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/agent/agent_metrics.h"
#include "worker/agent/core/agent_core.h"

namespace tercio::agent {

class RankFigures {
 public:
  explicit RankFigures(AgentMetrics& metrics) : metrics_(metrics) {}

  // The steps before the rank's next report were counted by another agent, or are not known.
  void Adopt(const RunKey& key, int rank);

  // Takes a rank's message; one after its end is ignored, since it would bring its series back for
  // ever. Returns the number of log lines that the rank could not write since its last report.
  int64_t Take(const RunKey& key, const RunState& run, int rank, const v1::TrainerMessage& message,
               double now);

  // Counts log lines of the rank that are missing: not written, or not sent.
  void CountLostLines(const RunKey& key, const RunState& run, int rank, int64_t lines);
  void CountExit(const RunKey& key, const RunState& run, int rank, RankEnd end);

  // Adds the figures of the run's live ranks that have completed a step since they were last added.
  // `utilization`: the present one of the ranks' GPUs, where it is known.
  void AddTo(const RunKey& key, const RunState& run, const std::map<int, double>& utilization,
             v1::RunHealth* health);

  // Mean utilization of the rank's GPU over the samples of AddTo; nullopt: there are none.
  std::optional<double> Utilization(const RunKey& key, int rank) const;

  void Forget(const RunKey& key) { ranks_.erase(key); }

 private:
  struct Rank {
    bool steps_unknown = false;  // adopted, and has reported nothing yet
    double loading_since = 0;    // 0: it is not loading
    int64_t step_added = 0;      // step of the figures in the last heartbeat
    double utilization_sum = 0;  // of its GPU
    int utilization_samples = 0;
    int64_t log_lines_lost = 0;  // the last number that it has reported
  };
  static RankLabels LabelsOf(const RunKey& key, const RunState& run, int rank);
  static std::optional<double> MeanUtilization(const Rank& rank);

  void TakeStep(const RankLabels& labels, const RunState& run, const v1::TrainerStep& step,
                Rank* rank);
  int64_t TakeMemory(const RankLabels& labels, const v1::TrainerMemory& memory, Rank* rank);
  void TakePhase(const RankLabels& labels, const RunState& run, v1::TrainerPhase phase, double now,
                 Rank* rank);

  AgentMetrics& metrics_;
  std::map<RunKey, std::map<int, Rank>> ranks_;
};

}  // namespace tercio::agent

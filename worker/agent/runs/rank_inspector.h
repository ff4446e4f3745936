// Looks at trainers from outside, through the page that each writes
// (worker/progress/progress_page.h) and through /proc, so that it works for a frozen one, too.
//
// Both belong to the trainer, which may have fewer rights than the caller and may write anything
// into the page and beside it: files of others are never read, and nothing is waited for.
//
// RankWatch is fed under its owner's lock and never waits. InspectRanks waits for stacks, so it is
// called without a lock.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "worker/agent/core/agent_core.h"
#include "worker/progress/progress_page.h"

namespace tercio::agent {

struct InspectedRank {
  int rank = 0;
  pid_t pid = 0;  // 0: the trainer has ended
  std::string page;
};

// State, place and stacks of all. Threads are asked for their stacks with SIGUSR2 (see
// worker/trainer/stack_dump.h) if the process handles it and is not stopped; those that have not
// answered within `patience` are missing in the text.
std::vector<v1::RankPosition> InspectRanks(const std::vector<InspectedRank>& ranks,
                                           absl::Duration patience);

// The letter of proc(5); empty when there is no such process.
std::string ProcessState(pid_t pid);

// The progress of this node's runs.
class RankWatch {
 public:
  // Records the steps that the rank has finished. Called often: steps that end between two calls
  // are counted as one.
  void Sample(const RunKey& run, int rank, const std::string& page);
  // The current report about the run; restarts the timings.
  v1::RunHealth Take(const RunKey& run);
  void Forget(const RunKey& run);

 private:
  struct Rank {
    std::optional<progress::ProgressReader> page;  // absent until the trainer has created it
    double last_beat = 0;
    int64_t timed_step = 0;
    std::vector<double> step_seconds;
    std::vector<double> compute_seconds;
    bool loading = false;
    int64_t loaded_bytes = 0;
    int64_t load_total_bytes = 0;
  };
  static void AddLoading(const std::map<int, Rank>& ranks, v1::RunHealth* health);

  std::map<RunKey, std::map<int, Rank>> runs_;
};

}  // namespace tercio::agent

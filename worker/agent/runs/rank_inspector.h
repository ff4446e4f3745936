// Looks at trainers from outside, through the page that each writes
// (worker/progress/progress_page.h) and through /proc: also at one that is frozen.
//
// Both belong to the trainer, which may have fewer rights than the caller and may write anything
// into the page and beside it: no file of another is read, and nothing is waited for.
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

namespace tercio {

struct InspectedRank {
  int rank = 0;
  pid_t pid = 0;  // 0: the trainer has ended
  std::string page;
};

// State, place and stacks of all. Threads are asked for their stacks with SIGUSR2 (see
// worker/trainer/stack_dump.h) when the process handles it and is not stopped; those that have not
// answered within `patience` are missing in the text.
std::vector<v1::RankPosition> InspectRanks(const std::vector<InspectedRank>& ranks,
                                           absl::Duration patience);

// The letter of proc(5); empty when there is no such process.
std::string ProcessState(pid_t pid);

// How the runs of this node get on.
class RankWatch {
 public:
  // Notes the steps that the rank has ended. Called often: steps that end between two calls are
  // counted as one.
  void Sample(const RunKey& run, int rank, const std::string& page);
  // What is to be told of the run now; begins the timings again.
  v1::RunHealth Take(const RunKey& run);
  void Forget(const RunKey& run);

 private:
  struct Rank {
    std::optional<ProgressReader> page;  // absent until the trainer has made it
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

}  // namespace tercio

// The rendezvous of a node's trainers, asked once for all of them: the ranks of a node wait for
// much the same keys. A value never changes within an attempt, so a known value is returned from
// here, and callers that miss the same keys share one question. Only those share it: a caller that
// waits for a larger set could be waiting for a key that the other is to put next.
//
// Identifies a run by its secret, too: a caller with another secret asks for itself, and is refused
// by the coordinator.
//
// Threads: any. A call blocks its thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace tercio::agent {

class SharedRendezvous {
 public:
  struct Run {
    std::string job;
    int attempt = 0;
    std::string token;
    auto operator<=>(const Run&) const = default;
  };
  using Keys = std::vector<std::string>;
  using Values = std::vector<std::string>;  // in the order of the keys

  // A waiting caller, and its deadline.
  struct Caller {
    absl::Time deadline;  // by SteadyNow
    std::function<bool()> gave_up;
  };
  // Asks the coordinator on behalf of a caller; called without a lock.
  using Ask = std::function<absl::StatusOr<Values>(const Keys&)>;

  // The values of a run for which `lives` returns false are dropped when another run comes.
  explicit SharedRendezvous(std::function<bool(const Run&)> lives) : lives_(std::move(lives)) {}

  // The answer of `ask` for the caller or for one that missed the same keys. If that answer only
  // concerns the other caller (its deadline, its end), this one asks, too. CANCELLED |
  // DEADLINE_EXCEEDED of this caller.
  absl::StatusOr<Values> Get(const Run& run, const Keys& keys, const Caller& caller,
                             const Ask& ask);

  // Stores a value that the coordinator has accepted.
  void Keep(const Run& run, const std::string& key, const std::string& value);

 private:
  // A question in progress.
  struct Question {
    bool answered = false;
    absl::Status status;
  };
  struct Known {
    std::map<std::string, std::string> values;
    std::map<Keys, std::shared_ptr<Question>> questions;
  };

  Known& Of(const Run& run) TERCIO_REQUIRES(mutex_);
  absl::Status Answer(const Run& run, const Keys& missing, Question& question,
                      absl::StatusOr<Values> values) TERCIO_REQUIRES(mutex_);
  absl::Status WaitFor(const Question& question, const Caller& caller) TERCIO_REQUIRES(mutex_);

  const std::function<bool(const Run&)> lives_;
  Mutex mutex_;
  ConditionVariable answered_;
  std::map<Run, Known> runs_ TERCIO_GUARDED_BY(mutex_);
};

}  // namespace tercio::agent

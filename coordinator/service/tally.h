// Counts for metrics that are not part of the coordinator's state. All of them start over with the
// process, as counters may.
//
// Threads: any.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/metrics/histogram.h"
#include "common/mutex.h"
#include "coordinator/core/core.h"

namespace tercio::coordinator {

// Counts and figures of one job.
struct JobTally {
  // Figures of the last step; absent before the first, or where it has none.
  std::optional<double> learning_rate;
  std::optional<double> gradient_norm;
  std::optional<double> loss_scale;
  HistogramFigures steps;  // durations
  int64_t skipped = 0;
  int64_t spikes = 0;
  int64_t hangs = 0;
  std::set<int> slow;  // ranks
  std::array<int64_t, kFaultCauses> restarts = {};
  HistogramFigures saves;  // durations of those that were committed
  std::array<int64_t, kSaveFailures> save_failures = {};
  // ---- bookkeeping ----
  std::pair<int, int64_t> last_step;  // attempt, step
  uint64_t touched = 0;
};

class Tally {
 public:
  // Jobs beyond this many lose their tally, those that have changed last keep it.
  static constexpr size_t kMostJobs = 256;

  Tally();

  // Adds the effects of steps of the core, once they are durable.
  void Add(const std::vector<Effects>& effects);
  void Committed(double seconds, size_t events);
  void CommitFailed();

  JobTally Of(const std::string& job) const;
  std::map<std::string, int64_t> events() const;  // by kind, all that there are
  int64_t fenced() const;
  int64_t failed_commits() const;
  HistogramFigures commits() const { return commits_.figures(); }
  HistogramFigures batches() const { return batches_.figures(); }

 private:
  JobTally& Touch(const std::string& job) TERCIO_REQUIRES(mutex_);
  void AddStep(const std::string& job, const v1::StepRecord& step) TERCIO_REQUIRES(mutex_);
  void AddEvent(const v1::JobEvent& event) TERCIO_REQUIRES(mutex_);

  Histogram commits_{"tercio_store_commit_duration_seconds"};
  Histogram batches_{"tercio_batch_events"};
  mutable Mutex mutex_;
  std::map<std::string, JobTally> jobs_ TERCIO_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> events_ TERCIO_GUARDED_BY(mutex_);
  int64_t fenced_ TERCIO_GUARDED_BY(mutex_) = 0;
  int64_t failed_commits_ TERCIO_GUARDED_BY(mutex_) = 0;
  uint64_t touches_ TERCIO_GUARDED_BY(mutex_) = 0;
};

}  // namespace tercio::coordinator

// The coordinator's memory: SQLite in WAL mode with synchronous=FULL, one file in the state
// directory.
//
// Threads: all methods from any thread.
// Errors: RESOURCE_EXHAUSTED (disk full), FAILED_PRECONDITION (cannot be opened, damaged, written
// by a newer version), INTERNAL.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "proto/tercio/v1/state.pb.h"

struct sqlite3;

namespace tercio::coordinator {

// How a rank of an attempt ended.
struct RankExit {
  std::string job;
  int32_t attempt = 0;
  v1::ExitRecord exit;
};

// The changes of one or more steps of the core, made durable all together or not at all.
struct Changes {
  std::vector<v1::JobRecord> jobs;
  std::vector<std::pair<std::string, std::shared_ptr<const v1::Plan>>> plans;  // job, plan
  // job, where its ranks are; none are forgotten
  std::vector<std::pair<std::string, std::shared_ptr<const v1::RankSlots>>> placements;
  std::vector<v1::NodeRecord> nodes;
  std::vector<std::string> forgotten_nodes;
  std::vector<std::string> deleted_jobs;  // with history, events, logs, plan and requests
  std::vector<std::pair<std::string, v1::StepRecord>> steps;
  std::vector<v1::JobEvent> events;
  std::vector<std::pair<std::string, v1::LogLine>> logs;
  std::vector<std::pair<std::string, v1::RankTrace>> traces;
  std::vector<RankExit> exits;
  std::vector<std::pair<std::string, std::string>> requests;  // request id, job id
  bool empty() const {
    return jobs.empty() && plans.empty() && placements.empty() && nodes.empty() &&
           forgotten_nodes.empty() && deleted_jobs.empty() && steps.empty() && events.empty() &&
           logs.empty() && traces.empty() && exits.empty() && requests.empty();
  }
};

enum class OpenFor { kWriting, kReading };

class Store {
 public:
  static constexpr absl::Duration kCheckLimit = absl::Seconds(30);

  // For writing the whole file is checked first: a damaged one is refused with the way to restore
  // it. The check stops after `check_limit`, so that a file that has grown large delays no start
  // longer. One of an older version is first copied to PATH.before-vN, where N is this
  // version, and then brought up to date, all or nothing. For reading, which happens for a single
  // question, neither is done.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& path, OpenFor use,
                                                     absl::Duration check_limit = kCheckLimit);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  absl::Status Commit(const Changes& changes);

  absl::StatusOr<std::vector<v1::JobRecord>> LoadJobs();
  absl::StatusOr<std::map<std::string, v1::Plan>> LoadPlans();
  absl::StatusOr<std::map<std::string, v1::RankSlots>> LoadPlacements();
  absl::StatusOr<std::vector<v1::NodeRecord>> LoadNodes();

  // A copy of what is committed, for a store that gets damaged; replaces the copy before when it is
  // complete. Commits are possible meanwhile. CANCELLED: `stop`, which is asked every MiB, returned
  // true.
  absl::Status BackUp(const std::function<bool()>& stop = nullptr);
  // The job that a request id has made, empty when none.
  absl::StatusOr<std::string> JobOfRequest(const std::string& request_id);

  // A place in the history: after all attempts of a step, or after one of them.
  struct StepCursor {
    int64_t step = 0;
    int32_t attempt = std::numeric_limits<int32_t>::max();
  };
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();
  // Steps behind the cursor for which `counts`, by step and attempt; the first `most` of them.
  absl::StatusOr<std::vector<v1::StepRecord>> Steps(
      const std::string& job, const StepCursor& after,
      const std::function<bool(const v1::StepRecord&)>& counts, size_t most = kAll);
  // Events with a sequence above `after`; of all jobs when `job` is empty.
  absl::StatusOr<std::vector<v1::JobEvent>> Events(const std::string& job, int64_t after,
                                                   size_t most = kAll);
  using LineFilter = std::function<bool(const v1::LogLine&)>;
  // Wanted lines with a sequence above *after, which becomes that of the last line looked at. A
  // place beyond all lines that there have been, of a store that was restored since, is that of
  // the last of them.
  absl::StatusOr<std::vector<v1::LogLine>> Logs(const std::string& job, int64_t* after,
                                                const LineFilter& wanted, size_t most = kAll);
  // The sequence after which the last `tail` wanted lines come.
  absl::StatusOr<int64_t> LogTail(const std::string& job, const LineFilter& wanted, size_t tail);
  // Traces of the newest attempt that has any, by rank.
  absl::StatusOr<std::vector<v1::RankTrace>> Traces(const std::string& job);
  // The exits of the ranks of an attempt that have ended, by rank. Kept for the last attempts only.
  absl::StatusOr<std::vector<v1::ExitRecord>> Exits(const std::string& job, int32_t attempt);

 private:
  Store(std::string path, sqlite3* database) : path_(std::move(path)), database_(database) {}
  absl::Status Run(const char* sql);
  absl::Status CheckVersion();
  absl::Status CheckIntegrity(absl::Duration limit);
  absl::StatusOr<bool> IsNew();
  absl::Status BringUpToDate();
  absl::Status MovePlacements();
  absl::Status RewriteWords();
  absl::Status WriteAll(const Changes& changes) TERCIO_REQUIRES(mutex_);
  absl::Status WriteState(const Changes& changes) TERCIO_REQUIRES(mutex_);
  absl::Status WriteHistory(const Changes& changes) TERCIO_REQUIRES(mutex_);
  absl::Status WriteExits(const Changes& changes) TERCIO_REQUIRES(mutex_);
  absl::Status DeleteJobs(const Changes& changes) TERCIO_REQUIRES(mutex_);
  absl::Status TrimLogs() TERCIO_REQUIRES(mutex_);

  const std::string path_;
  Mutex mutex_;  // one transaction or query at a time
  sqlite3* const database_;
  int64_t version_ = 0;  // version of the tables, as found
  // By job: log lines added since the oldest were removed.
  std::map<std::string, int64_t> untrimmed_lines_ TERCIO_GUARDED_BY(mutex_);
};

}  // namespace tercio::coordinator

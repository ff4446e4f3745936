// The agent's memory: SQLite in WAL mode with synchronous=NORMAL (it survives the death of the
// process), one file in the state directory. Holds the spool (spool.h), the runs that live here and
// those that have ended recently, and the processes of their ranks.
//
// A damaged file is moved aside and a new one is started: the coordinator receives another spool
// id, and finds out what is lost from the runs that the agent reports. A file of an older version
// is migrated; a file of a newer version is refused (FAILED_PRECONDITION) and left as it is. A disk
// that cannot be written costs only durability: changes stay in memory and are written later.
//
// Threads: all methods from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "worker/agent/core/agent_core.h"
#include "worker/agent/link/spool.h"
#include "worker/agent/runs/log_tail.h"

struct sqlite3;

namespace tercio::agent {

// A rank's process, so that another agent can find it again.
struct ProcessRecord {
  RunKey run;
  int rank = 0;
  int pid = 0;  // 0: not known to have started
  uint64_t start_time = 0;
  uint64_t received = 0;  // last message of the trainer that was kept
  LogPosition log;
};

// The changes that one event makes durable: all of them or none.
struct AgentChanges {
  std::vector<v1::AgentMessage> messages;
  std::vector<std::pair<RunKey, RunState>> runs;
  std::vector<EndedRun> ended;
  std::vector<ProcessRecord> started;  // pid, start_time, log
  std::vector<std::pair<std::pair<RunKey, int>, uint64_t>> received;
  std::vector<std::pair<std::pair<RunKey, int>, LogPosition>> logs;
  bool empty() const {
    return messages.empty() && runs.empty() && ended.empty() && started.empty() &&
           received.empty() && logs.empty();
  }
  // Merges changes that came later. Only the latest state of each run and rank stays, so that no
  // more is kept than there are of them, however long the disk cannot be written.
  void Add(AgentChanges later);
};

class AgentStore {
 public:
  // FAILED_PRECONDITION when the file can neither be opened nor replaced.
  static absl::StatusOr<std::unique_ptr<AgentStore>> Open(const std::string& path,
                                                          int64_t most_spool_bytes);
  ~AgentStore();
  AgentStore(const AgentStore&) = delete;
  AgentStore& operator=(const AgentStore&) = delete;

  // Id of the spool in this file, generated once.
  const std::string& spool_id() const { return spool_id_; }

  // The state that the file held when it was opened.
  const Restored& restored() const { return restored_; }
  const std::vector<ProcessRecord>& processes() const { return processes_; }

  void Commit(AgentChanges changes) TERCIO_EXCLUDES(mutex_);

  // A small text stored under a name, empty if there is none.
  std::string Note(const std::string& name) TERCIO_EXCLUDES(mutex_);
  void SetNote(const std::string& name, const std::string& text) TERCIO_EXCLUDES(mutex_);

  // ---- the spool ----

  void Acknowledge(uint64_t sequence) TERCIO_EXCLUDES(mutex_);
  std::vector<v1::AgentMessage> After(uint64_t sequence, int64_t most_bytes)
      TERCIO_EXCLUDES(mutex_);
  // The sequence of the newest message, 0 when there is none.
  uint64_t Newest() TERCIO_EXCLUDES(mutex_);
  // Size of the messages that are kept for the coordinator.
  int64_t SpoolBytes() TERCIO_EXCLUDES(mutex_);
  // Called without locks when there are more messages to send; empty: no listener.
  void SetListener(std::function<void()> listener) TERCIO_EXCLUDES(listener_mutex_);

 private:
  AgentStore(sqlite3* database, int64_t most_spool_bytes)
      : database_(database), spool_(most_spool_bytes) {}
  static absl::StatusOr<std::unique_ptr<AgentStore>> TryOpen(const std::string& path,
                                                             int64_t most_spool_bytes);
  absl::Status Prepare();
  // UNIMPLEMENTED: a newer version has written it.
  absl::Status BringUpToDate();
  // Not checked: no other thread knows the store yet.
  absl::Status Load() TERCIO_NO_THREAD_SAFETY_ANALYSIS;
  absl::Status LoadRuns();
  absl::Status Run(const char* sql);
  void CallListener() TERCIO_EXCLUDES(listener_mutex_);
  // Writes `unsaved_` and the spool's delta; both stay if that fails.
  void Save() TERCIO_REQUIRES(mutex_);
  absl::Status WriteAll() TERCIO_REQUIRES(mutex_);
  absl::Status WriteRuns(const AgentChanges& changes) TERCIO_REQUIRES(mutex_);
  absl::Status WriteProcesses(const AgentChanges& changes) TERCIO_REQUIRES(mutex_);
  absl::Status WriteSpool() TERCIO_REQUIRES(mutex_);

  Mutex mutex_;
  sqlite3* const database_;
  std::string spool_id_;
  Restored restored_;
  std::vector<ProcessRecord> processes_;
  Spool spool_ TERCIO_GUARDED_BY(mutex_);
  // Sequences below it are never given out by another process.
  uint64_t reserved_ TERCIO_GUARDED_BY(mutex_) = 0;
  uint64_t reserving_ TERCIO_GUARDED_BY(mutex_) = 0;  // the same, once it is written
  AgentChanges unsaved_ TERCIO_GUARDED_BY(mutex_);
  bool failing_ TERCIO_GUARDED_BY(mutex_) = false;
  Mutex listener_mutex_;
  std::function<void()> listener_ TERCIO_GUARDED_BY(listener_mutex_);
};

}  // namespace tercio::agent

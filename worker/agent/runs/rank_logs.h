// The logs of this node's ranks: where they lie, how their lines reach the coordinator, and what is
// removed when they take too much of the disk.
//
// A trainer writes its log file itself (worker/trainer/log_file.h) and its process is watched by
// TrainerProcess, which reads the lines. Everything that a trainer writes is made printable here
// before anything else reads it.
//
// Threads: all methods of RankLogs from any thread; it holds no lock. A Stream belongs to the
// thread that watches its process. Ownership: the store must outlive the object, and the object its
// streams. Errors: a folder that cannot be made is one of MakeFolder; a log that cannot be removed
// stays.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/log.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "worker/agent/core/agent_core.h"
#include "worker/agent/link/agent_store.h"
#include "worker/agent/runs/log_limits.h"
#include "worker/agent/runs/log_tail.h"
#include "worker/agent/runs/trainer_user.h"

namespace tercio::agent {

struct RankLogsOptions {
  std::string node;
  std::string directory;            // holds a folder for each job
  int64_t job_bytes = 0;            // limit for all logs of a job
  int64_t all_bytes = 0;            // limit for the logs of all jobs
  double lines_per_second = 0;      // of a rank that are sent to the coordinator
  std::optional<TrainerUser> user;  // who writes the logs; nullopt: the agent's
};

// Identifies a rank in the agent's own log.
LogFields RankFields(const RunKey& run, int rank);

class RankLogs {
 public:
  // Called with the number of lines of a rank that were not sent, by the thread of its stream.
  using OnDropped = std::function<void(const RunKey& run, int rank, int64_t lines)>;

  // One rank's lines on their way to the coordinator.
  class Stream {
   public:
    Stream(const RankLogs& logs, RunKey run, int rank);
    // Sends the lines that the rate permits. Called without lines from time to time.
    void Send(const std::vector<std::string>& lines, const LogPosition& position);
    // Reports the lines that were dropped last; no lines follow.
    void Finish();

   private:
    const RankLogs& logs_;
    const RunKey run_;
    const int rank_;
    LineLimit limit_;
  };

  RankLogs(RankLogsOptions options, AgentStore& store, OnDropped on_dropped);

  // "JOB/FILE", relative to the directory, and the whole path.
  static std::string NameOf(const RunKey& run, int rank);
  std::string PathOf(const RunKey& run, int rank) const;

  // Makes the folder of the job's logs, in which trainers may create files.
  absl::Status MakeFolder(const std::string& job) const;

  std::shared_ptr<Stream> OpenStream(const RunKey& run, int rank) const;

  // Reports lines that a trainer could not write.
  void ReportUnwritten(const RunKey& run, int64_t lines) const;

  // Text of a trainer that can be shown and be in a protobuf string.
  static std::string Readable(const std::string& text);
  // The last lines of a process, readable.
  static std::vector<std::string> Readable(const std::vector<std::string>& lines);

  // Removes the oldest logs until the limits hold. Returns whether any was removed. `live`: names
  // of logs that are being written, which stay.
  bool Trim(const std::set<std::string>& live) const;
  // Requires that no run makes its folder meanwhile.
  void RemoveEmptyFolders() const;

 private:
  // Puts a marker in place of the lines that were dropped.
  v1::RankLogs MakeMessage(const RunKey& run, int rank, int64_t dropped,
                           const std::vector<std::string>& lines) const;

  const RankLogsOptions options_;
  AgentStore& store_;
  const OnDropped on_dropped_;
};

}  // namespace tercio::agent

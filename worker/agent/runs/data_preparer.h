// The data of jobs on this node: checked and tokenised into the cache, once at a time for each
// attempt, and the cache kept within its bound. The files of users are read by processes of their
// own (worker/agent/runs/preparation_process.h), which this object starts and ends.
//
// Threads: any.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/untrusted_file.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "worker/agent/runs/allowed_paths.h"
#include "worker/agent/runs/preparation_process.h"

namespace tercio::agent {

class DataPreparer {
 public:
  struct Options {
    std::string node;
    std::string cache_dir;
    int64_t most_cache_bytes = 0;
    AllowedPaths allowed;  // what jobs may name
    PreparationProcess::Options process;
  };
  explicit DataPreparer(Options options) : options_(std::move(options)) {}

  // Whether the caller is to call Prepare. False while another caller does so for the same attempt:
  // a coordinator that has reconnected asks again, and receives the one answer.
  bool Begin(const v1::RunId& run);
  // The answer to the request, for which Begin was called. Takes long. Absent if it was cancelled,
  // since nothing waits for it.
  std::optional<v1::AgentMessage> Prepare(const v1::PrepareData& request);

  // Ends the preparation for the attempt, if there is one.
  void Cancel(const v1::RunId& run);
  // Ends all preparations; none begins after that.
  void CancelAll();

  // Trims the cache to its limit. `now` is in seconds of a clock that never goes back.
  void Trim(double now);

 private:
  using Uses = std::vector<std::shared_ptr<const UntrustedFile>>;
  using Key = std::pair<std::string, int>;  // job, attempt

  v1::PrepareRequest RequestFor(const v1::PrepareData& request) const;
  v1::DataPrepared Take(const v1::PrepareData& request,
                        const absl::StatusOr<v1::PrepareAnswer>& answer);

  const Options options_;
  Mutex mutex_;
  bool stopped_ TERCIO_GUARDED_BY(mutex_) = false;
  std::map<Key, std::shared_ptr<PreparationProcess>> under_way_ TERCIO_GUARDED_BY(mutex_);
  Uses fresh_ TERCIO_GUARDED_BY(mutex_);  // since the last Trim
  // Entries that trainers have just been given, and until when they are kept for those: once these
  // have started they hold them themselves.
  std::vector<std::pair<double, Uses>> kept_ TERCIO_GUARDED_BY(mutex_);
};

}  // namespace tercio::agent

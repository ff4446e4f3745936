// The data of jobs on this node: checked and tokenised into the cache, once at a time for each
// attempt, and the cache kept within its bound.
//
// Threads: any.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/file.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "worker/agent/allowed_paths.h"

namespace tercio {

class DataPreparer {
 public:
  struct Options {
    std::string node;
    std::string cache_dir;
    int64_t most_cache_bytes = 0;
    AllowedPaths allowed;  // what jobs may name
  };
  explicit DataPreparer(Options options) : options_(std::move(options)) {}

  // Whether the caller is to call Prepare. False while somebody else does so for the same attempt:
  // a coordinator that has come back asks again, and hears the one answer.
  bool Begin(const v1::RunId& run);
  // The answer to the request. Takes long.
  v1::AgentMessage Prepare(const v1::PrepareData& request);

  // Removes what is too much of the cache. `now` is in seconds of a clock that never goes back.
  void Trim(double now);

 private:
  using Uses = std::vector<std::shared_ptr<const FileLock>>;

  const Options options_;
  std::mutex mutex_;
  std::set<std::pair<std::string, int>> under_way_;  // job, attempt
  Uses fresh_;                                       // since the last Trim
  // Entries of which trainers have just been told, and until when they are kept for those: once
  // these have started they hold them themselves.
  std::vector<std::pair<double, Uses>> kept_;
};

}  // namespace tercio

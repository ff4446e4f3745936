// A rendezvous of threads of one process, for tests and measurements.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "worker/collective/gloo_transport.h"

namespace tercio::collective {

// Threads: any.
class MemoryRendezvous : public RendezvousStore {
 public:
  absl::Status Put(const std::string& key, const std::string& value) override {
    MutexLock lock(mutex_);
    values_[key] = value;
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                               absl::Duration timeout) override {
    MutexLock lock(mutex_);
    std::vector<std::string> found;
    for (const std::string& key : keys) {
      if (!changed_.WaitFor(mutex_, absl::ToChronoMilliseconds(timeout),
                            [&]() TERCIO_REQUIRES(mutex_) { return values_.contains(key); })) {
        return absl::DeadlineExceededError(absl::StrCat("no rank has put ", key));
      }
      found.push_back(values_[key]);
    }
    return found;
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  std::map<std::string, std::string> values_ TERCIO_GUARDED_BY(mutex_);
};

}  // namespace tercio::collective

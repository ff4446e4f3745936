// A rendezvous of threads of one process, for tests.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/collective/gloo_transport.h"

namespace tercio {

// Threads: any.
class MemoryRendezvous : public RendezvousStore {
 public:
  absl::Status Put(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                               absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    std::vector<std::string> found;
    for (const std::string& key : keys) {
      if (!changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                             [&] { return values_.contains(key); })) {
        return absl::DeadlineExceededError(absl::StrCat("no rank has put ", key));
      }
      found.push_back(values_[key]);
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace tercio

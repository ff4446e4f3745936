// Token buckets, one per key: a number of calls at once, and a rate per second in the long run.
//
// Threads: any. Holds at most kMostKeys buckets; the key idle for longest is forgotten first, at
// which point its bucket was full again in all likelihood.
#pragma once

#include <map>
#include <string>

#include "absl/time/time.h"
#include "common/mutex.h"

namespace tercio::coordinator {

class RateLimiter {
 public:
  struct Limit {
    double burst = 1;
    double per_second = 1;
  };
  static constexpr size_t kMostKeys = 4096;

  explicit RateLimiter(Limit limit) : limit_(limit) {}

  // Whether one more call of `key` is within the limit at `now` (of the steady clock).
  bool Take(const std::string& key, absl::Time now);

 private:
  struct Bucket {
    double left = 0;
    absl::Time at;
  };
  void ForgetOldest() TERCIO_REQUIRES(mutex_);

  const Limit limit_;
  Mutex mutex_;
  std::map<std::string, Bucket> buckets_ TERCIO_GUARDED_BY(mutex_);
};

}  // namespace tercio::coordinator

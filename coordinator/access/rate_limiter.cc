#include "coordinator/access/rate_limiter.h"

#include <algorithm>

namespace tercio::coordinator {

bool RateLimiter::Take(const std::string& key, absl::Time now) {
  MutexLock lock(mutex_);
  // A key that is new begins with a full bucket, as one that was idle for long.
  const auto [found, added] = buckets_.try_emplace(key, Bucket{limit_.burst, now});
  Bucket& bucket = found->second;
  const double earned = limit_.per_second * absl::ToDoubleSeconds(now - bucket.at);
  // Time that seems to run backwards, as between two threads, earns nothing.
  bucket.left = std::min(limit_.burst, bucket.left + std::max(0.0, earned));
  bucket.at = now;
  const bool allowed = bucket.left >= 1;
  if (allowed) bucket.left -= 1;
  // The bound holds whatever addresses callers have.
  if (added && buckets_.size() > kMostKeys) ForgetOldest();
  return allowed;
}

void RateLimiter::ForgetOldest() {
  buckets_.erase(
      std::min_element(buckets_.begin(), buckets_.end(),
                       [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
}

}  // namespace tercio::coordinator

#include "coordinator/core/watchdog.h"

#include <algorithm>
#include <vector>

namespace tercio::coordinator {
namespace {

// The learned deadline follows the latest steps: their duration changes with the data.
constexpr size_t kRememberedSteps = 64;

}  // namespace

void RunWatchdog::StepEnded(double seconds) {
  steps_.push_back(seconds);
  if (steps_.size() > kRememberedSteps) steps_.pop_front();
}

void RunWatchdog::OnHeartbeat(const std::string& node, double now, double stalled_seconds) {
  // Reports may be late and overtake each other, so that progress once seen is never taken back.
  double& latest = progress_.emplace(node, now - stalled_seconds).first->second;
  latest = std::max(latest, now - stalled_seconds);
}

double RunWatchdog::Deadline() const {
  if (steps_.empty()) return std::max(hang_timeout_, settings_.start_seconds);
  // A person who has set a limit knows better than the median.
  if (hang_timeout_ > 0) return hang_timeout_;
  std::vector<double> sorted(steps_.begin(), steps_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  // The median ignores the few steps with an evaluation or a checkpoint, which are much longer.
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::min(settings_.most_seconds,
                  std::max(settings_.least_seconds, settings_.steps * *middle));
}

double RunWatchdog::LastProgress() const {
  double latest = 0;
  for (const auto& [node, seconds] : progress_) latest = std::max(latest, seconds);
  return latest;
}

double RunWatchdog::StalledSeconds(double now) const {
  return progress_.empty() ? 0 : std::max(0.0, now - LastProgress());
}

}  // namespace tercio::coordinator

// How long a run may make no progress before its ranks are inspected: a deadline learned from
// the run's own steps. Pure: times are seconds of any steady clock.
#pragma once

#include <deque>
#include <map>
#include <string>

namespace tercio::coordinator {

struct WatchdogSettings {
  double least_seconds = 28;   // however fast the steps are: found within 30
  double steps = 5;            // as many medians
  double most_seconds = 1200;  // however slow; below the ranks' own longest wait
  double start_seconds = 300;  // before the first step: connecting, loading
};

class RunWatchdog {
 public:
  // `hang_timeout_seconds` is the job's; 0: learned.
  explicit RunWatchdog(double hang_timeout_seconds = 0, WatchdogSettings settings = {})
      : hang_timeout_(hang_timeout_seconds), settings_(settings) {}

  void StepEnded(double seconds);
  // A heartbeat of `node`: none of its ranks has made progress for that long.
  void OnHeartbeat(const std::string& node, double now, double stalled_seconds);

  // The longest that the run may make no progress now.
  double Deadline() const;
  // How long no rank of any node has made progress; 0 before the first heartbeat. A node that has
  // fallen silent counts as having made none since its last heartbeat.
  double StalledSeconds(double now) const;
  // When a rank of any node last made progress, as reported; 0 before the first heartbeat.
  double LastProgress() const;
  bool ShouldInspect(double now) const { return StalledSeconds(now) > Deadline(); }

 private:
  double hang_timeout_;
  WatchdogSettings settings_;
  std::deque<double> steps_;                // the latest
  std::map<std::string, double> progress_;  // when a node's ranks made progress last
};

}  // namespace tercio::coordinator

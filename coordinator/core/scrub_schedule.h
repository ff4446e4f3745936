// When each job is next checked for a checkpoint to verify again, and which jobs' checkpoints are
// being verified, so that a tick does not go through all jobs there ever were.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

namespace tercio::coordinator {

class ScrubSchedule {
 public:
  // Looked at from `time` on, instead of any time set before.
  void Set(const std::string& job, double time);
  // Not looked at until a time is set again.
  void Drop(const std::string& job);
  // The job whose time came longest ago; null: none is due. Valid until the next change.
  const std::string* Due(double now) const;

  void BeginVerification(const std::string& job, double now) { under_way_[job] = now; }
  void EndVerification(const std::string& job) { under_way_.erase(job); }
  // Those that began at or after `time`.
  int UnderWaySince(double time) const;

  // A job that is deleted.
  void Forget(const std::string& job);

 private:
  std::map<std::string, double> times_;
  std::set<std::pair<double, std::string>> by_time_;
  std::map<std::string, double> under_way_;  // since when, by job; a few at a time
};

}  // namespace tercio::coordinator

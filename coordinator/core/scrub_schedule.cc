#include "coordinator/core/scrub_schedule.h"

#include <algorithm>

namespace tercio::coordinator {

void ScrubSchedule::Set(const std::string& job, double time) {
  // The set sorts by time and cannot change an entry in place, so the old one is removed first.
  Drop(job);
  times_[job] = time;
  by_time_.insert({time, job});
}

void ScrubSchedule::Drop(const std::string& job) {
  const auto found = times_.find(job);
  if (found == times_.end()) return;
  by_time_.erase({found->second, job});
  times_.erase(found);
}

const std::string* ScrubSchedule::Due(double now) const {
  // The set begins with the time that passed longest ago, so that one look answers for all jobs.
  if (by_time_.empty() || by_time_.begin()->first > now) return nullptr;
  return &by_time_.begin()->second;
}

int ScrubSchedule::UnderWaySince(double time) const {
  // A verification that never ends, since its disk hangs, drops out of the count by its age.
  return static_cast<int>(std::count_if(under_way_.begin(), under_way_.end(),
                                        [time](const auto& job) { return job.second >= time; }));
}

void ScrubSchedule::Forget(const std::string& job) {
  Drop(job);
  EndVerification(job);
}

}  // namespace tercio::coordinator

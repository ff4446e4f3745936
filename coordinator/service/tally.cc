#include "coordinator/service/tally.h"

#include <algorithm>

#include "coordinator/core/event_kind.h"

namespace tercio::coordinator {

// Counts begin at 0, or the first of a kind would be no increase.
Tally::Tally() {
  for (const std::string_view kind : kEventKinds) events_[std::string(kind)] = 0;
}

void Tally::Add(const std::vector<Effects>& effects) {
  // The core's thread adds; pages are written by threads of the metrics server.
  MutexLock lock(mutex_);
  for (const Effects& effect : effects) {
    fenced_ += effect.fenced;
    for (const auto& [job, step] : effect.steps) AddStep(job, step);
    for (const v1::JobEvent& event : effect.events) AddEvent(event);
    for (const auto& [job, cause] : effect.restarts) {
      ++Touch(job).restarts[static_cast<size_t>(cause)];
    }
    for (const SaveEnded& save : effect.saves) {
      JobTally& job = Touch(save.job_id);
      if (save.failure.has_value()) {
        ++job.save_failures[static_cast<size_t>(*save.failure)];
      } else if (save.seconds > 0) {
        // A commit of unknown duration, as after a restart of the coordinator, is no measurement.
        Observe("tercio_checkpoint_duration_seconds", save.seconds, &job.saves);
      }
    }
  }
}

// Steps come twice: when they are done, and with the checkpoint that holds them.
void Tally::AddStep(const std::string& id, const v1::StepRecord& step) {
  JobTally& job = Touch(id);
  // An attempt that repeats steps counts them again, since they were computed again.
  const std::pair<int, int64_t> place = {step.attempt(), step.step()};
  if (place <= job.last_step) return;
  job.last_step = place;
  job.learning_rate = step.learning_rate();
  job.gradient_norm = step.grad_norm();
  job.loss_scale = step.has_loss_scale() ? std::make_optional(step.loss_scale()) : std::nullopt;
  Observe("tercio_job_step_duration_seconds", step.step_seconds(), &job.steps);
  job.skipped += step.skipped() ? 1 : 0;
  job.spikes += step.spike().empty() ? 0 : 1;
}

void Tally::AddEvent(const v1::JobEvent& event) {
  ++events_[event.kind()];
  // Events of nodes belong to no job.
  if (event.job_id().empty()) return;
  if (event.kind() == "hang") {
    ++Touch(event.job_id()).hangs;
  } else if (event.kind() == "straggler") {
    Touch(event.job_id()).slow.insert(event.rank());
  } else if (event.kind() == "straggler_recovered") {
    Touch(event.job_id()).slow.erase(event.rank());
  } else if (event.kind() == "attempt_started") {
    // The ranks of another attempt are others, even where their numbers are the same.
    Touch(event.job_id()).slow.clear();
  }
}

JobTally& Tally::Touch(const std::string& job) {
  const auto [place, added] = jobs_.try_emplace(job);
  place->second.touched = ++touches_;
  // The job that has been silent for longest goes: its counters begin again if it returns.
  if (added && jobs_.size() > kMostJobs) {
    jobs_.erase(std::min_element(jobs_.begin(), jobs_.end(), [](const auto& a, const auto& b) {
      return a.second.touched < b.second.touched;
    }));
  }
  return place->second;
}

void Tally::Committed(double seconds, size_t events) {
  // The histograms lock by themselves.
  commits_.Observe(seconds);
  batches_.Observe(static_cast<double>(events));
}

void Tally::CommitFailed() {
  MutexLock lock(mutex_);
  ++failed_commits_;
}

JobTally Tally::Of(const std::string& job) const {
  MutexLock lock(mutex_);
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? JobTally() : found->second;
}

std::map<std::string, int64_t> Tally::events() const {
  MutexLock lock(mutex_);
  return events_;
}

int64_t Tally::fenced() const {
  MutexLock lock(mutex_);
  return fenced_;
}

int64_t Tally::failed_commits() const {
  MutexLock lock(mutex_);
  return failed_commits_;
}

}  // namespace tercio::coordinator

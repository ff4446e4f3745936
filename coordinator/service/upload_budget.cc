#include "coordinator/service/upload_budget.h"

#include <algorithm>
#include <utility>

#include "common/steady_time.h"

namespace tercio::coordinator {

// The thread is needed for reads that stay idle: no call announces those.
UploadBudget::UploadBudget(const Limits& limits) : limits_(limits), watcher_([this] { Watch(); }) {}

UploadBudget::~UploadBudget() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  watcher_.join();
}

bool UploadBudget::Ask(const std::string& job, Id* id, std::function<void()> begin) {
  MutexLock lock(mutex_);
  *id = next_++;
  Message& message = messages_[*id];
  message.job = job;
  Job& asking = jobs_[job];
  ++asking.messages;
  // A job whose messages wait already is not overtaken by its own next one.
  if (asking.waiting.empty() && Fits(asking)) {
    StartReading(*id, message);
    return true;
  }
  message.begin = std::move(begin);
  asking.waiting.push_back(*id);
  // The watcher sleeps without a time limit while nobody waits.
  if (figures_.waiting++ == 0) changed_.NotifyAll();
  return false;
}

void UploadBudget::Arrived(Id id, int64_t bytes) {
  Begins begins;
  {
    MutexLock lock(mutex_);
    Message& message = messages_.at(id);
    // What was lent is not in the list of reads any more.
    if (message.stage == Stage::kReading) reading_.erase(message.place);
    message.stage = Stage::kArrived;
    // The message may be larger or smaller than what was reserved for it.
    Hold(message, bytes);
    begins = Grant();
  }
  // Reads begin outside the lock: they take the lock of
  // their call, which may be held by a caller of Ask.
  for (const auto& begin : begins) begin();
}

void UploadBudget::Release(Id id) {
  Begins begins;
  {
    MutexLock lock(mutex_);
    const auto found = messages_.find(id);
    Message& message = found->second;
    // The room is given back first, since Grant below is to hand it on.
    Hold(message, 0);
    const auto job = jobs_.find(message.job);
    if (message.stage == Stage::kReading) reading_.erase(message.place);
    if (message.stage == Stage::kWaiting) {
      std::erase(job->second.waiting, id);
      --figures_.waiting;
    }
    // A job without messages has no entry, so that turns are taken among those that are there.
    if (--job->second.messages == 0) jobs_.erase(job);
    messages_.erase(found);
    begins = Grant();
  }
  for (const auto& begin : begins) begin();
}

UploadBudget::Figures UploadBudget::figures() const {
  MutexLock lock(mutex_);
  return figures_;
}

// A job that holds nothing gets room as long as there is any.
bool UploadBudget::Fits(const Job& job) const {
  return job.bytes + limits_.message_bytes <= limits_.bytes - figures_.held;
}

void UploadBudget::Hold(Message& message, int64_t bytes) {
  const int64_t more = bytes - message.bytes;
  message.bytes = bytes;
  jobs_.at(message.job).bytes += more;
  figures_.held += more;
  figures_.most_held = std::max(figures_.most_held, figures_.held);
}

void UploadBudget::StartReading(Id id, Message& message) {
  message.stage = Stage::kReading;
  message.since = SteadyNow();
  message.place = reading_.insert(reading_.end(), id);
  Hold(message, limits_.message_bytes);
}

void UploadBudget::LendIdle() {
  // Reads are in the order of their beginning, so that the first that is young ends the search.
  const absl::Time before = SteadyNow() - limits_.patience;
  while (!reading_.empty()) {
    Message& oldest = messages_.at(reading_.front());
    if (oldest.since > before) return;
    reading_.pop_front();
    // When a message does come for it, the budget is exceeded by that one for a moment.
    oldest.stage = Stage::kLent;
    Hold(oldest, 0);
  }
}

// Jobs take turns.
UploadBudget::Begins UploadBudget::Grant() {
  Begins begins;
  if (figures_.waiting == 0) return begins;
  // The turn continues behind the job that was served last, or the first by name would win always.
  auto job = jobs_.upper_bound(turn_);
  for (size_t in_vain = 0; in_vain < jobs_.size() && figures_.waiting > 0; ++job) {
    if (job == jobs_.end()) job = jobs_.begin();
    if (job->second.waiting.empty() || !Fits(job->second)) {
      ++in_vain;
      continue;
    }
    // A success makes another round worthwhile: the rest may still fit others.
    in_vain = 0;
    turn_ = job->first;
    const Id id = job->second.waiting.front();
    job->second.waiting.pop_front();
    --figures_.waiting;
    Message& message = messages_.at(id);
    begins.push_back(std::exchange(message.begin, nullptr));
    StartReading(id, message);
  }
  return begins;
}

void UploadBudget::Watch() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (figures_.waiting == 0) {
      changed_.Wait(mutex_);
      continue;
    }
    // A quarter of the patience is how late an idle read may be noticed.
    changed_.WaitFor(mutex_, absl::ToChronoNanoseconds(limits_.patience / 4),
                     [this]() TERCIO_REQUIRES(mutex_) { return stopping_; });
    LendIdle();
    const Begins begins = Grant();
    lock.Unlock();
    for (const auto& begin : begins) begin();
    lock.Lock();
  }
}

}  // namespace tercio::coordinator

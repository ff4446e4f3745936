#include "coordinator/service/rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tercio::coordinator {

Rendezvous::Attempt& Rendezvous::Of(const v1::RunId& run) {
  Attempt& attempt = attempts_[run.job_id()];
  if (attempt.number < run.attempt()) {
    // A trainer of the new attempt may come before the sweep has noticed the end of the old one.
    attempt.number = run.attempt();
    attempt.values.clear();
    attempt.waiting.clear();  // their waiters end by Expire
  }
  return attempt;
}

Rendezvous::Values Rendezvous::Collect(const Attempt& attempt, const Waiter& waiter) const {
  Values values;
  for (const std::string& key : waiter.keys) values.push_back(attempt.values.at(key));
  return values;
}

void Rendezvous::Put(const v1::RunId& run, const std::string& key, const std::string& value) {
  // Answers are given outside the lock: they end calls, which may come back here.
  std::vector<std::pair<Answer, Values>> answers;
  {
    MutexLock lock(mutex_);
    Attempt& attempt = Of(run);
    if (attempt.number != run.attempt()) return;  // a value of an attempt that is over
    const bool is_new = attempt.values.insert_or_assign(key, value).second;
    // A put that is repeated, since its answer was lost, must not count twice for a waiter.
    if (!is_new) return;
    const auto [begin, end] = attempt.waiting.equal_range(key);
    for (auto entry = begin; entry != end; ++entry) {
      const auto waiter = waiters_.find(entry->second);
      // A waiter may have given up; it stays in the table of keys until the attempt ends.
      if (waiter == waiters_.end() || --waiter->second.missing > 0) continue;
      answers.emplace_back(std::move(waiter->second.answer), Collect(attempt, waiter->second));
      waiters_.erase(waiter);
    }
    attempt.waiting.erase(begin, end);
  }
  for (auto& [answer, values] : answers) answer(std::move(values));
}

int64_t Rendezvous::Get(const v1::RunId& run, const std::vector<std::string>& keys,
                        absl::Time deadline, Answer answer) {
  Values values;
  {
    MutexLock lock(mutex_);
    const int64_t number = next_++;
    Attempt& attempt = Of(run);
    Waiter waiter{run, keys, deadline, 0, nullptr};
    for (const std::string& key : keys) {
      if (attempt.number == run.attempt() && attempt.values.contains(key)) continue;
      ++waiter.missing;
      // A waiter of an older attempt is registered for no key: Expire ends it.
      if (attempt.number == run.attempt()) attempt.waiting.emplace(key, number);
    }
    if (waiter.missing > 0) {
      // The answer is kept only where it is needed: else it is given here.
      waiter.answer = std::move(answer);
      waiters_.emplace(number, std::move(waiter));
      return number;
    }
    values = Collect(attempt, waiter);
  }
  answer(std::move(values));
  return 0;
}

// The call may have been answered in the meantime, and an answer is given once.
void Rendezvous::Cancel(int64_t waiter) {
  Answer answer;
  {
    MutexLock lock(mutex_);
    const auto found = waiters_.find(waiter);
    if (found == waiters_.end()) return;
    answer = std::move(found->second.answer);
    waiters_.erase(found);
  }
  answer(absl::CancelledError("the waiting call was cancelled"));
}

void Rendezvous::Expire(absl::Time now, const std::function<bool(const v1::RunId&)>& is_present) {
  std::vector<std::pair<Answer, absl::Status>> answers;
  {
    MutexLock lock(mutex_);
    // The question takes the coordinator's lock, and an attempt may have hundreds of waiters.
    std::map<std::pair<std::string, int>, bool> present;  // asked once for each attempt
    for (auto entry = waiters_.begin(); entry != waiters_.end();) {
      const Waiter& waiter = entry->second;
      const std::pair<std::string, int> key(waiter.run.job_id(), waiter.run.attempt());
      if (!present.contains(key)) present[key] = is_present(waiter.run);
      absl::Status status;
      if (!present[key]) {
        status = absl::AbortedError("this attempt is over");
      } else if (now >= waiter.deadline) {
        const Attempt& attempt = attempts_[waiter.run.job_id()];
        // The caller's message names what it waited for unsuccessfully.
        Values missing;
        for (const std::string& wanted : waiter.keys) {
          if (!attempt.values.contains(wanted)) missing.push_back(wanted);
        }
        status =
            absl::DeadlineExceededError(absl::StrCat("missing: ", absl::StrJoin(missing, ", ")));
      }
      if (!status.ok()) answers.emplace_back(std::move(entry->second.answer), std::move(status));
      // A waiter whose answer was moved out is done as well.
      entry = status.ok() && entry->second.answer ? std::next(entry) : waiters_.erase(entry);
    }
    // Values of attempts that are over go as well, or every job that ever ran would leave some.
    std::erase_if(attempts_, [&](const auto& attempt) {
      v1::RunId run;
      run.set_job_id(attempt.first);
      run.set_attempt(attempt.second.number);
      return !is_present(run);
    });
  }
  for (auto& [answer, status] : answers) answer(std::move(status));
}

}  // namespace tercio::coordinator

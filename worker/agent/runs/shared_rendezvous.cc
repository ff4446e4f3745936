#include "worker/agent/runs/shared_rendezvous.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::agent {
namespace {

// How often a waiting caller checks whether its trainer still waits.
constexpr auto kLookInterval = std::chrono::milliseconds(100);

// Whether another caller could get another answer.
bool IsPersonal(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
}

// An answer without a value for each key is an error.
absl::StatusOr<SharedRendezvous::Values> AskWhole(const SharedRendezvous::Ask& ask,
                                                  const SharedRendezvous::Keys& keys) {
  absl::StatusOr<SharedRendezvous::Values> values = ask(keys);
  if (!values.ok() || values->size() == keys.size()) return values;
  return absl::InternalError(absl::StrCat("rendezvous: ", keys.size(), " keys were requested, ",
                                          values->size(), " values were returned"));
}

}  // namespace

SharedRendezvous::Known& SharedRendezvous::Of(const Run& run) {
  const auto found = runs_.find(run);
  if (found != runs_.end()) return found->second;
  // Runs are dropped when another one comes, which is seldom. Callers that wait refer to theirs.
  std::erase_if(runs_, [this](const auto& entry) {
    return entry.second.questions.empty() && !lives_(entry.first);
  });
  return runs_[run];
}

absl::StatusOr<SharedRendezvous::Values> SharedRendezvous::Get(const Run& run, const Keys& keys,
                                                               const Caller& caller,
                                                               const Ask& ask) {
  MutexLock lock(mutex_);
  // Everything is looked up again in each round, since the lock was released in between.
  while (true) {
    Known& known = Of(run);
    Keys missing;
    Values values;
    for (const std::string& key : keys) {
      const auto value = known.values.find(key);
      if (value == known.values.end()) {
        missing.push_back(key);
      } else {
        values.push_back(value->second);
      }
    }
    if (missing.empty()) return values;
    const auto under_way = known.questions.find(missing);
    if (under_way == known.questions.end()) {
      const auto asked = std::make_shared<Question>();
      known.questions[missing] = asked;
      // The coordinator answers when all keys are there, which may take minutes.
      lock.Unlock();
      absl::StatusOr<Values> answer = AskWhole(ask, missing);
      lock.Lock();
      TERCIO_RETURN_IF_ERROR(Answer(run, missing, *asked, std::move(answer)));
      continue;
    }
    const std::shared_ptr<Question> question = under_way->second;
    const absl::Status status = WaitFor(*question, caller);
    // The asker has given up. This caller still waits, and asks by itself in the next round.
    if (status.ok() || (question->answered && IsPersonal(status))) continue;
    return status;
  }
}

absl::Status SharedRendezvous::Answer(const Run& run, const Keys& missing, Question& question,
                                      absl::StatusOr<Values> values) {
  Known& known = Of(run);
  known.questions.erase(missing);
  for (size_t i = 0; values.ok() && i < missing.size(); ++i) {
    known.values[missing[i]] = std::move((*values)[i]);
  }
  // Callers that wait for the question share it, so it may have left the list.
  question.answered = true;
  question.status = values.status();
  answered_.NotifyAll();
  return values.status();
}

absl::Status SharedRendezvous::WaitFor(const Question& question, const Caller& caller) {
  while (!question.answered) {
    if (caller.gave_up()) return absl::CancelledError("the trainer no longer waits");
    if (SteadyNow() >= caller.deadline) {
      return absl::DeadlineExceededError("rendezvous: timed out");
    }
    answered_.WaitFor(mutex_, kLookInterval);
  }
  return question.status;
}

void SharedRendezvous::Keep(const Run& run, const std::string& key, const std::string& value) {
  MutexLock lock(mutex_);
  // The other ranks of this node need not ask for what one of them has put.
  Of(run).values[key] = value;
}

}  // namespace tercio::agent

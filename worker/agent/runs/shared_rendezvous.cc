#include "worker/agent/runs/shared_rendezvous.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio {
namespace {

// How often a waiting caller checks whether its trainer still waits.
constexpr auto kLookInterval = std::chrono::milliseconds(100);

// Whether another caller could get another answer.
bool IsPersonal(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

SharedRendezvous::Known& SharedRendezvous::Of(const Run& run) {
  const auto found = runs_.find(run);
  if (found != runs_.end()) return found->second;
  std::erase_if(runs_, [this](const auto& entry) {
    return entry.second.questions.empty() && !lives_(entry.first);
  });
  return runs_[run];
}

absl::StatusOr<SharedRendezvous::Values> SharedRendezvous::Get(const Run& run, const Keys& keys,
                                                               const Caller& caller,
                                                               const Ask& ask) {
  std::unique_lock<std::mutex> lock(mutex_);
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
      TERCIO_RETURN_IF_ERROR(AskFor(lock, run, missing, ask));
      continue;
    }
    const std::shared_ptr<Question> question = under_way->second;
    const absl::Status status = WaitFor(lock, *question, caller);
    if (status.ok() || (question->answered && IsPersonal(status))) continue;
    return status;
  }
}

absl::Status SharedRendezvous::AskFor(std::unique_lock<std::mutex>& lock, const Run& run,
                                      const Keys& missing, const Ask& ask) {
  const auto question = std::make_shared<Question>();
  Of(run).questions[missing] = question;
  lock.unlock();
  absl::StatusOr<Values> values = ask(missing);
  if (values.ok() && values->size() != missing.size()) {
    values =
        absl::InternalError(absl::StrCat("rendezvous: ", missing.size(), " keys were requested, ",
                                         values->size(), " values were returned"));
  }
  lock.lock();
  Known& known = Of(run);
  known.questions.erase(missing);
  for (size_t i = 0; values.ok() && i < missing.size(); ++i) {
    known.values[missing[i]] = std::move((*values)[i]);
  }
  question->answered = true;
  question->status = values.status();
  answered_.notify_all();
  return values.status();
}

absl::Status SharedRendezvous::WaitFor(std::unique_lock<std::mutex>& lock, const Question& question,
                                       const Caller& caller) {
  while (!question.answered) {
    if (caller.gave_up()) return absl::CancelledError("the trainer no longer waits");
    if (SteadyNow() >= caller.deadline) {
      return absl::DeadlineExceededError("rendezvous: timed out");
    }
    answered_.wait_for(lock, kLookInterval);
  }
  return question.status;
}

void SharedRendezvous::Keep(const Run& run, const std::string& key, const std::string& value) {
  std::lock_guard<std::mutex> lock(mutex_);
  Of(run).values[key] = value;
}

}  // namespace tercio

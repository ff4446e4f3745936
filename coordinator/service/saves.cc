#include "coordinator/service/saves.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::coordinator {
namespace {

constexpr std::chrono::milliseconds kLookInterval{200};
// So long after the last part the others are not expected any more.
constexpr absl::Duration kSilence = absl::Minutes(5);

SaveFailure ReasonOf(const absl::Status& outcome) {
  switch (outcome.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnavailable:
      return SaveFailure::kInterrupted;
    case absl::StatusCode::kDeadlineExceeded:
      return SaveFailure::kSilence;
    case absl::StatusCode::kResourceExhausted:
      return SaveFailure::kDiskFull;
    case absl::StatusCode::kDataLoss:
      return SaveFailure::kDamaged;
    default:
      return SaveFailure::kOther;
  }
}

absl::Status AttemptIsOver() { return absl::AbortedError("this attempt is over"); }

}  // namespace

struct Saves::Save {
  v1::RunId run;
  std::string token;
  int64_t step = 0;
  int world_size = 0;
  absl::Time begun = SteadyNow();
  absl::Time last_part = begun;
  std::map<int, checkpoint::Manifest> parts;  // by rank
  std::string training_state;
  std::string tokenizer;
  std::vector<v1::StepRecord> steps;
  int uploads = 0;  // that have joined
  std::vector<std::function<void(absl::Status)>> waiting;
  bool ended = false;
  absl::Status outcome;  // when ended

  // Nobody changes it any more: it ends by its commit.
  bool complete() const { return static_cast<int>(parts.size()) >= world_size; }
};

Saves::Saves(CheckpointHost& host) : host_(host), watcher_([this] { LookForLostRanks(); }) {}

Saves::~Saves() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    stopped_.notify_all();
  }
  watcher_.join();
}

absl::StatusOr<Saves::SavePtr> Saves::Join(const v1::UploadBegin& begin) {
  std::lock_guard<std::mutex> lock(mutex_);
  SavePtr& save = saves_[begin.run().job_id()];
  if (save != nullptr && save->run.attempt() > begin.run().attempt()) return AttemptIsOver();
  const bool same = save != nullptr && save->run.attempt() == begin.run().attempt();
  if (same && save->step > begin.step()) {
    return absl::AbortedError(absl::StrCat("the save of step ", save->step, " has begun"));
  }
  if (same && save->step == begin.step() && save->ended) {
    if (save->outcome.ok()) return nullptr;
    return save->outcome;
  }
  if (!same || save->step < begin.step()) {
    if (host_.store().AttemptOf(begin.run().job_id(), begin.step()) == begin.run().attempt()) {
      // Committed before this coordinator started, which may not have heard of it.
      CheckpointCommitted committed{begin.run(), begin.step(), "", 0};
      for (const checkpoint::Committed& there : host_.store().List(begin.run().job_id())) {
        if (there.step != begin.step()) continue;
        committed.path = there.path;
        committed.bytes = there.bytes;
      }
      host_.Tell(std::move(committed));
      return nullptr;
    }
    if (save != nullptr) {
      End(*save,
          same ? absl::AbortedError(absl::StrCat("given up for the save of step ", begin.step()))
               : AttemptIsOver());
    }
    save = std::make_shared<Save>();
    save->run = begin.run();
    save->token = begin.token();
    save->step = begin.step();
    save->world_size = begin.world_size();
  }
  ++save->uploads;
  return save;
}

void Saves::AddPart(const v1::UploadBegin& begin, checkpoint::Manifest part, Save& save) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // Sent again while the commit is under way.
    if (save.ended || save.complete()) return;
    save.parts[begin.rank()] = std::move(part);
    save.last_part = SteadyNow();
    if (!begin.training_state().empty()) save.training_state = begin.training_state();
    if (!begin.tokenizer().empty()) save.tokenizer = begin.tokenizer();
    if (begin.steps_size() > 0) save.steps.assign(begin.steps().begin(), begin.steps().end());
    if (!save.complete()) return;
  }
  const absl::Status status = Commit(begin, save);
  std::lock_guard<std::mutex> lock(mutex_);
  End(save, status);
}

void Saves::GiveUp(Save& save, const absl::Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!save.complete()) End(save, why);
}

std::optional<absl::Status> Saves::OutcomeOf(const Save& save) {
  std::lock_guard<std::mutex> lock(mutex_);
  return save.ended ? std::make_optional(save.outcome) : std::nullopt;
}

void Saves::Await(Save& save, std::function<void(absl::Status)> ended) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (save.ended) {
    ended(save.outcome);
  } else {
    save.waiting.push_back(std::move(ended));
  }
}

void Saves::LookForLostRanks() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_.wait_for(lock, kLookInterval, [this] { return stopping_; })) {
    for (const auto& [job, save] : saves_) {
      if (save == nullptr || save->ended || save->complete()) continue;
      if (!host_.IsPresent(save->run, save->token)) {
        End(*save, AttemptIsOver());
      } else if (!save->waiting.empty() && SteadyNow() - save->last_part > kSilence) {
        End(*save, absl::DeadlineExceededError(absl::StrCat("only ", save->parts.size(), " of ",
                                                            save->world_size,
                                                            " ranks have sent their part")));
      }
    }
    // Nobody asks any more how those of an attempt that is over have ended.
    std::erase_if(saves_, [this](const auto& entry) {
      const SavePtr& save = entry.second;
      return save == nullptr || (save->ended && !host_.IsPresent(save->run, save->token));
    });
  }
}

void Saves::End(Save& save, const absl::Status& outcome) {
  if (save.ended) return;
  save.ended = true;
  save.outcome = outcome;
  // What is left of a job's last save is how it ended.
  save.parts.clear();
  save.steps.clear();
  save.training_state.clear();
  save.tokenizer.clear();
  for (const auto& ended : std::exchange(save.waiting, {})) ended(outcome);
  if (outcome.ok()) return;
  LogWarning(absl::StrCat("checkpoint of step ", save.step, ": ", std::string(outcome.message())),
             {{"job", save.run.job_id()}, {"attempt", save.run.attempt()}});
  host_.Tell(
      CheckpointFailed{save.run, save.step, std::string(outcome.message()), ReasonOf(outcome)});
}

// The last upload to leave a save that was given up removes it: nobody writes there any more.
void Saves::Leave(Save& save) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--save.uploads > 0 || !save.ended || save.outcome.ok()) return;
  }
  const absl::Status removed =
      host_.store().Abandon(save.run.job_id(), save.step, save.run.attempt());
  if (!removed.ok()) LogWarning(std::string(removed.message()));
}

absl::Status Saves::Commit(const v1::UploadBegin& begin, const Save& save) {
  // Between the last byte and the rename the attempt may have been replaced: an old one commits
  // nothing.
  if (!host_.IsPresent(begin.run(), begin.token())) return AttemptIsOver();
  TERCIO_ASSIGN_OR_RETURN(const std::string model, host_.ModelOf(begin.run().job_id()));
  std::vector<checkpoint::Manifest> parts;
  for (const auto& [rank, part] : save.parts) parts.push_back(part);
  TERCIO_RETURN_IF_ERROR(host_.Record(StepsDone{begin.run(), save.steps}));
  TERCIO_ASSIGN_OR_RETURN(
      const checkpoint::Committed committed,
      host_.store().Commit(begin.run().job_id(), begin.step(), begin.run().attempt(), model,
                           save.training_state, save.tokenizer, parts));
  return host_.Record(CheckpointCommitted{begin.run(), committed.step, committed.path,
                                          committed.bytes,
                                          absl::ToDoubleSeconds(SteadyNow() - save.begun)});
}

}  // namespace tercio::coordinator

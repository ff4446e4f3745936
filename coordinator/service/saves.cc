#include "coordinator/service/saves.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/reader.h"
#include "common/catch_all.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::coordinator {
namespace {

// Timeouts are minutes, and an attempt that is over is noticed this fast.
constexpr std::chrono::milliseconds kLookInterval{200};
// After this long without a byte the ranks that are missing are not expected any more.
constexpr absl::Duration kSilence = absl::Minutes(5);

// The codes are those that disks and streams give; a metric groups failures by them.
SaveFailure ReasonOf(const absl::Status& outcome) {
  switch (outcome.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnavailable:
      return SaveFailure::kInterrupted;
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
  SaveTerms terms;
  const absl::Time begun = SteadyNow();
  std::atomic<int64_t> last_byte_nanos = absl::ToUnixNanos(begun);
  // A part that is sent twice counts once.
  std::map<int, checkpoint::Manifest> parts;  // by rank
  std::string training_state;
  std::string tokenizer;
  std::vector<v1::StepRecord> steps;
  int uploads = 0;          // that have joined
  bool committing = false;  // all parts are there
  std::vector<std::function<void(absl::Status)>> waiting;
  bool ended = false;
  absl::Status outcome;  // when ended
};

// By value: the end of the save clears the original.
struct Saves::Whole {
  checkpoint::CommitRequest request;
  std::vector<v1::StepRecord> steps;
};

Saves::Saves(CheckpointHost& host) : host_(host), watcher_([this] { LookForEnds(); }) {}

Saves::~Saves() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stopped_.NotifyAll();
  }
  watcher_.join();
}

absl::StatusOr<Saves::Joined> Saves::Join(const v1::UploadBegin& begin) {
  TERCIO_RETURN_IF_ERROR(checkpoint::CheckTrainingState(begin.training_state()));
  // Sizes and ranks are taken from the plan, never from the sender.
  TERCIO_ASSIGN_OR_RETURN(SaveTerms terms, host_.TermsOf(begin.run()));
  if (begin.world_size() != terms.ranks || begin.rank() < 0 || begin.rank() >= terms.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("there is no rank ", begin.rank(), " of ",
                                                   begin.world_size(), ": the plan has ",
                                                   terms.ranks, " ranks"));
  }
  if (begin.file().empty() == terms.own_files) {
    return absl::InvalidArgumentError(
        terms.own_files
            ? "the job's checkpoints are in checkpoint.path: parts must not be sent here"
            : "the job has no checkpoint.path: parts must be sent here");
  }
  MutexLock lock(mutex_);
  SavePtr& save = saves_[begin.run().job_id()];
  // The newest attempt wins: an old one must not disturb its save.
  if (save != nullptr && save->run.attempt() > begin.run().attempt()) return AttemptIsOver();
  const bool same = save != nullptr && save->run.attempt() == begin.run().attempt();
  if (same && save->step > begin.step()) {
    return absl::AbortedError(absl::StrCat("the save of step ", save->step, " has already begun"));
  }
  if (same && save->step == begin.step() && save->ended) {
    if (save->outcome.ok()) return Joined{};
    // The save is over; a rank that had no answer gets the one that all others had.
    return save->outcome;
  }
  if (!same || save->step < begin.step()) {
    // A previous coordinator may have committed it, and its answer have been lost.
    if (host_.HasCommitted(begin.run(), begin.step())) return Joined{};
    // A commit cannot be taken back, and the next save would use the same store beside it.
    if (save != nullptr && save->committing && !save->ended) {
      return absl::UnavailableError(
          absl::StrCat("the save of step ", save->step, " is being committed"));
    }
    if (save != nullptr) {
      End(*save,
          same ? absl::AbortedError(absl::StrCat("abandoned for the save of step ", begin.step()))
               : AttemptIsOver());
    }
    save = std::make_shared<Save>();
    save->run = begin.run();
    save->token = begin.token();
    save->step = begin.step();
    save->terms = std::move(terms);
  }
  // Leave counts down again: the files go when nobody can still write to them.
  ++save->uploads;
  return Joined{save, save->committing || save->parts.contains(begin.rank())};
}

// No lock is taken: every chunk of every rank comes through here.
void Saves::Progress(Save& save) { save.last_byte_nanos = absl::ToUnixNanos(SteadyNow()); }

std::function<void()> Saves::AddPart(const v1::UploadBegin& begin, checkpoint::Manifest part,
                                     const SavePtr& joined) {
  Save& save = *joined;
  Whole whole;
  {
    MutexLock lock(mutex_);
    // Another upload of the same rank was faster: its file is the one that counts.
    if (save.ended || save.committing || save.parts.contains(begin.rank())) return {};
    // From here on the rank has done its part: another upload of it has nothing left to do.
    save.parts[begin.rank()] = std::move(part);
    Progress(save);
    if (!begin.training_state().empty()) save.training_state = begin.training_state();
    if (!begin.tokenizer().empty()) save.tokenizer = begin.tokenizer();
    if (begin.steps_size() > 0) save.steps.assign(begin.steps().begin(), begin.steps().end());
    if (static_cast<int>(save.parts.size()) < save.terms.ranks) return {};
    save.committing = true;
    whole.steps = save.steps;
    whole.request = {save.run.job_id(),
                     save.step,
                     save.run.attempt(),
                     save.terms.model_json,
                     save.training_state,
                     save.tokenizer,
                     {}};
    for (const auto& [rank, sent] : save.parts) whole.request.parts.push_back(sent);
  }
  return [this, joined, whole = std::move(whole)] { CommitWhole(*joined, whole); };
}

void Saves::CommitWhole(Save& save, const Whole& whole) {
  absl::StatusOr<checkpoint::Committed> committed = absl::UnknownError("not committed");
  // An exception in the store must not leave the ranks waiting for an answer.
  absl::Status status = CatchAll([&] {
    committed = Commit(save, whole);
    return committed.status();
  });
  if (committed.ok()) {
    const CheckpointCommitted news{save.run,
                                   committed->step,
                                   committed->path,
                                   committed->bytes,
                                   absl::ToDoubleSeconds(SteadyNow() - save.begun),
                                   committed->manifest_digest,
                                   /*verified=*/!save.terms.own_files,
                                   committed->numerics,
                                   committed->state_digest};
    // It may have been given up in the moment of its rename: it is there, whatever was answered.
    status = host_.Record(news);
  }
  MutexLock lock(mutex_);
  End(save, status);
}

bool Saves::IsWanted(const Save& save) {
  {
    MutexLock lock(mutex_);
    if (save.ended) return false;
  }
  // The attempt may be over though nothing has ended its save yet.
  return host_.IsPresent(save.run, save.token);
}

absl::StatusOr<checkpoint::Committed> Saves::Commit(const Save& save, const Whole& whole) {
  const std::string& job = whole.request.job;
  if (!IsWanted(save)) return AttemptIsOver();
  // The parts are compared with the model before any of them is read back.
  TERCIO_RETURN_IF_ERROR(host_.CheckWhole(job, whole.request.parts));
  checkpoint::Store& store = host_.StoreOf(job);
  if (!save.terms.own_files) {
    TERCIO_RETURN_IF_ERROR(store.ReadBack(job, save.step, whole.request.parts));
  }
  // Steps are durable before the checkpoint is visible: no attempt starts beyond the history.
  TERCIO_RETURN_IF_ERROR(host_.Record(StepsDone{save.run, whole.steps}));
  // Between the last byte and the rename the attempt may have been replaced: an old one commits
  // nothing.
  return store.Commit(whole.request, [&] { return IsWanted(save); });
}

void Saves::GiveUp(Save& save, const absl::Status& why) {
  MutexLock lock(mutex_);
  // A save that has all its parts needs no rank any more, so the end of an upload is harmless.
  if (!save.committing) End(save, why);
}

void Saves::GiveUpForRank(Save& save, int rank, const v1::UploadFailure& failure) {
  const bool full = failure.problem() == v1::SAVE_PROBLEM_DISK_FULL;
  MutexLock lock(mutex_);
  if (save.committing) return;
  End(save,
      full ? absl::ResourceExhaustedError(failure.error())
           : absl::FailedPreconditionError(failure.error()),
      {}, rank);
}

std::optional<absl::Status> Saves::OutcomeOf(const Save& save) {
  MutexLock lock(mutex_);
  return save.ended ? std::make_optional(save.outcome) : std::nullopt;
}

void Saves::Await(Save& save, std::function<void(absl::Status)> ended) {
  MutexLock lock(mutex_);
  if (save.ended) {
    ended(save.outcome);
  } else {
    save.waiting.push_back(std::move(ended));
  }
}

void Saves::LookForEnds() {
  MutexLock lock(mutex_);
  const auto stops = [this]() TERCIO_REQUIRES(mutex_) { return stopping_; };
  while (!stopped_.WaitFor(mutex_, kLookInterval, stops)) {
    for (const auto& [job, save] : saves_) {
      if (save != nullptr && !save->ended) EndWhereDue(*save);
    }
    // The outcome of saves of an attempt that is over is no longer needed.
    std::erase_if(saves_, [this](const auto& entry) {
      const SavePtr& save = entry.second;
      return save == nullptr || (save->ended && !host_.IsPresent(save->run, save->token));
    });
  }
}

void Saves::EndWhereDue(Save& save) {
  const absl::Time now = SteadyNow();
  // The deadline applies to a commit, too: a disk that hangs must not keep the ranks waiting.
  const absl::Time last_byte = absl::FromUnixNanos(save.last_byte_nanos);
  if (now - save.begun > save.terms.timeout) {
    return End(
        save,
        absl::DeadlineExceededError(absl::StrCat(
            "not stored within checkpoint.timeout, ", absl::FormatDuration(save.terms.timeout),
            ": ", save.parts.size(), " of ", save.terms.ranks, " ranks have sent their part",
            save.committing ? ", and the file system does not answer" : "")),
        SaveFailure::kTimeout);
  }
  if (save.committing) return;
  if (!host_.IsPresent(save.run, save.token)) return End(save, AttemptIsOver());
  // After a while without the coordinator some ranks give up, and others reach the new one.
  if (host_.IsGivenUp(save.run, save.step)) {
    return End(save, absl::AbortedError("a rank has given up its part"));
  }
  if (now - last_byte <= kSilence) return;
  End(save,
      absl::DeadlineExceededError(
          absl::StrCat("no data received for ", absl::FormatDuration(kSilence), "; ",
                       save.parts.size(), " of ", save.terms.ranks, " ranks have sent their part")),
      SaveFailure::kSilence);
}

void Saves::End(Save& save, const absl::Status& why, std::optional<SaveFailure> reason, int rank) {
  if (save.ended) return;
  save.ended = true;
  save.outcome = why;
  if (rank >= 0) {
    save.outcome = absl::Status(
        why.code(), absl::StrCat("the part of rank ", rank, " was not written: ", why.message()));
  }
  // Only the outcome of a job's last save is kept.
  save.parts.clear();
  save.steps.clear();
  save.training_state.clear();
  save.tokenizer.clear();
  for (const auto& ended : std::exchange(save.waiting, {})) ended(save.outcome);
  if (why.ok()) return;
  LogWarning(
      absl::StrCat("checkpoint of step ", save.step, ": ", std::string(save.outcome.message())),
      {{"job", save.run.job_id()}, {"attempt", save.run.attempt()}});
  host_.Notify(CheckpointFailed{save.run, save.step, std::string(why.message()),
                                reason.value_or(ReasonOf(why)), rank});
}

// The last upload to leave a save that was given up removes it: no upload writes there any more.
void Saves::Leave(Save& save) {
  {
    MutexLock lock(mutex_);
    if (--save.uploads > 0 || !save.ended || save.outcome.ok()) return;
  }
  const absl::Status removed =
      host_.StoreOf(save.run.job_id()).Abandon(save.run.job_id(), save.step, save.run.attempt());
  if (!removed.ok()) LogWarning(std::string(removed.message()));
}

}  // namespace tercio::coordinator

// Checkpoints in the life of a job: which one an attempt starts from, how saves end, and which
// checkpoints are kept.
//
// A job that has a checkpoint never starts below its newest one on its own. One is passed over only
// when its damage is proven; where none can be read at the moment the search is repeated, and in
// the end the job fails with all that was found: starting over is for people to decide.
#include "coordinator/core/checkpoints.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/ledger.h"
#include "coordinator/core/stepper.h"

namespace tercio::coordinator {
namespace {

// An answer may wait behind a commit while the coordinator's disk is full: it
// has this long to be handled before a search counts as unanswered.
constexpr double kAnswerGrace = 5;
constexpr double kFirstSearchAgain = 1;
constexpr double kLongestSearchAgain = 60;
// How many scheduled verifications may run at a time, over all jobs.
constexpr int kMostScrubs = 1;
// One that takes longer, since its disk hangs, no longer blocks the others.
constexpr double kLongestScrub = 3600;

std::string RankOn(int rank, const std::string& node) {
  return absl::StrCat("rank ", rank, " on node ", node);
}

// The prefix of the error of a part that could not be written.
std::string NotWritten(const std::string& rank) {
  return absl::StrCat("the part of ", rank, " was not written: ");
}

double PauseBefore(int search) {
  double pause = kFirstSearchAgain;
  for (int i = 1; i < search && pause < kLongestSearchAgain; ++i) pause *= 2;
  return std::min(pause, kLongestSearchAgain);
}

// Adds the damage that earlier attempts found and went back behind.
void AddKnownDamage(const v1::JobRecord& record, std::vector<CheckpointFinding>* findings) {
  for (auto at = record.checkpoints().rbegin(); at != record.checkpoints().rend(); ++at) {
    const bool told =
        std::any_of(findings->begin(), findings->end(),
                    [&](const CheckpointFinding& finding) { return finding.step == at->step(); });
    if (!at->problem().empty() && !told) findings->push_back({at->step(), at->problem(), true});
  }
}

// Explains why there is no checkpoint of the requested step.
std::string DescribeMissing(const v1::JobRecord& record,
                            const std::vector<v1::CheckpointRecord>& there) {
  const int64_t step = record.from_step_plus_one() - 1;
  std::vector<int64_t> steps;
  int64_t given_up_by = 0;
  for (const v1::CheckpointRecord& one : there) {
    if (Counts(record, one)) {
      steps.push_back(one.step());
    } else if (one.step() == step) {
      given_up_by = one.attempt();
    }
  }
  std::string text = absl::StrCat("there is no checkpoint of step ", step);
  if (given_up_by > 0) {
    text =
        absl::StrCat("the checkpoint of step ", step, " belongs to attempt ", given_up_by,
                     ", whose steps were discarded when the job was resumed from an earlier one");
  }
  if (steps.empty()) return text;
  std::sort(steps.begin(), steps.end());
  return absl::StrCat(text, "; available steps: ", absl::StrJoin(steps, ", "));
}

}  // namespace

// Once for an attempt, however many nodes come back meanwhile.
void Stepper::Search(JobState& job) {
  if (std::exchange(job.searching, true)) return;
  v1::JobRecord& record = job.record;
  job.searching_since = now_;
  FindCheckpoint search;
  search.run = RunOf(record);
  search.spec = record.spec().checkpoint();
  search.known = CheckpointsThatCount(record);
  search.resume_steps = {record.resume_steps().begin(), record.resume_steps().end()};
  if (record.from_step_plus_one() > 0) search.only = record.from_step_plus_one() - 1;
  search.suspect_step = job.suspect_step;
  effects_.searches.push_back(std::move(search));
}

// A search that gets no answer at all hangs in the file system.
void Stepper::SearchAgainWhereDue(JobState& job) {
  const v1::JobRecord& record = job.record;
  if (record.phase() != v1::JOB_PHASE_PREPARING || record.progress().checkpoint_known()) return;
  if (job.search_again_at > 0 && now_ >= job.search_again_at) {
    job.search_again_at = 0;
    job.searching = false;
    return Search(job);
  }
  const double waited = job.searching && job.search_again_at == 0 ? now_ - job.searching_since : 0;
  if (waited <= settings_.checkpoint_patience - kAnswerGrace) {
    job.unanswered_since = 0;
    return;
  }
  if (job.unanswered_since == 0) job.unanswered_since = now_;
  // While the coordinator's own disk was full, the answer may have arrived and still be queued.
  const bool heard_all = now_ - job.unanswered_since >= kAnswerGrace;
  if (waited > settings_.checkpoint_patience && heard_all) {
    FailWithoutCheckpoint(job, "the file system with the checkpoints does not answer");
  }
}

void Stepper::Handle(const CheckpointFound& answer) {
  WithRun(answer.run, [&](JobState& job) {
    v1::JobRecord& record = job.record;
    if (record.phase() != v1::JOB_PHASE_PREPARING || record.progress().checkpoint_known()) return;
    effects_.changed_jobs.insert(record.id());
    // Records decide below whether the job has a checkpoint at all, so they are completed first.
    AdoptUnrecorded(job, answer);
    NoteFindings(job, answer);
    const bool from_beginning = record.from_step_plus_one() == 1;
    if (answer.step > 0 || from_beginning) return StartFrom(job, answer);
    const bool passes = std::any_of(answer.findings.begin(), answer.findings.end(),
                                    [](const CheckpointFinding& found) { return !found.damaged; });
    if (passes) return Unreadable(job, DescribeFindings(answer.findings));
    if (record.from_step_plus_one() > 0) {
      return FailWithoutCheckpoint(job, answer.findings.empty()
                                            ? DescribeMissing(record, answer.there)
                                            : DescribeFindings(answer.findings));
    }
    // A job that never committed a checkpoint starts from the beginning.
    if (CheckpointsThatCount(record).empty()) return StartFrom(job, answer);
    std::vector<CheckpointFinding> all = answer.findings;
    AddKnownDamage(record, &all);
    FailWithoutCheckpoint(job, all.empty() ? "all of them are missing" : DescribeFindings(all));
  });
}

// A checkpoint on the disk counts, whether or not its commit could be recorded.
void Stepper::AdoptUnrecorded(JobState& job, const CheckpointFound& answer) {
  v1::JobRecord& record = job.record;
  for (const v1::CheckpointRecord& there : answer.there) {
    v1::CheckpointRecord* known = FindCheckpointRecord(record, there.step());
    // A record that an older version made has no numerics, but the manifest tells.
    if (known != nullptr && known->attempt() == there.attempt() && known->numerics() == 0) {
      known->set_numerics(there.numerics());
    }
    if (known != nullptr && known->attempt() >= there.attempt()) continue;
    if (there.attempt() <= 0 || there.attempt() > record.attempt()) continue;
    v1::CheckpointRecord adopted = there;
    TakeCandidate(record, &adopted);
    AddCheckpointRecord(record, std::move(adopted));
    state_.scrubs.Set(record.id(), now_);
  }
  std::sort(record.mutable_checkpoints()->begin(), record.mutable_checkpoints()->end(),
            [](const v1::CheckpointRecord& a, const v1::CheckpointRecord& b) {
              return std::pair(a.attempt(), a.step()) < std::pair(b.attempt(), b.step());
            });
}

void Stepper::NoteFindings(JobState& job, const CheckpointFound& answer) {
  for (const CheckpointFinding& finding : answer.findings) {
    if (!finding.damaged) continue;
    if (v1::CheckpointRecord* known = FindCheckpointRecord(job.record, finding.step)) {
      known->set_problem(finding.problem);
    }
    Note(job, "checkpoint_damaged", absl::StrCat("step ", finding.step, ": ", finding.problem));
  }
}

// The fault may be transient: a volume that is not mounted yet, a server that restarts.
void Stepper::Unreadable(JobState& job, const std::string& why) {
  v1::JobRecord& record = job.record;
  if (record.unreadable_since() == 0) record.set_unreadable_since(now_);
  if (record.unreadable_error() != why) Note(job, "checkpoint_unreadable", why);
  record.set_unreadable_error(why);
  if (now_ - record.unreadable_since() >= settings_.checkpoint_patience) {
    return FailWithoutCheckpoint(job, why);
  }
  job.search_again_at = now_ + PauseBefore(++job.searches);
}

void Stepper::FailWithoutCheckpoint(JobState& job, const std::string& findings) {
  v1::JobRecord& record = job.record;
  StopNodes(job, 0);
  record.set_error(absl::StrCat(
      "no checkpoint of the job can be read, and a job never starts over on its own: ", findings,
      ". Restore one and resume the job, or choose where to start: `tercio resume ", record.id(),
      " --from-step N` (0: from the beginning)"));
  Finish(job, v1::JOB_PHASE_FAILED);
}

void Stepper::StartFrom(JobState& job, const CheckpointFound& found) {
  v1::JobRecord& record = job.record;
  record.mutable_progress()->set_checkpoint_known(true);
  record.set_unreadable_since(0);
  record.clear_unreadable_error();
  const bool on_purpose = record.from_step_plus_one() > 0;
  job.kept_step =
      on_purpose ? found.step : std::max(record.checkpoint_step(), record.resume_step());
  const v1::CheckpointRecord* known = FindCheckpointRecord(record, found.step);
  // It seems to have been away, and to be back.
  if (known != nullptr && !known->problem().empty()) Verify(job, found.step);
  if (found.step != record.checkpoint_step()) {
    record.set_checkpoint_at(known == nullptr ? 0 : known->committed_at());
    record.set_checkpoint_attempt(known == nullptr ? 0 : known->attempt());
  }
  record.set_checkpoint_step(found.step);
  record.set_checkpoint_path(found.path);
  record.set_checkpoint_bytes(found.bytes);
  StartWhenReady(job);
}

void Stepper::Handle(const CheckpointCommitted& committed) {
  WithRun(committed.run, [&](JobState& job) {
    v1::JobRecord& record = job.record;
    if (!HasLiveRun(record.phase()) || committed.step <= record.checkpoint_step()) return;
    effects_.saves.push_back({record.id(), std::nullopt, committed.seconds});
    const int64_t before = std::max(record.checkpoint_step(), record.resume_step());
    // Only steps up to the committed one are safe; those made since may still be lost.
    if (record.step() > before) {
      CommitWork(*record.mutable_ledger(), static_cast<double>(committed.step - before) /
                                               static_cast<double>(record.step() - before));
    }
    record.set_checkpoint_step(committed.step);
    record.set_checkpoint_path(committed.path);
    record.set_checkpoint_bytes(committed.bytes);
    record.set_checkpoint_attempt(record.attempt());
    record.set_checkpoint_at(now_);
    record.set_failed_saves(0);
    record.set_saves_fail_since(0);
    record.clear_save_error();
    v1::CheckpointRecord known;
    known.set_step(committed.step);
    known.set_attempt(record.attempt());
    known.set_committed_at(now_);
    known.set_bytes(committed.bytes);
    known.set_manifest_digest(committed.manifest_digest);
    known.set_numerics(committed.numerics);
    if (committed.state_digest.has_value()) known.set_state_digest(*committed.state_digest);
    if (committed.verified) known.set_verified_at(now_);
    TakeCandidate(record, &known);
    AddCheckpointRecord(record, known);
    state_.scrubs.Set(record.id(), now_);
    // A job that has run this long without a fault has earned its whole budget again.
    if (now_ - record.last_fault_at() > settings_.budget_window) record.set_restarts_used(0);
    Note(job, "checkpoint_committed",
         absl::StrCat("step ", committed.step, ", ", committed.bytes, " bytes",
                      committed.seconds > 0 ? absl::StrFormat(" in %.3f s", committed.seconds) : "",
                      ", ", committed.path));
    UpdateBest(job, known);
    if (committed.step >= record.spec().training().steps()) BeginTest(job);
    // Older checkpoints are removed only in favour of one whose bytes were read back.
    if (committed.verified) {
      Prune(job);
    } else {
      Verify(job, committed.step);
    }
  });
}

void Stepper::Verify(JobState& job, int64_t step) {
  // One verification at a time of a job: the record of what is under way holds one step.
  if (std::exchange(job.verifying, true)) return;
  const v1::CheckpointRecord* known = FindCheckpointRecord(job.record, step);
  job.verifying_step = step;
  job.verifying_attempt = known == nullptr ? 0 : known->attempt();
  state_.scrubs.BeginVerification(job.record.id(), now_);
  effects_.verifications.push_back({job.record.id(), job.record.spec().checkpoint(), step});
}

void Stepper::Handle(const CheckpointVerified& verified) {
  const auto found = state_.jobs.find(verified.job_id);
  if (found == state_.jobs.end()) return;
  JobState& job = found->second;
  const bool asked = job.verifying && job.verifying_step == verified.step;
  if (asked) {
    job.verifying = false;
    state_.scrubs.EndVerification(verified.job_id);
  }
  v1::CheckpointRecord* known = FindCheckpointRecord(job.record, verified.step);
  if (known == nullptr) return;
  // The bytes read may be those of the checkpoint that this one has replaced.
  if (asked && job.verifying_attempt != known->attempt()) return Verify(job, verified.step);
  if (verified.problem.empty()) {
    known->set_verified_at(now_);
    known->clear_problem();
    state_.scrubs.Set(verified.job_id, now_);  // for the next one
    effects_.changed_jobs.insert(verified.job_id);
    return Prune(job);
  }
  if (!verified.damaged) {
    Note(job, "checkpoint_unreadable",
         absl::StrCat("step ", verified.step, " could not be verified: ", verified.problem));
    return;
  }
  if (IsSuperfluous(job.record, verified.step)) return;  // it was being removed meanwhile
  effects_.changed_jobs.insert(verified.job_id);
  known->set_problem(verified.problem);
  Note(job, "checkpoint_damaged", absl::StrCat("step ", verified.step, ": ", verified.problem));
}

// Picks what was never verified first (as after a restart of the coordinator), then what was
// verified longest ago.
void Stepper::Scrub() {
  if (settings_.scrub_interval <= 0) return;
  while (state_.scrubs.UnderWaySince(now_ - kLongestScrub) < kMostScrubs) {
    const std::string* due = state_.scrubs.Due(now_);
    if (due == nullptr) return;
    JobState& job = state_.jobs.at(*due);
    const std::string& id = job.record.id();
    const v1::CheckpointRecord* next = NextToVerify(job.record);
    if (next == nullptr) {
      state_.scrubs.Drop(id);
      continue;
    }
    const double at = next->verified_at() + settings_.scrub_interval;
    if (next->verified_at() > 0 && at > now_) {
      state_.scrubs.Set(id, at);
      continue;
    }
    // One that cannot be read now is not retried immediately.
    state_.scrubs.Set(id, now_ + kLongestSearchAgain);
    Verify(job, next->step());
  }
}

void Stepper::Prune(JobState& job) {
  const v1::CheckpointSpec& wanted = job.record.spec().checkpoint();
  for (const v1::CheckpointRecord& old :
       SuperfluousCheckpoints(job.record, wanted.keep_last(), wanted.keep_every())) {
    effects_.removals.push_back({job.record.id(), wanted, old.step(), old.attempt()});
  }
}

void Stepper::Handle(const CheckpointRemoved& removed) {
  const auto found = state_.jobs.find(removed.job_id);
  if (found == state_.jobs.end()) return;
  const v1::CheckpointRecord* known = FindCheckpointRecord(found->second.record, removed.step);
  const bool other = known != nullptr && removed.attempt > 0 && known->attempt() > removed.attempt;
  if (known == nullptr || other) return;
  RemoveCheckpointRecord(found->second.record, removed.step);
  // Ranks that start have been told of it, or are about to be.
  if (found->second.record.best().step() == removed.step &&
      found->second.record.phase() != v1::JOB_PHASE_STARTING) {
    found->second.record.clear_best();
  }
  effects_.changed_jobs.insert(removed.job_id);
}

void Stepper::Handle(const CheckpointFailed& failed) {
  WithRun(failed.run, [&](JobState& job) {
    const bool by_rank =
        job.placement != nullptr && failed.rank >= 0 && failed.rank < job.placement->ranks();
    if (!by_rank) return OnSaveFailed(job, failed.step, failed.reason, failed.error, "", -1);
    const std::string& node = job.placement->NodeOf(failed.rank);
    OnSaveFailed(job, failed.step, failed.reason,
                 absl::StrCat(NotWritten(RankOn(failed.rank, node)), failed.error), node,
                 failed.rank);
  });
}

// The coordinator may already know from other ranks' messages, or may know nothing, since a rank
// whose messages reach its agent need not reach the coordinator.
void Stepper::OnSaveUnanswered(JobState& job, const std::string& node,
                               const v1::SaveUnanswered& said) {
  const v1::JobRecord& record = job.record;
  if (!HasLiveRun(record.phase()) || said.step() <= record.checkpoint_step()) return;
  // One that is skipped has not begun on any rank.
  if (said.problem() != v1::SAVE_PROBLEM_SKIPPED) {
    job.given_up_step = said.step();
    job.given_up_attempt = record.attempt();
  }
  const std::string rank = RankOn(said.rank(), node);
  const auto failed = [&](SaveFailure reason, const std::string& text) {
    OnSaveFailed(job, said.step(), reason, absl::StrCat(text, said.error()), node, said.rank());
  };
  switch (said.problem()) {
    case v1::SAVE_PROBLEM_SKIPPED:
      return failed(SaveFailure::kSkipped, "skipped: ");
    case v1::SAVE_PROBLEM_TIMEOUT:
      return failed(SaveFailure::kTimeout, absl::StrCat("the part of ", rank, " was "));
    case v1::SAVE_PROBLEM_NOT_WRITTEN:
      return failed(SaveFailure::kOther, NotWritten(rank));
    case v1::SAVE_PROBLEM_DISK_FULL:
      return failed(SaveFailure::kDiskFull, NotWritten(rank));
    default:
      return failed(SaveFailure::kUnreachable,
                    absl::StrCat(rank, " cannot reach the coordinator to send its part: "));
  }
}

// A save counts once, whichever rank reports its failure; one that its own attempt has left does
// not.
void Stepper::OnSaveFailed(JobState& job, int64_t step, SaveFailure reason,
                           const std::string& error, const std::string& node, int rank) {
  v1::JobRecord& record = job.record;
  const bool by_rank = !node.empty();
  // The file system is asked less and less often: a thousand jobs may wait for the same one.
  if (by_rank && step == record.failed_save_step()) return;
  effects_.saves.push_back({record.id(), reason, 0});
  Note(job, "checkpoint_failed", absl::StrCat("step ", step, ": ", error), node, rank);
  const bool counts = reason != SaveFailure::kInterrupted &&
                      // A save that was interrupted, or that failed while the
                      // job stops, says nothing about its storage.
                      record.phase() != v1::JOB_PHASE_STOPPING && step > record.checkpoint_step();
  if (!counts || step == record.failed_save_step()) return;
  record.set_failed_save_step(step);
  record.set_failed_saves(record.failed_saves() + 1);
  if (record.saves_fail_since() == 0) record.set_saves_fail_since(now_);
  record.set_save_error(absl::StrCat("step ", step, ": ", error));
}

}  // namespace tercio::coordinator

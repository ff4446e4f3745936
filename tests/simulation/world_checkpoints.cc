// Checkpoints: what the coordinator asks of their volumes, what befalls those, what people do about
// it, and what must hold.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/checkpoints.h"
#include "tests/simulation/world.h"

namespace tercio::simulation {
namespace {

constexpr int kMostResumes = 3;  // resumes of a job once faults have stopped
// A search, the events before its answer, and a full disk of the coordinator take this long.
constexpr double kLongestAnswer = 30;

constexpr char kWithoutCheckpoint[] = "no checkpoint of the job can be read";

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool IsOfHistory(const v1::JobRecord& record, const StoredCheckpoint& stored) {
  v1::CheckpointRecord known;
  known.set_step(stored.step);
  known.set_attempt(stored.attempt);
  return coordinator::Counts(record, known);
}

}  // namespace

// ---- what the coordinator asks for ----

// As soon as the volume answers; a coordinator that has died asks for nothing any more.
void World::OnVolume(const std::string& job, std::function<void(Volume&)> task) {
  At(Uniform(0, 0.3), [this, job, task = std::move(task), life = coordinator_life_] {
    if (life != coordinator_life_) return;
    if (!volumes_[job].Answers(now_)) {
      At(volumes_[job].hangs_until - now_, [this, job, task, life] {
        if (life == coordinator_life_) OnVolume(job, task);
      });
      return;
    }
    task(volumes_[job]);
  });
}

template <typename Answer>
void World::AnswerLater(Answer answer) {
  At(Uniform(0, 0.3), [this, answer = std::move(answer), life = coordinator_life_] {
    if (life == coordinator_life_) Post(answer);
  });
}

void World::DoForVolumes(const coordinator::Effects& effects) {
  for (const coordinator::FindCheckpoint& search : effects.searches) {
    OnVolume(search.run.job_id(), [this, search](Volume& volume) {
      NoteSearch(search.run, volume);
      AnswerLater(volume.Search(search, now_, broken_ == Broken::kUnreadableIsDamaged));
    });
  }
  for (const coordinator::VerifyCheckpointBytes& wanted : effects.verifications) {
    OnVolume(wanted.job_id, [this, wanted](Volume& volume) {
      AnswerLater(volume.Verify(wanted.job_id, wanted.step, now_));
    });
  }
  for (const coordinator::RemoveCheckpoint& removal : effects.removals) {
    OnVolume(removal.job_id, [this, removal](Volume& volume) { Remove(removal, volume); });
  }
}

void World::Remove(const coordinator::RemoveCheckpoint& removal, Volume& volume) {
  const StoredCheckpoint* stored = volume.Find(removal.step, now_);
  const bool refuses = !volume.IsMounted(now_) || (stored != nullptr && !stored->IsReadable(now_));
  if (refuses || (stored != nullptr && stored->attempt > removal.attempt)) return;
  if (stored != nullptr) volume.checkpoints.erase(removal.step);
  AnswerLater(coordinator::CheckpointRemoved{removal.job_id, removal.step, removal.attempt});
}

// All parts have come: whether they are a checkpoint now. Those that ranks send are read back;
// those that they write themselves are not.
bool World::Store(const SaveOf& save, const v1::JobSpec& spec) {
  Volume& volume = volumes_[save.run.first];
  const bool own_files = !spec.checkpoint().path().empty();
  const bool damaged = volume.Lies(now_);
  const bool read_back = !own_files && broken_ != Broken::kTrustsTheSender;
  if (!volume.IsMounted(now_) || (damaged && read_back)) {
    coordinator::CheckpointFailed failed{agent::ToRunId(save.run), save.step, "not stored"};
    if (damaged) failed.reason = coordinator::SaveFailure::kDamaged;
    Post(failed);
    return false;
  }
  StoredCheckpoint& stored = volume.checkpoints[save.step];
  const bool again = stored.attempt == save.run.second && stored.IsThere(now_);
  if (!again) {
    stored = {save.step, save.run.second, save.weights, damaged};
    stored.verified = read_back;
  }
  coordinator::CheckpointCommitted committed;
  committed.run = agent::ToRunId(save.run);
  committed.step = save.step;
  committed.path = "path";
  committed.verified = broken_ == Broken::kTrustsTheSender || (read_back && stored.verified);
  Post(committed);
  return true;
}

// Whether the rank has read the checkpoint that its attempt starts from.
bool World::LoadCheckpoint(const agent::RunKey& run) {
  Training& training = trainings_[run];
  const Volume& volume = volumes_[run.first];
  const StoredCheckpoint* stored = volume.Find(training.step, now_);
  if (stored == nullptr || !volume.IsMounted(now_) || !stored->IsReadable(now_)) return false;
  // Its digests stop the rank.
  if (stored->damaged) return false;
  training.weights = stored->weights;
  return true;
}

// ---- what goes wrong, and what people do ----

void World::FaultOfVolumes() {
  for (auto& [job, volume] : volumes_) {
    const double rest = start_ + kFaultsLast - now_;
    if (Chance(0.004)) volume.away_until = now_ + Uniform(0, 100);
    if (Chance(0.004)) {
      // Never an earlier end: what waits already waits for the later one.
      const double lasts = Chance(0.2) ? rest : Uniform(0, 100);
      volume.hangs_until = std::max(volume.hangs_until, now_ + lasts);
    }
    if (Chance(0.006)) volume.lies_until = now_ + Uniform(0, 10);
    if (volume.checkpoints.empty()) continue;
    auto chosen = std::prev(volume.checkpoints.end());
    if (Chance(0.3)) {
      chosen = std::next(volume.checkpoints.begin(),
                         static_cast<std::ptrdiff_t>(random_() % volume.checkpoints.size()));
    }
    StoredCheckpoint& stored = chosen->second;
    if (Chance(0.005)) stored.damaged = true;
    if (Chance(0.005)) {
      stored.unreadable_until = Chance(0.1) ? kForEver : now_ + Uniform(0, 100);
    }
    if (Chance(0.004)) stored.gone_until = Chance(0.5) ? kForEver : now_ + Uniform(0, 60);
  }
}

// A person looks at what there is, but not at every byte.
int64_t World::ChooseStep(const std::string& job, StepChoice choice) {
  const bool good = choice == StepChoice::kLastGood;
  std::vector<int64_t> steps = {0};
  const v1::JobRecord& record = state_.jobs.at(job).record;
  for (const auto& [step, stored] : volumes_[job].checkpoints) {
    if (!IsOfHistory(record, stored) || !stored.IsReadable(now_)) continue;
    if (!good || !stored.damaged) steps.push_back(step);
  }
  return good ? steps.back() : steps[random_() % steps.size()];
}

void World::Resume(const std::string& id, std::optional<int64_t> from_step) {
  coordinator::ResumeRequested resume;
  resume.job_id = id;
  resume.spec = state_.jobs.at(id).record.spec();
  resume.from_step = from_step;
  Post(resume);
}

void World::ResumeFailedJobs() {
  for (const char* id : {"job-1", "job-2", "job-3"}) {
    const auto job = state_.jobs.find(id);
    if (job == state_.jobs.end() || job->second.record.phase() != v1::JOB_PHASE_FAILED) continue;
    if (Faulty() && Chance(0.03)) {
      std::optional<int64_t> from_step;
      if (Chance(0.5)) from_step = Chance(0.1) ? 99 : ChooseStep(id, StepChoice::kAnyStep);
      Resume(id, from_step);
    }
    // Once all is mended: as it is first, then from what there is.
    if (Faulty() || !Has(job->second.record.error(), kWithoutCheckpoint)) continue;
    int& resumes = resumes_[id];
    if (!coordinator_up_ || waits_for_disk_ || resumes >= kMostResumes) continue;
    if (++resumes == 1) {
      Resume(id, std::nullopt);
    } else {
      Resume(id, ChooseStep(id, StepChoice::kLastGood));
    }
  }
}

// ---- what must hold ----

// What a search would have to come to, when it looks.
void World::NoteSearch(const v1::RunId& run, const Volume& volume) {
  const auto job = state_.jobs.find(run.job_id());
  if (job == state_.jobs.end() || job->second.record.attempt() != run.attempt()) return;
  const v1::JobRecord& record = job->second.record;
  Searched& searched = searched_[agent::ToRunKey(run)];
  const double fails_since = searched.fails_since;
  searched = {};
  std::pair<int, int64_t> newest;
  bool saved = false;
  std::vector<const StoredCheckpoint*> there;
  for (const auto& [step, stored] : volume.checkpoints) {
    if (!IsOfHistory(record, stored)) continue;
    saved |= stored.recorded;
    if (!stored.IsThere(now_) || (!volume.IsMounted(now_) && !stored.recorded)) continue;
    there.push_back(&stored);
    if (!stored.damaged) newest = std::max(newest, std::pair(stored.attempt, step));
  }
  searched.newest = newest.second;
  bool may_pass = !volume.IsMounted(now_) && saved;
  for (const StoredCheckpoint* stored : there) {
    // Those above it are damaged, which nobody may have noticed, or be able to prove now.
    if (std::pair(stored->attempt, stored->step) < newest) continue;
    searched.possible.insert(stored->step);
    may_pass |= !stored->IsReadable(now_);
  }
  if (newest.second == 0 && !saved) searched.possible.insert(0);
  searched.readable = newest.second > 0 && !may_pass;
  if (may_pass) searched.fails_since = fails_since > 0 ? fails_since : now_;
}

// Once an event is durable.
void World::CheckCheckpoints(const coordinator::Event& event, const coordinator::Effects& effects) {
  for (const std::string& id : effects.changed_jobs) {
    const auto job = state_.jobs.find(id);
    if (job == state_.jobs.end()) continue;
    const v1::JobRecord& record = job->second.record;
    CheckRecords(record);
    CheckBeginning(record);
  }
  CheckFailures(effects);
  CheckRemovals(effects);
  if (const auto* removed = std::get_if<coordinator::CheckpointRemoved>(&event.body)) {
    forgotten_[removed->job_id].insert({removed->step, removed->attempt});
  }
  const auto* resumed = std::get_if<coordinator::ResumeRequested>(&event.body);
  if (resumed == nullptr || !effects.answer.ok()) return;
  chosen_.erase(resumed->job_id);
  if (resumed->from_step.has_value()) chosen_[resumed->job_id] = *resumed->from_step;
}

// What is recorded as verified was.
void World::CheckRecords(const v1::JobRecord& record) {
  for (const v1::CheckpointRecord& known : record.checkpoints()) {
    auto& all = volumes_[record.id()].checkpoints;
    const auto stored = all.find(known.step());
    if (stored == all.end() || stored->second.attempt != known.attempt()) continue;
    stored->second.recorded = true;
    if (known.verified_at() > 0 && known.problem().empty() && !stored->second.verified) {
      Wrong(absl::StrCat(record.id(), ": the checkpoint of step ", known.step(),
                         " counts as verified, but nobody has read it"));
    }
  }
}

// No attempt starts below what there is, unless a person wants it to.
void World::CheckBeginning(const v1::JobRecord& record) {
  const std::string& id = record.id();
  const auto start = record.resume_steps().find(record.attempt());
  if (start == record.resume_steps().end() || begun_[id] >= record.attempt()) return;
  begun_[id] = record.attempt();
  CheckBest(record);
  const int64_t step = start->second;
  if (const auto chosen = chosen_.find(id); chosen != chosen_.end()) {
    if (step != chosen->second || record.resume_attempt() > 0) {
      Wrong(absl::StrCat(id, " starts after step ", step, ", where a person has chosen step ",
                         chosen->second));
    }
    chosen_.erase(chosen);
    by_choice_.insert({id, record.attempt()});
    return;
  }
  if (record.resume_attempt() > 0) {
    for (const v1::CheckpointRecord& known : coordinator::CheckpointsThatCount(record)) {
      const StoredCheckpoint* stored = volumes_[id].Find(known.step(), now_);
      if (stored == nullptr || stored->damaged || !known.problem().empty()) continue;
      if (stored->attempt == known.attempt() && known.step() > step) {
        Wrong(absl::StrCat(id, " starts after step ", step, " from memory, below its checkpoint"));
      }
    }
    return;
  }
  const auto searched = searched_.find({id, record.attempt()});
  if (searched == searched_.end()) {
    return Wrong(absl::StrCat(id, " starts, although no search was answered"));
  }
  if (!searched->second.possible.contains(step)) {
    Wrong(absl::StrCat(id, ": attempt ", record.attempt(), " starts after step ", step,
                       "; its newest good checkpoint was that of step ", searched->second.newest,
                       ", and possible ", absl::StrJoin(searched->second.possible, ", ")));
  }
}

// A job ends only where it has nothing to start from, not at once, and says what it lacks.
void World::CheckFailures(const coordinator::Effects& effects) {
  for (const v1::JobEvent& event : effects.events) {
    if (event.kind() != "failed" || !event.message().starts_with(kWithoutCheckpoint)) continue;
    const v1::JobRecord& record = state_.jobs.at(event.job_id()).record;
    const std::string& id = record.id();
    const auto chosen = chosen_.find(id);
    const bool hung = Has(event.message(), "does not answer");
    if (hung && now_ > volumes_[id].hangs_until + kLongestAnswer) {
      Wrong(absl::StrCat(id, " ends, since a volume does not answer that does"));
    }
    const auto found = searched_.find({id, record.attempt()});
    if (hung || found == searched_.end()) continue;
    const Searched& searched = found->second;
    if (chosen == chosen_.end() && searched.readable) {
      Wrong(absl::StrCat(id, " ends, although the checkpoint of step ", searched.newest,
                         " could be read: ", event.message()));
    }
    if (chosen == chosen_.end() && searched.fails_since > 0 &&
        now_ - searched.fails_since < settings_.checkpoint_patience - kLongestAnswer) {
      Wrong(absl::StrCat(id, " ends at once for what may pass: ", event.message()));
    }
    const auto known = coordinator::CheckpointsThatCount(record);
    const int64_t missed = chosen != chosen_.end() ? chosen->second
                           : known.empty()         ? 0
                                                   : known.front().step();
    if (!Has(event.message(), absl::StrCat("step ", missed)) && !Has(event.message(), "volume")) {
      Wrong(absl::StrCat(id, " does not name what it lacks, step ", missed, ": ", event.message()));
    }
  }
}

// What was read and found right stays: the newest, and as many as are asked for.
void World::CheckRemovals(const coordinator::Effects& effects) {
  std::map<std::string, std::set<int64_t>> removed;
  for (const auto& removal : effects.removals) removed[removal.job_id].insert(removal.step);
  for (const auto& [id, steps] : removed) {
    const v1::JobRecord& record = state_.jobs.at(id).record;
    if (record.has_best() && steps.contains(record.best().step())) {
      Wrong(absl::StrCat(id, ": the best checkpoint is removed"));
    }
    size_t good = 0;
    size_t left = 0;
    bool newest_goes = false;
    for (const v1::CheckpointRecord& known : coordinator::CheckpointsThatCount(record)) {
      const auto stored = volumes_[id].checkpoints.find(known.step());
      const bool there = stored != volumes_[id].checkpoints.end() &&
                         stored->second.attempt == known.attempt() && stored->second.verified;
      if (!there || !known.problem().empty()) continue;
      newest_goes |= good++ == 0 && steps.contains(known.step());
      left += steps.contains(known.step()) ? 0 : 1;
    }
    const size_t wanted =
        std::min(good, static_cast<size_t>(record.spec().checkpoint().keep_last()));
    if (newest_goes) Wrong(absl::StrCat(id, ": the newest verified checkpoint is removed"));
    if (left < wanted) {
      Wrong(absl::StrCat(id, ": ", left, " verified checkpoints are left of ", good));
    }
  }
}

// ---- cores that are wrong on purpose ----

void World::SpoilCheckpoints(coordinator::Event& event) {
  auto* found = std::get_if<coordinator::CheckpointFound>(&event.body);
  auto* verified = std::get_if<coordinator::CheckpointVerified>(&event.body);
  auto* resumed = std::get_if<coordinator::ResumeRequested>(&event.body);
  if (broken_ == Broken::kStartsOverSilently && found != nullptr && found->step == 0) {
    const auto job = state_.jobs.find(found->run.job_id());
    if (job != state_.jobs.end() && job->second.record.from_step_plus_one() == 0) {
      job->second.record.set_from_step_plus_one(1);
    }
  }
  if (broken_ == Broken::kDamageIsNotBelieved && verified != nullptr) verified->problem.clear();
  if (broken_ == Broken::kChosenStepIsIgnored && resumed != nullptr) resumed->from_step.reset();
}

void World::SpoilRemovals(const coordinator::Event& event, coordinator::Effects& effects) {
  if (broken_ != Broken::kPrunesByNumber && broken_ != Broken::kPrunesUnverified &&
      broken_ != Broken::kBestIsPruned) {
    return;
  }
  const auto* committed = std::get_if<coordinator::CheckpointCommitted>(&event.body);
  if (committed == nullptr || !effects.changed_jobs.contains(committed->run.job_id())) return;
  v1::JobRecord record = state_.jobs.at(committed->run.job_id()).record;
  auto& all = *record.mutable_checkpoints();
  if (broken_ == Broken::kPrunesByNumber) {
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.step() < b.step(); });
    record.clear_resume_steps();
  }
  if (broken_ == Broken::kBestIsPruned) record.clear_best();
  for (v1::CheckpointRecord& known : all) {
    if (broken_ == Broken::kBestIsPruned) known.clear_value();
    if (broken_ == Broken::kBestIsPruned) continue;
    if (broken_ == Broken::kPrunesUnverified) known.set_verified_at(1);
    known.clear_problem();
  }
  const v1::CheckpointSpec& wanted = record.spec().checkpoint();
  effects.removals.clear();
  for (const auto& old : coordinator::SuperfluousCheckpoints(record, wanted.keep_last(), 0)) {
    effects.removals.push_back({record.id(), wanted, old.step(), old.attempt()});
  }
}

}  // namespace tercio::simulation

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "coordinator/core/ledger.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "plan/data_position.h"
#include "tests/simulation/world.h"

namespace tercio::simulation {

using coordinator::Effects;
using coordinator::Event;
using coordinator::JobState;

namespace {

// What stays as it is once a job has ended: all but what is known of its checkpoints.
std::string WhatStays(v1::JobRecord record) {
  record.clear_checkpoints();
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  record.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace

// One event after the other; a full disk holds up all of them.
void World::Serve() {
  while (coordinator_up_ && !waits_for_disk_ && !inbox_.empty() && wrong_.empty()) {
    Event event = std::move(inbox_.front());
    inbox_.pop_front();
    if (now_ < full_until_) {
      waits_for_disk_ = true;
      inbox_.push_front(std::move(event));
      At(full_until_ - now_ + 0.5, [this] {
        waits_for_disk_ = false;
        Serve();
      });
      return;
    }
    Apply(std::move(event));
  }
}

void World::Apply(Event event) {
  event.now = CoordinatorNow();
  event.token = std::to_string(random_());
  const bool resumed = std::holds_alternative<coordinator::ResumeRequested>(event.body);
  // A checkpoint or snapshot brings the steps that led to it, which may be known.
  const auto* said = std::get_if<coordinator::NodeSaid>(&event.body);
  const bool by_commit = std::holds_alternative<coordinator::StepsDone>(event.body) ||
                         (said != nullptr && said->message.has_snapshots_held());
  Observe(event);
  HearGpus(event);
  const int owed = OwedBlame(event);
  const std::map<std::string, int64_t> blames = BlamesAt(event.now);
  const std::map<std::string, int> roll_backs = RollBacks();
  const Event asked = event;
  const Effects effects = StepBroken(event);
  if (owed >= 0) CheckBlame(event, effects, owed, blames);
  if (!wrong_.empty()) return;
  if (broken_ == Broken::kEffectsBeforeCommit) Deliver(effects);
  // It may die at any moment: before the commit, or before anything has left.
  const double dies = broken_ == Broken::kEffectsBeforeCommit ? 0.02 : 0.0005;
  if (Faulty() && Chance(dies)) return KillCoordinator();
  Commit(effects, by_commit);
  NoteRollBacks(event, roll_backs);
  CheckState(effects, resumed);
  CheckGpus(effects);
  CheckCheckpoints(asked, effects);
  if (Faulty() && Chance(0.0005)) return KillCoordinator();
  if (broken_ != Broken::kEffectsBeforeCommit) Deliver(effects);
}

// The rank that a report shows to be corrupt, where it is the first that the attempt says of it.
int World::OwedBlame(const Event& event) const {
  const auto* said = std::get_if<coordinator::NodeSaid>(&event.body);
  if (said == nullptr || said->message.rank_exited().exit().corrupt_rank_plus_one() <= 0) return -1;
  const v1::RunId& run = said->message.rank_exited().run();
  const auto job = state_.jobs.find(run.job_id());
  const auto node = state_.nodes.find(said->node);
  const bool heard = node != state_.nodes.end() && !node->second.lost &&
                     said->message.sequence() > node->second.record.reported();
  if (!heard || job == state_.jobs.end() || job->second.record.attempt() != run.attempt() ||
      (job->second.record.phase() != v1::JOB_PHASE_RUNNING &&
       job->second.record.phase() != v1::JOB_PHASE_STARTING)) {
    return -1;
  }
  return said->message.rank_exited().exit().corrupt_rank_plus_one() - 1;
}

std::map<std::string, int64_t> World::BlamesAt(double now) const {
  std::map<std::string, int64_t> blames;
  for (const auto& [name, node] : state_.nodes) {
    const auto& faults = node.record.faults();
    blames[name] = std::count(faults.begin(), faults.end(), now);
  }
  return blames;
}

void World::CheckBlame(const Event& event, const Effects& effects, int rank,
                       const std::map<std::string, int64_t>& before) {
  const auto& exited = std::get<coordinator::NodeSaid>(event.body).message.rank_exited();
  const std::string& id = exited.run().job_id();
  const std::string& guilty = trainings_.at(agent::ToRunKey(exited.run())).ranks.at(rank);
  const bool told = std::any_of(effects.events.begin(), effects.events.end(),
                                [&](const v1::JobEvent& told_event) {
                                  return told_event.kind() == "replicas_differ" &&
                                         told_event.node() == guilty && told_event.rank() == rank;
                                });
  if (!told) Wrong(absl::StrCat(id, ": nobody names rank ", rank, " of ", guilty));
  for (const auto& [name, count] : BlamesAt(event.now)) {
    if ((count > before.at(name)) != (name == guilty)) {
      Wrong(absl::StrCat(id, ": ", name, " is blamed for ", guilty, ", or is not"));
    }
  }
}

std::map<std::string, int> World::RollBacks() const {
  std::map<std::string, int> roll_backs;
  for (const auto& [id, job] : state_.jobs) roll_backs[id] = job.record.roll_backs();
  return roll_backs;
}

// Once it is durable, the batch that led there must not come again.
void World::NoteRollBacks(const Event& event, const std::map<std::string, int>& before) {
  const auto* said = std::get_if<coordinator::NodeSaid>(&event.body);
  if (said == nullptr || !said->message.has_rank_exited()) return;
  const agent::RunKey run = agent::ToRunKey(said->message.rank_exited().run());
  const auto job = state_.jobs.find(run.first);
  if (job == state_.jobs.end() || job->second.record.roll_backs() <= before.at(run.first)) return;
  const auto found = trainings_.find(run);
  if (found == trainings_.end()) {
    return Wrong(
        absl::StrCat(run.first, " goes back for attempt ", run.second, ", which has not trained"));
  }
  const Training& training = found->second;
  gone_over_[run.first].insert(plan::BatchOfStep(training.data, training.step));
  if (++rolled_back_[run.first] > coordinator::kMostRollBacks) {
    Wrong(absl::StrCat(run.first, " goes back once more, after ", coordinator::kMostRollBacks));
  }
}

// What a wrong core would have made of its state.
void World::BreakState(double now) {
  if (broken_ == Broken::kDataIsReadAgain) {
    for (auto& [id, job] : state_.jobs) {
      job.record.mutable_spec()->mutable_training()->clear_data_skips();
    }
  } else if (broken_ == Broken::kRollsBackForEver) {
    for (auto& [id, job] : state_.jobs) job.record.clear_roll_backs();
  } else if (broken_ == Broken::kEndedJobsRun) {
    for (auto& [id, job] : state_.jobs) {
      if (coordinator::IsTerminal(job.record.phase()) && Chance(0.001)) {
        job.record.set_phase(v1::JOB_PHASE_QUEUED);
        state_.jobs.Sort(job);
      }
    }
  } else if (broken_ == Broken::kFaultyGpusAreUsed) {
    for (auto& [name, node] : state_.nodes) node.record.clear_device_faults();
  } else if (broken_ == Broken::kBackoffNeverEnds) {
    for (auto& [id, job] : state_.jobs) job.record.set_retry_at(now + 10);
  } else if (broken_ == Broken::kTestIsForgotten) {
    for (auto& [id, job] : state_.jobs)
      job.record.mutable_spec()->mutable_data()->clear_test_path();
  } else if (broken_ == Broken::kWaitsForEver) {
    for (auto& [id, job] : state_.jobs) {
      if (job.record.unreadable_since() > 0) job.record.set_unreadable_since(now);
      job.searching_since = now;
    }
  } else if (broken_ == Broken::kTimeIsCountedTwice) {
    for (auto& [id, job] : state_.jobs) {
      if (Chance(0.01)) {
        job.record.mutable_ledger()->set_since_micros(job.record.ledger().since_micros() - 1000);
      }
    }
  }
}

// The core, or one that is wrong on purpose.
Effects World::StepBroken(Event& event) {
  auto* said = std::get_if<coordinator::NodeSaid>(&event.body);
  if (broken_ == Broken::kReportsCountTwice) {
    if (said != nullptr) said->message.set_sequence(0);
  } else if (broken_ == Broken::kAttemptsAreNotFenced) {
    const v1::RunId* run = said == nullptr ? nullptr : coordinator::RunOf(said->message);
    if (run != nullptr) {
      const auto job = state_.jobs.find(run->job_id());
      if (job != state_.jobs.end()) {
        const_cast<v1::RunId*>(run)->set_attempt(job->second.record.attempt());
      }
    }
  } else if (broken_ == Broken::kDevicesTwice) {
    for (auto& [name, node] : state_.nodes) node.hello.set_devices(2 * kDevices);
  } else if (broken_ == Broken::kLeasesNeverEnd) {
    for (auto& [name, node] : state_.nodes) node.last_heard = event.now;
  } else if (broken_ == Broken::kResumeTooFar || broken_ == Broken::kResumeTooEarly) {
    if (auto* found = std::get_if<coordinator::CheckpointFound>(&event.body); found != nullptr) {
      found->step = broken_ == Broken::kResumeTooFar ? found->step + 1 : 0;
    }
  } else if (broken_ == Broken::kLostGpusAreWaitedFor) {
    if (said != nullptr && said->message.has_heartbeat()) {
      for (v1::DeviceFault& fault : *said->message.mutable_heartbeat()->mutable_device_faults()) {
        fault.set_ends_runs(false);
      }
    }
  } else if (broken_ == Broken::kNobodyIsBlamed) {
    if (said != nullptr && said->message.has_rank_exited()) {
      said->message.mutable_rank_exited()->mutable_exit()->clear_corrupt_rank_plus_one();
    }
  } else {
    SpoilCopies(event);
    SpoilCheckpoints(event);
    BreakState(event.now);
  }
  std::map<std::string, v1::JobRecord> before;
  for (const auto& [id, job] : state_.jobs) {
    if (broken_ == Broken::kBestOfLostHistory) before[id] = job.record;
  }
  Effects effects = Step(state_, event, settings_);
  SpoilRemovals(event, effects);
  SpoilBest(before, effects);
  if (broken_ == Broken::kStepsAreDropped) {
    std::erase_if(effects.steps, [](const auto& step) { return step.second.step() == 7; });
  }
  if (broken_ == Broken::kSnapshotStepsDropped && said != nullptr &&
      said->message.has_snapshots_held()) {
    effects.steps.clear();
  }
  if (broken_ == Broken::kSnapshotsAreKept) {
    std::erase_if(effects.messages,
                  [](const auto& send) { return send.message.has_drop_snapshots(); });
  }
  if (broken_ == Broken::kStopsAreNotSent) {
    std::erase_if(effects.messages, [](const auto& send) { return send.message.has_stop_run(); });
  }
  if (broken_ == Broken::kAcknowledgesTooMuch) {
    for (auto& [name, sequence] : effects.acknowledged) sequence += 50;
  }
  return effects;
}

void World::Commit(const Effects& effects, bool by_commit) {
  for (const std::string& id : effects.changed_jobs) {
    const auto same = [&id](const v1::JobRecord& record) { return record.id() == id; };
    const auto found = std::find_if(disk_.jobs.begin(), disk_.jobs.end(), same);
    const v1::JobRecord& record = state_.jobs.at(id).record;
    if (found == disk_.jobs.end()) {
      disk_.jobs.push_back(record);
    } else {
      *found = record;
    }
  }
  for (const std::string& id : effects.changed_plans) disk_.plans[id] = *state_.jobs.at(id).plan;
  for (const std::string& id : effects.changed_placements) {
    disk_.placements[id] = state_.jobs.at(id).placement->slots();
  }
  for (const std::string& name : effects.changed_nodes) {
    std::erase_if(disk_.nodes, [&](const v1::NodeRecord& node) { return node.name() == name; });
    if (state_.nodes.contains(name)) disk_.nodes.push_back(state_.nodes.at(name).record);
  }
  for (const auto& [id, step] : effects.steps) {
    const std::pair<int64_t, int> key(step.step(), step.attempt());
    const bool is_new = history_[id].emplace(key, step.loss()).second;
    const bool reported = !by_commit && !reported_[id].insert(key).second;
    if (reported || (!is_new && history_[id][key] != step.loss())) {
      Wrong(absl::StrCat("step ", step.step(), " of ", id, ", attempt ", step.attempt(),
                         ", is stored twice"));
    }
  }
  for (const auto& [id, line] : effects.logs) {
    if (!lines_.insert(line.line()).second) Wrong(absl::StrCat("stored twice: ", line.line()));
  }
}

void World::Deliver(const Effects& effects) {
  for (const std::string& name : effects.disconnected) Disconnect(name);
  for (const coordinator::SendToNode& send : effects.messages) {
    if (send.message.has_start_run()) CheckStart(send.node, send.message.start_run());
    ToNode(send.node, send.message);
  }
  for (const auto& [name, sequence] : effects.acknowledged) {
    v1::CoordinatorMessage message;
    message.mutable_acknowledge()->set_sequence(sequence);
    ToNode(name, message);
  }
  DoForVolumes(effects);
}

void World::CheckState(const Effects& effects, bool resumed) {
  for (const v1::JobEvent& event : effects.events) {
    if (event.kind() == "internal_error") Wrong(event.message());
  }
  std::map<std::string, int> used;
  for (const auto& [id, job] : state_.jobs) {
    for (const auto& [node, held] : job.placement->nodes()) {
      used[node] += static_cast<int>(held.ranks.size());
    }
    const bool terminal = coordinator::IsTerminal(job.record.phase());
    const auto ended = ended_.find(id);
    if (ended != ended_.end() && !resumed && ended->second != WhatStays(job.record)) {
      Wrong(absl::StrCat(id, " has changed after its end"));
    }
    if (!terminal) {
      ended_.erase(id);
    } else if (ended == ended_.end()) {
      ended_[id] = WhatStays(job.record);
    }
    if (effects.changed_jobs.contains(id)) CheckLedger(job.record);
  }
  for (const auto& [node, count] : used) {
    if (count > kDevices) {
      Wrong(absl::StrCat(node, " has given out ", count, " devices"));
    }
  }
}

void World::CheckLedger(const v1::JobRecord& record) {
  const auto totals = coordinator::LedgerTotals(record.ledger(), CoordinatorNow());
  int64_t sum = 0;
  for (const int64_t part : totals) {
    if (part < 0) Wrong(absl::StrCat("negative time of ", record.id()));
    sum += part;
  }
  const int64_t age =
      std::llround(CoordinatorNow() * 1e6) - std::llround(record.submitted_at() * 1e6);
  if (!clock_jumped_ && sum != age) {
    Wrong(absl::StrCat("the parts of ", record.id(), "'s time sum to ", sum, ", not ", age));
  }
}

void World::KillCoordinator() {
  coordinator_up_ = false;
  ++coordinator_life_;
  inbox_.clear();
  for (auto& [name, node] : nodes_) {
    if (Chance(0.5)) node.last_words = node.connection;
    Disconnect(name);
  }
  At(Uniform(0.5, 20), [this] { StartCoordinator(); });
}

void World::StartCoordinator() {
  coordinator_up_ = true;
  if (Faulty() && Chance(0.3)) {
    clock_jumped_ = true;
    clock_ += Uniform(-3600, 86'400);
  }
  state_ = Restore(disk_, CoordinatorNow());
  faulty_.clear();
  lost_.clear();
  for (auto& [id, job] : state_.jobs) {
    if (broken_ == Broken::kProgressIsForgotten) job.record.clear_progress();
    if (broken_ == Broken::kCheckpointsAreForgotten) {
      job.record.clear_checkpoints();
      job.record.set_checkpoint_step(0);
    }
    if (broken_ == Broken::kAttemptNumbersAgain && job.record.attempt() > 0) {
      job.record.set_attempt(job.record.attempt() - 1);
    }
    // A record may have changed by being pulled back to a clock that was set back.
    if (ended_.contains(id)) ended_[id] = WhatStays(job.record);
  }
}

}  // namespace tercio::simulation

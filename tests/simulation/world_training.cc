#include <algorithm>

#include "absl/strings/str_cat.h"
#include "plan/data_position.h"
#include "plan/epochs.h"
#include "tests/simulation/world.h"

namespace tercio::simulation {
namespace {

// A node that was lost and has come back needs this long to hear of it, and to stop what it should
// not run.
constexpr double kStopTime = 45;

}  // namespace

// The weights after a step, in one number: a step that is left out, done twice or done from other
// weights shows in all that follow.
uint64_t World::NextWeights(uint64_t weights, int64_t batch) {
  uint64_t next = weights ^ (static_cast<uint64_t>(batch) * 0x9e3779b97f4a7c15u);
  next ^= next >> 31;
  return next * 0xbf58476d1ce4e5b9u;
}

// There are enough of them that a run may meet more than it goes back for.
bool World::IsPoison(const std::string& job, int64_t batch) {
  return job != "job-3" && batch % 6 == (job == "job-1" ? 5 : 3);
}

World::Trainer* World::FindTrainer(const std::string& name, const agent::RunKey& run, int rank) {
  const auto found = nodes_[name].trainers.find({run, rank});
  return found == nodes_[name].trainers.end() ? nullptr : &found->second;
}

void World::StartTrainer(const std::string& name, const agent::RunKey& run, int rank) {
  Node& node = nodes_[name];
  for (const auto& [other_name, other] : nodes_) {
    const auto known = state_.nodes.find(other_name);
    const bool counted = coordinator_up_ && known != state_.nodes.end() && !known->second.lost &&
                         known->second.connected && other.connection != 0 &&
                         now_ - other.connected_at > kStopTime &&
                         CoordinatorNow() - known->second.last_heard < 1;
    for (const auto& [key, trainer] : other.trainers) {
      const bool older = key.first.first == run.first && key.first.second < run.second;
      if (older && trainer.alive && (other_name == name || counted)) {
        return Wrong(absl::StrCat(run.first, ": attempt ", run.second, " starts on ", name,
                                  " while ", other_name, " runs attempt ", key.first.second));
      }
    }
  }
  if (node.trainers.contains({run, rank})) {
    return Wrong(
        absl::StrCat(run.first, ": rank ", rank, " of attempt ", run.second, " is started twice"));
  }
  Trainer& trainer = node.trainers[{run, rank}];
  trainer.process = next_number_++;
  const v1::StartRun& start = node.state.runs.at(run).start;
  Training& training = trainings_[run];
  if (training.ranks.empty()) {
    const v1::Layout& layout = start.ranks(0).layout();
    training.world = layout.tensor() * layout.pipeline() * layout.data();
    training.step = start.resume_step();
    training.steps = start.spec().training().steps();
    training.last_progress = now_;
    training.data = start.spec().training();
    training.rolls_back = start.spec().fault_tolerance().on_spike() == v1::ON_SPIKE_ROLLBACK;
    training.from_memory = start.resume_attempt() > 0;
    At(Uniform(0.2, 1), [this, run] { TryStep(run); });
  }
  training.ranks[rank] = name;
  TellBest(run, training, start);
  if (start.spec().checkpoint().peer_copies() > 0) {
    training.peers[name].assign(start.snapshot_peers().begin(), start.snapshot_peers().end());
  }
  At(Uniform(0.1, 2),
     [this, name, run, rank, process = trainer.process] { RankRuns(name, run, rank, process); });
}

void World::RankRuns(const std::string& name, const agent::RunKey& run, int rank, int64_t process) {
  Trainer* trainer = FindTrainer(name, run, rank);
  if (trainer == nullptr || trainer->process != process || !trainer->alive) return;
  Training& training = trainings_[run];
  if (training.from_memory) {
    // Ranks load once all of them are connected; an agent that is away does not say from where.
    if (static_cast<int>(training.ranks.size()) < training.world || !nodes_[name].up ||
        !nodes_[name].state.runs.contains(run)) {
      At(0.5, [=, this] { RankRuns(name, run, rank, process); });
      return;
    }
    if (!LoadCopy(name, run, rank)) return EndTrainer(name, run, rank, 1, 0);
  } else if (training.step > 0) {
    if (!volumes_[run.first].Answers(now_)) {
      At(1, [=, this] { RankRuns(name, run, rank, process); });
      return;
    }
    if (!LoadCheckpoint(run)) return EndTrainer(name, run, rank, 1, 0);
  }
  trainer->running = true;
  trainings_[run].last_progress = now_;
  v1::TrainerMessage message;
  message.mutable_phase()->set_phase(v1::TRAINER_PHASE_RUNNING);
  SendFromRank(name, run, rank, message);
}

// Whether all ranks can do the next step; *broken when some never will, since they have ended.
bool World::AllWork(const Training& training, const agent::RunKey& run, bool* broken) {
  bool all = static_cast<int>(training.ranks.size()) == training.world;
  for (const auto& [rank, name] : training.ranks) {
    const Trainer* trainer = FindTrainer(name, run, rank);
    if (trainer == nullptr || !trainer->alive) {
      *broken = true;
    } else if (trainer->frozen || !trainer->running) {
      all = false;
    }
  }
  return all && !*broken;
}

void World::TryStep(const agent::RunKey& run) {
  Training& training = trainings_[run];
  if (training.ended) return;
  bool broken = false;
  const bool works = AllWork(training, run, &broken);
  if (broken) {
    At(Uniform(0.1, 2), [this, run] { BreakAttempt(run); });
    return;
  }
  // No rank begins to give copies while another still gives those of the last snapshot.
  const bool waits = training.copies_under_way > 0 &&
                     ((training.step + 1) % training.every == 0 || training.save_and_stop ||
                      plan::EvaluatesAfter(training.data, kSamples, training.step + 1));
  if (works && training.judged.has_value()) {
    SaveStep(run, training);
  } else if (works && !waits) {
    EndStep(run, training);
  }
  // Ranks that never come are given up after two minutes.
  if (!works && static_cast<int>(training.ranks.size()) < training.world &&
      now_ - training.last_progress > 120) {
    return BreakAttempt(run);
  }
  if (!training.ended) At(Uniform(0.2, 1), [this, run] { TryStep(run); });
}

void World::EndStep(const agent::RunKey& run, Training& training) {
  if (training.step >= training.steps) {
    training.ended = true;
    return TestOf(run);
  }
  ++training.step;
  const int64_t batch = plan::BatchOfStep(training.data, training.step);
  if (gone_over_[run.first].contains(batch)) {
    return Wrong(absl::StrCat(run.first, " reads batch ", batch, " again"));
  }
  training.weights = NextWeights(training.weights, batch);
  training.last_progress = now_;
  const std::string name = training.ranks.at(0);
  v1::TrainerMessage message;
  v1::StepRecord* record = message.mutable_step()->mutable_record();
  record->set_step(training.step);
  record->set_attempt(run.second);
  record->set_loss(LossOf(training.weights));
  record->set_step_seconds(0.1);
  Evaluate(run, training, &message);
  training.records.push_back(*record);
  SendFromRank(name, run, 0, message);
  v1::AgentMessage log;
  *log.mutable_logs()->mutable_run() = agent::ToRunId(run);
  log.mutable_logs()->add_lines()->set_line(
      absl::StrCat(run.first, " attempt ", run.second, " step ", training.step));
  if (nodes_[name].up) {
    nodes_[name].spool->Append(log);
    Keep(nodes_[name], {});
    SendNews(name);
  }
  if (training.rolls_back && IsPoison(run.first, batch)) {
    return EndForAll(run, training, -1, training.step);
  }
  SaveStep(run, training);
}

// What follows a step, once it is known whether it is the best.
void World::SaveStep(const agent::RunKey& run, Training& training) {
  const std::optional<bool> best = Judge(training);
  if (!best.has_value()) return;
  const bool saves = training.step == training.steps || training.save_and_stop || *best ||
                     training.step % training.every == 0;
  if (saves && training.corrupt_rank >= 0) {
    return EndForAll(run, training, training.corrupt_rank, 0);
  }
  if (saves) GiveCopies(run, training);
  SaveOf save{run, training.step, training.weights, /*then_end=*/true, 0, now_};
  if (training.step == training.steps) {
    training.ended = true;
  } else if (training.save_and_stop) {
    training.ended = true;
    save.exit_code = 4;
  } else if (saves && !(Faulty() && !training.peers.empty() && Chance(0.5))) {
    // (or it is given up: that is when copies matter)
    save.then_end = false;
  } else {
    return;
  }
  if (*best) {
    training.best->SaveBegins(training.records.back());
    training.candidate_committed = false;
  }
  BeginSave(save);
}

// All ranks find the same, say it, and end.
void World::EndForAll(const agent::RunKey& run, Training& training, int corrupt_rank,
                      int64_t roll_back_from) {
  training.ended = true;
  v1::TrainerMessage message;
  v1::TrainerFailure* failure = message.mutable_failure();
  failure->set_message(absl::StrCat("found at step ", training.step));
  failure->set_corrupt_rank_plus_one(corrupt_rank + 1);
  failure->set_roll_back_from(roll_back_from);
  for (const auto& [rank, name] : std::map(training.ranks)) {
    const Trainer* trainer = FindTrainer(name, run, rank);
    if (trainer != nullptr && trainer->alive && !trainer->frozen)
      SendFromRank(name, run, rank, message);
  }
  EndAll(run, 1);
}

// A save waits for the one before it.
void World::BeginSave(const SaveOf& save) {
  std::deque<SaveOf>& saves = trainings_[save.run].saves;
  saves.push_back(save);
  if (saves.size() == 1) Save(save);
}

void World::EndSave(const SaveOf& save, bool committed) {
  Training& training = trainings_[save.run];
  if (committed && training.best->candidate() == save.step) training.candidate_committed = true;
  training.saves.pop_front();
  if (training.saves.empty()) return;
  training.saves.front().since = now_;
  Save(training.saves.front());
}

// The checkpoint service lets the present attempt commit, and nobody else; trainers try again for
// five minutes while it is away.
void World::Save(const SaveOf& save) {
  At(Uniform(0, 3), [=, this] {
    const agent::RunKey& run = save.run;
    bool broken = false;
    AllWork(trainings_[run], run, &broken);
    if (broken) return BreakAttempt(run);  // a part of it will never come
    if (!coordinator_up_ || waits_for_disk_ || !volumes_[run.first].Answers(now_)) {
      return now_ - save.since > 300 ? SaveGivenUp(save) : Save(save);
    }
    const auto job = state_.jobs.find(run.first);
    const bool present = job != state_.jobs.end() && job->second.record.attempt() == run.second &&
                         !coordinator::IsTerminal(job->second.record.phase());
    if (!present) return SaveGivenUp(save);
    // Durable before the checkpoint is visible, or not answered.
    std::vector<v1::StepRecord> records = trainings_[run].records;
    std::erase_if(records, [&](const auto& record) { return record.step() > save.step; });
    const v1::JobSpec spec = job->second.record.spec();
    Post(coordinator::StepsDone{agent::ToRunId(run), records});
    const bool kept = std::all_of(records.begin(), records.end(), [&](const auto& record) {
      return history_[run.first].contains({record.step(), run.second});
    });
    if (!coordinator_up_ || !kept) return Save(save);
    if (!Store(save, spec)) return SaveGivenUp(save);
    // Not answered: sent again.
    const auto known = std::find_if(disk_.jobs.begin(), disk_.jobs.end(), [&](const auto& record) {
      return record.id() == run.first && record.checkpoint_step() >= save.step;
    });
    if (known == disk_.jobs.end()) return Save(save);
    EndSave(save, /*committed=*/true);
    if (save.then_end && save.exit_code == 0) return TestOf(run);
    if (save.then_end) EndAll(run, save.exit_code);
  });
}

void World::SaveGivenUp(const SaveOf& save) {
  EndSave(save, /*committed=*/false);
  if (save.then_end) EndAll(save.run, 1);
}

// Ranks that wait for one that has gone give up.
void World::BreakAttempt(const agent::RunKey& run) {
  Training& training = trainings_[run];
  training.ended = true;
  EndAll(run, 1);
}

void World::EndAll(const agent::RunKey& run, int exit_code) {
  for (const auto& [rank, name] : std::map(trainings_[run].ranks)) {
    const Trainer* trainer = FindTrainer(name, run, rank);
    if (trainer == nullptr || !trainer->alive || trainer->frozen) continue;
    At(Uniform(0.01, 1), [=, this, rank = rank, name = name, process = trainer->process] {
      const Trainer* now = FindTrainer(name, run, rank);
      if (now != nullptr && now->process == process && now->alive && !now->frozen) {
        EndTrainer(name, run, rank, exit_code, 0);
      }
    });
  }
}

void World::EndTrainer(const std::string& name, const agent::RunKey& run, int rank, int exit_code,
                       int signal) {
  Trainer* trainer = FindTrainer(name, run, rank);
  trainer->alive = false;
  trainer->exit_code = exit_code;
  trainer->signal = signal;
  if (nodes_[name].up) {
    At(Uniform(0.001, 0.2), [this, name, run, rank] {
      if (nodes_[name].up) SeeEnd(name, run, rank);
    });
  }
}

// An agent sees how a trainer has ended, once: after what it had to say.
void World::SeeEnd(const std::string& name, const agent::RunKey& run, int rank) {
  TakeOutbox(name, run, rank);
  Trainer* trainer = FindTrainer(name, run, rank);
  if (trainer == nullptr || trainer->alive || !nodes_[name].up) return;
  const agent::TrainerEnded ended{run, rank, trainer->exit_code, trainer->signal, {}, "", false};
  StepAgent(name, {0, ended});
}

}  // namespace tercio::simulation

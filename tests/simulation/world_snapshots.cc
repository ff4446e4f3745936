// Copies of snapshots in the memory of nodes, with the agents' real store.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "tests/simulation/world.h"

namespace tercio::simulation {
namespace {

// A copy holds the weights' one number, as two elements.
constexpr int64_t kElements = sizeof(uint64_t) / sizeof(float);

std::string BytesOf(uint64_t weights) {
  std::string bytes(sizeof(weights), '\0');
  std::memcpy(bytes.data(), &weights, sizeof(weights));
  return bytes;
}

}  // namespace

void World::StartMemory(const std::string& name) {
  agent::SnapshotStore::Options options;
  options.available_bytes = [] { return int64_t{1} << 40; };
  options.on_held = [this, name](const v1::SnapshotsHeld& held) {
    for (const v1::SnapshotHeld& copy : held.snapshots()) {
      ever_held_.insert({name, agent::ToRunKey(copy.run()), copy.rank(), copy.step()});
    }
    v1::AgentMessage message;
    *message.mutable_snapshots_held() = held;
    FromNode(name, message);
  };
  nodes_[name].memory = std::make_shared<agent::SnapshotStore>(options);
}

// After a step every rank gives a copy to its own node and to the peers that its order names.
void World::GiveCopies(const agent::RunKey& run, Training& training) {
  for (const auto& [rank, name] : training.ranks) {
    const auto peers = training.peers.find(name);
    if (peers == training.peers.end()) continue;
    std::vector<std::string> holders = {name};
    holders.insert(holders.end(), peers->second.begin(), peers->second.end());
    v1::SnapshotBegin begin;
    *begin.mutable_run() = agent::ToRunId(run);
    begin.set_rank(rank);
    begin.set_step(training.step);
    v1::TensorSlice* slice = begin.add_slices();
    slice->set_row_end(kElements);
    slice->set_column_end(1);
    begin.set_bytes(sizeof(uint64_t));
    if (rank == 0) begin.mutable_steps()->Add(training.records.begin(), training.records.end());
    for (const std::string& holder : holders) {
      ++training.copies_under_way;
      At(Uniform(0.001, 0.5), [=, this, rank = rank, weights = training.weights] {
        GiveCopy(run, rank, holder, begin, weights);
      });
    }
  }
}

void World::GiveCopy(const agent::RunKey& run, int rank, const std::string& holder,
                     const v1::SnapshotBegin& begin, uint64_t weights) {
  const auto lives = [this, run, rank] {
    const Trainer* trainer = FindTrainer(trainings_[run].ranks.at(rank), run, rank);
    return trainer != nullptr && trainer->alive;
  };
  const std::shared_ptr<agent::SnapshotStore> memory = nodes_[holder].memory;
  // Not kept there: the agent is away, or its part of the attempt is over.
  if (!lives() || memory == nullptr || !nodes_[holder].state.runs.contains(run)) {
    --trainings_[run].copies_under_way;
    return;
  }
  auto begun = memory->Begin(begin);
  if (!begun.ok()) {
    --trainings_[run].copies_under_way;
    return;
  }
  const std::shared_ptr<agent::SnapshotStore::Incoming> incoming = *std::move(begun);
  At(Uniform(0.001, 2), [=, this] {
    --trainings_[run].copies_under_way;
    if (!lives() || nodes_[holder].memory != memory) return;
    const std::string bytes = BytesOf(weights);
    v1::UploadEnd end;
    end.set_bytes(static_cast<int64_t>(bytes.size()));
    end.set_checksum(ChecksumHex(bytes));
    if (incoming->Append(bytes).ok()) incoming->Finish(end).IgnoreError();
  });
}

// Whether the rank has the state that its order names; a copy may have gone since.
bool World::LoadCopy(const std::string& name, const agent::RunKey& run, int rank) {
  const v1::StartRun& start = nodes_[name].state.runs.at(run).start;
  const auto entry = start.snapshot_sources().find(rank);
  if (entry == start.snapshot_sources().end()) {
    Wrong(absl::StrCat(run.first, ": nobody has the snapshot of rank ", rank));
    return false;
  }
  const Node& source = nodes_[entry->second.empty() ? name : entry->second];
  if (source.memory == nullptr || !source.state.runs.contains(run)) return false;
  const auto copy =
      source.memory->Find(run.first, start.resume_attempt(), rank, start.resume_step());
  if (copy == nullptr) return false;
  uint64_t weights = 0;
  std::memcpy(&weights, copy->data.get(), sizeof(weights));
  Training& training = trainings_[run];
  if (training.loaded && training.weights != weights) {
    Wrong(absl::StrCat(run.first, ": ranks have loaded different weights"));
  }
  training.loaded = true;
  training.weights = weights;
  return true;
}

// What the coordinator has heard of the copies of nodes.
void World::Observe(const coordinator::Event& event) {
  if (const auto* attached = std::get_if<coordinator::NodeAttached>(&event.body)) {
    heard_[attached->hello.node()].clear();
  }
  const auto* said = std::get_if<coordinator::NodeSaid>(&event.body);
  if (said == nullptr || !said->message.has_snapshots_held()) return;
  const auto node = state_.nodes.find(said->node);
  if (node == state_.nodes.end() || node->second.lost) return;
  for (const v1::SnapshotHeld& copy : said->message.snapshots_held().snapshots()) {
    heard_[said->node].insert({agent::ToRunKey(copy.run()), copy.rank(), copy.step()});
  }
}

// The step of the last snapshot of an attempt of which the coordinator knows a copy of every rank,
// on nodes that take part in the next; 0: none.
int64_t World::LastComplete(const agent::RunKey& run, int ranks,
                            const std::set<std::string>& nodes) {
  std::map<int64_t, std::set<int>> held;
  for (const std::string& name : nodes) {
    const auto known = state_.nodes.find(name);
    const std::shared_ptr<agent::SnapshotStore>& memory = nodes_[name].memory;
    if (known == state_.nodes.end() || !known->second.connected || known->second.lost ||
        memory == nullptr) {
      continue;
    }
    for (const auto& [key, rank, step] : heard_[name]) {
      if (key == run && memory->Find(run.first, run.second, rank, step) != nullptr) {
        held[step].insert(rank);
      }
    }
  }
  int64_t last = 0;
  for (const auto& [step, with] : held) {
    if (static_cast<int>(with.size()) == ranks) last = step;
  }
  return last;
}

// An attempt starts from copies that are there, and loses no more than the time between two
// snapshots where they are.
void World::CheckStart(const std::string& name, const v1::StartRun& start) {
  const agent::RunKey run = agent::ToRunKey(start.run());
  for (const auto& [rank, source] : start.snapshot_sources()) {
    const agent::RunKey taken(run.first, start.resume_attempt());
    const std::string& holder = source.empty() ? name : source;
    if (ever_held_.contains({holder, taken, rank, start.resume_step()})) continue;
    Wrong(absl::StrCat(run.first, ": rank ", rank, " is to start from a copy that ", holder,
                       " never had"));
  }
  const auto before = last_started_.find(run.first);
  const std::string layout = start.ranks(0).layout().SerializeAsString();
  if (before == last_started_.end() || before->second.first.second < run.second) {
    // What a person has chosen is a checkpoint, which memory must not be preferred to. An attempt
    // between the two whose orders were lost may have been given the snapshot, which is not tried
    // twice.
    bool exempt = by_choice_.contains(run);
    for (const auto& [attempt, step] : state_.jobs.at(run.first).record.resume_steps()) {
      const bool later = before != last_started_.end() && attempt > before->second.first.second;
      exempt = exempt || (later && attempt < run.second);
    }
    if (!exempt && before != last_started_.end() && before->second.second == layout) {
      const coordinator::Placement& placement = *state_.jobs.at(run.first).placement;
      std::set<std::string> nodes;
      for (const auto& [member, node] : placement.nodes()) nodes.insert(member);
      const int64_t last = LastComplete(before->second.first, placement.ranks(), nodes);
      if (start.resume_step() < last) {
        Wrong(absl::StrCat(run.first, " starts after step ", start.resume_step(),
                           ", with a snapshot of step ", last, " in memory"));
      }
    }
    last_started_[run.first] = {run, layout};
  }
}

// What a core that is wrong on purpose takes the copies for.
void World::SpoilCopies(coordinator::Event& event) {
  if (broken_ == Broken::kSnapshotOfLostAttempt) return ReviveLostAttempts();
  auto* said = std::get_if<coordinator::NodeSaid>(&event.body);
  if (said == nullptr || !said->message.has_snapshots_held()) return;
  v1::SnapshotsHeld& held = *said->message.mutable_snapshots_held();
  for (int i = held.snapshots_size() - 1; i >= 0; --i) {
    v1::SnapshotHeld copy = held.snapshots(i);
    const auto job = state_.jobs.find(copy.run().job_id());
    const bool goes_on =
        job != state_.jobs.end() && !coordinator::IsTerminal(job->second.record.phase());
    if (broken_ == Broken::kSnapshotsAreIgnored && goes_on) held.mutable_snapshots(i)->set_rank(-1);
    if (broken_ != Broken::kSnapshotOfSomeRanks) continue;
    for (int rank = 0; rank < 4; ++rank) {
      copy.set_rank(rank);
      *held.add_snapshots() = copy;
    }
  }
}

// Emulates a choice that does not ask whether the snapshot's attempt still counts.
void World::ReviveLostAttempts() {
  for (auto& [id, job] : state_.jobs) {
    if (job.record.phase() != v1::JOB_PHASE_PREPARING) continue;
    const auto last = last_started_.find(id);
    if (last == last_started_.end()) continue;
    for (const auto& [name, node] : state_.nodes) {
      for (const auto& [rank, copies] : node.snapshots.Of(id)) {
        for (const coordinator::SnapshotId& copy : copies) {
          if (copy.attempt >= last->second.first.second) continue;
          job.record.set_resume_attempt(copy.attempt);
          job.record.set_resume_step(copy.step);
        }
      }
    }
  }
}

}  // namespace tercio::simulation

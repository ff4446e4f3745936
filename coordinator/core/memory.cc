// Copies of snapshots in the memory of nodes: reports of them, and attempts that start from them
// instead of from a checkpoint.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/checkpoints.h"
#include "coordinator/core/stepper.h"
#include "plan/rank_layout.h"

namespace tercio::coordinator {
namespace {

constexpr size_t kMostNodesNamed = 8;

// Whether every rank holds the same state in both plans.
bool SameLayout(const v1::Plan& a, const v1::Plan& b) {
  return a.ranks_size() == b.ranks_size() && a.lanes() == b.lanes() &&
         a.padded_vocabulary() == b.padded_vocabulary() &&
         plan::DivideAlike(a.layout(), b.layout()) &&
         a.model().SerializeAsString() == b.model().SerializeAsString();
}

// The step of the newest checkpoint that is not known to be damaged, also of one that could not be
// read yet.
int64_t NewestKnown(const v1::JobRecord& record) {
  for (const v1::CheckpointRecord& known : CheckpointsThatCount(record)) {
    if (known.problem().empty()) return known.step();
  }
  return 0;
}

}  // namespace

int LastStarted(const v1::JobRecord& record) {
  int last = 0;
  for (const auto& [attempt, step] : record.resume_steps()) last = std::max(last, attempt);
  return last;
}

void Stepper::OnSnapshotsHeld(const std::string& name, const v1::SnapshotsHeld& said) {
  HeldSnapshots& held = state_.nodes.at(name).snapshots;
  if (said.all()) held.Clear();
  std::set<std::string> useless;
  std::set<std::string> wanted;  // by attempts that wait for storage
  for (const v1::SnapshotHeld& snapshot : said.snapshots()) {
    const std::string& id = snapshot.run().job_id();
    const auto job = state_.jobs.find(id);
    if (job == state_.jobs.end() || IsTerminal(job->second.record.phase())) {
      useless.insert(id);
      continue;
    }
    if (!HasBegun(snapshot.run()) || IsOthers(snapshot.run(), name) || snapshot.step() <= 0 ||
        snapshot.rank() < 0 || snapshot.rank() >= plan::RanksOfJob(job->second.record.spec())) {
      continue;
    }
    // Durable before an attempt can start from it: none starts beyond the history.
    AddSteps(snapshot.run(), snapshot.steps());
    held.Add(id, snapshot.rank(), {snapshot.run().attempt(), snapshot.step()});
    if (job->second.record.phase() == v1::JOB_PHASE_PREPARING) wanted.insert(id);
  }
  for (const std::string& id : useless) SendDrop(name, id);
  for (const std::string& id : wanted) StartWhenReady(state_.jobs.at(id));
}

void Stepper::DropCopies(const std::string& job) {
  for (auto& [name, node] : state_.nodes) {
    if (!node.snapshots.HasAny(job)) continue;
    node.snapshots.Forget(job);
    SendDrop(name, job);
  }
}

void Stepper::SendDrop(const std::string& node, const std::string& job) {
  v1::CoordinatorMessage message;
  message.mutable_drop_snapshots()->set_job_id(job);
  effects_.messages.push_back({node, message});
}

// A snapshot in memory, of the newest attempt that has started or the one that this attempt itself
// has started from, which is as good as the newest checkpoint or better. Copies are taken from
// nodes of this attempt only: others do not know its token.
std::optional<SnapshotChoice> Stepper::FindSnapshot(JobState& job, const v1::Plan& plan) {
  const v1::JobRecord& record = job.record;
  // A start chosen by a person is always a checkpoint.
  if (!plan::KeepsCopies(record.spec()) || job.plan == nullptr || record.from_step_plus_one() > 0 ||
      !SameLayout(*job.plan, plan)) {
    return std::nullopt;
  }
  std::vector<std::string> placed;
  for (int rank = 0; rank < job.placement->ranks(); ++rank) {
    placed.push_back(job.placement->NodeOf(rank));
  }
  std::map<std::string, const HeldSnapshots*> nodes;
  for (const auto& [name, place] : job.placement->nodes()) {
    const NodeState& node = state_.nodes.at(name);
    if (node.connected && !node.lost) nodes[name] = &node.snapshots;
  }
  const int last = LastStarted(record);
  const int64_t found = record.progress().checkpoint_known() ? record.checkpoint_step() : 0;
  const int64_t newest = std::max(NewestKnown(record), found);
  const SnapshotId before = {record.resume_attempt(), record.resume_step()};
  std::optional<SnapshotChoice> choice =
      NewestComplete(record.id(), placed, nodes, [&](const SnapshotId& id) {
        return id.step >= newest && (id.attempt == last || id == before);
      });
  const auto reachable = [&](size_t rank) {
    const std::string& source = choice->sources[rank];
    return source == placed[rank] || !state_.nodes.at(source).hello.snapshot_address().empty();
  };
  for (size_t rank = 0; choice.has_value() && rank < placed.size(); ++rank) {
    if (!reachable(rank)) choice.reset();
  }
  return choice;
}

// Chooses where the attempt starts: a snapshot in memory, else the newest checkpoint. Work up to
// there is kept, later work is lost.
void Stepper::ChooseStart(JobState& job, const v1::Plan& plan) {
  v1::JobRecord& record = job.record;
  const std::optional<SnapshotChoice> choice = FindSnapshot(job, plan);
  const int64_t start = choice.has_value() ? choice->id.step : record.checkpoint_step();
  const int64_t kept = std::max(job.kept_step, record.resume_step());
  if (record.step() > kept) {
    CommitWork(*record.mutable_ledger(),
               static_cast<double>(start - kept) / static_cast<double>(record.step() - kept));
  }
  LoseWork(*record.mutable_ledger());
  record.set_resume_attempt(choice.has_value() ? choice->id.attempt : 0);
  record.set_resume_step(start);
  job.snapshot_sources = choice.has_value() ? choice->sources : std::vector<std::string>();
  if (!choice.has_value()) return;
  const std::set<std::string> holders(choice->sources.begin(), choice->sources.end());
  std::vector<std::string> named(holders.begin(), holders.end());
  std::string more;
  if (named.size() > kMostNodesNamed) {
    more = absl::StrCat(" and ", named.size() - kMostNodesNamed, " more");
    named.resize(kMostNodesNamed);
  }
  Note(job, "resumed_from_memory",
       absl::StrCat("step ", choice->id.step, " of attempt ", choice->id.attempt,
                    ", from the memory of ", absl::StrJoin(named, ", "), more,
                    "; the newest checkpoint is of step ", record.checkpoint_step()));
}

// A snapshot that did not carry its attempt to a first step is not tried again.
void Stepper::DistrustSnapshot(v1::JobRecord& record) {
  if (record.resume_attempt() == 0 || LastStarted(record) != record.attempt()) return;
  if (!record.progress().stepped()) record.set_resume_attempt(0);
}

// Without its sources, which a restarted coordinator has forgotten, the order cannot be given.
bool Stepper::KnowsSources(const JobState& job) {
  return job.record.resume_attempt() == 0 ||
         job.snapshot_sources.size() == static_cast<size_t>(job.placement->ranks());
}

void Stepper::AddSnapshots(JobState& job, const std::string& node, v1::StartRun* start) {
  const v1::JobRecord& record = job.record;
  const auto address = [this](const std::string& name) {
    const auto found = state_.nodes.find(name);
    return found == state_.nodes.end() ? "" : found->second.hello.snapshot_address();
  };
  const int copies = record.spec().checkpoint().peer_copies();
  for (const std::string& peer : job.placement->NodesAfter(node, copies)) {
    if (!address(peer).empty()) start->add_snapshot_peers(address(peer));
  }
  start->set_resume_attempt(record.resume_attempt());
  if (job.snapshot_sources.empty()) return;
  for (const int rank : job.placement->nodes().at(node).ranks) {
    // No address: the node itself.
    const std::string& source = job.snapshot_sources[static_cast<size_t>(rank)];
    (*start->mutable_snapshot_sources())[rank] = source == node ? "" : address(source);
  }
}

}  // namespace tercio::coordinator

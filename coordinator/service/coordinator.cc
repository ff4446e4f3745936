#include "coordinator/service/coordinator.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/nearest.h"
#include "common/status_macros.h"
#include "coordinator/service/views.h"

namespace tercio::coordinator {
namespace {

// Leases, back-offs and deadlines of hangs run out while no event arrives: a tick lets them.
constexpr auto kTickInterval = std::chrono::milliseconds(100);
// Between the beginnings of two batches: a commit and an acknowledgement are for many events when
// many come. One that comes alone does not wait.
constexpr auto kBatchInterval = std::chrono::milliseconds(5);

constexpr auto kBackUpInterval = std::chrono::hours(1);
// Verifications by request at the same time: each keeps cores and a disk busy.
constexpr int kMostVerifications = 4;

// getrandom gives up to 256 bytes at once, always all of them.
std::string RandomBytes(int count) {
  std::string raw(static_cast<size_t>(count), '\0');
  TERCIO_CHECK_EQ(getrandom(raw.data(), raw.size(), 0), static_cast<ssize_t>(raw.size()));
  return raw;
}

absl::Status IsStopping() { return absl::UnavailableError("the coordinator is stopping"); }

}  // namespace

std::string RandomHex(int bytes) { return absl::BytesToHexString(RandomBytes(bytes)); }

std::string TokenSource::Next() {
  constexpr size_t kBytes = 16;
  if (bytes_.size() < kBytes) bytes_ = RandomBytes(16 * kBytes);
  const std::string token = absl::BytesToHexString(bytes_.substr(bytes_.size() - kBytes));
  bytes_.resize(bytes_.size() - kBytes);
  return token;
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(
    Settings settings, std::unique_ptr<Store> store, checkpoint::Store* checkpoints, OpenFor use,
    LeaseClock clock, VerifyDirectory verify, int64_t most_queued_bytes) {
  Stored stored;
  TERCIO_ASSIGN_OR_RETURN(stored.jobs, store->LoadJobs());
  TERCIO_ASSIGN_OR_RETURN(stored.plans, store->LoadPlans());
  TERCIO_ASSIGN_OR_RETURN(stored.placements, store->LoadPlacements());
  TERCIO_ASSIGN_OR_RETURN(stored.nodes, store->LoadNodes());
  std::unique_ptr<Coordinator> made(new Coordinator(std::move(settings), std::move(store),
                                                    checkpoints, use, std::move(clock),
                                                    std::move(verify), most_queued_bytes));
  {
    // No other thread knows the object yet; the lock satisfies the analysis of guarded members.
    MutexLock lock(made->mutex_);
    made->state_ = Restore(std::move(stored), made->clock_.Now());
  }
  if (use == OpenFor::kWriting) {
    made->thread_ = std::thread([raw = made.get()] { raw->Run(); });
    made->backups_ = std::thread([raw = made.get()] { raw->BackUp(); });
  }
  return made;
}

Coordinator::Coordinator(Settings settings, std::unique_ptr<Store> store,
                         checkpoint::Store* checkpoints, OpenFor use, LeaseClock clock,
                         VerifyDirectory verify, int64_t most_queued_bytes)
    : settings_(std::move(settings)),
      store_(std::move(store)),
      checkpoints_(checkpoints),
      verify_(std::move(verify)),
      read_only_(use == OpenFor::kReading),
      most_queued_bytes_(most_queued_bytes),
      clock_(std::move(clock)) {}

void Coordinator::Stop() {
  MutexLock lock(queue_mutex_);
  stopping_ = true;
  queue_changed_.NotifyAll();
  stopped_.NotifyAll();
}

bool Coordinator::IsStopped() const {
  MutexLock lock(queue_mutex_);
  return stopping_;
}

Coordinator::~Coordinator() {
  // Threads of disks_ may still post after this; Enqueue refuses what they post.
  Stop();
  if (thread_.joinable()) thread_.join();
  if (backups_.joinable()) backups_.join();
}

void Coordinator::BackUp() {
  MutexLock lock(queue_mutex_);
  while (!stopping_) {
    // Every Enqueue takes this lock: holding it during a copy would stop the cluster for as long.
    lock.Unlock();
    const absl::Status status = store_->BackUp([this] { return IsStopped(); });
    if (!status.ok() && !absl::IsCancelled(status)) LogWarning(std::string(status.message()));
    lock.Lock();
    stopped_.WaitFor(queue_mutex_, kBackUpInterval,
                     [this]() TERCIO_REQUIRES(queue_mutex_) { return stopping_; });
  }
}

int64_t Coordinator::BytesOf(const Pending& pending) {
  // Only messages of agents are measured: they alone arrive with megabytes of log lines.
  size_t bytes = sizeof(Pending);
  if (const auto* said = std::get_if<NodeSaid>(&pending.body)) {
    bytes += said->message.SpaceUsedLong() - sizeof(said->message);
  } else if (const auto* attached = std::get_if<NodeAttached>(&pending.body)) {
    bytes += attached->hello.SpaceUsedLong() - sizeof(attached->hello);
  }
  return static_cast<int64_t>(bytes);
}

void Coordinator::Enqueue(Pending pending) {
  pending.bytes = BytesOf(pending);
  MutexLock lock(queue_mutex_);
  absl::Status refusal = MayWrite();
  if (refusal.ok() && stopping_) refusal = IsStopping();
  // Only somebody who waits is refused while the disk is full: reports of nodes
  // queue up to the bound, so that a short standstill costs no reconnection.
  if (refusal.ok() && pending.done) refusal = NotDurable();
  if (!refusal.ok()) {
    // Without a caller an event may be dropped: an agent resends what was not acknowledged, and
    // the next search for a checkpoint finds one whose commit was not recorded.
    if (pending.done) pending.done(refusal);
    return;
  }
  auto* const said = std::get_if<NodeSaid>(&pending.body);
  const bool standstill = !commit_failure_.ok() || queued_bytes_ >= most_queued_bytes_;
  if (standstill && said != nullptr && said->message.has_heartbeat()) {
    // The newest heartbeat replaces the one before, so that their memory is
    // bounded by the number of nodes however long the disk stays full.
    heartbeats_[said->node] = std::move(said->message);
    return;
  }
  queued_bytes_ += pending.bytes;
  queue_.push_back(std::move(pending));
  queue_changed_.NotifyAll();
}

// A message is taken as long as there is any room, since one may be larger than all of it: the
// queue grows beyond its bound by one message of each thread that is here.
absl::Status Coordinator::Receive(const std::string& node, v1::AgentMessage message) {
  if (!message.has_heartbeat()) TERCIO_RETURN_IF_ERROR(CheckRoom(node));
  Post(NodeSaid{node, std::move(message)});
  return absl::OkStatus();
}

absl::Status Coordinator::CheckRoom(const std::string& node) {
  MutexLock lock(queue_mutex_);
  return queued_bytes_ < most_queued_bytes_ ? absl::OkStatus() : SendAway(node);
}

// The node is alive: when events are handled again it has a lease to reconnect.
absl::Status Coordinator::SendAway(const std::string& node) {
  // An empty message is a sign of life; a heartbeat that is kept already says more and stays.
  heartbeats_.try_emplace(node);
  const std::string why = absl::StrCat("the coordinator's store cannot be written",
                                       commit_failure_.ok() ? " fast enough" : ": ",
                                       std::string(commit_failure_.message()), "; ",
                                       queued_bytes_ >> 20, " MiB of messages are waiting");
  if (!std::exchange(sends_away_, true)) {
    LogWarning(
        absl::StrCat(why, ": agents are turned away until there is room, and keep their messages"));
  }
  return absl::UnavailableError(absl::StrCat(why, "; the agent retries"));
}

absl::Status Coordinator::NotDurable() const {
  if (commit_failure_.ok()) return commit_failure_;
  return absl::Status(
      commit_failure_.code(),
      absl::StrCat("cannot write to the coordinator's state directory: ",
                   std::string(commit_failure_.message()), "; free some disk space and retry"));
}

absl::Status Coordinator::AskEvent(decltype(Event::body) body) {
  // The promise may live on this stack: whatever happens to the event, on
  // success, on a full disk or when stopping, `done` is called exactly once.
  std::promise<absl::Status> promise;
  Enqueue({std::move(body), [&promise](const absl::Status& status) { promise.set_value(status); }});
  return promise.get_future().get();
}

absl::StatusOr<std::string> Coordinator::Submit(const v1::JobSpec& spec,
                                                const std::string& request_id,
                                                const std::string& owner) {
  // A call that is repeated while the first one still waits must not make a second job.
  const absl::Cleanup done = [&] {
    if (request_id.empty()) return;
    MutexLock lock(submit_mutex_);
    submitting_.erase(request_id);
    submitted_.NotifyAll();
  };
  if (!request_id.empty()) {
    {
      MutexLock lock(submit_mutex_);
      // Once the first call has been decided, the store below knows which job it has made.
      while (submitting_.contains(request_id)) submitted_.Wait(submit_mutex_);
      submitting_.insert(request_id);
    }
    TERCIO_ASSIGN_OR_RETURN(const std::string known, store_->JobOfRequest(request_id));
    if (!known.empty()) return known;
  }
  const std::string id = absl::StrCat("job-", RandomHex(4));
  TERCIO_RETURN_IF_ERROR(AskEvent(Submitted{id, spec, owner, request_id}));
  return id;
}

// Handles the events since the last time as one batch: one commit for all of them.
void Coordinator::Run() {
  auto last_tick = std::chrono::steady_clock::now();
  auto last_batch = last_tick;
  while (true) {
    ++rounds_;
    std::vector<Pending> batch;
    {
      MutexLock lock(queue_mutex_);
      // This wait ends at the first event or the tick; the next one lasts its whole interval,
      // whatever arrives, so that events gather. Hence it waits on the other condition.
      queue_changed_.WaitFor(queue_mutex_, kTickInterval, [this]() TERCIO_REQUIRES(queue_mutex_) {
        return stopping_ || !queue_.empty();
      });
      stopped_.WaitUntil(queue_mutex_, last_batch + kBatchInterval,
                         [this]() TERCIO_REQUIRES(queue_mutex_) { return stopping_; });
      // Events that were accepted before the stop are still decided: callers wait for them.
      if (stopping_ && queue_.empty()) return;
      last_batch = std::chrono::steady_clock::now();
      // A tick of this batch must not count a node as lost whose heartbeats were only held up.
      for (auto& [node, heartbeat] : std::exchange(heartbeats_, {})) {
        batch.push_back({NodeSaid{node, std::move(heartbeat)}, nullptr});
      }
      while (!queue_.empty()) {
        batch.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
      queued_bytes_ = 0;
      sends_away_ = false;
    }
    // A busy coordinator needs ticks, too.
    const auto now = std::chrono::steady_clock::now();
    if (batch.empty() || now - last_tick >= kTickInterval) {
      batch.push_back({Tick{}, nullptr});
      last_tick = now;
    }
    Apply(std::move(batch));
  }
}

// Whether it is.
bool Coordinator::SetDurable(const absl::Status& commit) {
  MutexLock lock(queue_mutex_);
  commit_failure_ = commit;
  durable_ = commit.ok();
  return commit.ok();
}

// While the disk is full, fails every waiting caller, both in this batch and in the queue.
void Coordinator::FailPending(std::vector<Pending>& batch) {
  MutexLock lock(queue_mutex_);
  // Events of the batch have changed the state already and are committed with the next attempt to
  // write, so that their callers hear of a delay; those in the queue below are withdrawn.
  for (Pending& pending : batch) {
    const auto done = std::exchange(pending.done, nullptr);
    if (done) {
      done(
          absl::Status(commit_failure_.code(),
                       absl::StrCat("cannot write to the coordinator's state directory: ",
                                    std::string(commit_failure_.message()),
                                    "; the request takes effect as soon as there is space again")));
    }
  }
  std::erase_if(queue_, [this](const Pending& pending) TERCIO_REQUIRES(queue_mutex_) {
    if (!pending.done) return false;
    pending.done(NotDurable());
    queued_bytes_ -= pending.bytes;
    return true;
  });
}

void Coordinator::Apply(std::vector<Pending> batch) {
  std::vector<Effects> effects;
  Changes changes;
  {
    // Each event is decided under the lock, so that readers never see half of one.
    // The commit follows without it: a slow disk must not hold up queries.
    MutexLock lock(mutex_);
    const double now = clock_.Now();
    for (Pending& pending : batch) {
      Event event;
      event.now = now;
      event.token = tokens_.Next();
      event.body = std::move(pending.body);
      effects.push_back(Step(state_, event, settings_));
    }
    changes = ChangesOf(effects, now);
  }
  // Nothing leaves before it is durable. Space may be freed on a full disk: retry until then.
  const auto commit_began = std::chrono::steady_clock::now();
  while (true) {
    const absl::Status status = store_->Commit(changes);
    // Each attempt to write counts as a round: the watchdog must not
    // end a coordinator that only waits for space on its disk.
    ++rounds_;
    if (SetDurable(status)) break;
    tally_.CommitFailed();
    LogError(std::string(status.message()));
    FailPending(batch);
    MutexLock lock(queue_mutex_);
    const auto stops = [this]() TERCIO_REQUIRES(queue_mutex_) { return stopping_; };
    if (stopped_.WaitFor(queue_mutex_, std::chrono::seconds(1), stops)) return;
  }
  if (!changes.empty()) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - commit_began;
    tally_.Committed(took.count(), batch.size());
  }
  tally_.Add(effects);
  Deliver(effects);
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].done) batch[i].done(effects[i].answer);
  }
}

Changes Coordinator::ChangesOf(const std::vector<Effects>& effects, double now) const {
  Changes changes;
  std::set<std::string> jobs;
  std::set<std::string> plans;
  std::set<std::string> placements;
  std::set<std::string> nodes;
  for (const Effects& effect : effects) {
    jobs.insert(effect.changed_jobs.begin(), effect.changed_jobs.end());
    plans.insert(effect.changed_plans.begin(), effect.changed_plans.end());
    placements.insert(effect.changed_placements.begin(), effect.changed_placements.end());
    nodes.insert(effect.changed_nodes.begin(), effect.changed_nodes.end());
    changes.steps.insert(changes.steps.end(), effect.steps.begin(), effect.steps.end());
    changes.logs.insert(changes.logs.end(), effect.logs.begin(), effect.logs.end());
    changes.traces.insert(changes.traces.end(), effect.traces.begin(), effect.traces.end());
    changes.requests.insert(changes.requests.end(), effect.requests.begin(), effect.requests.end());
    changes.deleted_jobs.insert(changes.deleted_jobs.end(), effect.deleted_jobs.begin(),
                                effect.deleted_jobs.end());
    for (const auto& [run, exit] : effect.exits) {
      changes.exits.push_back({run.job_id(), run.attempt(), exit});
    }
    for (v1::JobEvent event : effect.events) {
      event.mutable_time()->set_seconds(static_cast<int64_t>(now));
      event.mutable_time()->set_nanos(
          static_cast<int32_t>((now - static_cast<double>(static_cast<int64_t>(now))) * 1e9));
      changes.events.push_back(event);
    }
  }
  const auto deleted = [this](const std::string& id) TERCIO_REQUIRES(mutex_) {
    // Several events may be decided together: a job may have changed and then been deleted.
    return !state_.jobs.contains(id);
  };
  std::erase_if(jobs, deleted);
  std::erase_if(plans, deleted);
  std::erase_if(placements, deleted);
  for (const std::string& id : jobs) changes.jobs.push_back(state_.jobs.at(id).record);
  for (const std::string& id : plans) changes.plans.emplace_back(id, state_.jobs.at(id).plan);
  for (const std::string& id : placements) {
    // The pointer shares the ownership of the placement: the commit reads it
    // after the lock is released, when the job may already have another one.
    const PlacementPtr& placement = state_.jobs.at(id).placement;
    changes.placements.emplace_back(
        id, std::shared_ptr<const v1::RankSlots>(placement, &placement->slots()));
  }
  for (const std::string& name : nodes) {
    const auto node = state_.nodes.find(name);
    // The core has forgotten the node: it is named among the changed ones but no longer there.
    if (node != state_.nodes.end()) {
      changes.nodes.push_back(node->second.record);
    } else {
      changes.forgotten_nodes.push_back(name);
    }
  }
  return changes;
}

void Coordinator::Deliver(std::vector<Effects>& effects) {
  SendAll(effects);
  const bool changed = std::any_of(effects.begin(), effects.end(), [](const Effects& effect) {
    return !effect.changed_jobs.empty() || !effect.logs.empty() || !effect.events.empty();
  });
  if (changed) {
    MutexLock lock(mutex_);
    ++version_;
    changed_.NotifyAll();
  }
  for (const Effects& effect : effects) DoForDisks(effect);
}

// Null when the node is away: it gets its orders again when it reconnects.
std::shared_ptr<const Coordinator::NodeStream> Coordinator::StreamTo(
    const std::string& node) const {
  MutexLock lock(mutex_);
  const auto found = streams_.find(node);
  return found == streams_.end() ? nullptr : found->second.second;
}

// Messages are serialised when they are sent: no lock is held meanwhile, so that queries do not
// wait.
void Coordinator::SendAll(std::vector<Effects>& effects) {
  std::map<std::string, uint64_t> acknowledged;  // one message for all that was reported meanwhile
  for (Effects& effect : effects) {
    for (SendToNode& send : effect.messages) {
      if (const auto stream = StreamTo(send.node)) stream->send(std::move(send.message));
    }
    for (const std::string& node : effect.disconnected) {
      if (const auto stream = StreamTo(node)) stream->close();
    }
    // Sequences of a spool rise, so the last one stands for all.
    for (const auto& [node, sequence] : effect.acknowledged) acknowledged[node] = sequence;
  }
  for (const auto& [node, sequence] : acknowledged) {
    // A spool that is new to the coordinator has had nothing acknowledged.
    if (sequence == 0) continue;
    v1::CoordinatorMessage message;
    message.mutable_acknowledge()->set_sequence(sequence);
    if (const auto stream = StreamTo(node)) stream->send(std::move(message));
  }
}

void Coordinator::DoForDisks(const Effects& effects) {
  // The key keeps the work for one job in order: a removal
  // overtakes no search that was asked for before it.
  for (const FindCheckpoint& search : effects.searches) {
    disks_.Run(search.run.job_id(), [this, search] {
      // Reading a checkpoint takes minutes, and nobody takes the answer once the coordinator stops.
      if (!IsStopped()) Post(SearchCheckpoint(StoreAt(search.spec), search, verify_));
    });
  }
  for (const VerifyCheckpointBytes& wanted : effects.verifications) {
    disks_.Run(wanted.job_id, [this, wanted] {
      if (!IsStopped()) Post(VerifyStep(StoreAt(wanted.spec), wanted.job_id, wanted.step, verify_));
    });
  }
  for (const RemoveAllCheckpoints& removal : effects.job_removals) {
    disks_.Run(removal.job_id, [this, removal] {
      // The record of the job is gone by now, so CheckpointsOf could not tell its directory.
      checkpoint::Store store(StoreAt(removal.spec).root());
      const absl::Status removed = store.RemoveJob(removal.job_id);
      if (!removed.ok()) LogWarning(std::string(removed.message()));
    });
  }
  for (const RemoveCheckpoint& removal : effects.removals) {
    disks_.Run(removal.job_id, [this, removal] { Remove(removal); });
  }
}

void Coordinator::Remove(const RemoveCheckpoint& removal) {
  checkpoint::Store& store = CheckpointsOf(removal.job_id);
  const auto there = store.Find(removal.job_id, removal.step);
  // While the removal waited, a later attempt may have saved the same step again.
  if (there.ok() && there->attempt > removal.attempt) return;
  const absl::Status removed = store.Remove(removal.job_id, removal.step);
  if (removed.ok()) return Post(CheckpointRemoved{removal.job_id, removal.step, removal.attempt});
  LogWarning(absl::StrCat("cannot remove the superseded checkpoint of step ", removal.step, " of ",
                          removal.job_id, ": ", std::string(removed.message())));
}

const checkpoint::Store& Coordinator::StoreAt(const v1::CheckpointSpec& spec) const {
  if (spec.path().empty()) return *checkpoints_;
  MutexLock lock(stores_mutex_);
  std::unique_ptr<checkpoint::Store>& store = stores_[spec.path()];
  if (store == nullptr) store = std::make_unique<checkpoint::Store>(spec.path());
  return *store;
}

checkpoint::Store& Coordinator::CheckpointsOf(const std::string& job) {
  const absl::StatusOr<v1::JobRecord> record = Find(job);
  if (!record.ok()) return *checkpoints_;
  // None of the stores is a const object, so the cast is sound.
  return const_cast<checkpoint::Store&>(StoreAt(record->spec().checkpoint()));
}

absl::StatusOr<std::vector<checkpoint::Finding>> Coordinator::Verify(const std::string& directory) {
  const absl::Cleanup done = [this] { --verifications_; };
  // Counting before comparing keeps two calls from taking the last place together.
  if (++verifications_ > kMostVerifications) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMostVerifications, " checkpoints are being verified; retry later"));
  }
  return verify_(directory);
}

absl::Status Coordinator::MayWrite() const {
  if (!read_only_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "no coordinator runs on this state directory, so its jobs are read-only; start one "
      "(tercio-coordinator --state-dir), or resume a job (tercio resume --state-dir)");
}

absl::Status Coordinator::MayDrill() const {
  MutexLock lock(mutex_);
  if (settings_.allow_drills) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "drills are not allowed in this cluster; start its coordinator with --allow-drills");
}

Coordinator::Totals Coordinator::Count() const {
  MutexLock lock(mutex_);
  Totals totals;
  for (const auto& [name, node] : state_.nodes) totals.nodes += node.connected;
  for (const JobState* job : state_.jobs.Active()) {
    totals.running += job->record.phase() == v1::JOB_PHASE_RUNNING;
    totals.queued += job->record.phase() == v1::JOB_PHASE_QUEUED;
  }
  return totals;
}

void Coordinator::Change(const LiveSettings& settings) {
  MutexLock lock(mutex_);
  settings_.first_backoff = settings.first_backoff;
  settings_.allow_drills = settings.allow_drills;
}

absl::Status Coordinator::Taken(const v1::AgentHello& hello) const {
  const auto found = state_.nodes.find(hello.node());
  if (found == state_.nodes.end() || hello.spool_id().empty()) return absl::OkStatus();
  const NodeState& node = found->second;
  // Another spool means another machine, or the same one with a
  // new disk, which is let in once the lease is over.
  const bool other = !node.record.spool_id().empty() && node.record.spool_id() != hello.spool_id();
  if (!other || !node.connected || clock_.Now() - node.last_heard > settings_.node_lease) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(absl::StrCat(
      "a node named ", hello.node(), " is already connected from ", node.hello.data_address(),
      "; this one is at ", hello.data_address(), ": give one of them another --name"));
}

absl::Status Coordinator::CheckHello(const v1::AgentHello& hello) {
  {
    MutexLock lock(mutex_);
    TERCIO_RETURN_IF_ERROR(Taken(hello));
  }
  return CheckRoom(hello.node());
}

std::optional<bool> Coordinator::MayBeHere(const std::string& node) const {
  MutexLock lock(mutex_);
  const auto found = state_.nodes.find(node);
  if (found == state_.nodes.end()) return std::nullopt;
  const NodeState& state = found->second;
  if (state.record.leaving()) return state.connected;
  // After a start of the coordinator no node has had the time to reconnect.
  return !state.lost || clock_.Now() - started_ < settings_.node_lease;
}

absl::StatusOr<int64_t> Coordinator::Attach(const v1::AgentHello& hello, NodeStream node_stream) {
  TERCIO_RETURN_IF_ERROR(CheckHello(hello));
  int64_t stream;
  {
    MutexLock lock(mutex_);
    // Another agent of the same name may have attached since CheckHello released the lock.
    TERCIO_RETURN_IF_ERROR(Taken(hello));
    stream = next_stream_++;
    streams_[hello.node()] = {stream, std::make_shared<const NodeStream>(std::move(node_stream))};
  }
  // The stream is entered before the event: the core's first orders to the node need it.
  Post(NodeAttached{hello});
  return stream;
}

void Coordinator::Detach(const std::string& node, int64_t stream) {
  {
    MutexLock lock(mutex_);
    const auto found = streams_.find(node);
    // The node has reconnected before its old stream was noticed to be broken.
    if (found == streams_.end() || found->second.first != stream) return;  // replaced
    streams_.erase(found);
  }
  Post(NodeDetached{node});
}

absl::StatusOr<const JobState*> Coordinator::FindState(const std::string& job) const {
  const auto found = state_.jobs.find(job);
  if (found != state_.jobs.end()) return &found->second;
  const JobState* named = nullptr;
  for (const auto& [id, state] : state_.jobs) {
    if (state.record.spec().name() != job) continue;
    if (named != nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("several jobs are named ", job, "; give the id that `tercio list` shows"));
    }
    named = &state;
  }
  if (named == nullptr) {
    std::set<std::string> known;
    for (const auto& [id, state] : state_.jobs) known.insert({id, state.record.spec().name()});
    const std::string meant = DidYouMean(job, {known.begin(), known.end()});
    return absl::NotFoundError(absl::StrCat("no job ", job.empty() ? "''" : job,
                                            meant.empty() ? "; `tercio list` shows all" : meant));
  }
  return named;
}

absl::StatusOr<v1::JobRecord> Coordinator::Find(const std::string& job) const {
  MutexLock lock(mutex_);
  TERCIO_ASSIGN_OR_RETURN(const JobState* found, FindState(job));
  return found->record;
}

namespace {

std::optional<RunHealthState::Loading> LoadingOf(const JobState& job) {
  if (job.health == nullptr || job.record.phase() != v1::JOB_PHASE_STARTING) return std::nullopt;
  return job.health->LoadingOfAll();
}

}  // namespace

Coordinator::JobView Coordinator::ViewOf(const JobState& job) const {
  JobView view{job.record, job.plan, job.placement, 0, clock_.Now(), LoadingOf(job), {}, 0};
  // Its present path: the record may be of a time when the state directory was elsewhere, or named
  // from another working directory.
  if (view.record.checkpoint_step() > 0) {
    view.record.set_checkpoint_path(StoreAt(view.record.spec().checkpoint())
                                        .PathOf(view.record.id(), view.record.checkpoint_step()));
  }
  return view;
}

int Coordinator::QueuePositionOf(const JobState& job) const {
  if (job.record.phase() != v1::JOB_PHASE_QUEUED) return 0;
  const std::vector<const JobState*> active = state_.jobs.Active();
  return static_cast<int>(std::count_if(active.begin(), active.end(), [&](const JobState* entry) {
    const v1::JobRecord& other = entry->record;
    return other.phase() == v1::JOB_PHASE_QUEUED && other.number() <= job.record.number();
  }));
}

absl::StatusOr<Coordinator::JobView> Coordinator::View(const std::string& job,
                                                       bool with_figures) const {
  MutexLock lock(mutex_);
  TERCIO_ASSIGN_OR_RETURN(const JobState* found, FindState(job));
  JobView view = ViewOf(*found);
  view.queue_position = QueuePositionOf(*found);
  if (with_figures && found->health != nullptr) {
    view.figures = found->health->figures;
    view.figures_heard = found->health->figures_heard;
  }
  return view;
}

std::vector<Coordinator::JobView> Coordinator::Views() const {
  MutexLock lock(mutex_);
  std::vector<JobView> views;
  for (const auto& [id, job] : state_.jobs) views.push_back(ViewOf(job));
  std::sort(views.begin(), views.end(), [](const JobView& a, const JobView& b) {
    return a.record.number() > b.record.number();
  });
  // Positions are counted in this one pass; QueuePositionOf for each view would be quadratic.
  int queued = 0;
  for (auto view = views.rbegin(); view != views.rend(); ++view) {
    if (view->record.phase() == v1::JOB_PHASE_QUEUED) view->queue_position = ++queued;
  }
  return views;
}

namespace {

double LastProgress(const JobState& job) {
  // Progress between steps is known from heartbeats, which are heeded in these two phases only.
  const v1::JobPhase phase = job.record.phase();
  const bool watched = phase == v1::JOB_PHASE_STARTING || phase == v1::JOB_PHASE_RUNNING;
  const double heard = watched && job.health != nullptr ? job.health->watchdog.LastProgress() : 0;
  return std::max(job.record.progress_at(), heard);
}

}  // namespace

Coordinator::Jobs Coordinator::JobsToShow(double linger, size_t most) const {
  MutexLock lock(mutex_);
  const double now = clock_.Now();
  Jobs jobs;
  for (const auto& [phase, count] : state_.jobs.ended()) {
    v1::JobRecord ended;
    ended.set_phase(phase);
    if (count > 0) jobs.by_state[PublishedState(ended)] += count;
  }
  std::vector<const JobState*> shown = state_.jobs.EndedSince(now - linger);
  for (const JobState* job : state_.jobs.Active()) {
    ++jobs.by_state[PublishedState(job->record)];
    jobs.waiting += job->record.phase() == v1::JOB_PHASE_QUEUED ? 1 : 0;
    shown.push_back(job);
  }
  const auto place = [](const JobState* job) {
    const bool holds = job->placement->ranks() > 0;
    return std::pair(holds ? 0 : IsTerminal(job->record.phase()) ? 2 : 1, -job->record.number());
  };
  std::sort(shown.begin(), shown.end(),
            [&](const JobState* a, const JobState* b) { return place(a) < place(b); });
  for (const JobState* job : shown) {
    if (jobs.shown.size() < most) {
      jobs.shown.push_back(
          {{job->record, job->plan, job->placement, 0, now, LoadingOf(*job), {}, 0},
           LastProgress(*job)});
    } else if (!IsTerminal(job->record.phase())) {
      ++jobs.not_shown;
    }
  }
  return jobs;
}

size_t Coordinator::queued() const {
  MutexLock lock(queue_mutex_);
  return queue_.size();
}

int64_t Coordinator::queued_bytes() const {
  MutexLock lock(queue_mutex_);
  return queued_bytes_;
}

absl::StatusOr<v1::JobRecord> Coordinator::NewestUnfinished() const {
  for (JobView& job : Views()) {
    const v1::JobPhase phase = job.record.phase();
    if (phase == v1::JOB_PHASE_FAILED || phase == v1::JOB_PHASE_CANCELLED) {
      return std::move(job.record);
    }
  }
  return absl::NotFoundError("there is no failed or cancelled job to resume");
}

std::vector<Coordinator::NodeView> Coordinator::Nodes() const {
  MutexLock lock(mutex_);
  const std::map<std::string, int> free = FreeSlots(state_);
  std::vector<NodeView> nodes;
  for (const auto& [name, node] : state_.nodes) {
    nodes.push_back({node, NodeStateName(state_, name), free.at(name)});
  }
  return nodes;
}

bool Coordinator::IsPresent(const v1::RunId& run, const std::string& token) const {
  MutexLock lock(mutex_);
  const v1::JobRecord* record = PresentRecord(run);
  return record != nullptr && record->token() == token;
}

bool Coordinator::IsPresentAttempt(const v1::RunId& run) const {
  MutexLock lock(mutex_);
  return PresentRecord(run) != nullptr;
}

bool Coordinator::IsGivenUp(const v1::RunId& run, int64_t step) const {
  MutexLock lock(mutex_);
  const auto found = state_.jobs.find(run.job_id());
  return found != state_.jobs.end() && found->second.given_up_attempt == run.attempt() &&
         found->second.given_up_step == step;
}

// The job's record when `run` is its present attempt and has not ended; else null.
const v1::JobRecord* Coordinator::PresentRecord(const v1::RunId& run) const {
  const auto found = state_.jobs.find(run.job_id());
  if (found == state_.jobs.end()) return nullptr;
  const v1::JobRecord& record = found->second.record;
  // An attempt that waits to be repeated keeps its number and token in
  // the record, but no process may act in its name any more.
  const bool present = record.attempt() == run.attempt() && !IsTerminal(record.phase()) &&
                       record.phase() != v1::JOB_PHASE_BACKING_OFF &&
                       record.phase() != v1::JOB_PHASE_QUEUED;
  return present ? &record : nullptr;
}

uint64_t Coordinator::WaitForChange(uint64_t version, double seconds) const {
  MutexLock lock(mutex_);
  changed_.WaitFor(mutex_, std::chrono::duration<double>(seconds),
                   [&]() TERCIO_REQUIRES(mutex_) { return version_ != version; });
  return version_;
}

uint64_t Coordinator::version() const {
  MutexLock lock(mutex_);
  return version_;
}

}  // namespace tercio::coordinator

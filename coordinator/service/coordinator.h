// The coordinator around its pure core: one thread takes events in order, lets the core decide,
// makes the changes durable, and only then lets messages out. Services post events and read.
//
// Threads: public methods from any thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/store.h"
#include "common/keyed_pool.h"
#include "common/mutex.h"
#include "coordinator/core/core.h"
#include "coordinator/service/checkpoint_search.h"
#include "coordinator/service/lease_clock.h"
#include "coordinator/service/tally.h"
#include "coordinator/store/store.h"
#include "proto/tercio/v1/job_service.pb.h"

namespace tercio::coordinator {

// Hexadecimal text of `bytes` random bytes from the operating system.
std::string RandomHex(int bytes);

// The same of 16 bytes, for many in a row: asks the operating system once for 256 of them. Every
// byte is given out once. One thread.
class TokenSource {
 public:
  std::string Next();

 private:
  std::string bytes_;
};

class Coordinator {
 public:
  // Memory bound of the events that wait for the store. Agents keep what is not acknowledged, so
  // beyond this they are turned away and resend it later.
  static constexpr int64_t kMostQueuedBytes = int64_t{64} << 20;

  // Loads the state from `store`. Jobs without a directory of their own have their checkpoints in
  // `checkpoints`. OpenFor::kReading: no events are taken.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(
      Settings settings, std::unique_ptr<Store> store, checkpoint::Store* checkpoints, OpenFor use,
      LeaseClock clock = {}, VerifyDirectory verify = checkpoint::VerifyCheckpoint,
      int64_t most_queued_bytes = kMostQueuedBytes);
  ~Coordinator();

  // Accepts no more events; a caller whose request cannot be made durable gets UNAVAILABLE. A
  // server can be shut down after it: none of its calls waits here.
  void Stop() TERCIO_EXCLUDES(queue_mutex_);

  // Queues an event; returns immediately.
  template <typename Body>
  void Post(Body body) TERCIO_EXCLUDES(queue_mutex_) {
    Enqueue({std::move(body), nullptr});
  }
  // Queues a node's message; returns immediately. UNAVAILABLE: it was not queued, since too much
  // waits for the store (kMostQueuedBytes) already. Then no later message of the node may be
  // queued, either: its stream is ended, and it resends all of them on the next one.
  absl::Status Receive(const std::string& node, v1::AgentMessage message);
  // Queues an event and waits until it is durable. Returns the core's answer, or why nothing was
  // decided. While the state directory cannot be written: RESOURCE_EXHAUSTED, or another error of
  // the disk, immediately instead of when there is space again.
  template <typename Body>
  absl::Status Ask(Body body) TERCIO_EXCLUDES(queue_mutex_) {
    return AskEvent(std::move(body));
  }
  // Submits with an id that makes a repeated request the same job. `owner`: empty
  // without TLS.
  absl::StatusOr<std::string> Submit(const v1::JobSpec& spec, const std::string& request_id,
                                     const std::string& owner = "");

  // PERMISSION_DENIED where the settings do not allow drills.
  absl::Status MayDrill() const TERCIO_EXCLUDES(mutex_);
  // FAILED_PRECONDITION where this coordinator only answers queries (--read-only).
  absl::Status MayWrite() const;

  // A stream to a node; replaces the one before. Detach with the same token only. Both functions
  // are called from one thread, without a lock held, and may still be called after Detach.
  using Send = std::function<void(v1::CoordinatorMessage)>;
  struct NodeStream {
    Send send;
    std::function<void()> close;
  };
  // ALREADY_EXISTS when another agent (of another state directory) lives under the same name.
  // UNAVAILABLE as for Hear; the hello counts as a sign of life nevertheless: the node keeps its
  // lease.
  absl::Status CheckHello(const v1::AgentHello& hello) TERCIO_EXCLUDES(mutex_);
  // Whether the node is connected, or may be about to reconnect: not once it has left or sent
  // nothing for a lease. nullopt: no node of that name is known.
  std::optional<bool> MayBeHere(const std::string& node) const TERCIO_EXCLUDES(mutex_);
  // Errors: as of CheckHello.
  absl::StatusOr<int64_t> Attach(const v1::AgentHello& hello, NodeStream stream)
      TERCIO_EXCLUDES(mutex_);
  void Detach(const std::string& node, int64_t stream) TERCIO_EXCLUDES(mutex_);

  // ---- reading ----
  // By id, or by name when exactly one job has it. NOT_FOUND | FAILED_PRECONDITION (ambiguous).
  absl::StatusOr<v1::JobRecord> Find(const std::string& job) const TERCIO_EXCLUDES(mutex_);
  // NOT_FOUND when there is none: the newest job that failed or was cancelled.
  absl::StatusOr<v1::JobRecord> NewestUnfinished() const;
  // A job as it is shown: its record and what is stored beside it.
  struct JobView {
    v1::JobRecord record;
    std::shared_ptr<const v1::Plan> plan;  // null: none yet
    PlacementPtr placement = NoPlacement();
    int queue_position = 0;  // from 1; 0: not queued
    double now = 0;
    std::optional<RunHealthState::Loading> loading;  // while its ranks load their state
    // Figures of the present attempt's ranks, where they are wanted; the version changes with each
    // change of them.
    std::map<int, v1::RankFigures> figures;
    uint64_t figures_heard = 0;
  };
  // The seconds by which the wall clock is ahead of the clock of times in records (lease_clock.h).
  double WallAhead() const { return clock_.WallAhead(); }
  absl::StatusOr<JobView> View(const std::string& job, bool with_figures = false) const
      TERCIO_EXCLUDES(mutex_);
  std::vector<JobView> Views() const TERCIO_EXCLUDES(mutex_);  // newest first
  // For metrics: jobs that are left out cost nothing.
  struct ShownJob {
    JobView view;
    // When it last made progress: a rank ended an action of a step or of an evaluation, or the
    // job entered a phase. 0: not known.
    double last_progress = 0;
  };
  struct Jobs {
    std::map<v1::JobState, int> by_state;  // counts of all jobs
    int waiting = 0;                       // for devices
    std::vector<ShownJob> shown;
    int not_shown = 0;  // jobs that have not ended
  };
  // Shows at most `most` jobs: those that hold devices before those that wait, these before those
  // that ended not `linger` seconds ago, and the newer ones first.
  Jobs JobsToShow(double linger, size_t most) const TERCIO_EXCLUDES(mutex_);
  struct NodeView {
    NodeState state;
    std::string name;  // name of the state
    int free = 0;
  };
  std::vector<NodeView> Nodes() const TERCIO_EXCLUDES(mutex_);
  const Tally& tally() const { return tally_; }
  size_t queued() const TERCIO_EXCLUDES(queue_mutex_);         // events that wait
  int64_t queued_bytes() const TERCIO_EXCLUDES(queue_mutex_);  // which they hold in memory
  struct Totals {
    int nodes = 0;    // connected
    int running = 0;  // jobs
    int queued = 0;
  };
  Totals Count() const TERCIO_EXCLUDES(mutex_);
  Store& store() { return *store_; }
  // The store of the job's checkpoints: the shared directory, or its own (CheckpointSpec.path).
  // Lives as long as this.
  checkpoint::Store& CheckpointsOf(const std::string& job);
  // Reads every byte of a checkpoint, some at a time: RESOURCE_EXHAUSTED when there are enough.
  absl::StatusOr<std::vector<checkpoint::Finding>> Verify(const std::string& directory);
  // Whether all work for disks with checkpoints ends within `patience`. Where it does not, a file
  // system hangs, and this must not be destroyed: it would wait for it.
  bool Drain(absl::Duration patience) { return disks_.Drain(patience); }

  // Whether (job, attempt, token) is the present attempt.
  bool IsPresent(const v1::RunId& run, const std::string& token) const TERCIO_EXCLUDES(mutex_);

  bool IsPresentAttempt(const v1::RunId& run) const TERCIO_EXCLUDES(mutex_);

  // Whether a rank of this attempt has reported that it gave up its part of this save.
  bool IsGivenUp(const v1::RunId& run, int64_t step) const TERCIO_EXCLUDES(mutex_);

  // Waits until something has changed since `version`, or the time is up. Returns the new version.
  uint64_t WaitForChange(uint64_t version, double seconds) const TERCIO_EXCLUDES(mutex_);
  uint64_t version() const TERCIO_EXCLUDES(mutex_);

  // Incremented on every pass of the decision loop (several times per second). Read by the
  // watchdog.
  uint64_t rounds() const { return rounds_; }
  // Whether decisions can be made durable: false while the disk is full.
  bool durable() const { return durable_; }

  // Applies the settings that can change while a coordinator runs.
  struct LiveSettings {
    double first_backoff = 1;
    bool allow_drills = false;
  };
  void Change(const LiveSettings& settings) TERCIO_EXCLUDES(mutex_);

 private:
  struct Pending {
    decltype(Event::body) body;
    std::function<void(const absl::Status&)> done;
    int64_t bytes = 0;  // in memory; set by Enqueue
  };

  Coordinator(Settings settings, std::unique_ptr<Store> store, checkpoint::Store* checkpoints,
              OpenFor use, LeaseClock clock, VerifyDirectory verify, int64_t most_queued_bytes);
  absl::Status AskEvent(decltype(Event::body) body);
  void Enqueue(Pending pending) TERCIO_EXCLUDES(queue_mutex_);
  static int64_t BytesOf(const Pending& pending);
  absl::Status CheckRoom(const std::string& node) TERCIO_EXCLUDES(queue_mutex_);
  absl::Status SendAway(const std::string& node) TERCIO_REQUIRES(queue_mutex_);
  void Run();
  void BackUp() TERCIO_EXCLUDES(queue_mutex_);
  void Apply(std::vector<Pending> batch) TERCIO_EXCLUDES(mutex_, queue_mutex_);
  bool SetDurable(const absl::Status& commit) TERCIO_EXCLUDES(queue_mutex_);
  void FailPending(std::vector<Pending>& batch) TERCIO_EXCLUDES(queue_mutex_);
  void Deliver(std::vector<Effects>& effects) TERCIO_EXCLUDES(mutex_);
  void SendAll(std::vector<Effects>& effects);
  void DoForDisks(const Effects& effects);
  void Remove(const RemoveCheckpoint& removal);
  const checkpoint::Store& StoreAt(const v1::CheckpointSpec& spec) const
      TERCIO_EXCLUDES(stores_mutex_);
  absl::Status NotDurable() const TERCIO_REQUIRES(queue_mutex_);
  bool IsStopped() const TERCIO_EXCLUDES(queue_mutex_);
  Changes ChangesOf(const std::vector<Effects>& effects, double now) const TERCIO_REQUIRES(mutex_);
  std::shared_ptr<const NodeStream> StreamTo(const std::string& node) const TERCIO_EXCLUDES(mutex_);
  absl::StatusOr<const JobState*> FindState(const std::string& job) const TERCIO_REQUIRES(mutex_);
  JobView ViewOf(const JobState& job) const TERCIO_REQUIRES(mutex_);
  int QueuePositionOf(const JobState& job) const TERCIO_REQUIRES(mutex_);
  const v1::JobRecord* PresentRecord(const v1::RunId& run) const TERCIO_REQUIRES(mutex_);
  absl::Status Taken(const v1::AgentHello& hello) const TERCIO_REQUIRES(mutex_);

  Settings settings_ TERCIO_GUARDED_BY(mutex_);
  std::unique_ptr<Store> store_;
  checkpoint::Store* checkpoints_;
  const VerifyDirectory verify_;
  std::atomic<int> verifications_ = 0;  // that people have asked for and that are under way
  mutable Mutex stores_mutex_;
  // By directory.
  mutable std::map<std::string, std::unique_ptr<checkpoint::Store>> stores_
      TERCIO_GUARDED_BY(stores_mutex_);
  const bool read_only_;
  const int64_t most_queued_bytes_;
  const LeaseClock clock_;
  const double started_ = clock_.Now();

  mutable Mutex mutex_;
  mutable ConditionVariable changed_;
  State state_ TERCIO_GUARDED_BY(mutex_);
  std::map<std::string, std::pair<int64_t, std::shared_ptr<const NodeStream>>> streams_
      TERCIO_GUARDED_BY(mutex_);
  int64_t next_stream_ TERCIO_GUARDED_BY(mutex_) = 1;
  uint64_t version_ TERCIO_GUARDED_BY(mutex_) = 1;

  Tally tally_;

  mutable Mutex queue_mutex_;
  ConditionVariable queue_changed_;
  ConditionVariable stopped_;
  std::deque<Pending> queue_ TERCIO_GUARDED_BY(queue_mutex_);
  int64_t queued_bytes_ TERCIO_GUARDED_BY(queue_mutex_) = 0;  // size of queue_
  // Agents are turned away, since queue_ is full; logged once.
  bool sends_away_ TERCIO_GUARDED_BY(queue_mutex_) = false;
  // The latest heartbeat of each node while the disk cannot be written, which may last; empty for a
  // node that was turned away. They are handled before the queue, and so before any node can count
  // as lost.
  std::map<std::string, v1::AgentMessage> heartbeats_ TERCIO_GUARDED_BY(queue_mutex_);
  bool stopping_ TERCIO_GUARDED_BY(queue_mutex_) = false;
  // The outcome of the last commit.
  absl::Status commit_failure_ TERCIO_GUARDED_BY(queue_mutex_);
  TokenSource tokens_;  // used by thread_ only
  std::atomic<uint64_t> rounds_ = 0;
  std::atomic<bool> durable_ = true;
  std::thread thread_;
  std::thread backups_;

  Mutex submit_mutex_;
  ConditionVariable submitted_;
  // Request ids that are being submitted.
  std::set<std::string> submitting_ TERCIO_GUARDED_BY(submit_mutex_);

  // Work with checkpoints that may keep a disk busy for minutes, that of one job in the order in
  // which it came. Last: its threads use the others.
  KeyedPool disks_{/*per_key=*/1, /*most=*/64};
};

}  // namespace tercio::coordinator

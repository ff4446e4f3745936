// One step of the coordinator's core at work. Private to coordinator/core; in several files by what
// brings a step about: requests of people (requests.cc), nodes (nodes.cc), how ranks get on
// (health.cc), their GPUs (device_faults.cc), the life of an attempt (attempt.cc), its checkpoints
// (checkpoints.cc), evaluations of held-out data (evaluations.cc), what its ranks find wrong with
// it (findings.cc), snapshots in memory (memory.cc), devices (scheduling.cc), and messages to nodes
// (messages.cc).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/devices.h"
#include "coordinator/core/event_kind.h"
#include "coordinator/core/ledger.h"
#include "coordinator/core/phases.h"
#include "plan/snapshots.h"

namespace tercio::coordinator {

// A rank or node has failed.
struct FaultReport {
  FaultCause cause = FaultCause::kOther;
  std::string what;
  bool permanent = false;  // no restart can fix it
  std::string node;        // that is to blame; empty: none
  bool certain = false;    // it is to blame, whatever else has happened
  int rank = -1;           // at fault; -1: none, or not known
};

// The phases in which ranks of an attempt may live, and those in which it holds devices.
bool HasLiveRun(v1::JobPhase phase);
bool HoldsSlots(v1::JobPhase phase);
v1::RunId RunOf(const v1::JobRecord& record);

// The newest attempt that has started, 0 when none has.
int LastStarted(const v1::JobRecord& record);

// Whether ranks may be put on the node.
bool TakesRanks(const NodeState& node);

// Whether the job evaluates test data at its end.
bool HasTest(const v1::JobSpec& spec);
// A key of the job that needs agents which count samples, and their trainers; empty: there is none.
std::string KeyOfNewData(const v1::JobSpec& spec);
// Gives a checkpoint that is committed the value of its step, where that is a candidate.
void TakeCandidate(v1::JobRecord& record, v1::CheckpointRecord* checkpoint);

class Stepper {
 public:
  Stepper(State& state, const Event& event, const Settings& settings)
      : state_(state), event_(event), settings_(settings), now_(event.now) {}

  Effects Run();

 private:
  // ---- requests.cc ----
  void Handle(const Submitted& submitted);
  void Handle(const CancelRequested& cancel);
  void Handle(const ResumeRequested& resume);
  void Handle(const SaveRequested& request);
  void Handle(const DeleteRequested& request);
  void DeleteOldJobs();
  void Handle(const NodeChangeRequested& request);
  void Handle(const FiguresRecorded& recorded);
  void Handle(const DrillRequested& request);
  void Drain(NodeState& node);

  // ---- nodes.cc ----
  void Handle(const NodeAttached& attached);
  void Handle(const NodeDetached& detached);
  void Handle(const NodeSaid& said);
  void Handle(const Tick&);
  bool IsNews(NodeState& node, uint64_t sequence);
  bool HasBegun(const v1::RunId& run) const;
  void HandleSteps(const v1::StepReport& report);
  void HandleReport(const std::string& node, const v1::AgentMessage& message);
  void Reconcile(JobState& job, const std::string& name, const v1::AgentHello& hello,
                 bool same_spool);
  void LoseNode(const std::string& name);
  void ForgetNodes();
  void Leave(NodeState& node);
  // Jobs on the node save and move to other nodes.
  void MoveAway(const std::string& node, const std::string& why);
  void Blame(const std::string& node, const std::string& what);
  void Quarantine(v1::NodeRecord& node, const std::string& why);
  bool OthersSuffice(const std::string& name) const;

  // Calls `handle` when `run` is the present attempt of a job; anything else comes from the past.
  template <typename Body>
  void WithRun(const v1::RunId& run, const Body& handle) {
    const auto found = state_.jobs.find(run.job_id());
    if (found == state_.jobs.end() || found->second.record.attempt() != run.attempt() ||
        !HoldsSlots(found->second.record.phase())) {
      ++effects_.fenced;
      return;
    }
    handle(found->second);
  }

  // Whether the run is a present attempt placed on other nodes: then this one has no say in
  // it.
  bool IsOthers(const v1::RunId& run, const std::string& node) const;

  // ---- health.cc ----
  RunHealthState& HealthOf(JobState& job);
  void OnHeartbeat(const std::string& node, const v1::AgentHeartbeat& heartbeat);
  void OnStragglerChange(JobState& job, const StragglerChange& change);
  void OnLinesLost(JobState& job, const std::string& node);
  void WatchForHangs();
  void OnRunInspected(JobState& job, const std::string& node, const v1::RunInspected& answer);
  void Hang(JobState& job);

  // ---- device_faults.cc ----
  using DeviceFaults = std::map<int, std::string>;  // by GPU
  // The GPU faults that the node's agent reports now; ranks on those of `lost` cannot continue.
  void OnDeviceFaults(const std::string& node, const DeviceFaults& faults,
                      const std::set<int>& lost);
  void EndRunsOn(const std::string& node, const DeviceFaults& faults, const std::set<int>& lost);

  // ---- attempt.cc ----
  void BeginAttempt(JobState& job);
  void OnDataPrepared(JobState& job, const std::string& node, const v1::DataPrepared& answer);
  void RefuseData(JobState& job, const std::string& node, const std::string& error);
  // Ends the job where it would resume from this step with different data.
  bool RefusesOtherData(JobState& job, int64_t start);
  void StartWhenReady(JobState& job);
  void NoteNumerics(JobState& job);
  std::vector<plan::DeviceSlot> SlotsOf(const Placement& placement) const;
  RankShare ShareOfRanks(const JobState& job) const;
  std::vector<KindShare> KindsOfRanks(const JobState& job, double most_cores) const;
  // The devices that the job wishes for.
  DeviceWish WishFor(const v1::JobSpec& spec, int ranks) const;
  void OnRankPhase(JobState& job, const v1::RankPhase& phase);
  void OnProductsChosen(JobState& job, const v1::ProductsChosen& chosen);
  void OnStepReport(JobState& job, const v1::StepReport& report);
  void OnRankExit(JobState& job, const std::string& node, const v1::ExitRecord& exit);
  void JudgeExit(JobState& job, const std::string& node, const v1::ExitRecord& exit);
  void Fault(JobState& job, const FaultReport& report);
  // Saves, stops, and queues again at no cost.
  void Move(JobState& job, const std::string& why);
  void OnNodeStopped(JobState& job, const std::string& node);
  void HastenStop(JobState& job);
  void OnAllStopped(JobState& job);
  void BeginWaiting(v1::JobRecord& record) const;
  void Requeue(JobState& job);
  void BackOff(JobState& job);
  void CountCrash(v1::JobRecord& record);
  void Finish(JobState& job, v1::JobPhase phase);
  // What an ended job holds.
  void Release(JobState& job);
  void Handle(const StepsDone& done);
  void AddSteps(const v1::RunId& run,
                const google::protobuf::RepeatedPtrField<v1::StepRecord>& steps);
  void GiveUpWork(v1::JobRecord& record);

  // ---- checkpoints.cc ----
  void Search(JobState& job);
  void SearchAgainWhereDue(JobState& job);
  void Handle(const CheckpointFound& answer);
  void NoteFindings(JobState& job, const CheckpointFound& answer);
  void AdoptUnrecorded(JobState& job, const CheckpointFound& answer);
  void Unreadable(JobState& job, const std::string& why);
  void StartFrom(JobState& job, const CheckpointFound& found);
  void FailWithoutCheckpoint(JobState& job, const std::string& findings);
  void Handle(const CheckpointCommitted& committed);
  void Handle(const CheckpointVerified& verified);
  void Handle(const CheckpointRemoved& removed);
  void Handle(const CheckpointFailed& failed);
  void Verify(JobState& job, int64_t step);
  void Scrub();
  void Prune(JobState& job);
  void OnSaveUnanswered(JobState& job, const std::string& node, const v1::SaveUnanswered& said);
  void OnSaveFailed(JobState& job, int64_t step, SaveFailure reason, const std::string& error,
                    const std::string& node, int rank);

  // ---- evaluations.cc ----
  void OnValidation(JobState& job, const v1::StepReport& report);
  void NoteCandidate(JobState& job, const StepsDone& done);
  void UpdateBest(JobState& job, const v1::CheckpointRecord& committed);
  void RestartEvaluations(JobState& job);
  void OnTestEvaluated(JobState& job, const v1::TestEvaluated& said, const std::string& node);
  void BeginTest(JobState& job);

  // ---- memory.cc ----
  void OnSnapshotsHeld(const std::string& node, const v1::SnapshotsHeld& said);
  std::optional<SnapshotChoice> FindSnapshot(JobState& job, const v1::Plan& plan);
  void ChooseStart(JobState& job, const v1::Plan& plan);
  void TakeProducts(const JobState& job, v1::Plan& plan) const;
  void DistrustSnapshot(v1::JobRecord& record);
  static bool KnowsSources(const JobState& job);
  void AddSnapshots(JobState& job, const std::string& node, v1::StartRun* start);
  void DropCopies(const std::string& job);
  void SendDrop(const std::string& node, const std::string& job);

  // ---- findings.cc ----
  void NoteSpike(JobState& job, const v1::StepRecord& step);
  // Whether the rank ended since all of them found something; it is dealt with then.
  bool HandleFinding(JobState& job, const v1::ExitRecord& exit);
  void ReplicasDiffer(JobState& job, const v1::ExitRecord& exit);
  void RollBack(JobState& job, const v1::ExitRecord& exit);
  void TakeBackBlame(JobState& job);
  void SettleRollBack(JobState& job);

  // ---- scheduling.cc ----
  void Schedule();
  bool Assign(JobState& job);
  bool MayBeSkipped(JobState& job);
  // Devices that no job holds, of nodes that take ranks.
  struct Room {
    int free = 0;
    int total = 0;  // with those that are held
  };
  Room RoomBeside(const v1::JobSpec& spec, const Avoided& avoided) const;
  // As if `without` held none.
  std::vector<FreeDevice> FreeDevicesFor(const v1::JobSpec& spec, const Avoided& avoided,
                                         const JobState* without = nullptr) const;
  std::vector<FreeDevice> KnownDevicesFor(const v1::JobSpec& spec) const;
  // A placement without ranks when there is not enough room.
  PlacementPtr TakeDevices(const v1::JobSpec& spec, int ranks, const Avoided& avoided) const;
  // Fewer ranks than asked for, where the job allows it and has waited long enough.
  bool Shrink(JobState& job, int free);
  void GrowWhereRoom();
  void Wait(JobState& job, int ranks);

  // ---- messages.cc ----
  // Gives the job these devices, or none.
  void Place(JobState& job, PlacementPtr placement);
  void SendPrepare(const JobState& job, const std::string& node);
  void SendStart(JobState& job, const std::string& node);
  void SendStop(const std::string& node, const v1::RunId& run, double grace);
  void StopNodes(JobState& job, double grace);
  void SaveAndStop(JobState& job);
  enum class AfterSave { kStop, kGoOn };
  void SendSave(const JobState& job, const std::string& node, AfterSave after = AfterSave::kStop);
  // Whether the job is in that phase now. It is not where the table of phases has no such change:
  // then the job has ended, and nothing more is to be done with it.
  bool Enter(JobState& job, v1::JobPhase phase);
  void SwitchTime(JobState& job, v1::TimeKind kind);
  void Note(const JobState& job, EventKind kind, const std::string& message,
            const std::string& node = "", int rank = -1);
  void NoteNode(const std::string& node, EventKind kind, const std::string& message);

  State& state_;
  const Event& event_;
  const Settings& settings_;
  const double now_;
  bool reschedule_ = false;  // something has changed that a waiting job may wait for
  Effects effects_;
};

}  // namespace tercio::coordinator

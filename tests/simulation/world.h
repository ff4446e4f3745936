// A whole cluster in one thread and virtual time: the coordinator's core with its store, the
// agents' cores with their spools, trainers that step together, checkpoints, connections between
// all of them, and every fault that machines and networks have. A seed decides everything.
//
// Faults: connections break and lose what is under way, in one direction or both; nodes come back
// late; agents die and come back, with or without their trainers, with or without their disk,
// always without the copies of snapshots in their memory; trainers die or freeze; the coordinator
// dies before or after a commit and comes back with another clock; disks are full; checkpoints are
// damaged, lost, or cannot be read for a while, and their volumes are away, hang, or lie
// (volume.h); bits turn over in a replica's weights; some batches make a spike; GPUs fail and are
// mended; people cancel, resume (also from a step of their choice), drain and undrain.
//
// Checked at every event:
//   - a rank starts only when no node that the coordinator counts as alive runs an older attempt
//   - devices are never given out twice, nor while they are known to be faulty; nothing goes on
//     that is on a GPU which is known to be lost
//   - a job that has ended stays as it is until somebody resumes it
//   - a step or a log line of an attempt enters the history once
//   - no attempt starts below the newest checkpoint of its history that is there undamaged, unless
//     a person has chosen so; nor from a copy of a snapshot that its holder has not had
//   - a job that ends for lack of a checkpoint names it, and none could be read, for long enough
//   - what counts as verified was read; a removal leaves the newest such checkpoint, and as many
//     as the job asks for
//   - nothing before the last snapshot is lost of which a copy of each rank is on the next nodes
//   - no part of a job's time is negative, and the parts sum to its age
//   - a rank with other weights than its replicas is named, and its node is blamed for it alone
//   - a batch that a run has gone back over is not read again, and no run goes back for ever
//   - the ranks of an attempt are told of the same best step, which is that of the history that
//   they
//     continue; its checkpoint is not removed
// and in the end, when faults have stopped: every job has ended, and the history of one that has
// succeeded holds every step once, with the loss of an undisturbed run, and its test data was
// evaluated with the weights of the best step, or of the last one where that could not be read; and
// no node keeps copies of jobs that have ended.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/core/core.h"
#include "tests/simulation/volume.h"
#include "worker/agent/core/agent_core.h"
#include "worker/agent/link/spool.h"
#include "worker/agent/snapshots/snapshot_store.h"
#include "worker/trainer/best_step.h"

namespace tercio::simulation {

inline constexpr int kDevices = 2;  // devices of each node
inline constexpr double kFaultsLast = 150;
inline constexpr int64_t kSamples = 8;  // samples of an epoch

// Deliberately broken variants, to see that the checks would notice (simulation_test.cc).
enum class Broken {
  kNothing,
  kReportsCountTwice,        // the spool's sequence is not compared
  kAttemptsAreNotFenced,     // what an older attempt says counts for the present one
  kEffectsBeforeCommit,      // messages leave before they are durable
  kProgressIsForgotten,      // a restart forgets how far the attempt is
  kAttemptNumbersAgain,      // a restart gives out a number twice
  kDevicesTwice,             // devices of running jobs count as free
  kLeasesNeverEnd,           // a lost node is not noticed
  kStopsAreNotSent,          // ranks of a broken attempt live on
  kResumeTooFar,             // an attempt starts after a step that no checkpoint holds
  kResumeTooEarly,           // ... or from the start, whatever there is
  kEndedJobsRun,             // a job that has ended queues again
  kBackoffNeverEnds,         // a broken job does not come back
  kStepsAreDropped,          // reports of steps are not stored
  kTimeIsCountedTwice,       // the ledger adds the same second to two kinds
  kAcknowledgesTooMuch,      // agents forget what is not durable
  kSnapshotOfSomeRanks,      // one rank's copy counts for all
  kSnapshotOfLostAttempt,    // an attempt starts from what later attempts have left behind
  kSnapshotStepsDropped,     // ... from a snapshot that is ahead of the history
  kSnapshotsAreIgnored,      // ... from a checkpoint, whatever is in memory
  kSnapshotsAreKept,         // nodes are not told that a job has ended
  kNobodyIsBlamed,           // for weights that differ
  kDataIsReadAgain,          // after a roll back
  kRollsBackForEver,         // however often it has
  kFaultyGpusAreUsed,        // what is heard of them is forgotten
  kLostGpusAreWaitedFor,     // ranks on them go on
  kStartsOverSilently,       // where no checkpoint can be read
  kUnreadableIsDamaged,      // what may pass is passed over
  kTrustsTheSender,          // parts count as verified that nobody has read back
  kDamageIsNotBelieved,      // what was found damaged counts as verified
  kPrunesByNumber,           // the highest steps are kept, of whatever history, damaged or not
  kPrunesUnverified,         // what nobody has read takes another's place
  kCheckpointsAreForgotten,  // a restart forgets that there are any
  kChosenStepIsIgnored,      // a person's
  kWaitsForEver,             // for a checkpoint that cannot be read
  kBestIsPruned,             // retention knows nothing of it
  kBestOfLostHistory,        // the best of steps that were given up counts
  kBestIsNotTold,            // attempts start as if there were none
  kTestIsForgotten,          // a job succeeds without evaluating its test data
};

class World {
 public:
  explicit World(uint64_t seed, Broken broken = Broken::kNothing);

  // Until every job has ended, or something is wrong. The first thing that is wrong, or empty.
  std::string Run();

 private:
  using RunKey = tercio::agent::RunKey;
  struct Timed {
    double time;
    int64_t order;
    std::function<void()> action;
    bool operator<(const Timed& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  struct Trainer {
    int64_t process = 0;
    bool alive = true;
    bool frozen = false;
    bool running = false;  // has loaded, and trains
    bool told = false;     // its end has been seen by an agent
    int exit_code = 0;     // when it has ended by itself
    int signal = 0;
    std::vector<v1::TrainerMessage> outbox;  // not yet taken by an agent
  };
  struct AgentDisk {
    std::map<agent::RunKey, agent::RunState> runs;
    std::deque<agent::EndedRun> ended;
    int highest_attempt = 0;
    std::string spool_id;
    std::map<uint64_t, std::string> spool;
    uint64_t next_sequence = 1;
  };
  struct Node {
    AgentDisk disk;
    bool up = true;  // the agent
    int64_t incarnation = 1;
    double down_since = 0;
    agent::AgentState state;
    std::optional<agent::Spool> spool;
    uint64_t sent = 0;       // last entry of the spool that the present connection has sent
    int64_t connection = 0;  // 0: none
    double connected_at = 0;
    int64_t last_words = 0;  // connection of a coordinator that died; what it had sent arrives
    bool leaving = false;
    double last_to = 0;  // a connection keeps its order, in each direction
    double last_from = 0;
    double blocked_to = 0;  // nothing arrives before that time
    double blocked_from = 0;
    std::map<std::pair<agent::RunKey, int>, Trainer> trainers;
    std::shared_ptr<agent::SnapshotStore> memory;  // memory of the agent; null while it is down
    std::map<int, std::pair<std::string, bool>> gpu_faults;  // what, and whether it is lost
  };
  // A checkpoint that all ranks of an attempt bring.
  struct SaveOf {
    agent::RunKey run;
    int64_t step = 0;
    uint64_t weights = 0;
    bool then_end = false;
    int exit_code = 0;
    double since = 0;
  };
  // All ranks of an attempt, which step together.
  struct Training {
    int64_t step = 0;
    int64_t steps = 0;
    int64_t every = 4;
    std::map<int, std::string> ranks;  // node of each rank, as they start
    int world = 0;
    bool save_and_stop = false;
    bool ended = false;
    uint64_t weights = 0;
    std::vector<v1::StepRecord> records;
    double last_progress = 0;
    std::map<std::string, std::vector<std::string>> peers;  // by node, in jobs with copies
    int copies_under_way = 0;
    bool from_memory = false;
    bool loaded = false;       // from memory
    v1::TrainingSpec data;     // which batch a step reads
    bool rolls_back = false;   // at a spike
    int corrupt_rank = -1;     // its weights differ from those of its replicas
    std::deque<SaveOf> saves;  // one after the other
    std::optional<trainer::BestStep> best;
    v1::BestEvaluation told;               // the best step, as the ranks know it from their orders
    bool candidate_committed = false;      // so they were told
    std::optional<v1::StepRecord> judged;  // whether it is the best depends on the candidate
  };
  // The last look for a checkpoint to start an attempt from.
  struct Searched {
    int64_t newest = 0;          // newest of the job's history that is there and undamaged; 0: none
    bool readable = false;       // it was, then
    std::set<int64_t> possible;  // to start after
    double fails_since = 0;      // it could not be read since then; 0: it could
  };

  // ---- world.cc ----
  double Uniform(double low, double high);
  bool Chance(double probability) { return Uniform(0, 1) < probability; }
  void At(double delay, std::function<void()> action);
  void Repeat(double interval, std::function<void()> action);
  void Wrong(const std::string& what);
  bool Faulty() const;
  bool AllEnded() const;
  void Fault();
  void FaultOfNode(const std::string& name, Node& node);
  void FaultOfPeople();
  void Submit(int number);
  void CheckEnd();
  static v1::JobSpec Spec(int number);

  // ---- coordinator.cc ----
  template <typename Body>
  void Post(Body body) {
    if (!coordinator_up_) return;
    inbox_.push_back({0, "", std::move(body)});
    Serve();
  }
  void Serve();
  void Apply(coordinator::Event event);
  coordinator::Effects StepBroken(coordinator::Event& event);
  void BreakState(double now);
  void Commit(const coordinator::Effects& effects, bool by_commit);
  void Deliver(const coordinator::Effects& effects);
  void CheckState(const coordinator::Effects& effects, bool resumed);
  void CheckLedger(const v1::JobRecord& record);
  int OwedBlame(const coordinator::Event& event) const;
  std::map<std::string, int64_t> BlamesAt(double now) const;
  void CheckBlame(const coordinator::Event& event, const coordinator::Effects& effects, int rank,
                  const std::map<std::string, int64_t>& before);
  std::map<std::string, int> RollBacks() const;
  void NoteRollBacks(const coordinator::Event& event, const std::map<std::string, int>& before);
  void KillCoordinator();
  void StartCoordinator();
  double CoordinatorNow() const { return now_ + clock_; }

  // ---- nodes.cc ----
  void StartAgent(const std::string& name);
  void KillAgent(const std::string& name, bool for_good = false);
  void KillMachine(const std::string& name, bool loses_disk);
  void Connect(const std::string& name);
  void Disconnect(const std::string& name);
  double InOrder(double& last, double blocked);
  void ToNode(const std::string& name, const v1::CoordinatorMessage& message);
  void FromNode(const std::string& name, const v1::AgentMessage& message);
  void SendNews(const std::string& name);
  void Heartbeat(const std::string& name);
  void Receive(const std::string& name, const v1::CoordinatorMessage& message);
  void StepAgent(const std::string& name, agent::AgentEvent event);
  void Keep(Node& node, const std::vector<agent::AgentEffect>& effects);
  void Do(const std::string& name, const agent::AgentEffect& effect);
  void SendFromRank(const std::string& name, const agent::RunKey& run, int rank,
                    v1::TrainerMessage message);
  void TakeOutbox(const std::string& name, const agent::RunKey& run, int rank);

  // ---- training.cc ----
  void StartTrainer(const std::string& name, const agent::RunKey& run, int rank);
  void EndTrainer(const std::string& name, const agent::RunKey& run, int rank, int exit_code,
                  int signal);
  void SeeEnd(const std::string& name, const agent::RunKey& run, int rank);
  void RankRuns(const std::string& name, const agent::RunKey& run, int rank, int64_t process);
  void TryStep(const agent::RunKey& run);
  bool AllWork(const Training& training, const agent::RunKey& run, bool* broken);
  void EndStep(const agent::RunKey& run, Training& training);
  void SaveStep(const agent::RunKey& run, Training& training);
  void EndForAll(const agent::RunKey& run, Training& training, int corrupt_rank,
                 int64_t roll_back_from);
  void BeginSave(const SaveOf& save);
  void Save(const SaveOf& save);
  void SaveGivenUp(const SaveOf& save);
  void EndSave(const SaveOf& save, bool committed);
  void BreakAttempt(const agent::RunKey& run);
  void EndAll(const agent::RunKey& run, int exit_code);
  Trainer* FindTrainer(const std::string& name, const agent::RunKey& run, int rank);
  // ---- world_evaluations.cc ----
  void Evaluate(const agent::RunKey& run, Training& training, v1::TrainerMessage* message);
  // Whether the judged step is the best; nullopt: it is not known yet.
  std::optional<bool> Judge(Training& training);
  void TestOf(const agent::RunKey& run);
  void TellBest(const agent::RunKey& run, Training& training, const v1::StartRun& start);
  void CheckBest(const v1::JobRecord& record);
  void CheckTest(const v1::JobRecord& record, const std::map<int64_t, double>& losses);
  void SpoilBest(const std::map<std::string, v1::JobRecord>& before, coordinator::Effects& effects);

  // ---- snapshots.cc ----
  void StartMemory(const std::string& name);
  void GiveCopies(const agent::RunKey& run, Training& training);
  void GiveCopy(const agent::RunKey& run, int rank, const std::string& holder,
                const v1::SnapshotBegin& begin, uint64_t weights);
  bool LoadCopy(const std::string& name, const agent::RunKey& run, int rank);
  void Observe(const coordinator::Event& event);
  int64_t LastComplete(const agent::RunKey& run, int ranks, const std::set<std::string>& nodes);
  void CheckStart(const std::string& name, const v1::StartRun& start);
  void SpoilCopies(coordinator::Event& event);
  void ReviveLostAttempts();

  // ---- world_checkpoints.cc ----
  void OnVolume(const std::string& job, std::function<void(Volume&)> task);
  template <typename Answer>
  void AnswerLater(Answer answer);
  void DoForVolumes(const coordinator::Effects& effects);
  void Remove(const coordinator::RemoveCheckpoint& removal, Volume& volume);
  bool Store(const SaveOf& save, const v1::JobSpec& spec);
  bool LoadCheckpoint(const agent::RunKey& run);
  void FaultOfVolumes();
  enum class StepChoice { kAnyStep, kLastGood };
  int64_t ChooseStep(const std::string& job, StepChoice choice);
  void Resume(const std::string& id, std::optional<int64_t> from_step);
  void ResumeFailedJobs();
  void NoteSearch(const v1::RunId& run, const Volume& volume);
  void CheckCheckpoints(const coordinator::Event& event, const coordinator::Effects& effects);
  void CheckRecords(const v1::JobRecord& record);
  void CheckBeginning(const v1::JobRecord& record);
  void CheckFailures(const coordinator::Effects& effects);
  void CheckRemovals(const coordinator::Effects& effects);
  void SpoilCheckpoints(coordinator::Event& event);
  void SpoilRemovals(const coordinator::Event& event, coordinator::Effects& effects);

  // ---- world_gpus.cc ----
  void FaultOfGpus(const std::string& name, Node& node);
  static void SayGpus(const Node& node, v1::AgentHello* hello);
  static void SayGpus(const Node& node, v1::AgentHeartbeat* heartbeat);
  void HearGpus(const coordinator::Event& event);
  void CheckGpus(const coordinator::Effects& effects);

  static double ValueOf(uint64_t weights) { return static_cast<double>(weights >> 11) * 0x1p-53; }
  static uint64_t NextWeights(uint64_t weights, int64_t batch);
  static bool IsPoison(const std::string& job, int64_t batch);
  static double LossOf(uint64_t weights) { return static_cast<double>(weights >> 12); }

  const Broken broken_;
  std::mt19937_64 random_;
  double now_ = 1'000'000;
  double start_ = 0;
  std::priority_queue<Timed> events_;
  int64_t next_order_ = 0;
  int64_t next_number_ = 1;
  std::string wrong_;

  // The coordinator: its process and its disk.
  coordinator::Settings settings_;
  bool coordinator_up_ = true;
  coordinator::State state_;
  std::deque<coordinator::Event> inbox_;
  double clock_ = 0;  // the coordinator's lead over the world's clock
  bool clock_jumped_ = false;
  double full_until_ = 0;
  bool waits_for_disk_ = false;
  coordinator::Stored disk_;
  std::map<std::string, std::map<std::pair<int64_t, int>, double>> history_;  // (step, attempt)
  std::map<std::string, std::set<std::pair<int64_t, int>>> reported_;         // not by checkpoints
  std::set<std::string> lines_;
  std::map<std::string, std::string> ended_;  // records of jobs that have ended
  std::map<std::string, Volume> volumes_;     // volume of each job
  std::map<agent::RunKey, Searched> searched_;
  std::map<std::string, int64_t> chosen_;  // by people, for the next attempt
  std::map<std::string, int> begun_;    // the newest attempt of which it is known where it starts
  std::map<std::string, int> resumes_;  // since faults have stopped
  std::set<agent::RunKey> by_choice_;   // attempts that start where a person wanted
  int64_t coordinator_life_ = 0;
  std::map<std::string, std::set<int64_t>> gone_over_;  // batches that must not be read again
  std::map<std::string, int> rolled_back_;
  // Checkpoints of each job that retention has removed, by step and attempt.
  std::map<std::string, std::set<std::pair<int64_t, int>>> forgotten_;
  // The value of each evaluated step of each job, by step and attempt.
  std::map<std::string, std::map<std::pair<int64_t, int>, double>> values_;

  // Copies that were ever complete: node, attempt that took it, rank, step.
  std::set<std::tuple<std::string, agent::RunKey, int, int64_t>> ever_held_;
  std::map<std::string, std::set<std::tuple<agent::RunKey, int, int64_t>>>
      heard_;  // by the coordinator
  std::map<std::string, std::pair<agent::RunKey, std::string>>
      last_started_;  // run and layout of each job

  // GPUs that the coordinator has heard to be faulty, and lost, of each node.
  std::map<std::string, std::set<int>> faulty_;
  std::map<std::string, std::set<int>> lost_;

  std::map<std::string, Node> nodes_;
  std::map<agent::RunKey, Training> trainings_;
};

}  // namespace tercio::simulation

// The life of an attempt.
#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/checkpoints.h"
#include "coordinator/core/rank_set.h"
#include "coordinator/core/stepper.h"
#include "plan/data_position.h"
#include "plan/epochs.h"
#include "plan/numerics.h"

namespace tercio::coordinator {
namespace {

constexpr int kStoppedAfterSave = 4;  // exit code of a trainer

std::string DescribeExit(const v1::ExitRecord& exit) {
  std::string text = absl::StrCat("rank ", exit.rank(), " ");
  if (exit.signal() != 0) {
    absl::StrAppend(&text, "was killed by signal ", exit.signal());
    if (exit.out_of_memory()) absl::StrAppend(&text, " (out of memory)");
  } else {
    absl::StrAppend(&text, "exited with code ", exit.exit_code());
  }
  if (!exit.reason().empty()) {
    absl::StrAppend(&text, ": ", exit.reason());
  } else if (exit.last_log_lines_size() > 0) {
    // A rank that died without giving a reason has most often logged it last.
    absl::StrAppend(&text, ": ", exit.last_log_lines(exit.last_log_lines_size() - 1));
  }
  if (!exit.device_error().empty()) absl::StrAppend(&text, "; ", exit.device_error());
  return text;
}

std::string DescribeSkipped(const v1::StepRecord& step) {
  return absl::StrCat(
      "step ", step.step(), " was skipped: its loss is ", step.loss(), ", its gradient norm ",
      step.grad_norm(),
      step.has_loss_scale() ? absl::StrFormat(", its loss scale %.0f", step.loss_scale()) : "");
}

// Signals that processes send themselves by a fault of their own.
bool IsCrash(const v1::ExitRecord& exit) {
  switch (exit.signal()) {
    case 0:
    case SIGSEGV:
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
      return true;
    default:
      return false;
  }
}

// Whether an attempt that starts after this step would continue with the data that led there.
bool SameData(const v1::JobRecord& record, int64_t start) {
  // The digest is empty where it is not known, and where a person has accepted other data.
  return start == 0 || record.data_digest().empty() ||
         record.data_digest() == record.progress().data_digest();
}

std::string DescribeOtherData(const v1::JobRecord& record, int64_t start, const std::string& node) {
  return absl::StrCat(
      "the job's data has changed since the state it would resume from, after step ", start,
      " (node ", node, " now has digest ", record.progress().data_digest().substr(0, 12),
      ", previously ", record.data_digest().substr(0, 12),
      "): restore the files that data.train and data.validation named, or accept the new data: "
      "tercio resume ",
      record.id(), " --accept-data-change");
}

void RememberDuration(v1::JobRecord& record, double seconds) {
  auto* recent = record.mutable_recent_step_seconds();
  if (recent->size() >= kRecentSteps) {
    recent->erase(recent->begin(), recent->begin() + (recent->size() - kRecentSteps + 1));
  }
  recent->Add(static_cast<float>(seconds));
}

bool IsTraining(const v1::TimeLedger& ledger) {
  return ledger.present() == v1::TIME_KIND_PRODUCTIVE || ledger.present() == v1::TIME_KIND_DEGRADED;
}

double BestRate(const v1::MachineFigures& figures) {
  double best = 0;
  for (const v1::ProductRate& rate : figures.products()) {
    best = std::max(best, rate.flops_per_second());
  }
  return best;
}

// The planner tries all orders of kinds, or compares as many (plan/planner/cost/node_groups.h).
constexpr size_t kMostKinds = 4;
// Nodes whose speeds differ by less are of one kind: measurements of one node differ as much.
constexpr double kAlike = 1.25;

// What the node's first rank has, of so many on it.
KindShare ShareOfNode(const NodeState& node, int ranks, double most_cores) {
  KindShare share;
  share.ranks = 1;
  share.ranks_per_node = ranks;
  share.cores = std::min(most_cores, static_cast<double>(std::max(1, node.hello.cores())) / ranks);
  if (node.hello.device_facts_size() > 0) share.gpu = node.hello.device_facts(0).model();
  const v1::MachineFigures& figures = node.record.figures();
  if ((figures.device() == "cpu") == share.gpu.empty()) share.figures = figures;
  return share;
}

double SpeedOf(const KindShare& kind) { return kind.cores * BestRate(kind.figures); }

bool AreAlike(const KindShare& a, const KindShare& b) {
  if (!a.gpu.empty() || !b.gpu.empty()) return a.gpu == b.gpu;
  return std::max(SpeedOf(a), SpeedOf(b)) < kAlike * std::min(SpeedOf(a), SpeedOf(b));
}

// The slower ranks stand for both.
void Join(KindShare more, KindShare* kind) {
  kind->ranks += more.ranks;
  kind->ranks_per_node = std::max(kind->ranks_per_node, more.ranks_per_node);
  const bool is_slower = !more.figures.products().empty() &&
                         (kind->figures.products().empty() || SpeedOf(more) < SpeedOf(*kind));
  if (is_slower) kind->figures = std::move(more.figures);
  kind->cores = std::min(kind->cores, more.cores);
}

}  // namespace

const char* NameOf(FaultCause cause) {
  switch (cause) {
    case FaultCause::kCrash:
      return "crash";
    case FaultCause::kKilled:
      return "killed";
    case FaultCause::kNodeLost:
      return "node_lost";
    case FaultCause::kDevice:
      return "device";
    case FaultCause::kHang:
      return "hang";
    case FaultCause::kReplicasDiffer:
      return "replicas_differ";
    case FaultCause::kRollBack:
      return "rollback";
    case FaultCause::kOther:
      break;
  }
  return "other";
}

const char* NameOf(SaveFailure failure) {
  switch (failure) {
    case SaveFailure::kInterrupted:
      return "interrupted";
    case SaveFailure::kSilence:
      return "silence";
    case SaveFailure::kTimeout:
      return "timeout";
    case SaveFailure::kDiskFull:
      return "disk_full";
    case SaveFailure::kDamaged:
      return "damaged";
    case SaveFailure::kSkipped:
      return "skipped";
    case SaveFailure::kUnreachable:
      return "unreachable";
    case SaveFailure::kOther:
      break;
  }
  return "other";
}

void Stepper::BeginAttempt(JobState& job) {
  v1::JobRecord& record = job.record;
  // An attempt that started from a checkpoint and made no step may have died of it,
  // so the search proves every byte of that one before it is used again. This reads
  // the progress of the previous attempt, which is cleared below.
  const bool in_vain = record.attempt() > 0 && LastStarted(record) == record.attempt() &&
                       record.resume_attempt() == 0 && !record.progress().stepped();
  job.suspect_step = in_vain ? record.resume_step() : 0;
  DistrustSnapshot(record);
  int attempt = record.attempt() + 1;
  // A coordinator whose store was set back must not give out a number twice.
  for (const auto& [name, node] : job.placement->nodes()) {
    for (const v1::RunId& run : state_.nodes.at(name).hello.running()) {
      if (run.job_id() == record.id()) attempt = std::max(attempt, run.attempt() + 1);
    }
  }
  record.set_attempt(attempt);
  record.set_token(event_.token);
  record.clear_error();
  record.set_stop_reason(v1::STOP_REASON_UNSPECIFIED);
  record.clear_progress();
  record.set_failed_save_step(0);
  // The patience applies to each attempt separately.
  record.set_unreadable_since(0);
  record.clear_unreadable_error();
  job.health = nullptr;
  job.searching = false;
  job.searches = 0;
  job.search_again_at = 0;
  // What follows a fault counts as restarting up to the first step, the wait in the queue apart.
  SwitchTime(job, record.waiting_since() > 0 ? v1::TIME_KIND_RESTARTING : v1::TIME_KIND_STARTING);
  if (!Enter(job, v1::JOB_PHASE_PREPARING)) return;
  // Nodes prepare the data while storage is searched; StartWhenReady joins the two.
  for (const auto& [name, node] : job.placement->nodes()) SendPrepare(job, name);
  Search(job);
}

void Stepper::RefuseData(JobState& job, const std::string& node, const std::string& error) {
  // No rank runs yet, so that there is nothing to be gentle with.
  StopNodes(job, 0);
  job.record.set_error(error);
  Note(job, "data_refused", error, node);
  Finish(job, v1::JOB_PHASE_FAILED);
}

void Stepper::OnDataPrepared(JobState& job, const std::string& node,
                             const v1::DataPrepared& answer) {
  v1::JobRecord& record = job.record;
  const auto place = job.placement->nodes().find(node);
  if (record.phase() != v1::JOB_PHASE_PREPARING || place == job.placement->nodes().end()) return;
  if (!answer.error().empty()) return RefuseData(job, node, answer.error());
  if (answer.vocab_size() <= 0) {
    return RefuseData(job, node, absl::StrCat("node ", node, " reported no vocabulary size"));
  }
  v1::AttemptProgress& progress = *record.mutable_progress();
  // The first answer sets the digest that all other nodes have to match.
  if (CountRanks(progress.prepared()) > 0 && progress.data_digest() != answer.digest()) {
    return RefuseData(job, node,
                      absl::StrCat("node ", node,
                                   " has different data under the same path than the other nodes"));
  }
  if (const std::string key = KeyOfNewData(record.spec());
      answer.train_samples() <= 0 && answer.test_samples() <= 0 && !key.empty()) {
    return RefuseData(job, node,
                      absl::StrCat("node ", node, " has an agent of version ",
                                   state_.nodes.at(node).hello.version(), ", which does not know ",
                                   key, ": upgrade the agent and the trainer of the node"));
  }
  progress.set_data_digest(answer.digest());
  record.set_train_samples(answer.train_samples());
  AddRank(*progress.mutable_prepared(), place->second.index);
  record.set_vocab_size(answer.vocab_size());
  effects_.changed_jobs.insert(record.id());
  StartWhenReady(job);
}

bool Stepper::RefusesOtherData(JobState& job, int64_t start) {
  if (SameData(job.record, start)) return false;
  const std::string& node = job.placement->nodes().begin()->first;
  RefuseData(job, node, DescribeOtherData(job.record, start, node));
  return true;
}

void Stepper::StartWhenReady(JobState& job) {
  v1::JobRecord& record = job.record;
  const v1::AttemptProgress& progress = record.progress();
  if (CountRanks(progress.prepared()) != static_cast<int>(job.placement->nodes().size())) return;
  // Copies in memory wait for no storage.
  const bool from_memory = !progress.checkpoint_known() && record.from_step_plus_one() == 0 &&
                           plan::KeepsCopies(record.spec());
  if (!progress.checkpoint_known() && !from_memory) return;
  if (RefusesOtherData(job, record.checkpoint_step())) return;
  // The steps of epochs, and the size of the vocabulary, by which the plan cuts tensors, were found
  // in the data.
  if (record.train_samples() > 0) {
    plan::SetStepsOfEpochs(record.train_samples(), record.mutable_spec()->mutable_training());
  }
  record.mutable_spec()->mutable_model()->set_vocab_size(record.vocab_size());
  absl::StatusOr<v1::Plan> plan =
      settings_.make_plan(PresentSpec(record), SlotsOf(*job.placement), ShareOfRanks(job));
  if (!plan.ok()) {
    record.set_error(std::string(plan.status().message()));
    Finish(job, v1::JOB_PHASE_FAILED);
    return;
  }
  if (from_memory) {
    // The job waits here for more reports of copies, or for the search to end.
    if (!FindSnapshot(job, *plan).has_value()) return;
    record.mutable_progress()->set_checkpoint_known(true);
    job.kept_step = std::max(record.checkpoint_step(), record.resume_step());
  }
  TakeProducts(job, *plan);
  ChooseStart(job, *plan);
  // A copy in memory may be newer than the checkpoint, so the
  // question is asked again about the step that was chosen.
  if (RefusesOtherData(job, record.resume_step())) return;
  record.set_data_digest(progress.data_digest());
  SettleRollBack(job);
  job.plan = std::make_shared<const v1::Plan>(*std::move(plan));
  effects_.changed_plans.insert(record.id());
  // This entry makes the attempt count as started, and takes what
  // lies behind its step out of the history (StepCounts).
  (*record.mutable_resume_steps())[record.attempt()] = record.resume_step();
  RestartEvaluations(job);
  record.set_step(record.resume_step());
  record.set_tokens(record.resume_step() * record.spec().training().global_batch() *
                    plan::TokensOfSequence(record.spec().model()));
  // The choice of a person is good for one start: restarts begin from the newest checkpoint.
  record.set_from_step_plus_one(0);
  if (record.started_at() == 0) record.set_started_at(now_);
  if (!Enter(job, v1::JOB_PHASE_STARTING)) return;
  Note(job, "attempt_started",
       absl::StrCat("attempt ", record.attempt(), " starts after step ", record.resume_step(),
                    " on ", job.placement->ranks(), " ranks"));
  NoteNumerics(job);
  for (const auto& [name, node] : job.placement->nodes()) SendStart(job, name);
}

// A run that began with an older version does not have the bits that it would have had there.
void Stepper::NoteNumerics(JobState& job) {
  // What copies in memory were computed by is not recorded.
  if (job.record.resume_step() == 0 || job.record.resume_attempt() != 0) return;
  const v1::CheckpointRecord* known = FindCheckpointRecord(job.record, job.record.resume_step());
  if (known == nullptr) return;
  const std::string text = plan::DescribeOtherNumerics(known->numerics(), job.plan->numerics());
  if (!text.empty()) Note(job, "numerics_changed", text);
}

std::vector<plan::DeviceSlot> Stepper::SlotsOf(const Placement& placement) const {
  std::vector<plan::DeviceSlot> slots;
  for (const v1::RankSlot& slot : placement.slots().slots()) {
    const auto node = state_.nodes.find(slot.node());
    const int gpus = node == state_.nodes.end() ? 0 : node->second.hello.device_facts_size();
    slots.push_back({slot.node(), slot.device(), gpus == 0 ? -1 : slot.device() % gpus});
  }
  return slots;
}

// The ranks of a job by kinds of nodes, in their order.
std::vector<KindShare> Stepper::KindsOfRanks(const JobState& job, double most_cores) const {
  const Placement& placement = *job.placement;
  std::vector<KindShare> kinds;
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    const std::string& name = placement.NodeOf(rank);
    if (rank > 0 && name == placement.NodeOf(rank - 1)) {
      ++kinds.back().ranks;
      continue;
    }
    const auto node = state_.nodes.find(name);
    if (node == state_.nodes.end()) return {};
    KindShare of_node = ShareOfNode(node->second, placement.RanksOn(name), most_cores);
    // How fast a node is that nobody has measured is not known.
    if (of_node.gpu.empty() && of_node.figures.products().empty()) return {};
    if (!kinds.empty() && AreAlike(kinds.back(), of_node)) {
      Join(std::move(of_node), &kinds.back());
    } else {
      kinds.push_back(std::move(of_node));
    }
  }
  const bool are_several = kinds.size() > 1 && kinds.size() <= kMostKinds;
  return are_several ? kinds : std::vector<KindShare>();
}

// Cores and memory are shared by the ranks of a node; the plan needs one number for all ranks.
RankShare Stepper::ShareOfRanks(const JobState& job) const {
  RankShare share;
  share.threads = 1 << 10;
  share.cores = 1 << 10;
  for (const auto& [name, held] : job.placement->nodes()) {
    const int count = static_cast<int>(held.ranks.size());
    const auto node = state_.nodes.find(name);
    const v1::AgentHello& hello =
        node == state_.nodes.end() ? v1::AgentHello::default_instance() : node->second.hello;
    share.threads = std::min(share.threads, std::max(1, hello.cores() / count));
    share.cores = std::min(share.cores, static_cast<double>(std::max(1, hello.cores())) / count);
    share.memory_bytes = std::min(share.memory_bytes, MemoryOfRank(hello, count));
    share.shares_gpus = share.shares_gpus || SharesGpus(hello);
    if (hello.device_facts_size() > 0) share.gpu = hello.device_facts(0).model();
    if (node == state_.nodes.end()) continue;
    // The ranks run in step with the slowest one.
    const v1::MachineFigures& figures = node->second.record.figures();
    const bool is_slower =
        share.figures.products().empty() || BestRate(figures) < BestRate(share.figures);
    if (!figures.products().empty() && is_slower) share.figures = figures;
  }
  // Figures of a node's cores say nothing about its GPUs.
  if ((share.figures.device() == "cpu") != share.gpu.empty()) share.figures.Clear();
  const int wanted = job.record.spec().resources().threads_per_rank();
  if (wanted > 0) share.threads = wanted;
  // Threads are what a rank computes with: it cannot use cores beyond their number.
  share.cores = std::min<double>(share.cores, share.threads);
  share.kinds = KindsOfRanks(job, share.threads);
  return share;
}

void Stepper::OnRankPhase(JobState& job, const v1::RankPhase& phase) {
  v1::JobRecord& record = job.record;
  record.set_progress_at(now_);
  if (phase.phase() != v1::TRAINER_PHASE_RUNNING || phase.rank() < 0 ||
      phase.rank() >= job.placement->ranks()) {
    return;
  }
  std::string& running = *record.mutable_progress()->mutable_running_ranks();
  AddRank(running, phase.rank());
  effects_.changed_jobs.insert(record.id());
  if (record.phase() == v1::JOB_PHASE_STARTING && CountRanks(running) == job.placement->ranks() &&
      Enter(job, v1::JOB_PHASE_RUNNING)) {
    Note(job, "running", "all ranks are training");
    BeginTest(job);
  }
}

void Stepper::OnStepReport(JobState& job, const v1::StepReport& report) {
  v1::JobRecord& record = job.record;
  if (record.phase() == v1::JOB_PHASE_PREPARING) return;
  const v1::StepRecord& step = report.record();
  if (step.step() <= record.step()) return;  // a duplicate
  // A step takes all ranks: a coordinator whose store was set back may have forgotten that they
  // run.
  if (record.phase() == v1::JOB_PHASE_STARTING && !Enter(job, v1::JOB_PHASE_RUNNING)) return;
  v1::TimeLedger& ledger = *record.mutable_ledger();
  if (!record.progress().stepped() && record.phase() != v1::JOB_PHASE_STOPPING) {
    record.mutable_progress()->set_stepped(true);
    record.set_waiting_since(0);
    // The step itself already counts as work.
    SwitchLedger(ledger,
                 record.elastic_ranks() > 0 ? v1::TIME_KIND_DEGRADED : v1::TIME_KIND_PRODUCTIVE,
                 now_ - std::max(0.0, step.step_seconds()));
  }
  if (IsTraining(ledger)) {
    CloseLedger(ledger, now_);
    ChargeStall(ledger, report.checkpoint_seconds());
    // Only the last checkpoint remains.
    if (step.step() >= record.spec().training().steps()) {
      SwitchLedger(ledger, v1::TIME_KIND_CHECKPOINT_STALL, now_);
    }
  }
  HealthOf(job).watchdog.StepEnded(step.step_seconds());
  RememberDuration(record, step.step_seconds());
  record.set_step(step.step());
  record.set_tokens(step.tokens());
  record.set_loss(step.loss());
  record.set_tokens_per_second(report.tokens_per_second());
  if (report.mfu() > 0) record.set_mfu(report.mfu());
  NoteSpike(job, step);
  // Where a spike was the reason, NoteSpike has reported the step already.
  if (step.skipped() && step.spike().empty()) Note(job, "step_skipped", DescribeSkipped(step));
  if (step.has_figures()) *record.mutable_figures() = step.figures();
  if (step.has_validation_loss()) record.set_validation_loss(step.validation_loss());
  OnValidation(job, report);
  record.set_progress_at(now_);
  effects_.changed_jobs.insert(record.id());
  effects_.steps.emplace_back(record.id(), step);
  // The commit of the last step may have been faster than its report.
  if (record.checkpoint_step() >= record.spec().training().steps()) BeginTest(job);
}

void Stepper::OnRankExit(JobState& job, const std::string& node, const v1::ExitRecord& exit) {
  v1::JobRecord& record = job.record;
  if (record.phase() == v1::JOB_PHASE_PREPARING || exit.rank() < 0 ||
      exit.rank() >= job.placement->ranks()) {
    return;
  }
  // The judgement comes first, since it may record this rank as the one at fault.
  JudgeExit(job, node, exit);
  // The last log lines of all others only report that a rank has gone.
  const bool at_fault =
      record.fault_attempt() == record.attempt() && record.fault_rank_plus_one() == exit.rank() + 1;
  effects_.exits.emplace_back(RunOf(record), exit);
  if (!at_fault) effects_.exits.back().second.clear_last_log_lines();
}

void Stepper::JudgeExit(JobState& job, const std::string& node, const v1::ExitRecord& exit) {
  v1::JobRecord& record = job.record;
  const bool good = exit.signal() == 0 && exit.exit_code() == 0;
  const bool saved = exit.signal() == 0 && exit.exit_code() == kStoppedAfterSave;
  if (good) {
    AddRank(*record.mutable_progress()->mutable_finished_ranks(), exit.rank());
    effects_.changed_jobs.insert(record.id());
    return;
  }
  if (saved && record.phase() == v1::JOB_PHASE_STOPPING) return;
  const std::string what = DescribeExit(exit);
  // A finding that all ranks share says more than that one of them has exited.
  const bool found = HandleFinding(job, exit);
  Note(job, "rank_exited", what, node, exit.rank());
  if (found) return;
  const bool of_device = !exit.device_error().empty();
  if (of_device) job.avoided.devices.insert({node, job.placement->DeviceOf(exit.rank())});
  // A faulty GPU says nothing about the job, so it does not count towards a crash loop.
  if (record.phase() != v1::JOB_PHASE_STOPPING && IsCrash(exit) && !of_device) CountCrash(record);
  const FaultCause cause = of_device       ? FaultCause::kDevice
                           : IsCrash(exit) ? FaultCause::kCrash
                                           : FaultCause::kKilled;
  Fault(job, {cause, what, exit.permanent() || exit.out_of_memory(), node, /*certain=*/false,
              exit.rank()});
}

void Stepper::CountCrash(v1::JobRecord& record) {
  // Crashes after the same step suggest a cause that restarts do not
  // change; a step in between shows that the job can get past it.
  const bool again = record.crashes() > 0 && record.crash_step() == record.step();
  record.set_crashes(again ? record.crashes() + 1 : 1);
  record.set_crash_step(record.step());
}

// Part of the attempt has failed: stop the rest of it. The first fault is the one reported.
void Stepper::Fault(JobState& job, const FaultReport& report) {
  v1::JobRecord& record = job.record;
  if (record.phase() == v1::JOB_PHASE_STOPPING) {
    // The next attempt would meet a permanent fault again, so the restart becomes a failure.
    const bool mendable = record.stop_reason() == v1::STOP_REASON_RESTART ||
                          record.stop_reason() == v1::STOP_REASON_MOVE;
    if (report.permanent && mendable) {
      record.set_stop_reason(v1::STOP_REASON_FAIL);
      record.set_error(report.what);
      record.set_fault_attempt(record.attempt());
      record.set_fault_rank_plus_one(report.rank + 1);
    }
    // A checkpoint that needs all ranks will not come any more.
    if (record.progress().saving()) {
      record.mutable_progress()->set_saving(false);
      StopNodes(job, settings_.stop_grace);
    }
    return;
  }
  job.cause = report.cause;
  record.set_error(report.what);
  record.set_fault_attempt(record.attempt());
  record.set_fault_rank_plus_one(report.rank + 1);
  record.set_stop_reason(report.permanent ? v1::STOP_REASON_FAIL : v1::STOP_REASON_RESTART);
  record.set_last_fault_at(now_);
  // The ledger is switched before the work is given up: the time up to now must be in it.
  SwitchTime(job, v1::TIME_KIND_RESTARTING);
  GiveUpWork(record);
  if (!Enter(job, v1::JOB_PHASE_STOPPING)) return;
  Note(job, "attempt_broken", report.what, report.node);
  StopNodes(job, settings_.stop_grace);
  // A crash that returns at the same step follows the job to any node, so
  // only the first of them counts against the node where it happened.
  const bool blamed = report.certain || record.crashes() <= 1;
  if (!report.permanent && !report.node.empty() && blamed) {
    Blame(report.node, report.what);
  }
}

void Stepper::Move(JobState& job, const std::string& why) {
  v1::JobRecord& record = job.record;
  const v1::JobPhase phase = record.phase();
  if (phase == v1::JOB_PHASE_STOPPING) return;
  Note(job, "moving", why);
  if (phase == v1::JOB_PHASE_PREPARING) {
    // Ranks that do not exist yet have nothing to save and need no grace.
    StopNodes(job, 0);
    return Requeue(job);
  }
  record.set_stop_reason(v1::STOP_REASON_MOVE);
  record.set_error(why);
  if (!Enter(job, v1::JOB_PHASE_STOPPING)) return;
  if (phase == v1::JOB_PHASE_RUNNING) {
    SaveAndStop(job);
  } else {
    // No step was made since the state was loaded, so a checkpoint would hold nothing new.
    StopNodes(job, settings_.stop_grace);
  }
}

void Stepper::OnNodeStopped(JobState& job, const std::string& node) {
  if (!HasLiveRun(job.record.phase())) return;
  const auto place = job.placement->nodes().find(node);
  if (place == job.placement->nodes().end()) return;
  AddRank(*job.record.mutable_progress()->mutable_stopped(), place->second.index);
  effects_.changed_jobs.insert(job.record.id());
  OnAllStopped(job);
}

// A last checkpoint that never arrives must not hold a job forever. Nor must processes that even
// SIGKILL does not end, since they hang in a driver or a file system: their node sends heartbeats,
// so it is not lost, but it is useless. Everything that they still do is fenced.
void Stepper::HastenStop(JobState& job) {
  job.record.set_progress_at(now_);
  if (!std::exchange(job.killed, true)) {
    job.record.mutable_progress()->set_saving(false);
    return StopNodes(job, 0);
  }
  // The last node to stop makes the job give up its placement; the copy keeps this loop's map.
  const PlacementPtr placement = job.placement;
  for (const auto& [name, node] : placement->nodes()) {
    if (HasRank(job.record.progress().stopped(), node.index)) continue;
    const auto found = state_.nodes.find(name);
    if (found != state_.nodes.end() && !found->second.record.quarantined()) {
      Quarantine(found->second.record, absl::StrCat("processes of job ", job.record.id(),
                                                    " (attempt ", job.record.attempt(),
                                                    ") do not exit even after SIGKILL: a device or "
                                                    "a file system hangs"));
    }
    OnNodeStopped(job, name);
  }
}

// Decides what comes next once no node runs anything of the attempt.
void Stepper::OnAllStopped(JobState& job) {
  v1::JobRecord& record = job.record;
  const int stopped = CountRanks(record.progress().stopped());
  if (stopped != static_cast<int>(job.placement->nodes().size())) return;
  // A job whose ranks all ended well after the last step has succeeded,
  // even if it was just to be stopped: nothing is left to do.
  const bool finished = CountRanks(record.progress().finished_ranks()) == job.placement->ranks();
  const bool tested = !HasTest(record.spec()) || record.has_test();
  const bool trained = finished && record.step() >= record.spec().training().steps();
  if (trained && tested) {
    record.clear_error();
    return Finish(job, v1::JOB_PHASE_SUCCEEDED);
  }
  // Ranks that exit with 0 too early would do so again at once:
  // that counts as a crash, so that the crash loop ends it.
  if (record.phase() != v1::JOB_PHASE_STOPPING) {
    record.set_error(trained ? "the ranks ended without a result for data.test"
                             : "the ranks ended before the last step");
    job.cause = FaultCause::kCrash;
    record.set_stop_reason(v1::STOP_REASON_RESTART);
    record.set_last_fault_at(now_);
    CountCrash(record);
    SwitchTime(job, v1::TIME_KIND_RESTARTING);
  }
  GiveUpWork(record);
  switch (record.stop_reason()) {
    case v1::STOP_REASON_CANCEL:
      return Finish(job, v1::JOB_PHASE_CANCELLED);
    case v1::STOP_REASON_FAIL:
      return Finish(job, v1::JOB_PHASE_FAILED);
    case v1::STOP_REASON_MOVE:
      return Requeue(job);
    default:
      return BackOff(job);
  }
}

// A job that already continued with fewer ranks has waited long enough for the missing ones.
void Stepper::BeginWaiting(v1::JobRecord& record) const {
  if (record.waiting_since() > 0) return;
  const double waited =
      record.elastic_ranks() > 0 ? record.spec().fault_tolerance().elastic_wait_seconds() : 0;
  record.set_waiting_since(now_ - waited);
}

void Stepper::Requeue(JobState& job) {
  v1::JobRecord& record = job.record;
  Place(job, NoPlacement());
  record.clear_error();
  BeginWaiting(record);
  SwitchTime(job, v1::TIME_KIND_QUEUED);
  Enter(job, v1::JOB_PHASE_QUEUED);
}

void Stepper::BackOff(JobState& job) {
  v1::JobRecord& record = job.record;
  if (record.restarts_used() >= record.spec().fault_tolerance().max_restarts()) {
    record.set_error(absl::StrCat(record.error(), " (after ", record.restarts_used(),
                                  " restarts, fault_tolerance.max_restarts)"));
    return Finish(job, v1::JOB_PHASE_FAILED);
  }
  if (record.crashes() >= settings_.crash_loop) {
    record.set_error(absl::StrCat(record.error(), " (", record.crashes(),
                                  " times in a row after step ", record.crash_step(),
                                  ": restarting does not help)"));
    return Finish(job, v1::JOB_PHASE_FAILED);
  }
  double wait = settings_.first_backoff;
  for (int i = 0; i < record.restarts_used() && wait < settings_.longest_backoff; ++i) wait *= 2;
  record.set_retry_at(now_ + std::min(wait, settings_.longest_backoff));
  record.set_restarts(record.restarts() + 1);
  effects_.restarts.emplace_back(record.id(), std::exchange(job.cause, FaultCause::kOther));
  record.set_restarts_used(record.restarts_used() + 1);
  BeginWaiting(record);
  Place(job, NoPlacement());
  if (!Enter(job, v1::JOB_PHASE_BACKING_OFF)) return;
  Note(job, "restarting",
       absl::StrCat("restart ", record.restarts_used(), " of ",
                    record.spec().fault_tolerance().max_restarts()));
}

void Stepper::Finish(JobState& job, v1::JobPhase phase) {
  if (!Enter(job, phase)) return;
  Release(job);
  const v1::JobRecord& record = job.record;
  const EventKind kind = phase == v1::JOB_PHASE_SUCCEEDED ? EventKind("succeeded")
                         : phase == v1::JOB_PHASE_FAILED  ? EventKind("failed")
                                                          : EventKind("cancelled");
  Note(job, kind, record.error().empty() ? std::string(kind.name()) : record.error());
}

void Stepper::Release(JobState& job) {
  v1::JobRecord& record = job.record;
  // Nobody resumes from the memory of nodes after this, so work in no checkpoint is lost.
  if (record.phase() != v1::JOB_PHASE_SUCCEEDED) LoseWork(*record.mutable_ledger());
  DropCopies(record.id());
  record.set_unreadable_since(0);
  record.clear_unreadable_error();
  Place(job, NoPlacement());
  SwitchTime(job, v1::TIME_KIND_STOPPED);
}

void Stepper::Handle(const StepsDone& done) {
  AddSteps(done.run, {done.steps.begin(), done.steps.end()});
  if (HasBegun(done.run)) NoteCandidate(state_.jobs.at(done.run.job_id()), done);
}

void Stepper::AddSteps(const v1::RunId& run,
                       const google::protobuf::RepeatedPtrField<v1::StepRecord>& steps) {
  if (!HasBegun(run)) return;
  for (const v1::StepRecord& step : steps) {
    if (step.attempt() != run.attempt()) continue;
    effects_.steps.emplace_back(run.job_id(), step);
  }
}

// Work that no checkpoint holds is lost; where snapshots are in memory, how much is known only when
// the next attempt starts (ChooseStart), or when there is none (Finish).
void Stepper::GiveUpWork(v1::JobRecord& record) {
  if (!plan::KeepsCopies(record.spec())) LoseWork(*record.mutable_ledger());
}

}  // namespace tercio::coordinator

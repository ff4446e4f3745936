#include "coordinator/core/core.h"

#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "plan/plan_builder.h"

namespace tercio::coordinator {
namespace {

constexpr int kStoppedAfterSave = 4;  // exit code of a trainer

bool HasLiveRun(v1::JobPhase phase) {
  return phase == v1::JOB_PHASE_STARTING || phase == v1::JOB_PHASE_RUNNING ||
         phase == v1::JOB_PHASE_STOPPING;
}

bool HoldsSlots(v1::JobPhase phase) {
  return HasLiveRun(phase) || phase == v1::JOB_PHASE_PREPARING;
}

v1::RunId RunOf(const v1::JobRecord& record) {
  v1::RunId run;
  run.set_job_id(record.id());
  run.set_attempt(record.attempt());
  return run;
}

std::set<std::string> NodesOf(const v1::JobRecord& record) {
  std::set<std::string> nodes;
  for (const v1::RankSlot& slot : record.slots()) nodes.insert(slot.node());
  return nodes;
}

std::string DescribeExit(const v1::ExitRecord& exit) {
  std::string text = absl::StrCat("rank ", exit.rank(), " ");
  if (exit.signal() != 0) {
    absl::StrAppend(&text, "was killed by signal ", exit.signal());
  } else {
    absl::StrAppend(&text, "exited with code ", exit.exit_code());
  }
  if (!exit.reason().empty()) {
    absl::StrAppend(&text, ": ", exit.reason());
  } else if (exit.last_log_lines_size() > 0) {
    absl::StrAppend(&text, ": ", exit.last_log_lines(exit.last_log_lines_size() - 1));
  }
  return text;
}

std::string DescribeSkipped(const v1::StepRecord& step) {
  return absl::StrCat(
      "step ", step.step(), " was skipped: its loss is ", step.loss(), ", its gradient norm ",
      step.grad_norm(),
      step.has_loss_scale() ? absl::StrFormat(", its loss scale %.0f", step.loss_scale()) : "");
}

// One step at work: what it reads and writes.
class Stepper {
 public:
  Stepper(State& state, const Event& event, const Settings& settings)
      : state_(state), event_(event), settings_(settings), now_(event.now) {}

  Effects Run() {
    std::visit([this](const auto& body) { Handle(body); }, event_.body);
    Schedule();
    return std::move(effects_);
  }

 private:
  // ---- requests ----

  void Handle(const Submitted& submitted) {
    JobState& job = state_.jobs[submitted.job_id];
    job.record.set_id(submitted.job_id);
    job.record.set_number(state_.next_number++);
    *job.record.mutable_spec() = submitted.spec;
    job.record.set_submitted_at(now_);
    SetPhase(job, v1::JOB_PHASE_QUEUED);
    Note(job, "submitted", absl::StrCat("job ", submitted.spec.name(), " submitted"));
  }

  void Handle(const CancelRequested& cancel) {
    const auto found = state_.jobs.find(cancel.job_id);
    if (found == state_.jobs.end()) {
      effects_.answer = absl::NotFoundError(absl::StrCat("no job ", cancel.job_id));
      return;
    }
    JobState& job = found->second;
    const v1::JobPhase phase = job.record.phase();
    if (IsTerminal(phase)) {
      effects_.answer =
          absl::FailedPreconditionError(absl::StrCat("job ", cancel.job_id, " has already ended"));
      return;
    }
    job.record.set_error(cancel.reason.empty() ? "cancelled" : cancel.reason);
    Note(job, "cancel_requested", job.record.error());
    if (!HasLiveRun(phase)) {
      if (phase == v1::JOB_PHASE_PREPARING) StopNodes(job, 0);
      Finish(job, v1::JOB_PHASE_CANCELLED);
      return;
    }
    const bool save = cancel.save_checkpoint && phase == v1::JOB_PHASE_RUNNING;
    job.record.set_stop_reason(v1::STOP_REASON_CANCEL);
    SetPhase(job, v1::JOB_PHASE_STOPPING);
    if (save) {
      SaveAndStop(job);
    } else {
      StopNodes(job, phase == v1::JOB_PHASE_STOPPING ? 0 : settings_.stop_grace);
    }
  }

  void Handle(const ResumeRequested& resume) {
    const auto found = state_.jobs.find(resume.job_id);
    if (found == state_.jobs.end()) {
      effects_.answer = absl::NotFoundError(absl::StrCat("no job ", resume.job_id));
      return;
    }
    JobState& job = found->second;
    const bool longer = resume.spec.training().steps() > job.record.step();
    const v1::JobPhase phase = job.record.phase();
    if (!IsTerminal(phase)) {
      effects_.answer =
          absl::FailedPreconditionError(absl::StrCat("job ", resume.job_id, " has not ended"));
      return;
    }
    if (phase == v1::JOB_PHASE_SUCCEEDED && !longer) {
      effects_.answer = absl::FailedPreconditionError(
          absl::StrCat("job ", resume.job_id,
                       " has succeeded; to go on give it more steps: --set "
                       "training.steps=N"));
      return;
    }
    *job.record.mutable_spec() = resume.spec;
    job.record.set_restarts_used(0);
    job.record.clear_error();
    job.record.clear_finished_at();
    SetPhase(job, v1::JOB_PHASE_QUEUED);
    Note(job, "resumed", "resumed by request");
  }

  // ---- nodes ----

  void Handle(const NodeAttached& attached) {
    const std::string& name = attached.hello.node();
    NodeState& node = state_.nodes[name];
    node.hello = attached.hello;
    node.connected = true;
    node.last_heard = now_;
    for (const v1::RunId& run : attached.hello.running()) {
      const auto found = state_.jobs.find(run.job_id());
      const bool wanted = found != state_.jobs.end() &&
                          found->second.record.attempt() == run.attempt() &&
                          HasLiveRun(found->second.record.phase());
      if (!wanted) SendStop(name, run, 0);
    }
    for (auto& [id, job] : state_.jobs) Reconcile(job, name, attached.hello);
  }

  // What the node should be doing for this job, said again: messages may have been lost.
  void Reconcile(JobState& job, const std::string& name, const v1::AgentHello& hello) {
    if (!HoldsSlots(job.record.phase()) || !NodesOf(job.record).contains(name)) return;
    const v1::RunId wanted = RunOf(job.record);
    const bool runs =
        std::any_of(hello.running().begin(), hello.running().end(), [&](const v1::RunId& run) {
          return run.job_id() == wanted.job_id() && run.attempt() == wanted.attempt();
        });
    switch (job.record.phase()) {
      case v1::JOB_PHASE_PREPARING:
        if (!job.prepared_nodes.contains(name)) SendPrepare(job, name);
        if (!job.checkpoint_known) effects_.searches.push_back({wanted});
        return;
      // Whether the node never got the order or its ranks have already ended cannot be told apart,
      // and an attempt is never started twice on a node.
      case v1::JOB_PHASE_STARTING:
      case v1::JOB_PHASE_RUNNING:
        if (!runs) Fault(job, absl::StrCat("node ", name, " has lost its ranks"), false);
        return;
      default:
        if (runs) {
          SendStop(name, wanted, settings_.stop_grace);
        } else {
          NodeStopped(job, name);
        }
    }
  }

  void Handle(const NodeDetached& detached) {
    const auto found = state_.nodes.find(detached.node);
    if (found != state_.nodes.end()) found->second.connected = false;
  }

  void LoseNode(const std::string& name) {
    for (auto& [id, job] : state_.jobs) {
      if (!HoldsSlots(job.record.phase()) || !NodesOf(job.record).contains(name)) continue;
      if (job.record.phase() == v1::JOB_PHASE_PREPARING) {
        job.record.clear_slots();
        SetPhase(job, v1::JOB_PHASE_QUEUED);
        continue;
      }
      job.stopped_nodes.insert(name);
      Fault(job, absl::StrCat("node ", name, " was lost (no heartbeat)"), false);
      if (job.record.phase() == v1::JOB_PHASE_STOPPING) AllStopped(job);
    }
    state_.nodes.erase(name);
    effects_.disconnected.push_back(name);
  }

  void Handle(const NodeSaid& said) {
    const auto node = state_.nodes.find(said.node);
    if (node == state_.nodes.end()) return;
    node->second.last_heard = now_;
    const v1::AgentMessage& message = said.message;
    switch (message.body_case()) {
      case v1::AgentMessage::kDataPrepared:
        return WithRun(message.data_prepared().run(),
                       [&](JobState& job) { Prepared(job, said.node, message.data_prepared()); });
      case v1::AgentMessage::kRankPhase:
        return WithRun(message.rank_phase().run(),
                       [&](JobState& job) { RankPhased(job, message.rank_phase()); });
      case v1::AgentMessage::kStepReport:
        return WithRun(message.step_report().run(),
                       [&](JobState& job) { Stepped(job, message.step_report()); });
      case v1::AgentMessage::kRankExited:
        return WithRun(message.rank_exited().run(), [&](JobState& job) {
          RankEnded(job, said.node, message.rank_exited().exit());
        });
      case v1::AgentMessage::kRunStopped:
        return WithRun(message.run_stopped().run(),
                       [&](JobState& job) { NodeStopped(job, said.node); });
      case v1::AgentMessage::kTrace:
        return WithRun(message.trace().run(), [&](JobState& job) {
          effects_.traces.emplace_back(job.record.id(), message.trace().trace());
        });
      case v1::AgentMessage::kLogs:
        return WithRun(message.logs().run(), [&](JobState& job) {
          for (const v1::LogLine& line : message.logs().lines()) {
            effects_.logs.emplace_back(job.record.id(), line);
          }
        });
      default:
        return;
    }
  }

  // Calls `handle` when `run` is the present attempt of a job; anything else comes from the past.
  template <typename Body>
  void WithRun(const v1::RunId& run, const Body& handle) {
    const auto found = state_.jobs.find(run.job_id());
    if (found == state_.jobs.end() || found->second.record.attempt() != run.attempt()) return;
    if (!HoldsSlots(found->second.record.phase())) return;
    handle(found->second);
  }

  // ---- the life of an attempt ----

  void Prepared(JobState& job, const std::string& node, const v1::DataPrepared& answer) {
    if (job.record.phase() != v1::JOB_PHASE_PREPARING) return;
    if (!answer.error().empty()) {
      StopNodes(job, 0);
      job.record.set_error(answer.error());
      Note(job, "data_refused", answer.error(), node);
      Finish(job, v1::JOB_PHASE_FAILED);
      return;
    }
    if (!job.prepared_nodes.empty() && job.data_digest != answer.digest()) {
      job.record.set_error(
          absl::StrCat("node ", node, " has other data under the same path than the other nodes"));
      Finish(job, v1::JOB_PHASE_FAILED);
      return;
    }
    job.data_digest = answer.digest();
    job.record.set_vocab_size(answer.vocab_size());
    job.prepared_nodes.insert(node);
    StartWhenReady(job);
  }

  void Handle(const CheckpointFound& answer) {
    WithRun(answer.run, [&](JobState& job) {
      if (job.record.phase() != v1::JOB_PHASE_PREPARING) return;
      for (const std::string& damage : answer.damaged) Note(job, "checkpoint_damaged", damage);
      job.checkpoint_known = true;
      job.record.set_resume_step(answer.step);
      job.record.set_checkpoint_step(answer.step);
      job.record.set_checkpoint_path(answer.path);
      job.record.set_checkpoint_bytes(answer.bytes);
      StartWhenReady(job);
    });
  }

  void StartWhenReady(JobState& job) {
    v1::JobRecord& record = job.record;
    if (!job.checkpoint_known || job.prepared_nodes.size() != NodesOf(record).size()) return;
    record.mutable_spec()->mutable_model()->set_vocab_size(record.vocab_size());
    std::vector<plan::DeviceSlot> slots;
    for (const v1::RankSlot& slot : record.slots()) slots.push_back({slot.node(), slot.device()});
    const absl::StatusOr<v1::Plan> plan =
        settings_.make_plan(record.spec(), slots, ShareOfRanks(record));
    if (!plan.ok()) {
      record.set_error(std::string(plan.status().message()));
      Finish(job, v1::JOB_PHASE_FAILED);
      return;
    }
    *record.mutable_plan() = *plan;
    record.set_step(record.resume_step());
    record.set_tokens(record.resume_step() * record.spec().training().global_batch() *
                      record.spec().model().context());
    if (record.started_at() == 0) record.set_started_at(now_);
    SetPhase(job, v1::JOB_PHASE_STARTING);
    Note(job, "attempt_started",
         absl::StrCat("attempt ", record.attempt(), " starts after step ", record.resume_step()));
    for (const std::string& node : NodesOf(record)) SendStart(job, node);
  }

  // Cores and memory are shared by the ranks of a node; the plan needs one number for all ranks.
  RankShare ShareOfRanks(const v1::JobRecord& record) const {
    std::map<std::string, int> ranks;
    for (const v1::RankSlot& slot : record.slots()) ++ranks[slot.node()];
    RankShare share;
    share.threads = 1 << 10;
    for (const auto& [name, count] : ranks) {
      const auto node = state_.nodes.find(name);
      const v1::AgentHello hello =
          node == state_.nodes.end() ? v1::AgentHello() : node->second.hello;
      share.threads = std::min(share.threads, std::max(1, hello.cores() / count));
      if (hello.memory_bytes() > 0) {
        share.memory_bytes = std::min(share.memory_bytes, hello.memory_bytes() / count);
      }
    }
    const int wanted = record.spec().resources().threads_per_rank();
    if (wanted > 0) share.threads = wanted;
    return share;
  }

  void RankPhased(JobState& job, const v1::RankPhase& phase) {
    job.record.set_progress_at(now_);
    if (phase.phase() != v1::TRAINER_PHASE_RUNNING) return;
    job.running_ranks.insert(phase.rank());
    if (job.record.phase() == v1::JOB_PHASE_STARTING &&
        static_cast<int>(job.running_ranks.size()) == job.record.slots_size()) {
      SetPhase(job, v1::JOB_PHASE_RUNNING);
      Note(job, "running", "all ranks train");
    }
  }

  void Stepped(JobState& job, const v1::StepReport& report) {
    v1::JobRecord& record = job.record;
    if (record.phase() == v1::JOB_PHASE_PREPARING) return;
    const v1::StepRecord& step = report.record();
    if (step.step() <= record.step()) return;  // said twice
    record.set_step(step.step());
    record.set_tokens(step.tokens());
    record.set_loss(step.loss());
    record.set_tokens_per_second(report.tokens_per_second());
    if (step.skipped()) Note(job, "step_skipped", DescribeSkipped(step));
    if (step.has_validation_loss()) record.set_validation_loss(step.validation_loss());
    record.set_progress_at(now_);
    effects_.changed_jobs.insert(record.id());
    effects_.steps.emplace_back(record.id(), step);
  }

  void RankEnded(JobState& job, const std::string& node, const v1::ExitRecord& exit) {
    if (job.record.phase() == v1::JOB_PHASE_PREPARING) return;
    const bool good = exit.signal() == 0 && exit.exit_code() == 0;
    const bool saved = exit.signal() == 0 && exit.exit_code() == kStoppedAfterSave;
    if (good) {
      job.finished_ranks.insert(exit.rank());
      return;
    }
    if (saved && job.record.phase() == v1::JOB_PHASE_STOPPING) return;
    Note(job, "rank_exited", DescribeExit(exit), node, exit.rank());
    Fault(job, DescribeExit(exit), exit.permanent());
  }

  // Something of the attempt is broken: stop the rest of it. The first fault is the one that is
  // told.
  void Fault(JobState& job, const std::string& what, bool permanent) {
    if (job.record.phase() == v1::JOB_PHASE_STOPPING) {
      if (permanent && job.record.stop_reason() == v1::STOP_REASON_RESTART) {
        job.record.set_stop_reason(v1::STOP_REASON_FAIL);
        job.record.set_error(what);
      }
      return;
    }
    job.record.set_error(what);
    job.record.set_stop_reason(permanent ? v1::STOP_REASON_FAIL : v1::STOP_REASON_RESTART);
    SetPhase(job, v1::JOB_PHASE_STOPPING);
    Note(job, "attempt_broken", what);
    StopNodes(job, settings_.stop_grace);
  }

  void NodeStopped(JobState& job, const std::string& node) {
    if (!HasLiveRun(job.record.phase())) return;
    job.stopped_nodes.insert(node);
    AllStopped(job);
  }

  // Once no node runs anything of the attempt: what comes next.
  void AllStopped(JobState& job) {
    v1::JobRecord& record = job.record;
    for (const std::string& node : NodesOf(record)) {
      if (!job.stopped_nodes.contains(node)) return;
    }
    if (static_cast<int>(job.finished_ranks.size()) == record.slots_size()) {
      record.clear_error();
      Finish(job, v1::JOB_PHASE_SUCCEEDED);
      return;
    }
    if (record.phase() != v1::JOB_PHASE_STOPPING) {
      record.set_error("the ranks ended before the last step");
      record.set_stop_reason(v1::STOP_REASON_RESTART);
    }
    switch (record.stop_reason()) {
      case v1::STOP_REASON_CANCEL:
        return Finish(job, v1::JOB_PHASE_CANCELLED);
      case v1::STOP_REASON_FAIL:
        return Finish(job, v1::JOB_PHASE_FAILED);
      default:
        return BackOff(job);
    }
  }

  void BackOff(JobState& job) {
    v1::JobRecord& record = job.record;
    if (record.restarts_used() >= record.spec().fault_tolerance().max_restarts()) {
      record.set_error(absl::StrCat(record.error(), " (after ", record.restarts_used(),
                                    " restarts, fault_tolerance.max_restarts)"));
      Finish(job, v1::JOB_PHASE_FAILED);
      return;
    }
    double wait = settings_.first_backoff;
    for (int i = 0; i < record.restarts_used() && wait < settings_.longest_backoff; ++i) wait *= 2;
    record.set_retry_at(now_ + std::min(wait, settings_.longest_backoff));
    record.set_restarts(record.restarts() + 1);
    record.set_restarts_used(record.restarts_used() + 1);
    record.clear_slots();
    SetPhase(job, v1::JOB_PHASE_BACKING_OFF);
    Note(job, "restarting",
         absl::StrCat("restart ", record.restarts_used(), " of ",
                      record.spec().fault_tolerance().max_restarts()));
  }

  void Finish(JobState& job, v1::JobPhase phase) {
    job.record.set_finished_at(now_);
    job.record.clear_slots();
    SetPhase(job, phase);
    const char* kind = phase == v1::JOB_PHASE_SUCCEEDED ? "succeeded"
                       : phase == v1::JOB_PHASE_FAILED  ? "failed"
                                                        : "cancelled";
    Note(job, kind, job.record.error().empty() ? kind : job.record.error());
  }

  void Handle(const CheckpointCommitted& committed) {
    WithRun(committed.run, [&](JobState& job) {
      v1::JobRecord& record = job.record;
      if (!HasLiveRun(record.phase())) return;
      record.set_checkpoint_step(committed.step);
      record.set_checkpoint_path(committed.path);
      record.set_checkpoint_bytes(committed.bytes);
      record.set_checkpoint_attempt(record.attempt());
      record.set_checkpoint_at(now_);
      Note(
          job, "checkpoint_committed",
          absl::StrCat("step ", committed.step, ", ", committed.bytes, " bytes, ", committed.path));
    });
  }

  void Handle(const CheckpointFailed& failed) {
    WithRun(failed.run, [&](JobState& job) {
      Note(job, "checkpoint_failed", absl::StrCat("step ", failed.step, ": ", failed.error));
    });
  }

  void Handle(const Tick&) {
    std::vector<std::string> lost;
    for (const auto& [name, node] : state_.nodes) {
      if (now_ - node.last_heard > settings_.node_lease) lost.push_back(name);
    }
    for (const std::string& name : lost) LoseNode(name);
    for (auto& [id, job] : state_.jobs) {
      if (job.record.phase() == v1::JOB_PHASE_BACKING_OFF && now_ >= job.record.retry_at()) {
        SetPhase(job, v1::JOB_PHASE_QUEUED);
      }
      // A last checkpoint that does not come must not keep a cancelled job for ever.
      if (job.record.phase() == v1::JOB_PHASE_STOPPING &&
          now_ - job.record.progress_at() > settings_.save_timeout) {
        job.record.set_progress_at(now_);
        StopNodes(job, 0);
      }
    }
  }

  // ---- scheduling ----

  // First come, first served: a job that does not fit waits, and those behind it wait with it.
  void Schedule() {
    std::vector<JobState*> queued;
    for (auto& [id, job] : state_.jobs) {
      if (job.record.phase() == v1::JOB_PHASE_QUEUED) queued.push_back(&job);
    }
    std::sort(queued.begin(), queued.end(), [](const JobState* a, const JobState* b) {
      return a->record.number() < b->record.number();
    });
    for (JobState* job : queued) {
      if (!Assign(*job)) return;
    }
  }

  bool Assign(JobState& job) {
    const int ranks = plan::RanksOfJob(job.record.spec());
    std::vector<v1::RankSlot> slots;
    int total = 0;
    for (const auto& [name, node] : state_.nodes) {
      if (!node.connected) continue;
      total += node.hello.devices();
      for (int i = 0; i < FreeSlots(state_, name) && static_cast<int>(slots.size()) < ranks; ++i) {
        v1::RankSlot slot;
        slot.set_node(name);
        slot.set_device(i);
        slots.push_back(slot);
      }
    }
    if (static_cast<int>(slots.size()) < ranks) {
      const std::string reason = absl::StrCat("waiting: needs ", ranks, " devices, ", slots.size(),
                                              " are free of ", total);
      if (job.record.error() != reason) {
        job.record.set_error(reason);
        effects_.changed_jobs.insert(job.record.id());
      }
      return false;
    }
    job.record.mutable_slots()->Assign(slots.begin(), slots.end());
    BeginAttempt(job);
    return true;
  }

  void BeginAttempt(JobState& job) {
    v1::JobRecord& record = job.record;
    int attempt = record.attempt() + 1;
    // A coordinator whose store was set back must not give out a number twice.
    for (const std::string& node : NodesOf(record)) {
      const v1::AgentHello& hello = state_.nodes[node].hello;
      for (const v1::RunId& run : hello.running()) {
        if (run.job_id() == record.id()) attempt = std::max(attempt, run.attempt() + 1);
      }
    }
    record.set_attempt(attempt);
    record.set_token(event_.token);
    record.clear_error();
    record.set_stop_reason(v1::STOP_REASON_UNSPECIFIED);
    job.prepared_nodes.clear();
    job.stopped_nodes.clear();
    job.running_ranks.clear();
    job.finished_ranks.clear();
    job.data_digest.clear();
    job.checkpoint_known = false;
    SetPhase(job, v1::JOB_PHASE_PREPARING);
    for (const std::string& node : NodesOf(record)) SendPrepare(job, node);
    effects_.searches.push_back({RunOf(record)});
  }

  // ---- messages ----

  void SendPrepare(const JobState& job, const std::string& node) {
    v1::CoordinatorMessage message;
    *message.mutable_prepare_data()->mutable_run() = RunOf(job.record);
    *message.mutable_prepare_data()->mutable_spec() = job.record.spec();
    message.mutable_prepare_data()->set_from_start(job.record.checkpoint_step() == 0);
    effects_.messages.push_back({node, message});
  }

  void SendStart(const JobState& job, const std::string& node) {
    v1::CoordinatorMessage message;
    v1::StartRun* start = message.mutable_start_run();
    *start->mutable_run() = RunOf(job.record);
    start->set_token(job.record.token());
    *start->mutable_spec() = job.record.spec();
    start->set_resume_step(job.record.resume_step());
    start->set_checkpoint_address(settings_.checkpoint_address);
    start->set_vocab_size(job.record.vocab_size());
    for (int rank = 0; rank < job.record.slots_size(); ++rank) {
      if (job.record.slots(rank).node() != node) continue;
      *start->add_ranks() = plan::SliceForRank(job.record.plan(), rank);
    }
    effects_.messages.push_back({node, message});
  }

  void SendStop(const std::string& node, const v1::RunId& run, double grace) {
    v1::CoordinatorMessage message;
    *message.mutable_stop_run()->mutable_run() = run;
    message.mutable_stop_run()->set_grace_seconds(grace);
    effects_.messages.push_back({node, message});
  }

  void StopNodes(JobState& job, double grace) {
    for (const std::string& node : NodesOf(job.record)) {
      if (!job.stopped_nodes.contains(node)) SendStop(node, RunOf(job.record), grace);
    }
  }

  void SaveAndStop(JobState& job) {
    for (const std::string& node : NodesOf(job.record)) {
      v1::CoordinatorMessage message;
      *message.mutable_save_checkpoint()->mutable_run() = RunOf(job.record);
      message.mutable_save_checkpoint()->set_then_stop(true);
      effects_.messages.push_back({node, message});
    }
  }

  void SetPhase(JobState& job, v1::JobPhase phase) {
    job.record.set_phase(phase);
    job.record.set_progress_at(now_);
    effects_.changed_jobs.insert(job.record.id());
  }

  void Note(const JobState& job, const std::string& kind, const std::string& message,
            const std::string& node = "", int rank = -1) {
    v1::JobEvent event;
    event.set_job_id(job.record.id());
    event.set_attempt(job.record.attempt());
    event.set_kind(kind);
    event.set_message(message);
    event.set_node(node);
    event.set_rank(rank);
    effects_.events.push_back(event);
    effects_.changed_jobs.insert(job.record.id());
  }

  State& state_;
  const Event& event_;
  const Settings& settings_;
  const double now_;
  Effects effects_;
};

}  // namespace

Effects Step(State& state, const Event& event, const Settings& settings) {
  return Stepper(state, event, settings).Run();
}

bool IsTerminal(v1::JobPhase phase) {
  return phase == v1::JOB_PHASE_SUCCEEDED || phase == v1::JOB_PHASE_FAILED ||
         phase == v1::JOB_PHASE_CANCELLED;
}

int FreeSlots(const State& state, const std::string& node) {
  const auto found = state.nodes.find(node);
  if (found == state.nodes.end() || !found->second.connected) return 0;
  int used = 0;
  for (const auto& [id, job] : state.jobs) {
    if (!HoldsSlots(job.record.phase())) continue;
    for (const v1::RankSlot& slot : job.record.slots()) used += slot.node() == node ? 1 : 0;
  }
  return std::max(0, found->second.hello.devices() - used);
}

}  // namespace tercio::coordinator

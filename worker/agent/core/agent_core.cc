#include "worker/agent/core/agent_core.h"

#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tercio::agent {
namespace {

constexpr int kCannotStart = 127;  // exit code of a shell for a program that it cannot start
// A coordinator that was away may ask for the ends
// of as many runs; AgentStore keeps the same number.
constexpr size_t kEndedRuns = 32;

v1::AgentMessage PhaseMessage(const RunKey& key, int rank, v1::TrainerPhase phase) {
  v1::AgentMessage message;
  *message.mutable_rank_phase()->mutable_run() = ToRunId(key);
  message.mutable_rank_phase()->set_rank(rank);
  message.mutable_rank_phase()->set_phase(phase);
  return message;
}

v1::AgentMessage ExitMessage(const RunKey& key, const v1::ExitRecord& exit) {
  v1::AgentMessage message;
  *message.mutable_rank_exited()->mutable_run() = ToRunId(key);
  *message.mutable_rank_exited()->mutable_exit() = exit;
  return message;
}

v1::AgentMessage StoppedMessage(const RunKey& key) {
  v1::AgentMessage message;
  *message.mutable_run_stopped()->mutable_run() = ToRunId(key);
  return message;
}

std::string MiB(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

// One object for each event, so that its handlers share the state, the time and the effects.
class Stepper {
 public:
  Stepper(AgentState& state, double now) : state_(state), now_(now) {}

  std::vector<AgentEffect> TakeEffects() { return std::move(effects_); }

  void Handle(const Restored& event) {
    state_.runs = event.runs;
    state_.ended = event.ended;
    state_.highest_attempt = std::max(state_.highest_attempt, event.highest_attempt);
    std::vector<RunKey> keys;
    for (auto& [key, run] : state_.runs) {
      keys.push_back(key);
      // It was asked to stop, and its time is up.
      if (run.stopping) run.kill_at = now_;
      for (const auto& [index, rank] : run.ranks) {
        if (rank.life == RankState::Life::kLive) effects_.push_back(AdoptTrainer{key, index});
      }
    }
    for (const RunKey& key : keys) {
      // The previous agent may have died between the end of the last rank and that of the run.
      if (FindRun(key) != nullptr) ForgetIfEnded(key);
    }
    // It may also have died when a newer attempt was still waiting for an older one.
    for (const RunKey& key : keys) LaunchWaiting(key.first);
  }

  void Handle(const CoordinatorSaid& event) {
    const v1::CoordinatorMessage& message = event.message;
    if (message.has_prepare_data()) effects_.push_back(ReadData{message.prepare_data()});
    if (message.has_start_run()) Start(message.start_run());
    if (message.has_stop_run()) Stop(message.stop_run());
    if (message.has_save_checkpoint()) Save(message.save_checkpoint());
  }

  void Handle(const TrainerSaid& event) {
    RankState* rank = FindRank(event.run, event.rank);
    if (rank == nullptr) return;
    v1::AgentMessage report;
    if (event.message.has_phase()) {
      rank->phase = event.message.phase().phase();
      Send(PhaseMessage(event.run, event.rank, rank->phase));
    } else if (event.message.has_step()) {
      const v1::TrainerStep& step = event.message.step();
      // A message that comes twice must not turn the rank back.
      rank->last_step = std::max(rank->last_step, RecordOf(step).step());
      if (step.has_figures()) rank->figures = step.figures();
      // Rank 0 adds a record for the history; steps of the others only count on this node.
      if (!step.has_record()) return;
      *report.mutable_step_report()->mutable_run() = ToRunId(event.run);
      *report.mutable_step_report()->mutable_record() = step.record();
      report.mutable_step_report()->set_tokens_per_second(step.tokens_per_second());
      report.mutable_step_report()->set_mfu(step.mfu());
      report.mutable_step_report()->set_checkpoint_seconds(step.checkpoint_seconds());
      if (step.has_validation()) {
        *report.mutable_step_report()->mutable_validation() = step.validation();
      }
      Send(std::move(report));
    } else if (event.message.has_last_figures()) {
      rank->figures = event.message.last_figures();
    } else if (event.message.has_trace()) {
      *report.mutable_trace()->mutable_run() = ToRunId(event.run);
      *report.mutable_trace()->mutable_trace() = event.message.trace();
      Send(std::move(report));
    } else if (event.message.has_products_chosen()) {
      *report.mutable_products_chosen() = event.message.products_chosen();
      *report.mutable_products_chosen()->mutable_run() = ToRunId(event.run);
      Send(std::move(report));
    } else if (event.message.has_test()) {
      *report.mutable_test_evaluated()->mutable_run() = ToRunId(event.run);
      *report.mutable_test_evaluated()->mutable_evaluation() = event.message.test();
      Send(std::move(report));
    } else if (event.message.has_checkpoint()) {
      TellUnanswered(event.run, event.rank, event.message.checkpoint());
    } else if (event.message.has_failure()) {
      // The failure is reported with the exit, which follows.
      rank->failure = event.message.failure();
    }
  }

  void Handle(const StartFailed& event) {
    v1::ExitRecord exit;
    exit.set_exit_code(kCannotStart);
    exit.set_reason(event.error);
    RankEnded(event.run, event.rank, std::move(exit));
  }

  void Handle(const TrainerEnded& event) {
    const RankState* rank = FindRank(event.run, event.rank);
    if (rank == nullptr) return;
    v1::ExitRecord exit;
    exit.set_exit_code(event.exit_code);
    exit.set_signal(event.signal);
    const std::string& said = rank->failure.message();
    // The page's note is for trainers that could not reach their agent.
    exit.set_reason(said.empty() ? event.reason : said);
    exit.set_permanent(rank->failure.permanent() || event.permanent);
    exit.set_corrupt_rank_plus_one(rank->failure.corrupt_rank_plus_one());
    exit.set_roll_back_from(rank->failure.roll_back_from());
    exit.set_out_of_memory(event.out_of_memory);
    // The coordinator then blames the node and not the job.
    if (event.gpu_failed) {
      exit.set_device_error(event.gpu_note);
    } else if (!event.gpu_note.empty()) {
      // The driver's words may explain those of the program, so both are kept.
      exit.mutable_reason()->append(exit.reason().empty() ? "" : "; ").append(event.gpu_note);
    }
    for (const std::string& line : event.last_lines) exit.add_last_log_lines(line);
    if (rank->figures.steps() > 0) {
      *exit.mutable_figures() = rank->figures;
      if (event.device_utilization.has_value()) {
        exit.mutable_figures()->set_device_utilization(*event.device_utilization);
      }
    }
    RankEnded(event.run, event.rank, std::move(exit));
  }

  void Handle(const Leaving&) { state_.leaving = true; }

  void Handle(const ShutDown& event) {
    state_.leaving = true;
    std::vector<RunKey> keys;
    for (const auto& [key, run] : state_.runs) keys.push_back(key);
    for (const RunKey& key : keys) End(key, event.grace_seconds);
  }

  void Handle(const TimePassed&) {
    for (auto& [key, run] : state_.runs) {
      if (now_ < run.kill_at) continue;
      // SIGKILL is sent once: what survives it hangs in the kernel, where no signal reaches it.
      run.kill_at = std::numeric_limits<double>::infinity();
      SignalLive(key, run, SIGKILL);
    }
  }

 private:
  RunState* FindRun(const RunKey& key) {
    const auto found = state_.runs.find(key);
    return found == state_.runs.end() ? nullptr : &found->second;
  }

  RankState* FindRank(const RunKey& key, int rank) {
    RunState* run = FindRun(key);
    if (run == nullptr) return nullptr;
    const auto found = run->ranks.find(rank);
    return found == run->ranks.end() ? nullptr : &found->second;
  }

  void Send(v1::AgentMessage message) { effects_.push_back(SendToCoordinator{std::move(message)}); }

  // Ranks that wait have no process yet, and the number of one that has ended may be another's.
  void SignalLive(const RunKey& key, const RunState& run, int signal) {
    for (const auto& [index, rank] : run.ranks) {
      if (rank.life == RankState::Life::kLive)
        effects_.push_back(SignalTrainer{key, index, signal});
    }
  }

  void Start(const v1::StartRun& request) {
    const RunKey key = ToRunKey(request.run());
    if (state_.leaving || state_.runs.contains(key)) return;  // (reported twice)
    for (const EndedRun& ended : state_.ended) {
      if (ended.run == key) return TellEnded(ended);  // reported twice, the second time very late
    }
    // An order may overtake another on a new connection: only the newest attempt of a job counts.
    std::vector<RunKey> older;
    for (const auto& [other, run] : state_.runs) {
      if (other.first != key.first) continue;
      if (other.second > key.second) return;  // an order from the past
      older.push_back(other);
    }
    state_.highest_attempt = std::max(state_.highest_attempt, key.second);
    RunState& run = state_.runs[key];
    run.start = request;
    for (const v1::RankPlan& plan : request.ranks()) {
      run.ranks[plan.placement().rank()].plan = plan;
      run.ranks[plan.placement().rank()].last_step = request.resume_step();
    }
    effects_.push_back(KeepRun{key});
    // The new attempt waits for these, and their coordinator has given them up: they get no grace.
    for (const RunKey& other : older) End(other, 0);
    LaunchWaiting(key.first);
  }

  // The coordinator learns of other failed saves first. All ranks of a node report the same
  // failure.
  void TellUnanswered(const RunKey& key, int rank, const v1::CheckpointProgress& save) {
    RunState& run = *FindRun(key);
    if (!save.unanswered() || save.step() <= run.unanswered_save) return;
    run.unanswered_save = save.step();
    v1::AgentMessage message;
    v1::SaveUnanswered* told = message.mutable_save_unanswered();
    *told->mutable_run() = ToRunId(key);
    told->set_rank(rank);
    told->set_step(save.step());
    told->set_error(save.error());
    told->set_problem(save.problem());
    Send(std::move(message));
  }

  // All of it is said again, since nobody knows here which part was missed.
  void TellEnded(const EndedRun& ended) {
    for (const v1::ExitRecord& exit : ended.exits) Send(ExitMessage(ended.run, exit));
    Send(StoppedMessage(ended.run));
  }

  // Starts the waiting ranks of the job's newest run, once nothing older lives.
  void LaunchWaiting(const std::string& job) {
    // Two attempts of a job never run side by side, so only the newest may start.
    RunKey newest{job, -1};
    for (const auto& [key, run] : state_.runs) {
      if (key.first == job) newest.second = std::max(newest.second, key.second);
    }
    for (const auto& [key, run] : state_.runs) {
      if (key.first == job && key.second < newest.second && !run.Ended()) return;
    }
    RunState* run = FindRun(newest);
    if (run == nullptr) return;
    const std::optional<v1::ExitRecord> refusal = RefusalOf(*run);
    std::vector<int> launched;
    for (auto& [index, rank] : run->ranks) {
      if (rank.life != RankState::Life::kWaiting) continue;
      // Live is kept before the start: an agent that dies in between leaves a rank that the
      // next one tries to adopt, and reports as gone, instead of one that is started twice.
      rank.life = RankState::Life::kLive;
      launched.push_back(index);
    }
    if (!launched.empty()) effects_.push_back(KeepRun{newest});
    for (const int index : launched) {
      if (refusal.has_value()) {
        RankEnded(newest, index, *refusal);
      } else {
        effects_.push_back(StartTrainer{newest, index});
      }
    }
  }

  // How ranks of the run that wait end if their scratch files have no room here.
  std::optional<v1::ExitRecord> RefusalOf(const RunState& run) const {
    if (state_.scratch_total <= 0) return std::nullopt;
    int64_t needed = 0;
    for (const auto& [index, rank] : run.ranks) {
      if (rank.life == RankState::Life::kWaiting) needed += ScratchBytes(run, rank);
    }
    int64_t in_use = 0;
    for (const auto& [key, other] : state_.runs) {
      for (const auto& [index, rank] : other.ranks) {
        if (rank.life == RankState::Life::kLive) in_use += ScratchBytes(other, rank);
      }
    }
    if (needed == 0 || needed + in_use <= state_.scratch_total) return std::nullopt;
    v1::ExitRecord exit;
    exit.set_exit_code(kCannotStart);
    // What other jobs have is free when they end.
    exit.set_permanent(needed > state_.scratch_total);
    exit.set_reason(absl::StrCat(
        "offload: this job's ranks on this node need ", MiB(needed),
        " of scratch space, others have ", MiB(in_use), ", and the limit is ",
        MiB(state_.scratch_total),
        ": give the agent a larger --scratch-total, offload less (offload.share), or place fewer "
        "ranks on the node"));
    return exit;
  }

  void Stop(const v1::StopRun& request) {
    const RunKey key = ToRunKey(request.run());
    if (FindRun(key) == nullptr) {
      Send(StoppedMessage(key));  // unknown here: the coordinator must not wait for it
    } else {
      End(key, request.grace_seconds());
    }
  }

  // SIGTERM now and SIGKILL after the grace; waiting ranks never start.
  void End(const RunKey& key, double grace_seconds) {
    RunState& run = *FindRun(key);
    const bool at_once = grace_seconds <= 0;
    // A repeated stop may bring the kill forward, but SIGTERM is sent once.
    if (!run.stopping || at_once) SignalLive(key, run, at_once ? SIGKILL : SIGTERM);
    run.stopping = true;
    // A later order may shorten the grace, never lengthen it.
    if (!at_once) run.kill_at = std::min(run.kill_at, now_ + grace_seconds);
    for (auto& [index, rank] : run.ranks) {
      if (rank.life == RankState::Life::kWaiting) rank.life = RankState::Life::kEnded;
    }
    effects_.push_back(KeepRun{key});
    ForgetIfEnded(key);
  }

  void Save(const v1::SaveCheckpoint& request) {
    const RunKey key = ToRunKey(request.run());
    const RunState* run = FindRun(key);
    if (run == nullptr) return;
    TellTrainer effect{key, 0, {}};
    effect.command.mutable_save_now()->set_then_stop(request.then_stop());
    for (const auto& [index, rank] : run->ranks) {
      if (rank.life != RankState::Life::kLive) continue;
      effect.rank = index;
      effects_.push_back(effect);
    }
  }

  void RankEnded(const RunKey& key, int index, v1::ExitRecord exit) {
    RankState* rank = FindRank(key, index);
    // A rank ends once, whoever reports it.
    if (rank == nullptr || rank->life != RankState::Life::kLive) return;
    rank->life = RankState::Life::kEnded;
    exit.set_rank(index);
    rank->exit = std::move(exit);
    rank->has_exited = true;
    effects_.push_back(KeepRun{key});
    Send(ExitMessage(key, rank->exit));
    ForgetIfEnded(key);
  }

  void ForgetIfEnded(const RunKey& key) {
    if (!FindRun(key)->Ended()) return;
    Send(StoppedMessage(key));
    const RunKey gone = key;  // `key` may be the map's own
    EndedRun ended{gone, {}};
    // Ranks that were never started have no exit.
    for (const auto& [index, rank] : FindRun(gone)->ranks) {
      if (rank.has_exited) ended.exits.push_back(rank.exit);
    }
    // The coordinator may have missed the reports, and starts or stops the run again (TellEnded).
    state_.ended.push_back(std::move(ended));
    if (state_.ended.size() > kEndedRuns) state_.ended.pop_front();
    state_.runs.erase(gone);
    effects_.push_back(ForgetRun{gone});
    // A newer attempt may have waited for this one to end.
    if (!state_.leaving) LaunchWaiting(gone.first);
  }

  AgentState& state_;
  const double now_;
  std::vector<AgentEffect> effects_;
};

}  // namespace

bool RunState::Ended() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const auto& entry) {
    return entry.second.life == RankState::Life::kEnded;
  });
}

int64_t ScratchBytes(const RunState& run, const RankState& rank) {
  // The part of the plan that the ranks of a stage share is sent to a node once.
  const auto stage = run.start.stages().find(rank.plan.placement().pipeline_index());
  const v1::StagePlan& plan = stage != run.start.stages().end() ? stage->second : rank.plan.stage();
  return plan.memory().disk_bytes();
}

const v1::StepRecord& RecordOf(const v1::TrainerStep& step) {
  return step.has_record() ? step.record() : step.newest();
}

std::vector<v1::RunId> RunsOf(const AgentState& state, EndedRuns ended) {
  std::vector<v1::RunId> ids;
  for (const auto& [key, run] : state.runs) ids.push_back(ToRunId(key));
  if (ended == EndedRuns::kLeaveOut) return ids;
  for (const EndedRun& run : state.ended) ids.push_back(ToRunId(run.run));
  return ids;
}

v1::RunId ToRunId(const RunKey& key) {
  v1::RunId id;
  id.set_job_id(key.first);
  id.set_attempt(key.second);
  return id;
}

RunKey ToRunKey(const v1::RunId& id) { return {id.job_id(), id.attempt()}; }

std::vector<AgentEffect> Step(AgentState& state, const AgentEvent& event) {
  Stepper stepper(state, event.now);
  std::visit([&](const auto& body) { stepper.Handle(body); }, event.body);
  return stepper.TakeEffects();
}

}  // namespace tercio::agent

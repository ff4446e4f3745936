#include "worker/agent/run_manager.h"

#include <algorithm>
#include <chrono>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "worker/data/prepared_data.h"

namespace tercio {
namespace {

v1::RunId MakeRunId(const std::string& job, int attempt) {
  v1::RunId id;
  id.set_job_id(job);
  id.set_attempt(attempt);
  return id;
}

void SetNow(google::protobuf::Timestamp* time) {
  const absl::Time now = absl::Now();
  time->set_seconds(absl::ToUnixSeconds(now));
  time->set_nanos(static_cast<int32_t>(absl::ToUnixNanos(now) % 1'000'000'000));
}

}  // namespace

bool RunManager::Run::Ended() const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [](const auto& entry) { return entry.second.ended; });
}

RunManager::RunManager(AgentOptions options, AgentMetrics& metrics,
                       std::function<void(v1::AgentMessage)> send)
    : options_(std::move(options)),
      metrics_(metrics),
      send_(std::move(send)),
      housekeeper_([this] { Housekeeping(); }) {}

RunManager::~RunManager() {
  StopAll(absl::ZeroDuration());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  housekeeper_.join();
  for (std::thread& thread : preparations_) thread.join();
}

void RunManager::Handle(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kPrepareData:
      return Prepare(message.prepare_data());
    case v1::CoordinatorMessage::kStartRun:
      return Start(message.start_run());
    case v1::CoordinatorMessage::kStopRun:
      return Stop(message.stop_run());
    case v1::CoordinatorMessage::kSaveCheckpoint:
      return Save(message.save_checkpoint());
    default:
      return;
  }
}

// In a thread of its own: tokenising a large text takes long, and heartbeats must go on.
void RunManager::Prepare(const v1::PrepareData& request) {
  std::lock_guard<std::mutex> lock(mutex_);
  preparations_.emplace_back([this, request] {
    v1::AgentMessage message;
    v1::DataPrepared* answer = message.mutable_data_prepared();
    *answer->mutable_run() = request.run();
    const absl::StatusOr<data::PreparedData> prepared =
        data::PrepareData(request.spec().data(), request.spec().model().context(),
                          options_.state_dir + "/data-cache", request.spec().model().vocab_size());
    if (prepared.ok()) {
      answer->set_vocab_size(prepared->vocab_size);
      answer->set_train_tokens(prepared->train_tokens);
      answer->set_validation_tokens(prepared->validation_tokens);
      answer->set_digest(prepared->digest);
    } else {
      answer->set_error(
          absl::StrCat("node ", options_.node, ": ", std::string(prepared.status().message())));
    }
    send_(std::move(message));
  });
}

RankLabels RunManager::LabelsOf(const Run& run, int rank) const {
  return {run.start.run().job_id(), run.start.spec().name(), rank};
}

RunManager::Run* RunManager::Find(const v1::RunId& id) {
  const auto found = runs_.find({id.job_id(), id.attempt()});
  return found == runs_.end() ? nullptr : found->second.get();
}

void RunManager::Start(const v1::StartRun& request) {
  std::lock_guard<std::mutex> lock(mutex_);
  const RunKey key{request.run().job_id(), request.run().attempt()};
  if (runs_.contains(key)) return;  // said twice
  for (auto& [other, run] : runs_) {
    if (other.first != key.first) continue;
    if (other.second > key.second) return;  // an order from the past
    for (auto& [index, rank] : run->ranks) {
      if (rank.process != nullptr) rank.process->Signal(SIGKILL);
    }
  }
  highest_attempt_ = std::max(highest_attempt_, key.second);
  auto owned = std::make_unique<Run>();
  Run& run = *owned;
  run.start = request;
  for (const v1::RankPlan& plan : request.ranks()) run.ranks[plan.placement().rank()].plan = plan;
  runs_[key] = std::move(owned);
  for (auto& [index, rank] : run.ranks) {
    if (absl::Status status = StartRank(key, run, index); !status.ok()) {
      rank.ended = true;
      v1::AgentMessage message;
      *message.mutable_rank_exited()->mutable_run() = request.run();
      v1::ExitRecord* record = message.mutable_rank_exited()->mutable_exit();
      record->set_rank(index);
      record->set_exit_code(127);
      record->set_reason(std::string(status.message()));
      send_(std::move(message));
    }
  }
}

absl::Status RunManager::StartRank(const RunKey& key, Run& run, int rank) {
  const std::string logs = absl::StrCat(options_.state_dir, "/logs/", key.first);
  TERCIO_RETURN_IF_ERROR(MakeDirectories(logs));
  TrainerProcess::Options options;
  options.program = options_.trainer;
  options.arguments = {"tercio-trainer", "--rank",    absl::StrCat(rank),       "--job",
                       key.first,        "--attempt", absl::StrCat(key.second), "--socket",
                       options_.socket};
  options.environment = {absl::StrCat("TERCIO_TRAINER_TOKEN=", run.start.token())};
  options.log_path = absl::StrCat(logs, "/attempt-", key.second, "-rank-", rank, ".log");
  TERCIO_ASSIGN_OR_RETURN(
      run.ranks[rank].process,
      TrainerProcess::Start(
          options, [this, key, rank](const std::string& line) { SendLine(key, rank, line); },
          [this, key, rank](const ProcessExit& exit) { RankEnded(key, rank, exit); }));
  return absl::OkStatus();
}

void RunManager::SendLine(const RunKey& key, int rank, const std::string& line) {
  v1::AgentMessage message;
  *message.mutable_logs()->mutable_run() = MakeRunId(key.first, key.second);
  v1::LogLine* log = message.mutable_logs()->add_lines();
  SetNow(log->mutable_time());
  log->set_attempt(key.second);
  log->set_rank(rank);
  log->set_node(options_.node);
  // Bytes that are not text must not stop the message: protobuf strings are UTF-8.
  for (const char c : line)
    log->mutable_line()->push_back(static_cast<unsigned char>(c) < 128 ? c : '?');
  send_(std::move(message));
}

void RunManager::RankEnded(const RunKey& key, int rank_index, const ProcessExit& exit) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = runs_.find(key);
  if (found == runs_.end()) return;
  Run& run = *found->second;
  Rank& rank = run.ranks[rank_index];
  rank.ended = true;
  v1::AgentMessage message;
  *message.mutable_rank_exited()->mutable_run() = run.start.run();
  v1::ExitRecord* record = message.mutable_rank_exited()->mutable_exit();
  record->set_rank(rank_index);
  record->set_exit_code(exit.exit_code);
  record->set_signal(exit.signal);
  record->set_reason(rank.failure);
  record->set_permanent(rank.permanent);
  for (const std::string& line : exit.last_lines) record->add_last_log_lines(line);
  send_(std::move(message));
  metrics_.Exited(LabelsOf(run, rank_index), exit.signal != 0 || exit.exit_code != 0);
  metrics_.Forget(LabelsOf(run, rank_index));
  if (run.Ended()) {
    v1::AgentMessage stopped;
    *stopped.mutable_run_stopped()->mutable_run() = run.start.run();
    send_(std::move(stopped));
  }
  changed_.notify_all();
}

void RunManager::Stop(const v1::StopRun& request) {
  std::lock_guard<std::mutex> lock(mutex_);
  Run* run = Find(request.run());
  if (run == nullptr) {
    // Nothing of it here (any more): the coordinator must not wait for it.
    v1::AgentMessage stopped;
    *stopped.mutable_run_stopped()->mutable_run() = request.run();
    send_(std::move(stopped));
    return;
  }
  const bool at_once = request.grace_seconds() <= 0;
  for (auto& [index, rank] : run->ranks) {
    if (rank.process != nullptr) rank.process->Signal(at_once ? SIGKILL : SIGTERM);
  }
  if (!at_once) {
    run->kill_at = std::min(run->kill_at, absl::Now() + absl::Seconds(request.grace_seconds()));
  }
}

void RunManager::Save(const v1::SaveCheckpoint& request) {
  std::lock_guard<std::mutex> lock(mutex_);
  Run* run = Find(request.run());
  if (run == nullptr) return;
  v1::TrainerCommand command;
  command.mutable_save_now()->set_then_stop(request.then_stop());
  for (auto& [index, rank] : run->ranks) {
    if (rank.write) rank.write(command);
  }
}

std::vector<v1::RunId> RunManager::Running() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<v1::RunId> ids;
  for (const auto& [key, run] : runs_) {
    if (!run->Ended()) ids.push_back(run->start.run());
  }
  return ids;
}

int RunManager::highest_attempt() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return highest_attempt_;
}

absl::StatusOr<v1::TrainerAssignment> RunManager::Attach(const v1::TrainerHello& hello,
                                                         WriteCommand write) {
  std::lock_guard<std::mutex> lock(mutex_);
  Run* run = Find(hello.run());
  if (run == nullptr || !run->ranks.contains(hello.rank()) || hello.token() != run->start.token()) {
    return absl::PermissionDeniedError(
        "no such rank here, or the token is not that of its attempt");
  }
  Rank& rank = run->ranks[hello.rank()];
  rank.write = std::move(write);
  v1::TrainerAssignment assignment;
  *assignment.mutable_spec() = run->start.spec();
  *assignment.mutable_plan() = rank.plan;
  const v1::Layout& layout = rank.plan.layout();
  assignment.set_world_size(layout.tensor() * layout.pipeline() * layout.data());
  assignment.set_resume_step(run->start.resume_step());
  assignment.set_checkpoint_address(run->start.checkpoint_address());
  assignment.set_data_address(options_.data_address);
  assignment.set_data_cache_dir(options_.state_dir + "/data-cache");
  assignment.set_agent_grace_seconds(options_.agent_grace_seconds);
  assignment.set_threads(rank.plan.threads());
  return assignment;
}

void RunManager::Detach(const v1::TrainerHello& hello) {
  std::lock_guard<std::mutex> lock(mutex_);
  Run* run = Find(hello.run());
  if (run != nullptr && run->ranks.contains(hello.rank())) run->ranks[hello.rank()].write = nullptr;
}

void RunManager::Receive(const v1::TrainerHello& hello, const v1::TrainerMessage& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  Run* run = Find(hello.run());
  if (run == nullptr) return;
  Rank& rank = run->ranks[hello.rank()];
  const RankLabels labels = LabelsOf(*run, hello.rank());
  v1::AgentMessage report;
  if (message.has_phase()) {
    *report.mutable_rank_phase()->mutable_run() = hello.run();
    report.mutable_rank_phase()->set_rank(hello.rank());
    report.mutable_rank_phase()->set_phase(message.phase().phase());
    send_(std::move(report));
  } else if (message.has_step()) {
    const v1::TrainerStep& step = message.step();
    const v1::JobSpec& spec = run->start.spec();
    const int64_t before = rank.last_step > 0 ? rank.last_step : run->start.resume_step();
    const double tokens = static_cast<double>(
        (step.step() - before) * spec.training().global_batch() * spec.model().context());
    rank.last_step = step.step();
    metrics_.Step(labels, step, std::max(0.0, tokens));
    if (!step.has_record()) return;
    *report.mutable_step_report()->mutable_run() = hello.run();
    *report.mutable_step_report()->mutable_record() = step.record();
    report.mutable_step_report()->set_tokens_per_second(step.tokens_per_second());
    send_(std::move(report));
  } else if (message.has_failure()) {
    rank.failure = message.failure().message();
    rank.permanent = message.failure().permanent();
  } else if (message.has_memory()) {
    metrics_.Memory(labels, message.memory());
  } else if (message.has_checkpoint()) {
    metrics_.Checkpoint(labels, message.checkpoint());
  }
}

// Kills what has outlived its grace, and forgets runs that have ended.
void RunManager::Housekeeping() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, std::chrono::milliseconds(100));
    std::vector<std::unique_ptr<Run>> ended;
    int running = 0;
    for (auto entry = runs_.begin(); entry != runs_.end();) {
      Run& run = *entry->second;
      if (run.Ended()) {
        ended.push_back(std::move(entry->second));
        entry = runs_.erase(entry);
        continue;
      }
      for (auto& [index, rank] : run.ranks) {
        running += rank.ended ? 0 : 1;
        if (absl::Now() >= run.kill_at && rank.process != nullptr) rank.process->Signal(SIGKILL);
      }
      ++entry;
    }
    metrics_.SetRunning(running);
    lock.unlock();
    ended.clear();  // joins watcher threads, which may want the lock
    lock.lock();
  }
}

void RunManager::StopAll(absl::Duration grace) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool at_once = grace <= absl::ZeroDuration();
  for (auto& [key, run] : runs_) {
    run->kill_at = absl::Now() + grace;
    for (auto& [index, rank] : run->ranks) {
      if (rank.process != nullptr) rank.process->Signal(at_once ? SIGKILL : SIGTERM);
    }
  }
  changed_.wait(lock, [this] {
    return std::all_of(runs_.begin(), runs_.end(), [](const auto& e) { return e.second->Ended(); });
  });
}

}  // namespace tercio

#include "worker/agent/runs/run_manager.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/gpus/gpu_faults.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "worker/progress/progress_page.h"
#include "worker/progress/record_file.h"

namespace tercio::agent {
namespace {

constexpr auto kTickInterval = std::chrono::milliseconds(100);
constexpr auto kTrimInterval = std::chrono::seconds(10);
constexpr auto kSlowSlice = std::chrono::milliseconds(5);
constexpr absl::Duration kStackPatience = absl::Seconds(1);
constexpr int64_t kMostUntoldBytes = 256 << 20;
constexpr int kUnknownExit = 1;  // a fault

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void SetNow(google::protobuf::Timestamp* time) {
  const absl::Time now = absl::Now();
  time->set_seconds(absl::ToUnixSeconds(now));
  time->set_nanos(static_cast<int32_t>(absl::ToUnixNanos(now) % 1'000'000'000));
}

// Together with all files that the trainer has put beside it under its name.
void RemovePage(const std::string& path) {
  const size_t name = path.rfind('/') + 1;
  for (const std::string& file : ListDirectory(path.substr(0, name))) {
    if (file.starts_with(path.substr(name))) unlink((path.substr(0, name) + file).c_str());
  }
}

// Makes a process's output printable: protobuf strings are UTF-8, and control characters would move
// the reader's cursor.
std::string Readable(const std::string& text) { return ForDisplay(text, "\t\n"); }

LogFields FieldsOf(const RunKey& key, int rank) {
  return {{"job", key.first}, {"attempt", key.second}, {"rank", rank}};
}

std::string LogName(const RunKey& key, int rank) {
  return absl::StrCat("attempt-", key.second, "-rank-", rank, ".log");
}

// How a trainer ended: by its exit status if this process is its parent, else by the note that it
// left on its page.
TrainerEnded WhatEnded(const RunKey& key, int rank, const ProcessExit& exit,
                       const std::string& page_path) {
  TrainerEnded event{key, rank, exit.exit_code, exit.signal, {}, "", false, false};
  for (const std::string& line : exit.last_lines) event.last_lines.push_back(Readable(line));
  std::optional<progress::ExitNote> note;
  if (const auto page = progress::ProgressReader::Open(page_path); page.ok()) note = page->Exit();
  if (note.has_value()) {
    event.reason = Readable(note->reason);
    event.permanent = note->permanent;
    if (exit.adopted) {
      event.exit_code = note->exit_code;
      event.signal = 0;
    }
  } else if (exit.out_of_memory) {
    event.signal = SIGKILL;
    event.out_of_memory = true;
  } else if (exit.adopted && exit.signal == 0) {
    event.exit_code = kUnknownExit;
    event.reason = exit.away ? "ended without reporting while its agent was away (killed?)"
                             : "ended without reporting (killed?)";
  }
  return event;
}

}  // namespace

RunManager::RunManager(AgentOptions options, AgentMetrics& metrics, AgentStore& store, Say say)
    : options_(std::move(options)),
      metrics_(metrics),
      store_(store),
      say_(std::move(say)),
      preparer_({options_.node,
                 options_.state_dir + "/data-cache",
                 options_.data_cache_total,
                 options_.allowed,
                 {options_.trainer, options_.trainer_user, options_.data_memory}}),
      housekeeper_([this] { Housekeeping(); }) {}

RunManager::~RunManager() {
  if (!left_) StopAll(absl::ZeroDuration());
  preparer_.CancelAll();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  housekeeper_.join();
  trainers_.clear();
  ended_.clear();
  for (Preparation& preparation : preparations_) preparation.thread.join();
}

void RunManager::Handle(const v1::CoordinatorMessage& message) {
  MutexLock lock(mutex_);
  if (message.has_inspect_run()) return Inspect(message.inspect_run());
  if (message.has_inject_fault()) return Inject(message.inject_fault());
  if (message.has_stop_run()) preparer_.Cancel(message.stop_run().run());
  Apply({0, CoordinatorSaid{message}});
}

void RunManager::Restore() {
  MutexLock lock(mutex_);
  for (const ProcessRecord& process : store_.processes()) {
    trainers_[process.run][process.rank].received = process.received;
  }
  Apply({0, store_.restored()});
}

void RunManager::Keep(const std::vector<AgentEffect>& effects, AgentChanges changes) {
  for (const AgentEffect& effect : effects) {
    if (const auto* told = std::get_if<SendToCoordinator>(&effect)) {
      changes.messages.push_back(told->message);
    } else if (const auto* kept = std::get_if<KeepRun>(&effect)) {
      const auto run = state_.runs.find(kept->run);
      if (run != state_.runs.end()) changes.runs.push_back(*run);
    } else if (const auto* forgotten = std::get_if<ForgetRun>(&effect)) {
      for (const EndedRun& ended : state_.ended) {
        if (ended.run == forgotten->run) changes.ended.push_back(ended);
      }
    }
  }
  store_.Commit(std::move(changes));
}

void RunManager::Apply(AgentEvent event, AgentChanges changes) {
  std::vector<AgentEvent> events;
  events.push_back(std::move(event));
  while (!events.empty()) {
    AgentEvent next = std::move(events.front());
    events.erase(events.begin());
    next.now = SteadySeconds();
    std::vector<AgentEffect> effects = Step(state_, next);
    Keep(effects, std::exchange(changes, {}));
    for (AgentEffect& effect : effects) {
      std::visit([&](auto& body) TERCIO_REQUIRES(mutex_) { Do(body, events); }, effect);
    }
  }
  changed_.NotifyAll();
}

void RunManager::Do(StartTrainer& effect, std::vector<AgentEvent>& more) {
  auto process = Spawn(effect.run, effect.rank);
  if (process.ok()) {
    AgentChanges changes;
    const ProcessId& id = (*process)->id();
    changes.started.push_back(
        {effect.run, effect.rank, id.pid, id.start_time, 0, (*process)->log_start()});
    store_.Commit(std::move(changes));
    trainers_[effect.run][effect.rank].process = *std::move(process);
    return;
  }
  LogError(std::string(process.status().message()), FieldsOf(effect.run, effect.rank));
  more.push_back(
      {0, StartFailed{effect.run, effect.rank, std::string(process.status().message())}});
}

// A trainer whose process number was not kept, since the agent died while starting it, counts as
// gone. It ends itself, since it is not admitted.
void RunManager::Do(AdoptTrainer& effect, std::vector<AgentEvent>&) {
  ProcessId id;
  LogPosition log;
  for (const ProcessRecord& process : store_.processes()) {
    if (process.run != effect.run || process.rank != effect.rank) continue;
    id = {process.pid, process.start_time};
    log = process.log;
  }
  Trainer& trainer = trainers_[effect.run][effect.rank];
  trainer.steps_unknown = true;
  const auto limit = std::make_shared<LineLimit>(options_.log_rate);
  trainer.process = TrainerProcess::Adopt(id, LogPath(effect.run, effect.rank), log,
                                          LineSender(effect.run, effect.rank, limit),
                                          ExitHandler(effect.run, effect.rank, limit));
  LogInfo(absl::StrCat("adopted process ", id.pid), FieldsOf(effect.run, effect.rank));
}

void RunManager::Do(SignalTrainer& effect, std::vector<AgentEvent>&) {
  Trainer& trainer = trainers_[effect.run][effect.rank];
  if (trainer.process != nullptr) trainer.process->Signal(effect.signal);
}

void RunManager::Do(TellTrainer& effect, std::vector<AgentEvent>&) {
  Trainer& trainer = trainers_[effect.run][effect.rank];
  if (trainer.write) {
    trainer.write(effect.command);
  } else {
    trainer.waiting.push_back(effect.command);  // not connected yet, or no longer
  }
}

// In a thread of its own: tokenising a large text takes long, and heartbeats must not wait.
void RunManager::Do(ReadData& effect, std::vector<AgentEvent>&) {
  if (!preparer_.Begin(effect.request.run())) return;
  Preparation& preparation = preparations_.emplace_back();
  preparation.thread = std::thread([this, &preparation, request = effect.request] {
    AgentChanges changes;
    if (auto answer = preparer_.Prepare(request)) changes.messages.push_back(*std::move(answer));
    store_.Commit(std::move(changes));
    MutexLock lock(mutex_);
    preparation.done = true;
  });
}

void RunManager::Do(ForgetRun& effect, std::vector<AgentEvent>&) {
  const auto found = trainers_.find(effect.run);
  if (found == trainers_.end()) return;
  for (const auto& [rank, trainer] : found->second) RemovePage(PagePath(effect.run, rank));
  watch_.Forget(effect.run);
  ended_.push_back(std::move(found->second));
  trainers_.erase(found);
}

void RunManager::Inspect(const v1::InspectRun& request) {
  const RunKey key = ToRunKey(request.run());
  std::vector<InspectedRank> ranks;
  if (const auto run = state_.runs.find(key); run != state_.runs.end()) {
    const Trainers& trainers = trainers_[key];
    for (const auto& [index, rank] : run->second.ranks) {
      const auto trainer = trainers.find(index);
      const bool live = rank.life == RankState::Life::kLive && trainer != trainers.end() &&
                        trainer->second.process != nullptr;
      ranks.push_back({index, live ? trainer->second.process->id().pid : 0, PagePath(key, index)});
    }
  }
  Preparation& preparation = preparations_.emplace_back();
  preparation.thread = std::thread([this, &preparation, ranks, run = request.run()] {
    v1::AgentMessage answer;
    *answer.mutable_inspected()->mutable_run() = run;
    for (v1::RankPosition& position : InspectRanks(ranks, kStackPatience)) {
      *answer.mutable_inspected()->add_ranks() = std::move(position);
    }
    say_(std::move(answer));
    MutexLock lock(mutex_);
    preparation.done = true;
  });
}

// Drills. Faults of the agent itself or of its connection are injected by their owners.
void RunManager::Inject(const v1::InjectFault& fault) {
  const RunKey key = ToRunKey(fault.run());
  absl::Status status;
  TrainerProcess* process = nullptr;
  WriteCommand write;
  if (const auto run = trainers_.find(key); run != trainers_.end()) {
    const auto trainer = run->second.find(fault.rank());
    if (trainer != run->second.end()) {
      process = trainer->second.process.get();
      write = trainer->second.write;
    }
  }
  if (process == nullptr) {
    status =
        absl::NotFoundError(absl::StrCat("rank ", fault.rank(), " is not running on this node"));
  } else if (fault.fault() == "kill-trainer") {
    process->Signal(SIGKILL);
  } else if (fault.fault() == "freeze-trainer") {
    process->Signal(SIGSTOP);
  } else if (fault.fault() == "flip-bit" && write) {
    v1::TrainerCommand command;
    command.mutable_flip_bit();
    write(command);
  } else if (fault.fault() == "flip-bit") {
    status = absl::UnavailableError(
        absl::StrCat("rank ", fault.rank(), " is not connected to its agent"));
  } else if (fault.fault() == "slow-rank") {
    slow_.push_back({key, fault.rank(), SteadySeconds() + fault.seconds(), false});
  } else {
    status = absl::UnimplementedError(
        absl::StrCat("this agent does not support the fault ", fault.fault()));
  }
  AgentChanges changes;
  v1::FaultInjected* done = changes.messages.emplace_back().mutable_fault_injected();
  done->set_drill_id(fault.drill_id());
  *done->mutable_run() = fault.run();
  done->set_error(std::string(status.message()));
  store_.Commit(std::move(changes));
}

// A slow rank is stopped during every second slice: slices are short, so that every step has its
// share.
void RunManager::SlowDown() {
  const double now = SteadySeconds();
  for (auto slow = slow_.begin(); slow != slow_.end();) {
    const bool over = now >= slow->until;
    slow->stopped = !over && !slow->stopped;
    const auto run = trainers_.find(slow->run);
    if (run != trainers_.end()) {
      const auto trainer = run->second.find(slow->rank);
      if (trainer != run->second.end() && trainer->second.process != nullptr) {
        trainer->second.process->Signal(slow->stopped ? SIGSTOP : SIGCONT);
      }
    }
    slow = over ? slow_.erase(slow) : std::next(slow);
  }
}

v1::AgentHeartbeat RunManager::Heartbeat() {
  std::vector<std::optional<double>> utilization;
  if (options_.gpu_utilization) utilization = options_.gpu_utilization();
  MutexLock lock(mutex_);
  v1::AgentHeartbeat heartbeat;
  for (const v1::RunId& run : RunsOf(state_, EndedRuns::kLeaveOut)) {
    *heartbeat.add_running() = run;
    v1::RunHealth* health = heartbeat.add_health();
    *health = watch_.Take(ToRunKey(run));
    AddFigures(ToRunKey(run), utilization, health);
  }
  return heartbeat;
}

// Adds figures of ranks that have completed a step since the last heartbeat.
void RunManager::AddFigures(const RunKey& key,
                            const std::vector<std::optional<double>>& utilization,
                            v1::RunHealth* health) {
  for (const auto& [index, rank] : state_.runs.at(key).ranks) {
    Trainer& trainer = trainers_[key][index];
    const int64_t step = rank.figures.step();
    if (rank.life != RankState::Life::kLive || step <= trainer.figures_told) continue;
    trainer.figures_told = step;
    const int gpu = GpuOf(key, index);
    if (gpu >= 0 && static_cast<size_t>(gpu) < utilization.size()) {
      if (const auto sample = utilization[static_cast<size_t>(gpu)]; sample.has_value()) {
        trainer.utilization_sum += *sample;
        ++trainer.utilization_samples;
      }
    }
    v1::RankFigures* figures = health->add_figures();
    *figures = rank.figures;
    if (const auto mean = trainer.Utilization(); mean.has_value()) {
      figures->set_device_utilization(*mean);
    }
  }
}

int RunManager::GpuOf(const RunKey& key, int rank) const {
  const auto run = state_.runs.find(key);
  if (options_.gpus.list.empty() || run == state_.runs.end()) return -1;
  const auto found = run->second.ranks.find(rank);
  if (found == run->second.ranks.end()) return -1;
  // Slots beyond the number of GPUs share them.
  return found->second.plan.placement().device() % static_cast<int>(options_.gpus.list.size());
}

std::set<int> RunManager::GpusInUse() const {
  MutexLock lock(mutex_);
  std::set<int> gpus;
  for (const auto& [key, run] : state_.runs) {
    for (const auto& [index, rank] : run.ranks) {
      if (rank.life == RankState::Life::kLive) gpus.insert(GpuOf(key, index));
    }
  }
  return gpus;
}

absl::StatusOr<std::unique_ptr<TrainerProcess>> RunManager::Spawn(const RunKey& key, int rank) {
  const std::string logs = absl::StrCat(options_.log_dir, "/", key.first);
  TERCIO_RETURN_IF_ERROR(MakeDirectories(logs));
  TrainerProcess::Options options;
  options.user = options_.trainer_user;
  // Trainers create their next log file themselves.
  if (options.user.has_value()) TERCIO_RETURN_IF_ERROR(GiveTo(*options.user, logs));
  options.program = options_.trainer;
  options.arguments = {"tercio-trainer",
                       "--rank",
                       absl::StrCat(rank),
                       "--job",
                       key.first,
                       "--attempt",
                       absl::StrCat(key.second),
                       "--socket",
                       options_.socket,
                       "--log",
                       LogPath(key, rank),
                       "--progress",
                       PagePath(key, rank),
                       "--log-bytes",
                       absl::StrCat(options_.log_bytes)};
  options.environment = options_.trainer_environment;
  options.token = state_.runs.at(key).start.token();
  // By its UUID: numbers change when the driver loses a GPU. The trainer sees no other GPU.
  if (const int gpu = GpuOf(key, rank); gpu >= 0) {
    options.environment.push_back(
        absl::StrCat("CUDA_VISIBLE_DEVICES=", options_.gpus.list[static_cast<size_t>(gpu)].uuid));
  }
  options.log_path = LogPath(key, rank);
  const auto limit = std::make_shared<LineLimit>(options_.log_rate);
  return TrainerProcess::Start(options, LineSender(key, rank, limit),
                               ExitHandler(key, rank, limit));
}

std::string RunManager::LogPath(const RunKey& key, int rank) const {
  return absl::StrCat(options_.log_dir, "/", key.first, "/", LogName(key, rank));
}

std::string RunManager::PagePath(const RunKey& key, int rank) const {
  return absl::StrCat(options_.runtime_dir, "/", key.first, "-", key.second, "-", rank, ".page");
}

TrainerProcess::OnLines RunManager::LineSender(const RunKey& key, int rank, SharedLimit limit) {
  return [this, key, rank, limit = std::move(limit)](const std::vector<std::string>& lines,
                                                     const LogPosition& position) {
    const LineLimit::Passed passed = limit->Pass(SteadySeconds(), lines);
    // The position in the log is stored with the next lines that are sent.
    if (!passed.lines.empty() || passed.left_out_before > 0) SendLines(key, rank, passed, position);
  };
}

TrainerProcess::OnExit RunManager::ExitHandler(const RunKey& key, int rank, SharedLimit limit) {
  return [this, key, rank, limit = std::move(limit)](const ProcessExit& exit) {
    const int64_t left_out = limit->TakeLeftOut();
    if (left_out > 0) {
      AgentChanges changes;
      *changes.messages.emplace_back().mutable_logs() = MakeLogs(key, rank, left_out, {});
      store_.Commit(std::move(changes));
    }
    TrainerEnded event = WhatEnded(key, rank, exit, PagePath(key, rank));
    if (event.signal != 0 || event.exit_code != 0) ExplainByGpu(&event);
    MutexLock lock(mutex_);
    if (exit.adopted) ReceiveUntold(key, rank);
    event.device_utilization = trainers_[key][rank].Utilization();
    if (left_out > 0) metrics_.LogLinesLost(LabelsOf(key, rank), left_out);
    const bool good = event.signal == 0 && event.exit_code == 0;
    metrics_.Exited(LabelsOf(key, rank), good ? RankEnd::kGood : RankEnd::kFault);
    Apply({0, std::move(event)});
  };
}

// Asks the driver what it has seen of the rank's GPU, outside the lock: it may take a while.
void RunManager::ExplainByGpu(TrainerEnded* event) const {
  int gpu = -1;
  {
    MutexLock lock(mutex_);
    gpu = GpuOf(event->run, event->rank);
    if (gpu < 0 || !options_.gpu_trouble || state_.runs.at(event->run).stopping) return;
  }
  const GpuMonitor::Trouble trouble = options_.gpu_trouble(gpu);
  const std::string error(DeviceErrorIn(event->reason));
  if (trouble.text.empty() && error.empty()) return;
  const Gpu& facts = options_.gpus.list[static_cast<size_t>(gpu)];
  event->gpu_note = absl::StrCat("GPU ", facts.index, " (", facts.uuid, "): ", error,
                                 error.empty() || trouble.text.empty() ? "" : ", ", trouble.text);
  event->gpu_failed = trouble.of_device || !error.empty();
}

RankLabels RunManager::LabelsOf(const RunKey& key, int rank) const {
  const RunState& run = state_.runs.at(key);
  const v1::RankPlacement& place = run.ranks.at(rank).plan.placement();
  return {key.first,
          run.start.spec().name(),
          rank,
          place.tensor_index(),
          place.pipeline_index(),
          place.data_index(),
          place.device()};
}

// Puts a marker in place of the lines that were dropped.
v1::RankLogs RunManager::MakeLogs(const RunKey& key, int rank, int64_t left_out,
                                  const std::vector<std::string>& lines) const {
  v1::RankLogs logs;
  *logs.mutable_run() = ToRunId(key);
  logs.set_lost(left_out);
  std::vector<std::string> all;
  if (left_out > 0) {
    std::string marker = FormatLogLine(
        LogFormat::kLogfmt,
        {absl::Now(), LogLevel::kWarning, "agent",
         absl::StrCat(left_out, " lines were dropped here: more than ", options_.log_rate,
                      " per second (--log-rate); the newest of them are in ", LogPath(key, rank))},
        {}, FieldsOf(key, rank));
    marker.pop_back();
    all.push_back(std::move(marker));
  }
  all.insert(all.end(), lines.begin(), lines.end());
  for (const std::string& line : all) {
    v1::LogLine* log = logs.add_lines();
    SetNow(log->mutable_time());
    log->set_attempt(key.second);
    log->set_rank(rank);
    log->set_node(options_.node);
    log->set_line(Readable(line));
    if (const auto level = LevelOfLogLine(line); level.has_value()) {
      log->set_level(std::string(NameOf(*level)));
    }
  }
  return logs;
}

void RunManager::SendLines(const RunKey& key, int rank, const LineLimit::Passed& passed,
                           const LogPosition& position) {
  AgentChanges changes;
  *changes.messages.emplace_back().mutable_logs() =
      MakeLogs(key, rank, passed.left_out_before, passed.lines);
  // In the same commit as the lines: they are taken once, even if this process dies.
  changes.logs.push_back({{key, rank}, position});
  store_.Commit(std::move(changes));
  if (passed.left_out_before == 0) return;
  MutexLock lock(mutex_);
  if (state_.runs.contains(key)) {
    metrics_.LogLinesLost(LabelsOf(key, rank), passed.left_out_before);
  }
}

// Reports lines that the rank itself could not write.
void RunManager::TellLost(const RunKey& key, int64_t lines) {
  AgentChanges changes;
  v1::RankLogs* logs = changes.messages.emplace_back().mutable_logs();
  *logs->mutable_run() = ToRunId(key);
  logs->set_lost(lines);
  store_.Commit(std::move(changes));
}

// Returns whether any log was removed. `live`: JOB/FILE of the logs that are being written.
bool RunManager::TrimAllLogs(const std::set<std::string>& live) const {
  bool any = false;
  const std::vector<std::string> jobs = ListDirectory(options_.log_dir);
  for (const std::string& job : jobs) {
    const int removed = TrimLogs(options_.log_dir, {job}, options_.log_quota, live);
    if (removed == 0) continue;
    any = true;
    LogInfo(absl::StrCat("removed ", removed, " old logs: the job's logs exceeded --log-quota"),
            {{"job", job}});
  }
  const int removed = TrimLogs(options_.log_dir, jobs, options_.log_total, live);
  if (removed == 0) return any;
  LogInfo(absl::StrCat("removed the ", removed,
                       " oldest logs of all jobs, which exceeded --log-total"));
  return true;
}

// Called under the lock: otherwise a run might just have made its folder.
void RunManager::RemoveEmptyLogFolders() const {
  for (const std::string& job : ListDirectory(options_.log_dir)) {
    rmdir(absl::StrCat(options_.log_dir, "/", job).c_str());  // folders that are not empty stay
  }
}

std::vector<v1::RunId> RunManager::Running(EndedRuns ended) const {
  MutexLock lock(mutex_);
  return RunsOf(state_, ended);
}

int RunManager::highest_attempt() const {
  MutexLock lock(mutex_);
  return state_.highest_attempt;
}

bool RunManager::TakesPart(const v1::RunId& run, const std::string& token) const {
  MutexLock lock(mutex_);
  const auto found = state_.runs.find(ToRunKey(run));
  return found != state_.runs.end() && !token.empty() && found->second.start.token() == token;
}

RunManager::Trainer* RunManager::FindTrainer(const v1::TrainerHello& hello) {
  const auto run = trainers_.find(ToRunKey(hello.run()));
  if (run == trainers_.end()) return nullptr;
  const auto trainer = run->second.find(hello.rank());
  return trainer == run->second.end() ? nullptr : &trainer->second;
}

absl::StatusOr<RunManager::Attachment> RunManager::Attach(const v1::TrainerHello& hello,
                                                          WriteCommand write) {
  MutexLock lock(mutex_);
  const RunKey key = ToRunKey(hello.run());
  Trainer* trainer = FindTrainer(hello);
  const auto run = state_.runs.find(key);
  if (trainer == nullptr || run == state_.runs.end() ||
      run->second.ranks.at(hello.rank()).life != RankState::Life::kLive ||
      trainer->process == nullptr || trainer->process->id().pid != hello.pid() ||
      hello.token() != run->second.start.token()) {
    return absl::PermissionDeniedError(
        "there is no such rank on this node, or its process is a different one, or the token is "
        "not that of its attempt");
  }
  trainer->write = std::move(write);
  trainer->attachment = ++attachments_;
  const v1::StartRun& start = run->second.start;
  const v1::RankPlan& plan = run->second.ranks.at(hello.rank()).plan;
  const v1::Layout& layout = plan.layout();
  Attachment attachment;
  attachment.received = trainer->received;
  attachment.waiting = std::exchange(trainer->waiting, {});
  attachment.id = trainer->attachment;
  v1::TrainerAssignment& assignment = attachment.assignment;
  *assignment.mutable_spec() = start.spec();
  *assignment.mutable_plan() = plan;
  // The part of the plan that the ranks of a stage share is sent to a node once.
  const auto stage = start.stages().find(plan.placement().pipeline_index());
  if (stage != start.stages().end()) *assignment.mutable_plan()->mutable_stage() = stage->second;
  assignment.set_world_size(layout.tensor() * layout.pipeline() * layout.data());
  assignment.set_resume_step(start.resume_step());
  assignment.set_checkpoint_address(options_.coordinator);
  assignment.set_data_address(options_.data_address);
  assignment.set_data_cache_dir(options_.state_dir + "/data-cache");
  assignment.set_agent_grace_seconds(options_.agent_grace_seconds);
  assignment.set_threads(plan.threads());
  assignment.set_resume_manifest_digest(start.resume_manifest_digest());
  AssignSnapshots(start, hello.rank(), &assignment);
  return attachment;
}

// This node's own agent is reached by its socket; the coordinator gives it no address.
void RunManager::AssignSnapshots(const v1::StartRun& start, int rank,
                                 v1::TrainerAssignment* out) const {
  const std::string own = "unix:" + options_.socket;
  if (start.spec().checkpoint().peer_copies() > 0) {
    out->add_snapshot_holders(own);
    for (const std::string& peer : start.snapshot_peers()) out->add_snapshot_holders(peer);
  }
  const auto source = start.snapshot_sources().find(rank);
  if (source == start.snapshot_sources().end()) return;
  out->set_snapshot_source(source->second.empty() ? own : source->second);
  out->set_resume_attempt(start.resume_attempt());
}

void RunManager::Detach(const v1::TrainerHello& hello, uint64_t attachment) {
  MutexLock lock(mutex_);
  Trainer* trainer = FindTrainer(hello);
  if (trainer != nullptr && trainer->attachment == attachment) trainer->write = nullptr;
}

void RunManager::Receive(const v1::TrainerHello& hello, const v1::TrainerMessage& message) {
  MutexLock lock(mutex_);
  const RunKey key = ToRunKey(hello.run());
  Trainer* trainer = FindTrainer(hello);
  if (trainer == nullptr || !state_.runs.contains(key)) return;
  AgentChanges changes;
  if (message.sequence() > 0) {
    if (message.sequence() <= trainer->received) return;
    trainer->received = message.sequence();
    // Receiving an unkept message twice does no harm.
    const bool kept = message.has_phase() || message.has_trace() || message.has_products_chosen() ||
                      message.step().has_record();
    if (kept) changes.received.push_back({{key, hello.rank()}, message.sequence()});
  }
  Measure(key, hello.rank(), message);
  Apply({0, TrainerSaid{key, hello.rank(), message}}, std::move(changes));
}

// Reads the messages that a trainer sent while no agent was there, and that it did not deliver
// itself.
void RunManager::ReceiveUntold(const RunKey& key, int rank) {
  uint64_t& received = trainers_[key][rank].received;
  for (const std::string& bytes :
       progress::RecordFile::Read(PagePath(key, rank) + ".untold", kMostUntoldBytes)) {
    v1::TrainerMessage message;
    if (!message.ParseFromString(bytes) || message.sequence() <= received) continue;
    received = message.sequence();
    Apply({0, TrainerSaid{key, rank, message}});
  }
}

void RunManager::Measure(const RunKey& key, int rank, const v1::TrainerMessage& message) {
  const RunState& run = state_.runs.at(key);
  // A message after its end would bring its series back for ever.
  if (run.ranks.at(rank).life == RankState::Life::kEnded) return;
  const RankLabels labels = LabelsOf(key, rank);
  if (message.has_step()) {
    const v1::JobSpec& spec = run.start.spec();
    // Steps before an adoption were counted by another agent, or are not known.
    const bool unknown = std::exchange(trainers_[key][rank].steps_unknown, false);
    const int64_t steps =
        unknown ? 0 : std::max<int64_t>(0, message.step().step() - run.ranks.at(rank).last_step);
    metrics_.Step(labels, message.step(), steps,
                  steps * spec.training().global_batch() * spec.model().context());
  } else if (message.has_last_figures()) {
    metrics_.Figures(labels, message.last_figures());
  } else if (message.has_memory()) {
    metrics_.Memory(labels, message.memory());
    int64_t& lost = trainers_[key][rank].log_lines_lost;
    const int64_t more = message.memory().log_lines_lost() - lost;
    if (more <= 0) return;
    lost += more;
    metrics_.LogLinesLost(labels, more);
    TellLost(key, more);
  } else if (message.has_checkpoint()) {
    metrics_.Checkpoint(labels, message.checkpoint());
  } else if (message.has_phase()) {
    MeasureLoading(key, rank, message.phase().phase());
  }
}

void RunManager::MeasureLoading(const RunKey& key, int rank, v1::TrainerPhase phase) {
  Trainer& trainer = trainers_[key][rank];
  if (phase == v1::TRAINER_PHASE_LOADING) {
    trainer.loading_since = SteadySeconds();
  } else if (trainer.loading_since > 0) {
    const bool memory = state_.runs.at(key).start.snapshot_sources().contains(rank);
    metrics_.Loaded(LabelsOf(key, rank), memory ? "memory" : "disk",
                    SteadySeconds() - std::exchange(trainer.loading_since, 0));
  }
}

// Advances the core's time, and joins the threads of runs that have ended.
void RunManager::Housekeeping() {
  MutexLock lock(mutex_);
  auto tick = std::chrono::steady_clock::now();
  auto next_trim = tick;
  while (!stopping_) {
    ++rounds_;
    changed_.WaitFor(mutex_, slow_.empty() ? kTickInterval : kSlowSlice,
                     [this]() TERCIO_REQUIRES(mutex_) { return stopping_ || !ended_.empty(); });
    SlowDown();
    if (!slow_.empty() && ended_.empty() && std::chrono::steady_clock::now() < tick) continue;
    tick = std::chrono::steady_clock::now() + kTickInterval;
    Apply({0, TimePassed{}});
    int running = 0;
    std::set<std::string> live;  // logs
    for (const auto& [key, run] : state_.runs) {
      for (const auto& [index, rank] : run.ranks) {
        if (rank.life != RankState::Life::kLive) continue;
        ++running;
        live.insert(absl::StrCat(key.first, "/", LogName(key, index)));
        watch_.Sample(key, index, PagePath(key, index));
      }
    }
    metrics_.SetRunning(running);
    const bool trims = tick >= next_trim;
    if (trims) next_trim = tick + kTrimInterval;
    std::vector<Trainers> ended = std::exchange(ended_, {});
    std::list<Preparation> prepared;
    for (auto entry = preparations_.begin(); entry != preparations_.end();) {
      const auto next = std::next(entry);
      if (entry->done) prepared.splice(prepared.end(), preparations_, entry);
      entry = next;
    }
    lock.Unlock();
    const bool removed = trims && TrimAllLogs(live);
    if (trims) preparer_.Trim(SteadySeconds());
    ended.clear();  // joins watcher threads, which may want the lock
    for (Preparation& preparation : prepared) preparation.thread.join();
    lock.Lock();
    if (removed) RemoveEmptyLogFolders();
  }
}

void RunManager::StopAccepting() {
  MutexLock lock(mutex_);
  Apply({0, Leaving{}});
}

void RunManager::WaitForEnds(absl::Duration patience, const std::function<bool()>& give_up) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(patience);
  MutexLock lock(mutex_);
  while (!state_.runs.empty() && std::chrono::steady_clock::now() < deadline && !give_up()) {
    changed_.WaitFor(mutex_, kTickInterval);
  }
}

void RunManager::StopAll(absl::Duration grace) {
  preparer_.CancelAll();
  MutexLock lock(mutex_);
  Apply({0, ShutDown{absl::ToDoubleSeconds(grace)}});
  while (!state_.runs.empty()) changed_.Wait(mutex_);
}

void RunManager::Leave() {
  MutexLock lock(mutex_);
  left_ = true;
  preparer_.CancelAll();
  Apply({0, Leaving{}});
  for (auto& [key, trainers] : trainers_) {
    for (auto& [rank, trainer] : trainers) {
      if (trainer.process != nullptr) trainer.process->Release();
    }
  }
}

}  // namespace tercio::agent

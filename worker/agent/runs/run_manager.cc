#include "worker/agent/runs/run_manager.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/gpus/gpu_faults.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "worker/progress/progress_page.h"
#include "worker/progress/record_file.h"

namespace tercio::agent {
namespace {

constexpr auto kTickInterval = std::chrono::milliseconds(100);
constexpr auto kTrimInterval = std::chrono::seconds(10);
constexpr auto kSlowSlice = std::chrono::milliseconds(5);
constexpr absl::Duration kStackPatience = absl::Seconds(1);
// The file is the trainer's, which may write anything into it.
constexpr int64_t kMostUntoldBytes = 256 << 20;
constexpr int kUnknownExit = 1;  // a fault

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Together with all files that the trainer has put beside it under its name.
void RemovePage(const std::string& path) {
  const size_t name = path.rfind('/') + 1;
  for (const std::string& file : ListDirectory(path.substr(0, name))) {
    if (file.starts_with(path.substr(name))) unlink((path.substr(0, name) + file).c_str());
  }
}

// How a trainer ended: by its exit status if this process is its parent, else by the note that it
// left on its page.
TrainerEnded WhatEnded(const RunKey& key, int rank, const ProcessExit& exit,
                       const std::string& page_path) {
  TrainerEnded event{key, rank, exit.exit_code, exit.signal, {}, "", false, false};
  event.last_lines = RankLogs::Readable(exit.last_lines);
  std::optional<progress::ExitNote> note;
  if (const auto page = progress::ProgressReader::Open(page_path); page.ok()) note = page->Exit();
  if (note.has_value()) {
    event.reason = RankLogs::Readable(note->reason);
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
      logs_({options_.node, options_.log_dir, options_.log_quota, options_.log_total,
             options_.log_rate, options_.trainer_user},
            store,
            [this](const RunKey& key, int rank, int64_t lines) {
              MutexLock lock(mutex_);
              const auto run = state_.runs.find(key);
              if (run != state_.runs.end()) figures_.CountLostLines(key, run->second, rank, lines);
            }),
      preparer_({options_.node,
                 options_.state_dir + "/data-cache",
                 options_.data_cache_total,
                 options_.allowed,
                 {options_.trainer, options_.trainer_user, options_.data_memory}}),
      state_({.scratch_total = options_.scratch_total}),
      figures_(metrics),
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
    // What is decided is stored before it has an effect: the next agent starts from it.
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
  LogError(std::string(process.status().message()), RankFields(effect.run, effect.rank));
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
  figures_.Adopt(effect.run, effect.rank);
  const LogStream stream = logs_.OpenStream(effect.run, effect.rank);
  trainers_[effect.run][effect.rank].process =
      TrainerProcess::Adopt(id, logs_.PathOf(effect.run, effect.rank), log, LineSender(stream),
                            ExitHandler(effect.run, effect.rank, stream));
  LogInfo(absl::StrCat("adopted process ", id.pid), RankFields(effect.run, effect.rank));
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
  watch_.Forget(effect.run);
  figures_.Forget(effect.run);
  const auto found = trainers_.find(effect.run);
  if (found == trainers_.end()) return;
  for (const auto& [rank, trainer] : found->second) RemovePage(PagePath(effect.run, rank));
  // Their watchers may be waiting for the lock, so housekeeping joins them without it.
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
  // A thread of its own, since stacks are waited for and the lock is held here.
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

void RunManager::Inject(const v1::InjectFault& fault) {
  const RunKey key = ToRunKey(fault.run());
  Drills::Target target;
  const Trainer* trainer = FindTrainer(key, fault.rank());
  if (trainer != nullptr && trainer->process != nullptr) {
    target.signal = [process = trainer->process.get()](int signal) { process->Signal(signal); };
    target.write = trainer->write;
  }
  const absl::Status status = drills_.Inject(fault, target, SteadySeconds());
  AgentChanges changes;
  v1::FaultInjected* done = changes.messages.emplace_back().mutable_fault_injected();
  done->set_drill_id(fault.drill_id());
  *done->mutable_run() = fault.run();
  done->set_error(std::string(status.message()));
  store_.Commit(std::move(changes));
}

void RunManager::SlowDown() {
  for (const Drills::Pulse& pulse : drills_.Pulses(SteadySeconds())) {
    const Trainer* trainer = FindTrainer(pulse.run, pulse.rank);
    if (trainer != nullptr && trainer->process != nullptr) trainer->process->Signal(pulse.signal);
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
    figures_.AddTo(ToRunKey(run), state_.runs.at(ToRunKey(run)),
                   UtilizationOfRanks(ToRunKey(run), utilization), health);
  }
  return heartbeat;
}

// The utilization of the GPU of each of the run's ranks, where it is known.
std::map<int, double> RunManager::UtilizationOfRanks(
    const RunKey& key, const std::vector<std::optional<double>>& utilization) const {
  std::map<int, double> of_ranks;
  for (const auto& [index, rank] : state_.runs.at(key).ranks) {
    const int gpu = GpuOf(key, index);
    if (gpu < 0 || static_cast<size_t>(gpu) >= utilization.size()) continue;
    const std::optional<double> sample = utilization[static_cast<size_t>(gpu)];
    if (sample.has_value()) of_ranks[index] = *sample;
  }
  return of_ranks;
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
  TERCIO_RETURN_IF_ERROR(logs_.MakeFolder(key.first));
  TrainerProcess::Options options;
  options.user = options_.trainer_user;
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
                       logs_.PathOf(key, rank),
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
  options.log_path = logs_.PathOf(key, rank);
  const LogStream stream = logs_.OpenStream(key, rank);
  return TrainerProcess::Start(options, LineSender(stream), ExitHandler(key, rank, stream));
}

std::string RunManager::PagePath(const RunKey& key, int rank) const {
  return absl::StrCat(options_.runtime_dir, "/", key.first, "-", key.second, "-", rank, ".page");
}

TrainerProcess::OnLines RunManager::LineSender(LogStream stream) {
  return
      [stream = std::move(stream)](const std::vector<std::string>& lines,
                                   const LogPosition& position) { stream->Send(lines, position); };
}

TrainerProcess::OnExit RunManager::ExitHandler(const RunKey& key, int rank, LogStream stream) {
  return [this, key, rank, stream = std::move(stream)](const ProcessExit& exit) {
    stream->Finish();
    TrainerEnded event = WhatEnded(key, rank, exit, PagePath(key, rank));
    const bool fault = event.signal != 0 || event.exit_code != 0;
    if (fault) ExplainByGpu(&event);
    MutexLock lock(mutex_);
    // These messages were sent before the end, and must arrive before it.
    if (exit.adopted) ReceiveUntold(key, rank);
    event.device_utilization = figures_.Utilization(key, rank);
    figures_.CountExit(key, state_.runs.at(key), rank, fault ? RankEnd::kFault : RankEnd::kGood);
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
  // An empty token proves nothing, even if the run has none.
  return found != state_.runs.end() && !token.empty() && found->second.start.token() == token;
}

RunManager::Trainer* RunManager::FindTrainer(const RunKey& key, int rank) {
  const auto run = trainers_.find(key);
  if (run == trainers_.end()) return nullptr;
  const auto trainer = run->second.find(rank);
  return trainer == run->second.end() ? nullptr : &trainer->second;
}

absl::StatusOr<RunManager::Attachment> RunManager::Attach(const v1::TrainerHello& hello,
                                                          WriteCommand write) {
  MutexLock lock(mutex_);
  const RunKey key = ToRunKey(hello.run());
  Trainer* trainer = FindTrainer(key, hello.rank());
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
  // A trainer may connect again before its old stream is known to have ended (Detach).
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
  assignment.set_scratch_directory(options_.scratch_dir);
  assignment.set_agent_grace_seconds(options_.agent_grace_seconds);
  assignment.set_threads(plan.threads());
  assignment.set_resume_manifest_digest(start.resume_manifest_digest());
  assignment.set_resume_numerics(start.resume_numerics());
  if (start.has_resume_state_digest()) {
    assignment.set_resume_state_digest(start.resume_state_digest());
  }
  if (start.has_best()) *assignment.mutable_best() = start.best();
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
  Trainer* trainer = FindTrainer(ToRunKey(hello.run()), hello.rank());
  if (trainer != nullptr && trainer->attachment == attachment) trainer->write = nullptr;
}

void RunManager::Receive(const v1::TrainerHello& hello, const v1::TrainerMessage& message) {
  MutexLock lock(mutex_);
  const RunKey key = ToRunKey(hello.run());
  Trainer* trainer = FindTrainer(key, hello.rank());
  const auto run = state_.runs.find(key);
  // The run may have ended while the message was on its way.
  if (trainer == nullptr || run == state_.runs.end()) return;
  AgentChanges changes;
  if (message.sequence() > 0) {
    // After a lost connection trainers send again what was not acknowledged.
    if (message.sequence() <= trainer->received) return;
    trainer->received = message.sequence();
    // Receiving an unkept message twice does no harm.
    const bool kept = message.has_phase() || message.has_trace() || message.has_products_chosen() ||
                      message.has_test() || message.step().has_record();
    if (kept) changes.received.push_back({{key, hello.rank()}, message.sequence()});
  }
  const int64_t lost = figures_.Take(key, run->second, hello.rank(), message, SteadySeconds());
  if (lost > 0) logs_.ReportUnwritten(key, lost);
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

// Advances the core's time, and joins the threads of runs that have ended.
void RunManager::Housekeeping() {
  MutexLock lock(mutex_);
  auto tick = std::chrono::steady_clock::now();
  auto next_trim = tick;
  while (!stopping_) {
    ++rounds_;
    changed_.WaitFor(mutex_, drills_.SlowsDown() ? kSlowSlice : kTickInterval,
                     [this]() TERCIO_REQUIRES(mutex_) { return stopping_ || !ended_.empty(); });
    SlowDown();
    if (drills_.SlowsDown() && ended_.empty() && std::chrono::steady_clock::now() < tick) continue;
    tick = std::chrono::steady_clock::now() + kTickInterval;
    Apply({0, TimePassed{}});
    int running = 0;
    std::set<std::string> live;  // logs
    for (const auto& [key, run] : state_.runs) {
      for (const auto& [index, rank] : run.ranks) {
        if (rank.life != RankState::Life::kLive) continue;
        ++running;
        live.insert(RankLogs::NameOf(key, index));
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
    const bool removed = trims && logs_.Trim(live);
    if (trims) preparer_.Trim(SteadySeconds());
    ended.clear();  // joins watcher threads, which may want the lock
    for (Preparation& preparation : prepared) preparation.thread.join();
    lock.Lock();
    // Under the lock: otherwise a run might just have made its folder.
    if (removed) logs_.RemoveEmptyFolders();
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
  // This ends, since housekeeping lets time pass, and the core then kills what is left.
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

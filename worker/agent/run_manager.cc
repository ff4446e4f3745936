#include "worker/agent/run_manager.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "checkpoint/weight_source.h"
#include "common/file.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "worker/data/prepared_data.h"

namespace tercio {
namespace {

constexpr auto kTickInterval = std::chrono::milliseconds(100);
constexpr absl::Duration kStackPatience = absl::Seconds(1);

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void SetNow(google::protobuf::Timestamp* time) {
  const absl::Time now = absl::Now();
  time->set_seconds(absl::ToUnixSeconds(now));
  time->set_nanos(static_cast<int32_t>(absl::ToUnixNanos(now) % 1'000'000'000));
}

// Bytes that are not ASCII must not stop a message: protobuf strings are UTF-8.
std::string Printable(const std::string& line) {
  std::string text = line;
  for (char& c : text) c = static_cast<unsigned char>(c) < 128 ? c : '?';
  return text;
}

}  // namespace

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
  ended_.clear();
  for (Preparation& preparation : preparations_) preparation.thread.join();
}

void RunManager::Handle(const v1::CoordinatorMessage& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (message.has_inspect_run()) return Inspect(message.inspect_run());
  Apply({0, CoordinatorSaid{message}});
}

void RunManager::Apply(AgentEvent event) {
  std::vector<AgentEvent> events;
  events.push_back(std::move(event));
  while (!events.empty()) {
    AgentEvent next = std::move(events.front());
    events.erase(events.begin());
    next.now = SteadySeconds();
    for (AgentEffect& effect : Step(state_, next)) {
      std::visit([&](auto& body) { Do(body, events); }, effect);
    }
  }
  changed_.notify_all();
}

void RunManager::Do(StartTrainer& effect, std::vector<AgentEvent>& more) {
  auto process = Spawn(effect.run, effect.rank);
  if (process.ok()) {
    trainers_[effect.run][effect.rank].process = *std::move(process);
    return;
  }
  LogError(std::string(process.status().message()));
  more.push_back(
      {0, StartFailed{effect.run, effect.rank, std::string(process.status().message())}});
}

void RunManager::Do(SignalTrainer& effect, std::vector<AgentEvent>&) {
  Trainer& trainer = trainers_[effect.run][effect.rank];
  if (trainer.process != nullptr) trainer.process->Signal(effect.signal);
}

void RunManager::Do(TellTrainer& effect, std::vector<AgentEvent>&) {
  Trainer& trainer = trainers_[effect.run][effect.rank];
  if (trainer.write) trainer.write(effect.command);
}

void RunManager::Do(TellCoordinator& effect, std::vector<AgentEvent>&) {
  send_(std::move(effect.message));
}

// In a thread of its own: tokenising a large text takes long, and heartbeats must go on.
void RunManager::Do(ReadData& effect, std::vector<AgentEvent>&) {
  Preparation& preparation = preparations_.emplace_back();
  preparation.thread = std::thread([this, &preparation, request = effect.request] {
    v1::AgentMessage answer = Prepare(request);
    std::lock_guard<std::mutex> lock(mutex_);
    send_(std::move(answer));
    preparation.done = true;
  });
}

void RunManager::Do(ForgetRun& effect, std::vector<AgentEvent>&) {
  const auto found = trainers_.find(effect.run);
  if (found == trainers_.end()) return;
  for (const auto& [rank, trainer] : found->second) {
    std::remove(PageOf(effect.run, rank).c_str());
    std::remove((PageOf(effect.run, rank) + ".stacks").c_str());
  }
  watch_.Forget(effect.run);
  ended_.push_back(std::move(found->second));
  trainers_.erase(found);
}

// Beside the trainers' socket: files of this boot, which nobody needs later.
std::string RunManager::PageOf(const RunKey& key, int rank) const {
  return absl::StrCat(options_.socket.substr(0, options_.socket.rfind('/') + 1), key.first, "-",
                      key.second, "-", rank, ".page");
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
      ranks.push_back({index, live ? trainer->second.process->pid() : 0, PageOf(key, index)});
    }
  }
  Preparation& preparation = preparations_.emplace_back();
  preparation.thread = std::thread([this, &preparation, ranks, run = request.run()] {
    v1::AgentMessage answer;
    *answer.mutable_inspected()->mutable_run() = run;
    for (v1::RankPosition& position : InspectRanks(ranks, kStackPatience)) {
      *answer.mutable_inspected()->add_ranks() = std::move(position);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    send_(std::move(answer));
    preparation.done = true;
  });
}

v1::AgentHeartbeat RunManager::Heartbeat() {
  std::lock_guard<std::mutex> lock(mutex_);
  v1::AgentHeartbeat heartbeat;
  for (const v1::RunId& run : RunsOf(state_, /*ended=*/false)) {
    *heartbeat.add_running() = run;
    *heartbeat.add_health() = watch_.Take(ToRunKey(run));
  }
  return heartbeat;
}

v1::AgentMessage RunManager::Prepare(const v1::PrepareData& request) const {
  v1::AgentMessage message;
  v1::DataPrepared* answer = message.mutable_data_prepared();
  *answer->mutable_run() = request.run();
  const v1::ModelSpec& model = request.spec().model();
  const absl::StatusOr<data::PreparedData> prepared =
      data::PrepareData(request.spec().data(), model, options_.state_dir + "/data-cache");
  absl::Status status = prepared.status();
  if (status.ok() && !model.from().empty() && request.from_start()) {
    status = checkpoint::CheckInitialWeights(model, prepared->vocab_size);
  }
  if (status.ok()) {
    // A model that begins with weights has the vocabulary of those, however few ids the data uses.
    answer->set_vocab_size(model.from().empty() ? prepared->vocab_size : model.vocab_size());
    answer->set_train_tokens(prepared->train_tokens);
    answer->set_validation_tokens(prepared->validation_tokens);
    answer->set_digest(prepared->digest);
    for (const std::string& notice : prepared->notices) LogWarning(notice);
  } else {
    answer->set_error(absl::StrCat("node ", options_.node, ": ", std::string(status.message())));
  }
  return message;
}

absl::StatusOr<std::unique_ptr<TrainerProcess>> RunManager::Spawn(const RunKey& key, int rank) {
  const std::string logs = absl::StrCat(options_.state_dir, "/logs/", key.first);
  TERCIO_RETURN_IF_ERROR(MakeDirectories(logs));
  TrainerProcess::Options options;
  options.program = options_.trainer;
  options.arguments = {"tercio-trainer", "--rank",     absl::StrCat(rank),       "--job",
                       key.first,        "--attempt",  absl::StrCat(key.second), "--socket",
                       options_.socket,  "--progress", PageOf(key, rank)};
  options.environment = options_.trainer_environment;
  options.environment.push_back(
      absl::StrCat("TERCIO_TRAINER_TOKEN=", state_.runs.at(key).start.token()));
  options.log_path = absl::StrCat(logs, "/attempt-", key.second, "-rank-", rank, ".log");
  return TrainerProcess::Start(
      options, [this, key, rank](const std::string& line) { SendLine(key, rank, line); },
      [this, key, rank](const ProcessExit& exit) {
        TrainerEnded event{key, rank, exit.exit_code, exit.signal, {}};
        for (const std::string& line : exit.last_lines) {
          event.last_lines.push_back(Printable(line));
        }
        std::lock_guard<std::mutex> lock(mutex_);
        const RankLabels labels = LabelsOf(key, rank);
        metrics_.Exited(labels, exit.signal != 0 || exit.exit_code != 0);
        metrics_.Forget(labels);
        Apply({0, std::move(event)});
      });
}

RankLabels RunManager::LabelsOf(const RunKey& key, int rank) const {
  return {key.first, state_.runs.at(key).start.spec().name(), rank};
}

void RunManager::SendLine(const RunKey& key, int rank, const std::string& line) {
  v1::AgentMessage message;
  *message.mutable_logs()->mutable_run() = ToRunId(key);
  v1::LogLine* log = message.mutable_logs()->add_lines();
  SetNow(log->mutable_time());
  log->set_attempt(key.second);
  log->set_rank(rank);
  log->set_node(options_.node);
  log->set_line(Printable(line));
  send_(std::move(message));
}

std::vector<v1::RunId> RunManager::Running(bool ended) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return RunsOf(state_, ended);
}

int RunManager::highest_attempt() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_.highest_attempt;
}

std::vector<v1::AgentMessage> RunManager::ToldFirst() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return tercio::ToldFirst(state_);
}

std::vector<v1::AgentMessage> RunManager::ToldLast() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return tercio::ToldLast(state_);
}

RunManager::Trainer* RunManager::FindTrainer(const v1::TrainerHello& hello) {
  const auto run = trainers_.find(ToRunKey(hello.run()));
  if (run == trainers_.end()) return nullptr;
  const auto trainer = run->second.find(hello.rank());
  return trainer == run->second.end() ? nullptr : &trainer->second;
}

absl::StatusOr<v1::TrainerAssignment> RunManager::Attach(const v1::TrainerHello& hello,
                                                         WriteCommand write) {
  std::lock_guard<std::mutex> lock(mutex_);
  const RunKey key = ToRunKey(hello.run());
  Trainer* trainer = FindTrainer(hello);
  const auto run = state_.runs.find(key);
  if (trainer == nullptr || run == state_.runs.end() ||
      hello.token() != run->second.start.token()) {
    return absl::PermissionDeniedError(
        "no such rank here, or the token is not that of its attempt");
  }
  trainer->write = std::move(write);
  const v1::StartRun& start = run->second.start;
  const v1::RankPlan& plan = run->second.ranks.at(hello.rank()).plan;
  const v1::Layout& layout = plan.layout();
  v1::TrainerAssignment assignment;
  *assignment.mutable_spec() = start.spec();
  *assignment.mutable_plan() = plan;
  assignment.set_world_size(layout.tensor() * layout.pipeline() * layout.data());
  assignment.set_resume_step(start.resume_step());
  assignment.set_checkpoint_address(start.checkpoint_address());
  assignment.set_data_address(options_.data_address);
  assignment.set_data_cache_dir(options_.state_dir + "/data-cache");
  assignment.set_agent_grace_seconds(options_.agent_grace_seconds);
  assignment.set_threads(plan.threads());
  return assignment;
}

void RunManager::Detach(const v1::TrainerHello& hello) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (Trainer* trainer = FindTrainer(hello); trainer != nullptr) trainer->write = nullptr;
}

void RunManager::Receive(const v1::TrainerHello& hello, const v1::TrainerMessage& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  const RunKey key = ToRunKey(hello.run());
  if (!state_.runs.contains(key)) return;
  Measure(key, hello.rank(), message);
  Apply({0, TrainerSaid{key, hello.rank(), message}});
}

void RunManager::Measure(const RunKey& key, int rank, const v1::TrainerMessage& message) {
  const RankLabels labels = LabelsOf(key, rank);
  const RunState& run = state_.runs.at(key);
  if (message.has_step()) {
    const v1::JobSpec& spec = run.start.spec();
    const int64_t steps =
        std::max<int64_t>(0, message.step().step() - run.ranks.at(rank).last_step);
    metrics_.Step(labels, message.step(), steps,
                  steps * spec.training().global_batch() * spec.model().context());
  } else if (message.has_memory()) {
    metrics_.Memory(labels, message.memory());
  } else if (message.has_checkpoint()) {
    metrics_.Checkpoint(labels, message.checkpoint());
  }
}

// Lets time pass for the core, and joins the threads of what has ended.
void RunManager::Housekeeping() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, kTickInterval, [this] { return stopping_ || !ended_.empty(); });
    Apply({0, TimePassed{}});
    int running = 0;
    for (const auto& [key, run] : state_.runs) {
      for (const auto& [index, rank] : run.ranks) {
        if (rank.life != RankState::Life::kLive) continue;
        ++running;
        watch_.Sample(key, index, PageOf(key, index));
      }
    }
    metrics_.SetRunning(running);
    std::vector<Trainers> ended = std::exchange(ended_, {});
    std::list<Preparation> prepared;
    for (auto entry = preparations_.begin(); entry != preparations_.end();) {
      const auto next = std::next(entry);
      if (entry->done) prepared.splice(prepared.end(), preparations_, entry);
      entry = next;
    }
    lock.unlock();
    ended.clear();  // joins watcher threads, which may want the lock
    for (Preparation& preparation : prepared) preparation.thread.join();
    lock.lock();
  }
}

void RunManager::StopAll(absl::Duration grace) {
  std::unique_lock<std::mutex> lock(mutex_);
  Apply({0, ShutDown{absl::ToDoubleSeconds(grace)}});
  changed_.wait(lock, [this] { return state_.runs.empty(); });
}

}  // namespace tercio

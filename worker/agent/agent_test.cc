// The agent's program with real trainers, against a coordinator of the test's own: starts, deaths,
// reconnections, and that nothing is left behind.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "plan/plan_builder.h"
#include "proto/tercio/v1/node_service.grpc.pb.h"

namespace tercio::agent {
namespace {

using ::testing::HasSubstr;

constexpr auto kLongest = std::chrono::seconds(60);

// Keeps what agents say; says what the test wants.
class FakeCoordinator : public v1::NodeService::Service {
 public:
  // Port 0 picks one.
  void Listen(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void GoAway() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }
  ~FakeCoordinator() override {
    if (server_ != nullptr) GoAway();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }

  grpc::Status Attach(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>* stream) override {
    v1::AgentMessage message;
    if (!stream->Read(&message)) return grpc::Status::OK;
    v1::CoordinatorMessage accepted;
    accepted.mutable_hello_accepted()->set_heartbeat_interval_seconds(0.2);
    accepted.mutable_hello_accepted()->set_takes_news(takes_news_);
    stream->Write(accepted);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      hellos_.push_back(message.hello());
      stream_ = stream;
      changed_.notify_all();
    }
    while (stream->Read(&message)) {
      if (!message.has_news()) {
        Hear(message, *stream);
        continue;
      }
      ++batches_;
      for (const v1::AgentMessage& each : message.news().messages()) Hear(each, *stream);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    stream_ = nullptr;
    return grpc::Status::OK;
  }

  grpc::Status RendezvousPut(grpc::ServerContext*, const v1::RendezvousPutRequest* request,
                             v1::RendezvousPutResponse*) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const v1::RendezvousEntry& entry : request->entries()) {
      values_[{request->run().attempt(), entry.key()}] = entry.value();
    }
    changed_.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status RendezvousGet(grpc::ServerContext*, const v1::RendezvousGetRequest* request,
                             v1::RendezvousGetResponse* response) override {
    std::unique_lock<std::mutex> lock(mutex_);
    for (const std::string& name : request->keys()) {
      const std::pair key(request->run().attempt(), name);
      if (!changed_.wait_for(lock, std::chrono::seconds(20),
                             [&] { return values_.contains(key); })) {
        return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "missing " + name);
      }
      response->add_values(values_[key]);
    }
    return grpc::Status::OK;
  }

  void Say(const v1::CoordinatorMessage& message) {
    std::unique_lock<std::mutex> lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kLongest, [this] { return stream_ != nullptr; }));
    stream_->Write(message);
  }

  // Waits until somebody has said what the test wants to hear.
  using Wanted = std::function<bool(const v1::AgentMessage&)>;
  ::testing::AssertionResult Hears(const Wanted& wanted) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool heard = changed_.wait_for(
        lock, kLongest, [&] { return std::any_of(said_.begin(), said_.end(), wanted); });
    return heard ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "not heard";
  }
  ::testing::AssertionResult Greeted(size_t times) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool greeted = changed_.wait_for(lock, kLongest, [&] { return hellos_.size() >= times; });
    return greeted ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "no hello";
  }

  // Before an agent comes: as a coordinator of an older version, which takes each by itself.
  void TakeNoNews() { takes_news_ = false; }
  int batches() const { return batches_; }

  void Acknowledge(bool wanted) {
    std::lock_guard<std::mutex> lock(mutex_);
    acknowledges_ = wanted;
  }
  void ForgetSaid() {
    std::lock_guard<std::mutex> lock(mutex_);
    said_.clear();
  }

  std::vector<v1::AgentMessage> said() {
    std::lock_guard<std::mutex> lock(mutex_);
    return said_;
  }
  std::vector<v1::AgentHello> hellos() {
    std::lock_guard<std::mutex> lock(mutex_);
    return hellos_;
  }

 private:
  void Hear(const v1::AgentMessage& message,
            grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>& stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    said_.push_back(message);
    changed_.notify_all();
    if (message.sequence() == 0 || !acknowledges_) return;
    v1::CoordinatorMessage answer;
    answer.mutable_acknowledge()->set_sequence(message.sequence());
    stream.Write(answer);
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>* stream_ = nullptr;
  std::vector<v1::AgentHello> hellos_;
  std::vector<v1::AgentMessage> said_;
  bool acknowledges_ = true;
  std::atomic<bool> takes_news_{true};
  std::atomic<int> batches_{0};
  std::map<std::pair<int, std::string>, std::string> values_;  // by attempt and key
};

v1::JobSpec SmallJob(const std::string& data, int64_t steps) {
  v1::JobSpec spec;
  spec.set_name("small");
  v1::ModelSpec* model = spec.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(2);
  model->set_hidden(32);
  model->set_heads(2);
  model->set_ffn_hidden(64);
  model->set_context(16);
  model->set_bias(true);
  spec.mutable_data()->set_train(data);
  spec.mutable_data()->set_tokenizer("bytes");
  v1::TrainingSpec* training = spec.mutable_training();
  training->set_steps(steps);
  training->set_global_batch(4);
  training->set_seed(1);
  training->set_precision(v1::PRECISION_FP32);
  v1::OptimizerSpec* optimizer = training->mutable_optimizer();
  optimizer->set_name(v1::OPTIMIZER_KIND_ADAMW);
  optimizer->set_learning_rate(1e-3);
  optimizer->set_beta1(0.9);
  optimizer->set_beta2(0.95);
  optimizer->set_eps(1e-8);
  training->mutable_schedule()->set_kind(v1::LEARNING_RATE_SCHEDULE_CONSTANT);
  spec.mutable_parallelism()->set_tensor(1);
  spec.mutable_parallelism()->set_pipeline(1);
  spec.mutable_parallelism()->set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  spec.mutable_parallelism()->set_recompute(v1::RECOMPUTE_NONE);
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  return spec;
}

std::string Content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A zombie does not count.
bool Lives(pid_t pid) {
  const std::string status = Content("/proc/" + std::to_string(pid) + "/stat");
  return !status.empty() && status.find(") Z") == std::string::npos;
}

class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream data(directory_.path() + "/corpus.txt");
    for (int i = 0; i < 400; ++i) data << "the quick brown fox " << i << "\n";
    data.close();
    coordinator_.Listen();
  }

  void TearDown() override {
    if (agent_ > 0) KillAgent();
    for (const pid_t pid : trainers_) EXPECT_TRUE(EndsSoon(pid)) << "trainer " << pid << " is left";
  }

  // `greetings`: of all agents so far, this one included.
  void StartAgent(size_t greetings = 1) {
    SpawnAgent();
    ASSERT_TRUE(coordinator_.Greeted(greetings));
  }

  void SpawnAgent() {
    const std::string root = std::string(std::getenv("TEST_SRCDIR")) + "/tercio/worker/";
    agent_ =
        Spawn({"tercio-agent", "--coordinator", coordinator_.address(), "--state-dir",
               directory_.path() + "/agent", "--name", "n1", "--slots", "2", "--metrics-listen",
               "127.0.0.1:0", "--agent-grace", agent_grace_, "--stop-grace", stop_grace_,
               "--scratch-total", scratch_total_, "--trainer", root + "trainer/tercio-trainer"});
  }

  // As the preStop hook of a pod.
  pid_t AskToLeave() {
    return Spawn({"tercio-agent", "--leave", "--state-dir", directory_.path() + "/agent"});
  }

  pid_t Spawn(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, ready_path().c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const std::string program =
        std::string(std::getenv("TEST_SRCDIR")) + "/tercio/worker/agent/tercio-agent";
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
  }

  void KillAgent() {
    kill(agent_, SIGKILL);
    waitpid(agent_, nullptr, 0);
    agent_ = -1;
  }

  // The exit code.
  int WaitForAgent() { return WaitFor(std::exchange(agent_, -1)); }
  static int WaitFor(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  void StartRun(int attempt, int64_t steps) {
    v1::JobSpec spec = SmallJob(directory_.path() + "/corpus.txt", steps);
    spec.mutable_model()->set_vocab_size(256);
    if (offloads_) {
      spec.mutable_parallelism()->set_zero_stage(1);
      spec.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
    }
    const auto layout = plan::LayoutOfJob(spec);
    ASSERT_TRUE(layout.ok()) << layout.status();
    const auto plan = plan::BuildPlan(spec, *layout, {{"n1", 0}, {"n1", 1}}, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    v1::CoordinatorMessage message;
    v1::StartRun* start = message.mutable_start_run();
    start->mutable_run()->set_job_id("j1");
    start->mutable_run()->set_attempt(attempt);
    start->set_token("token");
    *start->mutable_spec() = spec;
    start->set_vocab_size(256);
    for (int rank = 0; rank < 2; ++rank) {
      *start->add_ranks() = plan::SliceWithoutStage(*plan, rank);
    }
    (*start->mutable_stages())[0] = plan->stages(0);
    coordinator_.Say(message);
  }

  void StopRun(int attempt, double grace) {
    v1::CoordinatorMessage message;
    message.mutable_stop_run()->mutable_run()->set_job_id("j1");
    message.mutable_stop_run()->mutable_run()->set_attempt(attempt);
    message.mutable_stop_run()->set_grace_seconds(grace);
    coordinator_.Say(message);
  }

  // Children of the agent, once `count` of them are there.
  std::vector<pid_t> Trainers(size_t count) {
    const std::string path = "/proc/" + std::to_string(agent_) + "/task/";
    const auto deadline = std::chrono::steady_clock::now() + kLongest;
    while (std::chrono::steady_clock::now() < deadline) {
      std::set<pid_t> found;
      for (const auto& task : std::filesystem::directory_iterator(path)) {
        std::stringstream children(Content(task.path().string() + "/children"));
        for (pid_t pid; children >> pid;) found.insert(pid);
      }
      if (found.size() == count) {
        trainers_.insert(found.begin(), found.end());
        return {found.begin(), found.end()};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ADD_FAILURE() << "not " << count << " trainers";
    return {};
  }

  static bool EndsSoon(pid_t pid) {
    const auto deadline = std::chrono::steady_clock::now() + kLongest;
    while (Lives(pid) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return !Lives(pid);
  }

  std::set<int64_t> StepsSaid() {
    std::set<int64_t> steps;
    for (const v1::AgentMessage& message : coordinator_.said()) {
      if (message.has_step_report()) steps.insert(message.step_report().record().step());
    }
    return steps;
  }

  static bool Running(const v1::AgentMessage& message) {
    return message.has_rank_phase() && message.rank_phase().phase() == v1::TRAINER_PHASE_RUNNING;
  }
  static bool Stopped(const v1::AgentMessage& message) { return message.has_run_stopped(); }
  static FakeCoordinator::Wanted Step(int64_t step) {
    return [step](const v1::AgentMessage& message) {
      return message.has_step_report() && message.step_report().record().step() >= step;
    };
  }

  std::string ready_path() const { return directory_.path() + "/ready"; }

  TempDir directory_;
  FakeCoordinator coordinator_;
  std::string agent_grace_ = "1";
  std::string stop_grace_ = "2";
  std::string scratch_total_ = "0";
  bool offloads_ = false;  // the optimizer's state, to disk
  pid_t agent_ = -1;
  std::set<pid_t> trainers_;
};

constexpr int64_t kForever = 1'000'000;

TEST_F(AgentTest, SaysWhereAFrozenRankAndTheOneThatWaitsForItAre) {
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(5)));
  const auto health = [](const v1::AgentMessage& message) -> const v1::RunHealth* {
    return message.heartbeat().health().empty() ? nullptr : &message.heartbeat().health(0);
  };
  ASSERT_TRUE(coordinator_.Hears([&](const v1::AgentMessage& message) {
    return health(message) != nullptr && health(message)->timings_size() == 2 &&
           health(message)->timings(0).compute_seconds() > 0 &&
           health(message)->timings(0).step_seconds() >=
               health(message)->timings(0).compute_seconds();
  }));
  kill(Trainers(2).back(), SIGSTOP);
  ASSERT_TRUE(coordinator_.Hears([&](const v1::AgentMessage& message) {
    return health(message) != nullptr && health(message)->stalled_seconds() > 1;
  }));
  v1::CoordinatorMessage inspect;
  inspect.mutable_inspect_run()->mutable_run()->set_job_id("j1");
  inspect.mutable_inspect_run()->mutable_run()->set_attempt(1);
  coordinator_.Say(inspect);
  v1::RunInspected answer;
  ASSERT_TRUE(coordinator_.Hears([&](const v1::AgentMessage& message) {
    answer = message.inspected();
    return message.has_inspected();
  }));
  ASSERT_EQ(answer.ranks_size(), 2);
  const int frozen = answer.ranks(0).process_state() == "T" ? 0 : 1;
  const v1::RankPosition& other = answer.ranks(1 - frozen);
  EXPECT_EQ(answer.ranks(frozen).process_state(), "T");
  EXPECT_EQ(answer.ranks(frozen).stack(), "");
  EXPECT_GE(answer.ranks(frozen).step(), 5);
  EXPECT_GT(answer.ranks(frozen).seconds(), 1);
  EXPECT_EQ(other.phase(), v1::TRAINER_PHASE_RUNNING);
  EXPECT_EQ(other.waiting().operation(), "all-reduce") << other.DebugString();
  EXPECT_EQ(other.waiting().peer(), frozen);
  EXPECT_NE(other.action(), "");
  EXPECT_THAT(other.stack(), HasSubstr("tercio::")) << "a stack with names";
  StopRun(1, 0);
  ASSERT_TRUE(coordinator_.Hears(Stopped));
}

TEST_F(AgentTest, RunsAJobToItsEnd) {
  StartAgent();
  EXPECT_THAT(Content(ready_path()), HasSubstr("ready agent=n1 coordinator="));
  const v1::AgentHello hello = coordinator_.hellos()[0];
  EXPECT_EQ(hello.devices(), 2);
  EXPECT_EQ(hello.data_address(), "127.0.0.1");
  StartRun(1, 30);
  ASSERT_TRUE(coordinator_.Hears(Stopped));
  EXPECT_EQ(StepsSaid().size(), 30u);
  int exits = 0;
  bool saved = false;
  for (const v1::AgentMessage& message : coordinator_.said()) {
    for (const v1::LogLine& line : message.logs().lines()) {
      saved = saved || line.line().find("checkpoint of step 30 failed") != std::string::npos;
    }
    if (!message.has_rank_exited()) continue;
    ++exits;
    // This coordinator takes no checkpoint: a run whose last one is lost has not succeeded.
    EXPECT_EQ(message.rank_exited().exit().exit_code(), 1);
    EXPECT_EQ(message.rank_exited().exit().signal(), 0);
    EXPECT_THAT(message.rank_exited().exit().reason(),
                HasSubstr("the last checkpoint could not be saved"));
  }
  EXPECT_EQ(exits, 2);
  EXPECT_TRUE(saved) << "a save that failed must be told";
}

TEST_F(AgentTest, PreparesDataAndNamesWhatIsWrong) {
  StartAgent();
  v1::CoordinatorMessage message;
  *message.mutable_prepare_data()->mutable_spec() = SmallJob(directory_.path() + "/corpus.txt", 1);
  message.mutable_prepare_data()->mutable_run()->set_job_id("good");
  coordinator_.Say(message);
  EXPECT_TRUE(coordinator_.Hears([](const v1::AgentMessage& m) {
    return m.data_prepared().run().job_id() == "good" && m.data_prepared().vocab_size() == 256 &&
           m.data_prepared().error().empty() && m.data_prepared().digest().size() == 64;
  }));
  message.mutable_prepare_data()->mutable_spec()->mutable_data()->set_train("/no/such.txt");
  message.mutable_prepare_data()->mutable_run()->set_job_id("bad");
  coordinator_.Say(message);
  EXPECT_TRUE(coordinator_.Hears([](const v1::AgentMessage& m) {
    const std::string& error = m.data_prepared().error();
    return error.find("n1") != std::string::npos && error.find("/no/such.txt") != std::string::npos;
  }));
}

TEST_F(AgentTest, ReportsAKilledTrainerAndTheOthersEndByThemselves) {
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(3)));
  const std::vector<pid_t> trainers = Trainers(2);
  ASSERT_EQ(trainers.size(), 2u);
  kill(trainers[1], SIGKILL);
  EXPECT_TRUE(coordinator_.Hears(
      [](const v1::AgentMessage& m) { return m.rank_exited().exit().signal() == SIGKILL; }));
  EXPECT_TRUE(coordinator_.Hears([](const v1::AgentMessage& m) {
    return m.has_rank_exited() && m.rank_exited().exit().exit_code() == 1 &&
           !m.rank_exited().exit().reason().empty() && !m.rank_exited().exit().permanent();
  }));
  EXPECT_TRUE(coordinator_.Hears(Stopped));
}

TEST_F(AgentTest, RanksWithoutRoomInTheScratchDirectoryAreNotStarted) {
  scratch_total_ = "64KiB";
  offloads_ = true;
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Stopped));
  int exits = 0;
  for (const v1::AgentMessage& message : coordinator_.said()) {
    if (!message.has_rank_exited()) continue;
    ++exits;
    EXPECT_EQ(message.rank_exited().exit().exit_code(), 127);
    EXPECT_TRUE(message.rank_exited().exit().permanent());
    EXPECT_THAT(message.rank_exited().exit().reason(), HasSubstr("the limit is 0.1 MiB"));
  }
  EXPECT_EQ(exits, 2);
}

TEST_F(AgentTest, StopsARunAtOnceEvenWhenFrozen) {
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(1)));
  for (const pid_t pid : Trainers(2)) kill(pid, SIGSTOP);
  StopRun(1, 0.3);
  EXPECT_TRUE(coordinator_.Hears(Stopped));
}

TEST_F(AgentTest, ANewAttemptEndsTheOldOne) {
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(1)));
  const std::vector<pid_t> old = Trainers(2);
  StartRun(2, kForever);
  EXPECT_TRUE(coordinator_.Hears(
      [](const v1::AgentMessage& m) { return m.step_report().run().attempt() == 2; }));
  for (const pid_t pid : old) EXPECT_FALSE(Lives(pid));
  Trainers(2);
}

TEST_F(AgentTest, TrainersOfAKilledAgentEndAfterTheGrace) {
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(1)));
  const std::vector<pid_t> trainers = Trainers(2);
  KillAgent();
  for (const pid_t pid : trainers) EXPECT_TRUE(EndsSoon(pid));
  // The next agent finds what they have left behind.
  StartAgent(2);
  EXPECT_TRUE(coordinator_.Hears([](const v1::AgentMessage& m) {
    return m.rank_exited().exit().exit_code() == 1 &&
           m.rank_exited().exit().reason().find("agent_grace") != std::string::npos;
  }));
  EXPECT_TRUE(coordinator_.Hears(Stopped));
}

TEST_F(AgentTest, EndsOnSigtermWithItsTrainers) {
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(1)));
  const std::vector<pid_t> trainers = Trainers(2);
  kill(agent_, SIGTERM);
  EXPECT_EQ(WaitForAgent(), 0);
  for (const pid_t pid : trainers) EXPECT_FALSE(Lives(pid));
  EXPECT_TRUE(coordinator_.Hears(Stopped)) << "the coordinator must hear it before the agent goes";
}

TEST_F(AgentTest, TrainingGoesOnWhileTheCoordinatorIsAway) {
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(5)));
  const std::vector<pid_t> trainers = Trainers(2);
  const int port = coordinator_.port();
  coordinator_.GoAway();
  const int64_t before = *StepsSaid().rbegin();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  coordinator_.Listen(port);
  ASSERT_TRUE(coordinator_.Greeted(2));
  const v1::AgentHello hello = coordinator_.hellos()[1];
  ASSERT_EQ(hello.running_size(), 1);
  EXPECT_EQ(hello.running(0).job_id(), "j1");
  ASSERT_TRUE(coordinator_.Hears(Step(before + 20)));
  const std::set<int64_t> steps = StepsSaid();
  EXPECT_EQ(*steps.rbegin(), static_cast<int64_t>(steps.size())) << "a step was lost";
  for (const pid_t pid : trainers) EXPECT_TRUE(Lives(pid));
  StopRun(1, 0);
  EXPECT_TRUE(coordinator_.Hears(Stopped));
}

TEST_F(AgentTest, TheNextAgentAdoptsTheTrainers) {
  agent_grace_ = "30";
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(5)));
  const std::vector<pid_t> trainers = Trainers(2);
  KillAgent();
  const int64_t before = *StepsSaid().rbegin();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  StartAgent(2);
  const std::vector<v1::AgentHello> hellos = coordinator_.hellos();
  ASSERT_EQ(hellos[1].running_size(), 1);
  EXPECT_EQ(hellos[1].running(0).job_id(), "j1");
  EXPECT_EQ(hellos[1].highest_attempt_seen(), 1);
  EXPECT_EQ(hellos[1].spool_id(), hellos[0].spool_id());
  EXPECT_FALSE(hellos[0].spool_id().empty());
  ASSERT_TRUE(coordinator_.Hears(Step(before + 20)));
  for (const pid_t pid : trainers) EXPECT_TRUE(Lives(pid));
  StopRun(1, 0);
  EXPECT_TRUE(coordinator_.Hears(Stopped));
  for (const pid_t pid : trainers) EXPECT_TRUE(EndsSoon(pid));
  const std::set<int64_t> steps = StepsSaid();
  EXPECT_EQ(*steps.rbegin(), static_cast<int64_t>(steps.size())) << "a step was lost";
  std::set<uint64_t> sequences;
  std::set<std::string> lines;
  for (const v1::AgentMessage& message : coordinator_.said()) {
    if (message.sequence() > 0 && !sequences.insert(message.sequence()).second) continue;
    for (const v1::LogLine& line : message.logs().lines()) {
      EXPECT_TRUE(lines.insert(std::to_string(line.rank()) + line.line()).second) << line.line();
    }
  }
}

TEST_F(AgentTest, ARankThatDiedWhileItsAgentWasAwayIsReported) {
  agent_grace_ = "30";
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(3)));
  const std::vector<pid_t> trainers = Trainers(2);
  KillAgent();
  kill(trainers[1], SIGKILL);
  EXPECT_TRUE(EndsSoon(trainers[1]));
  StartAgent(2);
  EXPECT_TRUE(coordinator_.Hears([](const v1::AgentMessage& m) {
    const v1::ExitRecord& exit = m.rank_exited().exit();
    return exit.exit_code() == 1 && !exit.permanent() &&
           exit.reason().find("while its agent was away") != std::string::npos;
  }));
  // The other gives up, and says why to the agent that is there again.
  EXPECT_TRUE(coordinator_.Hears([](const v1::AgentMessage& m) {
    const v1::ExitRecord& exit = m.rank_exited().exit();
    return exit.exit_code() == 1 && !exit.reason().empty() &&
           exit.reason().find("away") == std::string::npos;
  }));
  EXPECT_TRUE(coordinator_.Hears(Stopped));
}

TEST_F(AgentTest, LeavesItsTrainersToTheNextAgent) {
  agent_grace_ = "30";
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(3)));
  const std::vector<pid_t> trainers = Trainers(2);
  kill(agent_, SIGUSR1);
  EXPECT_EQ(WaitForAgent(), 0);
  for (const pid_t pid : trainers) EXPECT_TRUE(Lives(pid));
  StartAgent(2);
  ASSERT_TRUE(coordinator_.Hears(Step(*StepsSaid().rbegin() + 10)));
  StopRun(1, 0);
  EXPECT_TRUE(coordinator_.Hears(Stopped));
  const std::set<int64_t> steps = StepsSaid();
  EXPECT_EQ(*steps.rbegin(), static_cast<int64_t>(steps.size())) << "a step was lost";
}

TEST_F(AgentTest, TrainingGoesOnBesideAFrozenAgent) {
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(3)));
  const std::vector<pid_t> trainers = Trainers(2);
  kill(agent_, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(2000));  // longer than agent_grace
  const int64_t before = *StepsSaid().rbegin();
  kill(agent_, SIGCONT);
  ASSERT_TRUE(coordinator_.Hears(Step(before + 20)));
  for (const pid_t pid : trainers) EXPECT_TRUE(Lives(pid));
  StopRun(1, 0);
  EXPECT_TRUE(coordinator_.Hears(Stopped));
  const std::set<int64_t> steps = StepsSaid();
  EXPECT_EQ(*steps.rbegin(), static_cast<int64_t>(steps.size())) << "a step was lost";
}

TEST_F(AgentTest, NewsIsKeptUntilItIsAcknowledged) {
  coordinator_.Acknowledge(false);
  StartAgent();
  StartRun(1, 30);
  ASSERT_TRUE(coordinator_.Hears(Stopped));
  Trainers(0);
  KillAgent();
  const std::vector<v1::AgentMessage> first = coordinator_.said();
  coordinator_.ForgetSaid();
  coordinator_.Acknowledge(true);
  StartAgent(2);
  const auto news = [](const v1::AgentMessage& m) {
    return m.has_run_stopped() && m.sequence() > 0;
  };
  ASSERT_TRUE(coordinator_.Hears(news));
  std::vector<std::string> sent;
  std::vector<std::string> again;
  for (const v1::AgentMessage& m : first) {
    if (m.sequence() > 0) sent.push_back(m.SerializeAsString());
  }
  for (const v1::AgentMessage& m : coordinator_.said()) {
    if (m.sequence() > 0) again.push_back(m.SerializeAsString());
  }
  EXPECT_EQ(sent, again) << "all of it, in order";
  EXPECT_GE(coordinator_.batches(), 1) << "what is there goes together";
  EXPECT_EQ(StepsSaid().size(), 30u);
  // A third agent has nothing to tell.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  KillAgent();
  coordinator_.ForgetSaid();
  StartAgent(3);
  ASSERT_TRUE(coordinator_.Hears([](const v1::AgentMessage& m) { return m.has_heartbeat(); }));
  for (const v1::AgentMessage& m : coordinator_.said()) EXPECT_EQ(m.sequence(), 0u);
}

TEST_F(AgentTest, AnOlderCoordinatorIsToldEachNewsByItself) {
  coordinator_.TakeNoNews();
  StartAgent();
  StartRun(1, 30);
  ASSERT_TRUE(coordinator_.Hears(Stopped));
  EXPECT_EQ(coordinator_.batches(), 0);
  EXPECT_EQ(StepsSaid().size(), 30u);
}

TEST_F(AgentTest, AStateDirectoryHasOneAgent) {
  StartAgent();
  const pid_t first = agent_;
  SpawnAgent();
  EXPECT_EQ(WaitForAgent(), 7);
  agent_ = first;
  EXPECT_TRUE(Lives(first));
}

TEST_F(AgentTest, SaysThatItLeavesAndWaitsForTheCoordinatorsOrders) {
  stop_grace_ = "40";
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(1)));
  const std::vector<pid_t> trainers = Trainers(2);
  kill(agent_, SIGTERM);
  ASSERT_TRUE(coordinator_.Hears(
      [](const v1::AgentMessage& m) { return m.leaving().grace_seconds() > 39; }));
  for (const pid_t pid : trainers) EXPECT_TRUE(Lives(pid));
  StopRun(1, 0);
  EXPECT_EQ(WaitForAgent(), 0);
  EXPECT_TRUE(coordinator_.Hears(Stopped));
}

TEST_F(AgentTest, AHookLetsTheJobsLeaveBeforeTheAgentEnds) {
  stop_grace_ = "40";
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(1)));
  const std::vector<pid_t> trainers = Trainers(2);
  const pid_t hook = AskToLeave();
  ASSERT_TRUE(coordinator_.Hears(
      [](const v1::AgentMessage& m) { return m.leaving().grace_seconds() > 39; }));
  EXPECT_EQ(waitpid(hook, nullptr, WNOHANG), 0) << "the hook waits for the jobs";
  for (const pid_t pid : trainers) EXPECT_TRUE(Lives(pid));
  StopRun(1, 0);
  EXPECT_EQ(WaitFor(hook), 0);
  ASSERT_TRUE(coordinator_.Hears(Stopped));
  EXPECT_TRUE(Lives(agent_)) << "it is the container, which ends the hook with it";
  // A coordinator that comes back is told again.
  const int port = coordinator_.port();
  coordinator_.GoAway();
  coordinator_.ForgetSaid();
  coordinator_.Listen(port);
  ASSERT_TRUE(coordinator_.Hears(
      [](const v1::AgentMessage& m) { return m.leaving().grace_seconds() > 20; }));
  kill(agent_, SIGTERM);
  EXPECT_EQ(WaitForAgent(), 0);
  EXPECT_EQ(WaitFor(AskToLeave()), 0) << "nobody is left to leave";
}

TEST_F(AgentTest, AHookDoesNotWaitLongerThanTheAgentWould) {
  stop_grace_ = "6";  // a second before trainers are stopped
  StartAgent();
  StartRun(1, kForever);
  ASSERT_TRUE(coordinator_.Hears(Step(1)));
  const std::vector<pid_t> trainers = Trainers(2);
  EXPECT_EQ(WaitFor(AskToLeave()), 0);
  for (const pid_t pid : trainers) EXPECT_TRUE(Lives(pid)) << "SIGTERM stops them, not the hook";
  kill(agent_, SIGTERM);
  EXPECT_EQ(WaitForAgent(), 0);
  for (const pid_t pid : trainers) EXPECT_FALSE(Lives(pid));
}

}  // namespace
}  // namespace tercio::agent

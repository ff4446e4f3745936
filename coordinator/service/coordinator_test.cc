#include "coordinator/service/coordinator.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/temp_dir.h"
#include "common/version.h"
#include "coordinator/access/gate.h"
#include "coordinator/core/testing/test_job.h"
#include "coordinator/service/checkpoint_host.h"
#include "coordinator/service/node_service.h"
#include "coordinator/service/views.h"
#include "gmock/gmock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::MatchesRegex;

TEST(TokenSource, GivesEveryTokenOnce) {
  TokenSource source;
  std::set<std::string> tokens;
  std::set<std::string> halves;  // a byte that is given out twice is in two of them
  for (int i = 0; i < 1000; ++i) {
    const std::string token = source.Next();
    EXPECT_THAT(token, MatchesRegex("[0-9a-f]+"));
    EXPECT_EQ(token.size(), 32u);
    tokens.insert(token);
    halves.insert(token.substr(0, 16));
    halves.insert(token.substr(16));
  }
  EXPECT_EQ(tokens.size(), 1000u);
  EXPECT_EQ(halves.size(), 2000u);
}

// A node of another machine may be given its name only then.
class MayBeHereTest : public ::testing::Test {
 protected:
  void Start() {
    coordinator_.reset();
    auto store = Store::Open(directory_.path() + "/state.sqlite", OpenFor::kWriting);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto time = [this] { return now_.load(); };
    auto made = Coordinator::Create(PlanningSettings(), *std::move(store), &checkpoints_,
                                    OpenFor::kWriting, LeaseClock(time, time),
                                    checkpoint::VerifyCheckpoint, most_queued_bytes_);
    ASSERT_TRUE(made.ok()) << made.status();
    coordinator_ = *std::move(made);
  }
  int64_t Attach() {
    v1::AgentHello hello;
    hello.set_node("one");
    hello.set_spool_id("spool");
    const auto stream = coordinator_->Attach(hello, {[](v1::CoordinatorMessage) {}, [] {}});
    Settle();
    return stream.value();
  }
  // Everything said before is decided upon.
  void Settle() { ASSERT_TRUE(coordinator_->Ask(Tick{}).ok()); }
  void Pass(double seconds) {
    now_ = now_ + seconds;
    Settle();
  }

  TempDir directory_;
  checkpoint::Store checkpoints_{directory_.path() + "/checkpoints"};
  std::atomic<double> now_ = 1e9;
  int64_t most_queued_bytes_ = Coordinator::kMostQueuedBytes;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(MayBeHereTest, UntilANodeLeaves) {
  Start();
  EXPECT_EQ(coordinator_->MayBeHere("one"), std::nullopt);
  const int64_t stream = Attach();
  EXPECT_EQ(coordinator_->MayBeHere("one"), true);
  v1::AgentMessage leaving;
  leaving.mutable_leaving()->set_grace_seconds(20);
  ASSERT_TRUE(coordinator_->Ask(NodeSaid{"one", leaving}).ok());
  EXPECT_EQ(coordinator_->MayBeHere("one"), true);
  coordinator_->Detach("one", stream);
  Settle();
  EXPECT_EQ(coordinator_->MayBeHere("one"), false);
}

TEST_F(MayBeHereTest, UntilItIsNotHeardOfForALease) {
  const double lease = Settings().node_lease;
  Start();
  coordinator_->Detach("one", Attach());
  Pass(lease / 2);
  EXPECT_EQ(coordinator_->MayBeHere("one"), true);
  Pass(lease);
  EXPECT_EQ(coordinator_->MayBeHere("one"), false);
  // Nor could it come back while the coordinator was away.
  Start();
  EXPECT_EQ(coordinator_->MayBeHere("one"), true);
  Pass(lease + 1);
  EXPECT_EQ(coordinator_->MayBeHere("one"), false);
}

class ServingTest : public MayBeHereTest {
 protected:
  void SetUp() override {
    Start();
    ASSERT_EQ(sqlite3_open((directory_.path() + "/state.sqlite").c_str(), &other_), SQLITE_OK);
    sqlite3_busy_timeout(other_, 10'000);
  }
  void TearDown() override { sqlite3_close(other_); }

  void Execute(const char* sql) {
    ASSERT_EQ(sqlite3_exec(other_, sql, nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(other_);
  }
  // From now on no job can be written.
  void BreakStore() { Execute("ALTER TABLE jobs RENAME TO away"); }
  void MendStore() {
    Execute("ALTER TABLE away RENAME TO jobs");
    while (!coordinator_->durable()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // The answer; absent when there is none for so long that nobody would wait.
  template <typename Ask>
  std::optional<absl::Status> AnswerOf(const Ask& ask) {
    auto asked = std::make_shared<std::promise<absl::Status>>();
    auto answer = asked->get_future();
    threads_.emplace_back([asked, ask] { asked->set_value(ask()); });
    if (answer.wait_for(std::chrono::seconds(20)) != std::future_status::ready) return std::nullopt;
    return answer.get();
  }
  std::optional<absl::Status> AnswerToSubmit(const std::string& request) {
    return AnswerOf(
        [this, request] { return coordinator_->Submit(SmallSpec(1), request).status(); });
  }
  void JoinAll() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  sqlite3* other_ = nullptr;
  std::vector<std::thread> threads_;
};

TEST_F(ServingTest, NobodyWaitsForADiskThatTakesNothing) {
  BreakStore();
  const auto first = AnswerToSubmit("one");
  ASSERT_TRUE(first.has_value());
  EXPECT_THAT(std::string(first->message()),
              testing::HasSubstr("cannot write to the coordinator's state directory"));
  EXPECT_THAT(std::string(first->message()), testing::HasSubstr("as soon as there is space"));
  const auto again = AnswerToSubmit("one");
  ASSERT_TRUE(again.has_value());
  EXPECT_THAT(std::string(again->message()), testing::HasSubstr("free some disk space and retry"));
  EXPECT_FALSE(AnswerToSubmit("two")->ok());
  MendStore();
  EXPECT_TRUE(AnswerToSubmit("one")->ok());
  EXPECT_EQ(coordinator_->Views().size(), 1u) << "what was asked for twice is there once";
  EXPECT_TRUE(AnswerToSubmit("two")->ok());
  EXPECT_EQ(coordinator_->Views().size(), 2u);
  JoinAll();
}

// Heartbeats go on for as long as the disk is full.
TEST_F(ServingTest, HeartbeatsDoNotPileUpAndKeepTheirNodes) {
  Attach();
  BreakStore();
  ASSERT_TRUE(AnswerToSubmit("one").has_value());
  v1::AgentMessage message;
  message.mutable_heartbeat();
  for (int i = 0; i < 1000; ++i) coordinator_->Post(NodeSaid{"one", message});
  EXPECT_LT(coordinator_->queued(), 100u);
  now_ = now_ + 10 * Settings().node_lease;
  coordinator_->Post(NodeSaid{"one", message});
  MendStore();
  Settle();
  EXPECT_EQ(coordinator_->Nodes().at(0).name, "ready");
  JoinAll();
}

// An agent with news: lines of a job's log, which it keeps until they are acknowledged.
class Agent {
 public:
  Agent(const std::shared_ptr<grpc::Channel>& channel, std::string name, std::string job)
      : stub_(v1::NodeService::NewStub(channel)), name_(std::move(name)), job_(std::move(job)) {}

  // Sets how many lines there are from now on.
  void Log(uint64_t lines) { lines_ = lines; }

  // Connects and says what is not acknowledged, until all is or the coordinator ends the stream.
  grpc::Status SayAll() {
    grpc::ClientContext context;
    const auto stream = stub_->Attach(&context);
    v1::AgentMessage hello;
    hello.mutable_hello()->set_node(name_);
    hello.mutable_hello()->set_spool_id("spool of " + name_);
    hello.mutable_hello()->set_version(kVersion);
    v1::CoordinatorMessage answer;
    if (!stream->Write(hello) || !stream->Read(&answer)) return stream->Finish();
    std::thread writer([&] {
      for (uint64_t line = acknowledged_ + 1; line <= lines_; ++line) {
        if (!stream->Write(Line(line))) return;
      }
    });
    bool all = false;
    while (!all && stream->Read(&answer)) {
      if (answer.has_acknowledge()) {
        acknowledged_ = std::max<uint64_t>(acknowledged_, answer.acknowledge().sequence());
      }
      all = acknowledged_ == lines_;
    }
    if (all) context.TryCancel();
    writer.join();
    const grpc::Status status = stream->Finish();
    return all ? grpc::Status::OK : status;
  }

 private:
  v1::AgentMessage Line(uint64_t number) const {
    v1::AgentMessage message;
    message.set_sequence(number);
    message.mutable_logs()->mutable_run()->set_job_id(job_);
    v1::LogLine* line = message.mutable_logs()->add_lines();
    line->set_node(name_);
    line->set_line(absl::StrCat(name_, " ", number, std::string(1000, '.')));
    return message;
  }

  std::unique_ptr<v1::NodeService::Stub> stub_;
  const std::string name_;
  const std::string job_;
  uint64_t lines_ = 0;
  std::atomic<uint64_t> acknowledged_ = 0;
};

// Its memory stays bounded however much agents have to say, and nothing of that is lost.
TEST_F(ServingTest, AgentsAreSentAwayWhileTooMuchWaitsForTheStore) {
  constexpr int kAgents = 3;
  constexpr int kLines = 500;
  most_queued_bytes_ = 200'000;
  Start();
  const std::string job = coordinator_->Submit(SmallSpec(1), "one").value();
  Gate gate(Gate::Options(), nullptr);
  NodeServiceImpl service(gate, *coordinator_, 5);
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  std::vector<std::unique_ptr<Agent>> agents;
  for (int i = 0; i < kAgents; ++i) {
    agents.push_back(
        std::make_unique<Agent>(server->InProcessChannel({}), absl::StrCat("node-", i), job));
    agents.back()->Log(1);
    ASSERT_TRUE(agents.back()->SayAll().ok());
    agents.back()->Log(kLines);
  }
  BreakStore();
  ASSERT_FALSE(coordinator_->Submit(SmallSpec(1), "two").ok());
  for (int round = 0; round < 2; ++round) {
    for (const auto& agent : agents) {
      const auto ended = AnswerOf([&] { return FromGrpc(agent->SayAll()); });
      ASSERT_TRUE(ended.has_value()) << "round " << round;
      EXPECT_TRUE(absl::IsUnavailable(*ended)) << *ended;
      EXPECT_THAT(std::string(ended->message()), testing::HasSubstr("cannot be written"));
      EXPECT_THAT(std::string(ended->message()), testing::HasSubstr("no such table"));
    }
    EXPECT_LT(coordinator_->queued_bytes(), most_queued_bytes_ + 10'000);
  }
  // However long it lasts, nodes that come again and again are not lost.
  now_ = now_ + 10 * Settings().node_lease;
  for (const auto& agent : agents) EXPECT_FALSE(agent->SayAll().ok());
  MendStore();
  Settle();
  EXPECT_EQ(coordinator_->queued_bytes(), 0);
  EXPECT_EQ(coordinator_->Nodes().at(0).name, "ready");
  for (const auto& agent : agents) {
    const auto ended = AnswerOf([&] {
      absl::Status status = absl::UnavailableError("not tried");
      while (absl::IsUnavailable(status)) status = FromGrpc(agent->SayAll());
      return status;
    });
    ASSERT_TRUE(ended.has_value());
    EXPECT_TRUE(ended->ok()) << *ended;
  }
  int64_t after = 0;
  const auto lines =
      coordinator_->store().Logs(job, &after, [](const v1::LogLine&) { return true; });
  ASSERT_TRUE(lines.ok());
  std::multiset<std::string> kept;
  for (const v1::LogLine& line : *lines) kept.insert(line.line().substr(0, line.line().find('.')));
  EXPECT_EQ(kept.size(), size_t{kAgents * kLines}) << "lost, or there twice";
  EXPECT_EQ(std::set(kept.begin(), kept.end()).size(), kept.size());
  server->Shutdown();
  JoinAll();
}

TEST_F(ServingTest, ACoordinatorStopsThoughItsDiskTakesNothing) {
  BreakStore();
  const auto host = HostOf(*coordinator_);
  ASSERT_TRUE(AnswerToSubmit("one").has_value());
  coordinator_->Stop();
  const auto late = AnswerToSubmit("two");
  ASSERT_TRUE(late.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*late)) << *late;
  EXPECT_TRUE(absl::IsUnavailable(host->Record(CheckpointCommitted{RunWith(1), 5, "", 1})));
  JoinAll();
  coordinator_.reset();
}

TEST_F(ServingTest, ARequestThatIsMadeManyTimesAtOnceMakesOneJob) {
  std::vector<std::future<absl::StatusOr<std::string>>> answers;
  for (int i = 0; i < 8; ++i) {
    answers.push_back(std::async(std::launch::async,
                                 [this] { return coordinator_->Submit(SmallSpec(1), "one"); }));
  }
  std::set<std::string> ids;
  for (auto& answer : answers) ids.insert(answer.get().value());
  EXPECT_EQ(ids.size(), 1u);
  EXPECT_EQ(coordinator_->Views().size(), 1u);
}

// The coordinator dies before a submit is durable, whichever part of it the disk did not take, and
// after it, before anybody was told. Who asks again with the same request id has one job.
TEST_F(ServingTest, ASubmitThatWasCutShortIsOneJobWhenItIsRepeated) {
  for (const std::string table : {"jobs", "requests"}) {
    Execute(("ALTER TABLE " + table + " RENAME TO away").c_str());
    const auto answer = AnswerToSubmit("one");
    ASSERT_TRUE(answer.has_value());
    EXPECT_FALSE(answer->ok());
    JoinAll();
    coordinator_.reset();
    Execute(("ALTER TABLE away RENAME TO " + table).c_str());
    Start();
    EXPECT_TRUE(coordinator_->Views().empty()) << table;
  }
  const std::string id = coordinator_->Submit(SmallSpec(1), "one").value();
  Start();
  EXPECT_EQ(coordinator_->Submit(SmallSpec(1), "one").value(), id);
  EXPECT_EQ(coordinator_->Views().size(), 1u);
  EXPECT_NE(coordinator_->Submit(SmallSpec(1), "two").value(), id);
}

TEST_F(ServingTest, ARefusedSubmissionLeavesItsRequestFree) {
  ASSERT_TRUE(coordinator_->Ask(Submitted{kJob, SmallSpec(1), "", "first"}).ok());
  EXPECT_EQ(coordinator_->Ask(Submitted{kJob, SmallSpec(1), "", "second"}).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(coordinator_->store().JobOfRequest("first").value(), kJob);
  EXPECT_EQ(coordinator_->store().JobOfRequest("second").value(), "");
}

// Each attempt has a token of its own, which its ranks show; that of the one before opens nothing.
TEST_F(ServingTest, TheTokenOfAnOlderAttemptIsRefused) {
  v1::AgentHello hello;
  hello.set_node("one");
  hello.set_devices(1);
  hello.set_device_kind(v1::DEVICE_KIND_CPU);
  ASSERT_TRUE(coordinator_->Attach(hello, {[](v1::CoordinatorMessage) {}, [] {}}).ok());
  ASSERT_TRUE(coordinator_->Ask(Submitted{kJob, SmallSpec(1)}).ok());
  const std::string first = coordinator_->Find(kJob)->token();
  EXPECT_TRUE(coordinator_->IsPresent(RunWith(1), first));
  EXPECT_FALSE(coordinator_->IsPresent(RunWith(1), ""));
  EXPECT_FALSE(coordinator_->IsPresent(RunWith(1), TokenSource().Next()));
  ASSERT_TRUE(coordinator_->Ask(CheckpointFound{RunWith(1), 0, "", 0, {}}).ok());
  v1::AgentMessage prepared;
  *prepared.mutable_data_prepared()->mutable_run() = RunWith(1);
  prepared.mutable_data_prepared()->set_vocab_size(20);
  ASSERT_TRUE(coordinator_->Ask(NodeSaid{"one", prepared}).ok());
  v1::AgentMessage failed;
  *failed.mutable_rank_exited()->mutable_run() = RunWith(1);
  failed.mutable_rank_exited()->mutable_exit()->set_exit_code(1);
  ASSERT_TRUE(coordinator_->Ask(NodeSaid{"one", failed}).ok());
  v1::AgentMessage stopped;
  *stopped.mutable_run_stopped()->mutable_run() = RunWith(1);
  ASSERT_TRUE(coordinator_->Ask(NodeSaid{"one", stopped}).ok());
  EXPECT_FALSE(coordinator_->IsPresent(RunWith(1), first)) << "nobody trains now";
  for (int i = 0; i < 10 && coordinator_->Find(kJob)->attempt() == 1; ++i) {
    v1::AgentMessage heartbeat;
    heartbeat.mutable_heartbeat();
    ASSERT_TRUE(coordinator_->Ask(NodeSaid{"one", heartbeat}).ok());
    Pass(10);
  }
  ASSERT_EQ(coordinator_->Find(kJob)->attempt(), 2);
  const std::string second = coordinator_->Find(kJob)->token();
  EXPECT_TRUE(coordinator_->IsPresent(RunWith(2), second));
  EXPECT_FALSE(coordinator_->IsPresent(RunWith(2), first));
  EXPECT_FALSE(coordinator_->IsPresent(RunWith(1), first));
}

// A checkpoint that takes long to read is one whose manifest is a pipe.
TEST_F(ServingTest, OneJobsCheckpointIsSearchedWhileOthersAreServed) {
  const std::string id = coordinator_->Submit(SmallSpec(1), "one").value();
  const std::string slow = checkpoints_.PathOf(id, 5);
  std::filesystem::create_directories(slow);
  const std::string manifest = slow + "/manifest.json";
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  v1::AgentHello hello;
  hello.set_node("one");
  hello.set_devices(1);
  hello.set_device_kind(v1::DEVICE_KIND_CPU);
  ASSERT_TRUE(coordinator_->Attach(hello, {[](v1::CoordinatorMessage) {}, [] {}}).ok());
  const auto other = AnswerToSubmit("two");
  EXPECT_TRUE(other.has_value()) << "it waits for the other job's disk";
  const uint64_t rounds = coordinator_->rounds();
  if (other.has_value()) Settle();
  EXPECT_TRUE(!other.has_value() || coordinator_->rounds() > rounds);
  // The search ends: there is nothing good. What is read a second time is no pipe any more.
  std::thread writer([&] {
    std::ofstream pipe(manifest);
    std::filesystem::remove(manifest);
    std::ofstream(manifest) << "no manifest";
    pipe << "no manifest";
  });
  writer.join();
  JoinAll();
}

TEST_F(ServingTest, TheCheckpointsPathIsAbsoluteAndWhereItIsNow) {
  const std::string id = coordinator_->Submit(SmallSpec(1), "one").value();
  v1::JobRecord record = coordinator_->Find(id).value();
  coordinator_.reset();
  {
    auto store = Store::Open(directory_.path() + "/state.sqlite", OpenFor::kWriting);
    record.set_checkpoint_step(5);
    record.set_checkpoint_path("relative/checkpoints/step-00000005");
    Changes changes;
    changes.jobs.push_back(record);
    ASSERT_TRUE((*store)->Commit(changes).ok());
  }
  Start();
  const v1::JobStatus status = StatusOf(coordinator_->View(id).value());
  EXPECT_EQ(status.checkpoint().path(),
            directory_.path() + "/checkpoints/" + id + "/step-00000005");
  EXPECT_TRUE(std::filesystem::path(checkpoint::Store("here").PathOf("job", 1)).is_absolute());
}

}  // namespace
}  // namespace tercio::coordinator

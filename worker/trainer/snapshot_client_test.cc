// Copies given to and loaded from the agents' own service, with several agents in one process.
#include "worker/trainer/snapshot_client.h"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/snapshots/snapshot_server.h"
#include "worker/trainer/testing/fake_engine.h"

namespace tercio::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

LoadedBytes Nowhere() {
  return [](int64_t, int64_t) {};
}

struct Agent {
  Agent()
      : store({0, [] { return int64_t{1} << 40; }}),
        service(store, [this](const v1::RunId& run, const std::string& token) {
          while (stands_still) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return run.attempt() == attempt && token == "token";
        }) {
    auto listening = agent::SnapshotServer::Listen("127.0.0.1:0", {}, service);
    EXPECT_TRUE(listening.ok()) << listening.status();
    server = *std::move(listening);
  }
  // What waits in the service waits for this.
  ~Agent() { stands_still = false; }
  int attempt = 1;
  std::atomic<bool> stands_still{false};  // answers nobody
  agent::SnapshotStore store;
  agent::SnapshotServiceImpl service;
  std::unique_ptr<agent::SnapshotServer> server;
};

class SnapshotClientTest : public ::testing::Test {
 protected:
  SnapshotClientTest() : large_(700'000), small_(3) {
    std::iota(large_.begin(), large_.end(), 0.f);
    std::iota(small_.begin(), small_.end(), -7.f);
    slices_ = {Rows("w", 0, 700'000), Rows("b", 5, 8)};
  }
  SnapshotClient Client(int attempt, std::vector<std::string> holders,
                        const std::string& token = "token") {
    CheckpointIdentity identity;
    identity.run.set_job_id("job-1");
    identity.run.set_attempt(attempt);
    identity.token = token;
    identity.rank = 2;
    return SnapshotClient(identity, std::move(holders), patience_);
  }
  std::vector<absl::Status> Put(SnapshotClient client) {
    v1::StepRecord record;
    record.set_step(10);
    return client.Put(10, slices_, {large_, small_}, {record});
  }

  absl::Duration patience_ = SnapshotClient::kPatience;
  std::vector<float> large_;
  std::vector<float> small_;
  std::vector<v1::TensorSlice> slices_;
  Agent one_;
  Agent two_;
};

TEST_F(SnapshotClientTest, WhatIsPutToAllIsLoadedFromAny) {
  EXPECT_THAT(Put(Client(1, {one_.server->address(), two_.server->address()})), IsEmpty());
  for (Agent* agent : {&one_, &two_}) {
    EXPECT_EQ(agent->store.Inventory().snapshots(0).steps_size(), 1);
    agent->attempt = 2;
    FakeEngine engine;
    engine.slices = slices_;
    int64_t bytes = 0;
    int64_t total = 0;
    const auto loaded = [&](int64_t so_far, int64_t all) {
      EXPECT_GE(so_far, bytes);
      bytes = so_far;
      total = all;
    };
    ASSERT_TRUE(Client(2, {}).Load(agent->server->address(), 1, 10, loaded, engine).ok());
    EXPECT_EQ(bytes, static_cast<int64_t>((large_.size() + small_.size()) * sizeof(float)));
    EXPECT_EQ(total, bytes);
    EXPECT_THAT(engine.loaded, ElementsAre(Pair(0, large_), Pair(1, small_)));
  }
}

TEST_F(SnapshotClientTest, AnAgentThatDoesNotAnswerIsTheLossOfItsCopyOnly) {
  const std::string gone = one_.server->address();
  one_.server = nullptr;
  const auto errors = Put(Client(1, {gone, two_.server->address()}));
  ASSERT_THAT(errors, SizeIs(1));
  EXPECT_THAT(std::string(errors[0].message()), HasSubstr(gone));
  EXPECT_EQ(two_.store.Inventory().snapshots_size(), 1);
}

// As a process that was stopped: its connections stay, and nobody reads them.
TEST_F(SnapshotClientTest, AnAgentThatStandsStillIsGivenUpAndTheNextIsServed) {
  EXPECT_GE(SnapshotClient::kPatience, absl::Seconds(20));
  EXPECT_THAT(Put(Client(1, {one_.server->address()})), IsEmpty());
  patience_ = absl::Milliseconds(300);
  one_.stands_still = true;
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = Put(Client(1, {one_.server->address(), two_.server->address()}));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ASSERT_THAT(errors, SizeIs(1));
  EXPECT_EQ(errors[0].code(), absl::StatusCode::kDeadlineExceeded) << errors[0];
  EXPECT_THAT(std::string(errors[0].message()), HasSubstr(one_.server->address()));
  // 2.8 MB at 20 MB/s come to what it may take.
  EXPECT_GE(took.count(), 0.3 + 0.14);
  EXPECT_EQ(two_.store.Inventory().snapshots_size(), 1);
  FakeEngine engine;
  engine.slices = slices_;
  EXPECT_EQ(Client(1, {}).Load(one_.server->address(), 1, 10, Nowhere(), engine).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SnapshotClientTest, OthersThanRanksOfTheAttemptAreRefused) {
  const std::string address = one_.server->address();
  const auto refused = [this](SnapshotClient client) {
    const auto errors = Put(std::move(client));
    return errors.size() == 1 && absl::IsAborted(errors[0]);
  };
  EXPECT_TRUE(refused(Client(1, {address}, "guessed")));
  EXPECT_TRUE(refused(Client(3, {address})));
  EXPECT_THAT(Put(Client(1, {address})), IsEmpty());
  FakeEngine engine;
  engine.slices = slices_;
  EXPECT_EQ(Client(1, {}, "guessed").Load(address, 1, 10, Nowhere(), engine).code(),
            absl::StatusCode::kAborted);
  EXPECT_THAT(engine.loaded, IsEmpty());
}

TEST_F(SnapshotClientTest, WhatIsNotThereOrDoesNotFitIsAnError) {
  const std::string address = one_.server->address();
  EXPECT_THAT(Put(Client(1, {address})), IsEmpty());
  FakeEngine engine;
  engine.slices = slices_;
  EXPECT_EQ(Client(1, {}).Load(address, 1, 11, Nowhere(), engine).code(),
            absl::StatusCode::kNotFound);
  engine.slices = {slices_[0], Rows("b", 5, 7)};
  const absl::Status other = Client(1, {}).Load(address, 1, 10, Nowhere(), engine);
  EXPECT_EQ(other.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(other.message()), HasSubstr("another layout"));
}

TEST_F(SnapshotClientTest, ABitThatFlippedInMemoryIsFound) {
  const std::string address = one_.server->address();
  EXPECT_THAT(Put(Client(1, {address})), IsEmpty());
  const auto copy = one_.store.Find("job-1", 1, 2, 10);
  copy->data[1'000'000] ^= 1;
  FakeEngine engine;
  engine.slices = slices_;
  EXPECT_EQ(Client(1, {}).Load(address, 1, 10, Nowhere(), engine).code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tercio::trainer

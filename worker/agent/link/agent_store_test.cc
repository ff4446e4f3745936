// What an agent keeps: order, bound, restart, a file that was torn.
#include "worker/agent/link/agent_store.h"

#include <filesystem>
#include <fstream>
#include <set>

#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "sqlite3.h"

namespace tercio::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kPlenty = 64 << 20;

v1::AgentMessage Step(int64_t step) {
  v1::AgentMessage message;
  message.mutable_step_report()->mutable_run()->set_job_id("j");
  message.mutable_step_report()->mutable_record()->set_step(step);
  return message;
}

v1::AgentMessage Line(int rank, const std::string& text) {
  v1::AgentMessage message;
  message.mutable_logs()->mutable_run()->set_job_id("j");
  message.mutable_logs()->mutable_run()->set_attempt(1);
  v1::LogLine* line = message.mutable_logs()->add_lines();
  line->set_rank(rank);
  line->set_line(text);
  return message;
}

v1::AgentMessage Trace(size_t bytes) {
  v1::AgentMessage message;
  message.mutable_trace()->mutable_trace()->add_events()->set_name(std::string(bytes, 'x'));
  return message;
}

class AgentStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(kPlenty); }

  void Open(int64_t most_bytes) {
    store_.reset();
    auto store = AgentStore::Open(path(), most_bytes);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  void RunSql(const char* sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path().c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    sqlite3_close(database);
  }

  // As after kill -9: what the dead process had not written is gone, nothing is tidied up.
  void OpenACopy() {
    TempDir copy;
    for (const char* part : {"", "-wal"}) {
      if (std::filesystem::exists(path() + part)) {
        std::filesystem::copy(path() + part, copy.path() + "/agent.db" + part);
      }
    }
    store_.reset();
    for (const char* part : {"", "-wal"}) {
      std::filesystem::remove(path() + part);
      if (std::filesystem::exists(copy.path() + "/agent.db" + part)) {
        std::filesystem::copy(copy.path() + "/agent.db" + part, path() + part);
      }
    }
    Open(kPlenty);
  }

  void Tell(const v1::AgentMessage& message) {
    AgentChanges changes;
    changes.messages.push_back(message);
    store_->Commit(std::move(changes));
  }

  // One word per message that is still to be told.
  std::vector<std::string> Words() {
    std::vector<std::string> words;
    for (const v1::AgentMessage& message : store_->After(0, kPlenty)) {
      if (message.has_step_report()) {
        words.push_back(std::to_string(message.step_report().record().step()));
      } else if (message.has_logs()) {
        words.push_back(message.logs().lines(0).line());
      } else {
        words.push_back(message.has_trace() ? "trace" : "other");
      }
    }
    return words;
  }

  std::string path() const { return directory_.path() + "/agent.db"; }

  TempDir directory_;
  std::unique_ptr<AgentStore> store_;
};

TEST_F(AgentStoreTest, TellsInOrderUntilItIsAcknowledged) {
  for (int step = 1; step <= 5; ++step) Tell(Step(step));
  const auto messages = store_->After(0, kPlenty);
  ASSERT_EQ(messages.size(), 5u);
  for (size_t i = 1; i < 5; ++i) EXPECT_GT(messages[i].sequence(), messages[i - 1].sequence());
  EXPECT_GT(messages[0].sequence(), 0u);
  EXPECT_EQ(store_->After(0, 1).size(), 1u) << "a batch is bounded, and never empty";
  EXPECT_EQ(store_->After(messages[2].sequence(), kPlenty).size(), 2u);
  EXPECT_EQ(store_->Newest(), messages[4].sequence());
  store_->Acknowledge(messages[2].sequence());
  EXPECT_THAT(Words(), ElementsAre("4", "5"));
  store_->Acknowledge(messages[1].sequence());
  EXPECT_THAT(Words(), ElementsAre("4", "5")) << "an old acknowledgement";
  store_->Acknowledge(messages[4].sequence());
  EXPECT_EQ(store_->Newest(), 0u);
}

TEST_F(AgentStoreTest, SurvivesItsProcess) {
  const std::string id = store_->spool_id();
  EXPECT_EQ(id.size(), 32u);
  for (int step = 1; step <= 4; ++step) Tell(Step(step));
  store_->Acknowledge(store_->After(0, kPlenty)[1].sequence());
  const uint64_t newest = store_->Newest();
  store_->SetNote("name", "value");
  OpenACopy();
  EXPECT_EQ(store_->spool_id(), id);
  EXPECT_THAT(Words(), ElementsAre("3", "4"));
  EXPECT_EQ(store_->Note("name"), "value");
  EXPECT_EQ(store_->Note("no such"), "");
  store_->Acknowledge(newest);
  Tell(Step(5));
  EXPECT_GT(store_->Newest(), newest) << "a number came twice";
  OpenACopy();
  EXPECT_THAT(Words(), ElementsAre("5"));
}

TEST_F(AgentStoreTest, NumbersOfAnEmptySpoolDoNotComeAgain) {
  Tell(Step(1));
  const uint64_t newest = store_->Newest();
  store_->Acknowledge(newest);
  OpenACopy();
  Tell(Step(2));
  EXPECT_GT(store_->Newest(), newest);
}

TEST_F(AgentStoreTest, TheNewestLinesGiveWayThenTracesAndNothingElse) {
  Open(4000);
  Tell(Trace(500));
  for (int i = 0; i < 5; ++i)
    Tell(Line(i % 2, "line " + std::to_string(i) + std::string(300, '.')));
  Tell(Step(1));
  Tell(Line(0, std::string(3000, 'x')));  // does not fit
  auto words = Words();
  ASSERT_EQ(words.size(), 7u);
  for (int step = 2; step <= 20; ++step) Tell(Step(step));
  for (int i = 0; i < 200; ++i) Tell(Step(100 + i));
  words = Words();
  EXPECT_EQ(words.size(), 220u) << "only steps are left, all of them";
  Tell(Line(1, "in vain"));
  Tell(Trace(10));
  EXPECT_EQ(Words().size(), 220u);
  // Also the counts survive.
  OpenACopy();
  Open(4000);
  EXPECT_EQ(Words().size(), 220u);
  store_->Acknowledge(store_->Newest());
  words = Words();
  ASSERT_EQ(words.size(), 2u) << "one marker a rank";
  EXPECT_THAT(words[0], HasSubstr("(4 lines are missing"));  // 0, 2, 4 and the long one
  EXPECT_THAT(words[1], HasSubstr("(3 lines are missing"));  // 1, 3 and the one in vain
  store_->Acknowledge(store_->Newest());
  EXPECT_EQ(store_->Newest(), 0u) << "said once";
  Tell(Line(0, "again"));
  OpenACopy();
  EXPECT_THAT(Words(), ElementsAre("again"));
}

TEST_F(AgentStoreTest, TheNewestOfTheLinesGoesFirst) {
  Open(2000);
  for (int i = 0; i < 4; ++i) Tell(Line(0, "line " + std::to_string(i) + std::string(390, '.')));
  while (Words().size() >= 4 && Words()[3].starts_with("line 3")) Tell(Step(1));
  EXPECT_TRUE(Words()[2].starts_with("line 2")) << Words()[2];
  EXPECT_EQ(Words()[3], "1");
}

RunState SmallRun() {
  RunState run;
  run.start.mutable_run()->set_job_id("j");
  run.start.mutable_run()->set_attempt(3);
  run.start.set_token("token");
  run.start.set_resume_step(7);
  for (int rank = 0; rank < 2; ++rank) {
    v1::RankPlan* plan = run.start.add_ranks();
    plan->mutable_placement()->set_rank(rank);
    run.ranks[rank].plan = *plan;
    run.ranks[rank].life = RankState::Life::kLive;
  }
  return run;
}

TEST_F(AgentStoreTest, KeepsRunsWithTheirProcesses) {
  const RunKey key{"j", 3};
  AgentChanges changes;
  RunState run = SmallRun();
  changes.runs.emplace_back(key, run);
  store_->Commit(changes);
  changes = {};
  changes.started.push_back({key, 1, 4711, 99, 0, {5, 6}});
  store_->Commit(changes);
  changes = {};
  changes.received.push_back({{key, 1}, 12});
  changes.logs.push_back({{key, 1}, {5, 1000}});
  store_->Commit(changes);
  changes = {};
  run.stopping = true;
  run.ranks[0].life = RankState::Life::kEnded;
  run.ranks[0].has_exited = true;
  run.ranks[0].exit.set_reason("why");
  changes.runs.emplace_back(key, run);
  store_->Commit(changes);
  OpenACopy();
  const Restored& restored = store_->restored();
  ASSERT_TRUE(restored.runs.contains(key));
  const RunState& again = restored.runs.at(key);
  EXPECT_EQ(again.start.SerializeAsString(), run.start.SerializeAsString());
  EXPECT_TRUE(again.stopping);
  ASSERT_EQ(again.ranks.size(), 2u);
  EXPECT_EQ(again.ranks.at(0).life, RankState::Life::kEnded);
  EXPECT_EQ(again.ranks.at(0).exit.reason(), "why");
  EXPECT_EQ(again.ranks.at(1).life, RankState::Life::kLive);
  EXPECT_FALSE(again.ranks.at(1).has_exited);
  EXPECT_EQ(again.ranks.at(1).plan.placement().rank(), 1);
  EXPECT_EQ(again.ranks.at(1).last_step, 7);
  EXPECT_EQ(restored.highest_attempt, 3);
  ASSERT_EQ(store_->processes().size(), 2u);
  const ProcessRecord& process = store_->processes()[1];
  EXPECT_EQ(process.pid, 4711);
  EXPECT_EQ(process.start_time, 99u);
  EXPECT_EQ(process.received, 12u);
  EXPECT_EQ(process.log.file, 5u);
  EXPECT_EQ(process.log.offset, 1000);
}

// The version before this one kept words of closed sets as text.
TEST_F(AgentStoreTest, ARunOfTheVersionBeforeIsRead) {
  AgentChanges changes;
  RunState run = SmallRun();
  v1::FaultToleranceSpec* fault = run.start.mutable_spec()->mutable_fault_tolerance();
  fault->GetReflection()->MutableUnknownFields(fault)->AddLengthDelimited(5, "skip");
  fault->GetReflection()->MutableUnknownFields(fault)->AddLengthDelimited(7, "rollback");
  changes.runs.emplace_back(RunKey{"j", 3}, run);
  store_->Commit(changes);
  store_.reset();
  RunSql("PRAGMA user_version=1");
  for (int again = 0; again < 2; ++again) {
    Open(kPlenty);
    const Restored& restored = store_->restored();
    ASSERT_TRUE(restored.runs.contains({"j", 3}));
    const v1::StartRun& start = restored.runs.at({"j", 3}).start;
    EXPECT_EQ(start.token(), "token");
    EXPECT_EQ(start.spec().fault_tolerance().on_nan(), v1::ON_NAN_SKIP);
    EXPECT_EQ(start.spec().fault_tolerance().on_spike(), v1::ON_SPIKE_ROLLBACK);
    const v1::FaultToleranceSpec& read = start.spec().fault_tolerance();
    EXPECT_TRUE(read.GetReflection()->GetUnknownFields(read).empty());
    EXPECT_FALSE(std::filesystem::exists(path() + ".damaged"));
  }
}

TEST_F(AgentStoreTest, RemembersTheLatestEndedRuns) {
  for (int attempt = 1; attempt <= 40; ++attempt) {
    AgentChanges changes;
    EndedRun ended{{"j", attempt}, {}};
    v1::ExitRecord exit;  // rank 0 with code 0 has no bytes at all
    if (attempt % 2 == 0) ended.exits.push_back(exit);
    changes.ended.push_back(ended);
    store_->Commit(std::move(changes));
  }
  OpenACopy();
  const Restored& restored = store_->restored();
  EXPECT_TRUE(restored.runs.empty());
  EXPECT_EQ(restored.highest_attempt, 40);
  ASSERT_EQ(restored.ended.size(), 32u);
  EXPECT_EQ(restored.ended.front().run.second, 9);
  EXPECT_EQ(restored.ended.back().run.second, 40);
  EXPECT_EQ(restored.ended.back().exits.size(), 1u);
  EXPECT_EQ(restored.ended.front().exits.size(), 0u);
}

TEST_F(AgentStoreTest, BeginsAnewBesideATornFile) {
  const std::string id = store_->spool_id();
  for (int step = 0; step < 2000; ++step) Tell(Step(step));
  store_.reset();  // the last connection that closes moves everything into the main file
  const auto bytes = std::filesystem::file_size(path());
  ASSERT_GT(bytes, 40000u);
  std::filesystem::resize_file(path(), bytes / 2);
  Open(kPlenty);
  EXPECT_NE(store_->spool_id(), id) << "the coordinator must not take it for the old one";
  EXPECT_TRUE(Words().empty());
  EXPECT_TRUE(std::filesystem::exists(path() + ".damaged"));
  Tell(Step(1));
  OpenACopy();
  EXPECT_THAT(Words(), ElementsAre("1"));
}

// The first tables: `missing` had no `last`, and there was no number of a version.
TEST_F(AgentStoreTest, AStoreOfTheFirstTablesIsBroughtUpToDate) {
  Tell(Step(7));
  const std::string id = store_->spool_id();
  store_.reset();
  RunSql(
      "PRAGMA user_version=0; DROP TABLE missing;"
      "CREATE TABLE missing(job TEXT, attempt INTEGER, rank INTEGER, lines INTEGER,"
      "  PRIMARY KEY(job, attempt, rank)) WITHOUT ROWID;"
      "INSERT INTO missing VALUES('j', 1, 3, 12)");
  for (int again = 0; again < 2; ++again) {
    Open(kPlenty);
    EXPECT_EQ(store_->spool_id(), id);
    EXPECT_THAT(Words(), ::testing::Contains("7"));
    EXPECT_FALSE(std::filesystem::exists(path() + ".damaged"));
  }
}

TEST_F(AgentStoreTest, AStoreOfANewerVersionIsRefusedAndLeftAlone) {
  Tell(Step(7));
  store_.reset();
  RunSql("PRAGMA user_version=1000");
  const auto refused = AgentStore::Open(path(), kPlenty);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("newer Tercio (version 1000"));
  EXPECT_FALSE(std::filesystem::exists(path() + ".damaged"));
  RunSql("PRAGMA user_version=1");
  Open(kPlenty);
  EXPECT_THAT(Words(), ElementsAre("7"));
}

TEST_F(AgentStoreTest, BeginsAnewBesideAFileOfSomethingElse) {
  store_.reset();
  std::ofstream(path()) << std::string(10000, 'x');
  Open(kPlenty);
  Tell(Step(1));
  EXPECT_THAT(Words(), ElementsAre("1"));
}

TEST_F(AgentStoreTest, WhileTheDiskTakesNothingOnlyTheLastWordIsKept) {
  const RunKey run{"j", 1};
  AgentChanges start;
  start.runs.emplace_back(run, RunState());
  start.runs[0].second.start.add_ranks()->mutable_placement()->set_rank(3);
  start.runs[0].second.ranks[3].life = RankState::Life::kLive;
  store_->Commit(std::move(start));
  RunSql("ALTER TABLE ranks RENAME TO away");
  AgentChanges all;
  for (int64_t i = 1; i <= 100; ++i) {
    AgentChanges changes;
    changes.received.push_back({{run, 3}, static_cast<uint64_t>(i)});
    changes.logs.push_back({{run, 3}, LogPosition{7, i}});
    all.Add(changes);
    store_->Commit(std::move(changes));
  }
  EXPECT_EQ(all.received.size(), 1u);
  EXPECT_EQ(all.logs.size(), 1u);
  RunSql("ALTER TABLE away RENAME TO ranks");
  AgentChanges next;
  next.messages.push_back(Step(1));
  store_->Commit(std::move(next));
  Open(kPlenty);
  ASSERT_EQ(store_->processes().size(), 1u);
  EXPECT_EQ(store_->processes()[0].received, 100u);
  EXPECT_EQ(store_->processes()[0].log.offset, 100);
}

// The end of the write-ahead log is torn: SQLite takes what is whole.
TEST_F(AgentStoreTest, ATornWriteAheadLogCostsItsEndOnly) {
  for (int step = 1; step <= 20; ++step) Tell(Step(step));
  const auto bytes = std::filesystem::file_size(path() + "-wal");
  std::filesystem::resize_file(path() + "-wal", bytes - 1000);
  OpenACopy();
  const auto words = Words();
  ASSERT_GE(words.size(), 1u);
  EXPECT_LT(words.size(), 20u);
  for (size_t i = 0; i < words.size(); ++i) EXPECT_EQ(words[i], std::to_string(i + 1));
}

TEST_F(AgentStoreTest, CallsTheListenerForNewsOnly) {
  int called = 0;
  store_->SetListener([&] { ++called; });
  Tell(Step(1));
  EXPECT_EQ(called, 1);
  AgentChanges changes;
  changes.runs.emplace_back(RunKey{"j", 3}, SmallRun());
  store_->Commit(std::move(changes));
  store_->Acknowledge(store_->Newest());
  EXPECT_EQ(called, 1);
}

}  // namespace
}  // namespace tercio::agent

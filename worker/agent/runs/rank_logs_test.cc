#include "worker/agent/runs/rank_logs.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const RunKey kRun{"j", 2};

class RankLogsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = AgentStore::Open(directory_.path() + "/agent.db", 64 << 20);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  RankLogs Make(double lines_per_second, int64_t job_bytes = 1 << 30) {
    return RankLogs({"node-1", root(), job_bytes, 1 << 30, lines_per_second, {}}, *store_,
                    [this](const RunKey& run, int rank, int64_t lines) {
                      EXPECT_EQ(run, kRun);
                      EXPECT_EQ(rank, 3);
                      dropped_ += lines;
                    });
  }

  std::string root() const { return directory_.path() + "/logs"; }

  // What the store holds for the coordinator.
  std::vector<v1::RankLogs> Sent() {
    std::vector<v1::RankLogs> logs;
    for (const v1::AgentMessage& message : store_->After(0, 1 << 30)) {
      logs.push_back(message.logs());
    }
    return logs;
  }

  TempDir directory_;
  std::unique_ptr<AgentStore> store_;
  int64_t dropped_ = 0;
};

TEST_F(RankLogsTest, SendsLinesWithTheirRankAndLevel) {
  const RankLogs logs = Make(1000);
  const auto stream = logs.OpenStream(kRun, 3);
  stream->Send({"level=warning msg=\"hot\"", "\x1b[2J\xff"}, {});
  stream->Send({}, {});
  stream->Finish();
  const std::vector<v1::RankLogs> sent = Sent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].run().job_id(), "j");
  EXPECT_EQ(sent[0].lost(), 0);
  ASSERT_EQ(sent[0].lines_size(), 2);
  EXPECT_EQ(sent[0].lines(0).attempt(), 2);
  EXPECT_EQ(sent[0].lines(0).rank(), 3);
  EXPECT_EQ(sent[0].lines(0).node(), "node-1");
  EXPECT_EQ(sent[0].lines(1).line(), "?[2J?");
  EXPECT_EQ(dropped_, 0);
}

TEST_F(RankLogsTest, AMarkerStandsForLinesThatWereDropped) {
  const RankLogs logs = Make(1);
  const auto stream = logs.OpenStream(kRun, 3);
  stream->Send(std::vector<std::string>(10, "line"), {});
  stream->Finish();
  const std::vector<v1::RankLogs> sent = Sent();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].lines_size(), 2);
  EXPECT_EQ(sent[1].lost(), 8);
  ASSERT_EQ(sent[1].lines_size(), 1);
  EXPECT_THAT(sent[1].lines(0).line(), HasSubstr("8 lines were dropped here"));
  EXPECT_THAT(sent[1].lines(0).line(), HasSubstr(root() + "/j/attempt-2-rank-3.log"));
  EXPECT_EQ(sent[1].lines(0).level(), "warning");
  EXPECT_EQ(dropped_, 8);
}

TEST_F(RankLogsTest, ReportsLinesThatWereNotWritten) {
  Make(1).ReportUnwritten(kRun, 7);
  const std::vector<v1::RankLogs> sent = Sent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].lost(), 7);
  EXPECT_EQ(sent[0].lines_size(), 0);
  EXPECT_EQ(dropped_, 0);
}

TEST_F(RankLogsTest, LastLinesAreReadable) {
  EXPECT_THAT(RankLogs::Readable(std::vector<std::string>{"a\tb", "c\rd"}),
              ElementsAre("a\tb", "c?d"));
  EXPECT_THAT(RankLogs::Readable(std::vector<std::string>{}), IsEmpty());
}

TEST_F(RankLogsTest, TrimsButForLogsThatAreBeingWritten) {
  const RankLogs logs = Make(1, /*job_bytes=*/0);
  ASSERT_TRUE(logs.MakeFolder("j").ok());
  ASSERT_TRUE(logs.MakeFolder("other").ok());
  std::ofstream(logs.PathOf(kRun, 3)) << std::string(8192, 'x');
  EXPECT_FALSE(logs.Trim({RankLogs::NameOf(kRun, 3)}));
  logs.RemoveEmptyFolders();
  EXPECT_TRUE(std::filesystem::exists(logs.PathOf(kRun, 3)));
  EXPECT_FALSE(std::filesystem::exists(root() + "/other"));
  EXPECT_TRUE(logs.Trim({}));
  logs.RemoveEmptyFolders();
  EXPECT_FALSE(std::filesystem::exists(root() + "/j"));
}

}  // namespace
}  // namespace tercio::agent

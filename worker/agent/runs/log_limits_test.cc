#include "worker/agent/runs/log_limits.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "common/temp_dir.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

std::vector<std::string> Lines(size_t count, size_t bytes = 10) {
  return std::vector<std::string>(count, std::string(bytes, 'x'));
}

TEST(LineLimit, FewLinesPass) {
  LineLimit limit(100);
  for (int second = 1; second < 100; ++second) {
    EXPECT_EQ(limit.Pass(second, Lines(90)).lines.size(), 90u);
    EXPECT_EQ(limit.TakeLeftOut(), 0);
  }
}

TEST(LineLimit, AFloodIsCutAndTheGapsAreTold) {
  LineLimit limit(100);
  int64_t passed = 0;
  int64_t told = 0;
  int gaps = 0;
  int64_t written = 0;
  // 100,000 lines a second, for ten seconds, in batches of a hundred.
  for (int batch = 0; batch < 10'000; ++batch) {
    const LineLimit::Passed some = limit.Pass(1 + batch * 0.001, Lines(100));
    written += 100;
    passed += static_cast<int64_t>(some.lines.size());
    told += some.left_out_before;
    gaps += some.left_out_before > 0 ? 1 : 0;
  }
  EXPECT_GE(passed, 1'000);
  EXPECT_LE(passed, 1'000 + 200 + 1) << "the rate, and what may come at once";
  EXPECT_LE(gaps, 11);
  EXPECT_EQ(passed + told + limit.TakeLeftOut(), written) << "every line passes or is told of";
  // And then it is quiet again.
  const LineLimit::Passed later = limit.Pass(20, Lines(5));
  EXPECT_EQ(later.lines.size(), 5u);
  EXPECT_EQ(later.left_out_before, 0);
}

TEST(LineLimit, LongLinesCountForMany) {
  LineLimit limit(100);
  EXPECT_LE(limit.Pass(1, Lines(100, 8192)).lines.size(), 7u);
}

class TrimLogsTest : public ::testing::Test {
 protected:
  // Older ones first.
  void Write(const std::string& name, size_t bytes) {
    const std::string path = directory_.path() + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << std::string(bytes, 'x');
    const timespec times[2] = {{++second_, 0}, {second_, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  bool There(const std::string& name) {
    return std::filesystem::exists(directory_.path() + "/" + name);
  }

  TempDir directory_;
  int64_t second_ = 1'700'000'000;
};

TEST_F(TrimLogsTest, TheOldestGoAndThoseInUseStay) {
  Write("job/attempt-1-rank-0.log", 8192);
  Write("job/attempt-2-rank-0.log.1", 8192);
  Write("job/attempt-2-rank-1.log", 8192);
  Write("job/attempt-2-rank-0.log", 8192);
  const std::set<std::string> live = {"job/attempt-2-rank-0.log", "job/attempt-2-rank-1.log"};
  EXPECT_EQ(TrimLogs(directory_.path(), {"job"}, 4 * 8192, live), 0);
  EXPECT_EQ(TrimLogs(directory_.path(), {"job"}, 3 * 8192, live), 1);
  EXPECT_FALSE(There("job/attempt-1-rank-0.log"));
  EXPECT_TRUE(There("job/attempt-2-rank-0.log.1"));
  EXPECT_EQ(TrimLogs(directory_.path(), {"job"}, 1, live), 1);
  EXPECT_FALSE(There("job/attempt-2-rank-0.log.1"));
  for (const std::string& name : live) EXPECT_TRUE(There(name)) << name;
}

TEST_F(TrimLogsTest, OfSeveralJobsTheOldestGo) {
  Write("ended/attempt-1-rank-0.log", 8192);
  Write("ended/attempt-1-rank-1.log", 8192);
  Write("later/attempt-1-rank-0.log", 8192);
  Write("later/attempt-2-rank-0.log", 8192);
  EXPECT_EQ(TrimLogs(directory_.path(), {"ended", "later"}, 3 * 8192, {}), 1);
  EXPECT_TRUE(There("ended/attempt-1-rank-1.log"));
  const std::set<std::string> live = {"later/attempt-2-rank-0.log"};
  EXPECT_EQ(TrimLogs(directory_.path(), {"ended", "later"}, 8192, live), 2);
  EXPECT_FALSE(There("ended/attempt-1-rank-1.log"));
  EXPECT_TRUE(There("later/attempt-2-rank-0.log"));
  EXPECT_FALSE(There("later/attempt-1-rank-0.log"));
}

TEST_F(TrimLogsTest, AFolderThatIsNotThereHoldsNothing) {
  EXPECT_EQ(TrimLogs(directory_.path(), {"none"}, 0, {}), 0);
}

}  // namespace
}  // namespace tercio::agent

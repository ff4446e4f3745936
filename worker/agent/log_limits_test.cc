#include "worker/agent/log_limits.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "common/temp_dir.h"
#include "gtest/gtest.h"

namespace tercio {
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
  Write("attempt-1-rank-0.log", 8192);
  Write("attempt-2-rank-0.log.1", 8192);
  Write("attempt-2-rank-1.log", 8192);
  Write("attempt-2-rank-0.log", 8192);
  const std::set<std::string> live = {"attempt-2-rank-0.log", "attempt-2-rank-1.log"};
  EXPECT_EQ(TrimLogs(directory_.path(), 4 * 8192, live), 0);
  EXPECT_EQ(TrimLogs(directory_.path(), 3 * 8192, live), 1);
  EXPECT_FALSE(There("attempt-1-rank-0.log"));
  EXPECT_TRUE(There("attempt-2-rank-0.log.1"));
  EXPECT_EQ(TrimLogs(directory_.path(), 1, live), 1);
  EXPECT_FALSE(There("attempt-2-rank-0.log.1"));
  for (const std::string& name : live) EXPECT_TRUE(There(name)) << name;
}

TEST_F(TrimLogsTest, ADirectoryThatIsNotThereHoldsNothing) {
  EXPECT_EQ(TrimLogs(directory_.path() + "/none", 0, {}), 0);
}

}  // namespace
}  // namespace tercio

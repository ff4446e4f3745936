#include "worker/trainer/log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "common/temp_dir.h"
#include "gtest/gtest.h"

namespace tercio::trainer {
namespace {

std::string Content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class LogFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int& descriptor : descriptors_) {
      descriptor = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
      ASSERT_GE(descriptor, 0);
    }
  }
  ~LogFileTest() override {
    for (const int descriptor : descriptors_) close(descriptor);
  }
  void Write(int which, const std::string& text) {
    ASSERT_EQ(write(descriptors_[which], text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
  }
  bool Rotate(int64_t most_bytes) {
    return RotateLog(path_, most_bytes, {descriptors_[0], descriptors_[1]});
  }

  TempDir directory_;
  const std::string path_ = directory_.path() + "/log";
  int descriptors_[2] = {-1, -1};
};

TEST_F(LogFileTest, BeginsANewFileWhenItIsFull) {
  Write(0, "one\n");
  Write(1, "two\n");
  EXPECT_FALSE(Rotate(8)) << "not more than that";
  EXPECT_TRUE(Rotate(7));
  EXPECT_EQ(Content(path_), "") << "empty until both are there";
  Write(0, "three\n");
  Write(1, "four\n");
  EXPECT_EQ(Content(path_ + ".1"), "one\ntwo\n");
  EXPECT_EQ(Content(path_), "three\nfour\n");
  EXPECT_TRUE(Rotate(1));
  EXPECT_EQ(Content(path_ + ".1"), "three\nfour\n") << "one older part is kept";
}

TEST_F(LogFileTest, LeavesAnOutputAloneThatIsNotTheFile) {
  Write(0, "one\n");
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".elsewhere").c_str()), 0);
  EXPECT_FALSE(Rotate(0)) << "no file of that name";
  std::ofstream(path_) << "somebody else's";
  EXPECT_FALSE(Rotate(0));
  EXPECT_EQ(Content(path_), "somebody else's");
}

}  // namespace
}  // namespace tercio::trainer

// Supervision of a real child, with the shell in the trainer's place.
#include "worker/agent/trainer_process.h"

#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <optional>
#include <sstream>

#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Lt;

constexpr auto kLongest = std::chrono::seconds(20);

class TrainerProcessTest : public ::testing::Test {
 protected:
  void Start(const std::string& script, int64_t most_log_bytes = 1 << 20) {
    TrainerProcess::Options options;
    options.program = "/bin/sh";
    options.arguments = {"tercio-trainer", "-c", script};
    options.environment = {"TERCIO_TRAINER_TOKEN=secret"};
    options.log_path = log_path();
    options.most_log_bytes = most_log_bytes;
    auto process = TrainerProcess::Start(
        options,
        [this](const std::string& line) {
          std::lock_guard<std::mutex> lock(mutex_);
          lines_.push_back(line);
          changed_.notify_all();
        },
        [this](const ProcessExit& exit) {
          std::lock_guard<std::mutex> lock(mutex_);
          exit_ = exit;
          changed_.notify_all();
        });
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
  }

  ProcessExit WaitForExit() {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kLongest, [this] { return exit_.has_value(); }));
    return exit_.value_or(ProcessExit{-1, -1, {}});
  }

  void WaitForLine(const std::string& line) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kLongest, [&] {
      return std::find(lines_.begin(), lines_.end(), line) != lines_.end();
    }));
  }

  std::string log_path() const { return directory_.path() + "/rank.log"; }
  static std::string Content(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  TempDir directory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  std::optional<ProcessExit> exit_;
  std::unique_ptr<TrainerProcess> process_;
};

TEST_F(TrainerProcessTest, ReportsCodeLinesAndLog) {
  Start("echo one; echo two >&2; printf three; exit 4");
  const ProcessExit exit = WaitForExit();
  EXPECT_EQ(exit.exit_code, 4);
  EXPECT_EQ(exit.signal, 0);
  EXPECT_THAT(exit.last_lines, ElementsAre("one", "two", "three"));
  EXPECT_THAT(lines_, ElementsAre("one", "two", "three"));
  EXPECT_EQ(Content(log_path()), "one\ntwo\nthree\n");
}

TEST_F(TrainerProcessTest, TokenComesByTheEnvironment) {
  Start("echo $TERCIO_TRAINER_TOKEN");
  WaitForExit();
  EXPECT_THAT(lines_, ElementsAre("secret"));
}

TEST_F(TrainerProcessTest, ReportsTheSignal) {
  Start("echo up; sleep 100");
  WaitForLine("up");
  process_->Signal(SIGTERM);
  EXPECT_EQ(WaitForExit().signal, SIGTERM);
  process_->Signal(SIGKILL);  // too late, and harmless
}

TEST_F(TrainerProcessTest, KillsWhatIgnoresTheFirstSignal) {
  Start("trap '' TERM; echo up; while :; do sleep 1; done");
  WaitForLine("up");
  process_->Signal(SIGTERM);
  process_->Signal(SIGKILL);
  EXPECT_EQ(WaitForExit().signal, SIGKILL);
}

// A child of the child keeps the pipe open: the exit is seen all the same, and the child's child
// goes too.
TEST_F(TrainerProcessTest, LeavesNothingOfTheGroupBehind) {
  Start("sleep 1000 & echo $!; exit 1");
  const ProcessExit exit = WaitForExit();
  EXPECT_EQ(exit.exit_code, 1);
  ASSERT_EQ(lines_.size(), 1u);
  const pid_t grandchild = std::stoi(lines_[0]);
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  // Orphans are reaped by others; until then they are zombies, which still take signal 0.
  const auto lives = [&] {
    const std::string status = Content("/proc/" + std::to_string(grandchild) + "/stat");
    return !status.empty() && status.find(") Z") == std::string::npos;
  };
  while (lives() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(lives());
}

TEST_F(TrainerProcessTest, DestructionKills) {
  Start("echo up; sleep 1000");
  WaitForLine("up");
  process_.reset();
  EXPECT_EQ(WaitForExit().signal, SIGKILL);
}

TEST_F(TrainerProcessTest, LogsAreBounded) {
  Start("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done", 4096);
  const ProcessExit exit = WaitForExit();
  EXPECT_EQ(exit.last_lines.size(), 20u);
  EXPECT_EQ(exit.last_lines.back(), "line 1999");
  EXPECT_EQ(lines_.size(), 2000u);
  EXPECT_THAT(Content(log_path()).size(), Lt(4096u + 100));
  EXPECT_THAT(Content(log_path() + ".1").size(), Lt(4096u + 100));
  EXPECT_THAT(Content(log_path()), HasSubstr("line 1999\n"));
}

TEST_F(TrainerProcessTest, CutsALineWithoutEnd) {
  Start("head -c 100000 /dev/zero | tr '\\0' x");
  WaitForExit();
  size_t bytes = 0;
  for (const std::string& line : lines_) {
    EXPECT_LE(line.size(), 3u * 8192);
    bytes += line.size();
  }
  EXPECT_EQ(bytes, 100000u);
}

TEST(TrainerProcessStart, SaysWhatCannotBeStarted) {
  TrainerProcess::Options options;
  options.program = "/no/such/program";
  options.arguments = {"tercio-trainer"};
  options.log_path = "/dev/null";
  const auto process = TrainerProcess::Start(
      options, [](const std::string&) {}, [](const ProcessExit&) { FAIL() << "no exit"; });
  ASSERT_FALSE(process.ok());
  EXPECT_THAT(std::string(process.status().message()), HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace tercio

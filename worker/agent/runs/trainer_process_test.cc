// Supervision of a real child, with the shell in the trainer's place.
#include "worker/agent/runs/trainer_process.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kLongest = std::chrono::seconds(20);

class TrainerProcessTest : public ::testing::Test {
 protected:
  void Start(const std::string& script) {
    TrainerProcess::Options options;
    options.program = "/bin/sh";
    options.arguments = {"tercio-trainer", "-c", script};
    options.token = "secret";
    options.log_path = log_path();
    auto process = TrainerProcess::Start(options, OnLines(), OnExit());
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
  }

  TrainerProcess::OnLines OnLines() {
    return [this](const std::vector<std::string>& lines, const LogPosition& position) {
      std::lock_guard<std::mutex> lock(mutex_);
      lines_.insert(lines_.end(), lines.begin(), lines.end());
      position_ = position;
      changed_.notify_all();
    };
  }

  TrainerProcess::OnExit OnExit() {
    return [this](const ProcessExit& exit) {
      std::lock_guard<std::mutex> lock(mutex_);
      exit_ = exit;
      changed_.notify_all();
    };
  }

  // As another agent does.
  void AdoptAnew(ProcessId id) {
    process_ = TrainerProcess::Adopt(id, log_path(), position_, OnLines(), OnExit());
  }

  ProcessExit WaitForExit() {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kLongest, [this] { return exit_.has_value(); }));
    return exit_.value_or(ProcessExit{false, false, -1, -1, {}});
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
  LogPosition position_;
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
  EXPECT_EQ(Content(log_path()), "one\ntwo\nthree");
}

TEST_F(TrainerProcessTest, TokenIsTheInputAndNothingElse) {
  Start("cat; tr '\\0' '\\n' < /proc/self/environ | grep -c secret");
  WaitForExit();
  EXPECT_THAT(lines_, ElementsAre("secret", "0"));
}

TEST_F(TrainerProcessTest, GainsNoRights) {
  Start("grep NoNewPrivs /proc/self/status");
  WaitForExit();
  EXPECT_THAT(lines_, ElementsAre("NoNewPrivs:\t1"));
}

TEST_F(TrainerProcessTest, ReportsTheSignal) {
  Start("echo up; sleep 100");
  WaitForLine("up");
  process_->Signal(SIGTERM);
  EXPECT_EQ(WaitForExit().signal, SIGTERM);
  process_->Signal(SIGKILL);  // too late, and harmless
}

TEST_F(TrainerProcessTest, EndsOneThatIsStopped) {
  Start("echo up; sleep 100");
  WaitForLine("up");
  process_->Signal(SIGSTOP);
  process_->Signal(SIGTERM);
  EXPECT_EQ(WaitForExit().signal, SIGTERM);
}

TEST_F(TrainerProcessTest, KillsWhatIgnoresTheFirstSignal) {
  Start("trap '' TERM; echo up; while :; do sleep 1; done");
  WaitForLine("up");
  process_->Signal(SIGTERM);
  process_->Signal(SIGKILL);
  EXPECT_EQ(WaitForExit().signal, SIGKILL);
}

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

TEST_F(TrainerProcessTest, KeepsTheLastLines) {
  Start("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done");
  const ProcessExit exit = WaitForExit();
  EXPECT_EQ(exit.last_lines.size(), 20u);
  EXPECT_EQ(exit.last_lines.back(), "line 1999");
  ASSERT_EQ(lines_.size(), 2000u);
  for (size_t i = 0; i < lines_.size(); ++i) EXPECT_EQ(lines_[i], "line " + std::to_string(i));
}

TEST_F(TrainerProcessTest, ALeftProcessLivesOnAndIsFoundAgain) {
  Start("echo one; while [ ! -e " + directory_.path() +
        "/go ]; do sleep 0.05; done; echo two; "
        "while [ ! -e " +
        directory_.path() + "/end ]; do sleep 0.05; done; echo three");
  WaitForLine("one");
  const ProcessId id = process_->id();
  EXPECT_EQ(id.start_time, StartTimeOf(id.pid));
  EXPECT_GT(id.start_time, 0u);
  process_->Release();
  process_.reset();
  EXPECT_EQ(kill(id.pid, 0), 0) << "it was killed";
  EXPECT_FALSE(exit_.has_value());
  std::ofstream(directory_.path() + "/go") << "";
  AdoptAnew(id);
  WaitForLine("two");
  EXPECT_EQ(process_->id().pid, id.pid);
  process_->Release();
  process_.reset();
  std::ofstream(directory_.path() + "/end") << "";
  // This test is its parent; an agent that comes back is not.
  int status = 0;
  EXPECT_EQ(waitpid(id.pid, &status, 0), id.pid);
  AdoptAnew(id);
  const ProcessExit exit = WaitForExit();
  EXPECT_TRUE(exit.adopted);
  EXPECT_TRUE(exit.away);
  EXPECT_THAT(lines_, ElementsAre("one", "two", "three")) << "each once";
  EXPECT_THAT(exit.last_lines, ElementsAre("one", "two", "three"));
}

TEST_F(TrainerProcessTest, AnAdoptedProcessIsSignalledAndItsEndSeen) {
  Start("echo up; sleep 1000");
  WaitForLine("up");
  const ProcessId id = process_->id();
  process_->Release();
  process_.reset();
  AdoptAnew(id);
  process_->Signal(SIGKILL);
  const ProcessExit exit = WaitForExit();
  EXPECT_TRUE(exit.adopted);
  EXPECT_FALSE(exit.away);
  EXPECT_EQ(exit.signal, SIGKILL) << "its own signal is the likely cause";
  waitpid(id.pid, nullptr, 0);
}

// Its number belongs to somebody else by now.
TEST_F(TrainerProcessTest, AdoptsNobodyElse) {
  position_ = {};
  AdoptAnew({getpid(), StartTimeOf(getpid()) + 1});
  const ProcessExit exit = WaitForExit();
  EXPECT_TRUE(exit.away);
  process_->Signal(SIGKILL);  // harmless
}

TEST_F(TrainerProcessTest, ReadsOnInTheNextFile) {
  std::ofstream(log_path()) << "one\ntwo\nthr";
  LogTail log(log_path(), {});
  EXPECT_THAT(log.Read(Unfinished::kLeave), ElementsAre("one", "two"));
  const LogPosition position = log.position();
  std::filesystem::rename(log_path(), log_path() + ".1");
  std::ofstream(log_path() + ".1", std::ios::app) << "ee\n";
  EXPECT_THAT(log.Read(Unfinished::kLeave), ElementsAre("three"));
  std::ofstream next(log_path());
  EXPECT_TRUE(log.Read(Unfinished::kLeave).empty()) << "the writer may still be in the old one";
  std::ofstream(log_path() + ".1", std::ios::app) << "four\n";
  next << "five\n" << std::flush;
  EXPECT_THAT(log.Read(Unfinished::kLeave), ElementsAre("four"));
  EXPECT_THAT(log.Read(Unfinished::kLeave), ElementsAre("five"));
  LogTail again(log_path(), position);
  EXPECT_THAT(again.Preceding(1), ElementsAre("two"));
  EXPECT_THAT(again.Read(Unfinished::kLeave), ElementsAre("three", "four"))
      << "goes on where the other was";
  EXPECT_THAT(again.Read(Unfinished::kLeave), ElementsAre("five"));
  EXPECT_TRUE(again.Read(Unfinished::kTake).empty());
}

// The directory of the logs is the trainers'.
TEST_F(TrainerProcessTest, WritesAndReadsNoLogThroughALinkAndWaitsForNoFifo) {
  const std::string other = directory_.path() + "/other";
  std::ofstream(other) << "secret\n";
  const auto start = [this] {
    TrainerProcess::Options options;
    options.program = "/bin/sh";
    options.arguments = {"tercio-trainer", "-c", "echo spoilt"};
    options.log_path = log_path();
    return TrainerProcess::Start(options, OnLines(), OnExit()).status();
  };
  std::filesystem::create_symlink(other, log_path());
  EXPECT_EQ(start().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(LogTail(log_path(), {}).Read(Unfinished::kTake).empty());
  EXPECT_EQ(LogTail::EndOf(log_path()).file, 0u);
  std::filesystem::remove(log_path());
  std::filesystem::create_hard_link(other, log_path());
  EXPECT_EQ(start().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(log_path());
  ASSERT_EQ(mkfifo(log_path().c_str(), 0600), 0);
  EXPECT_EQ(start().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(LogTail(log_path(), {}).Read(Unfinished::kTake).empty());
  EXPECT_EQ(Content(other), "secret\n");
}

TEST_F(TrainerProcessTest, OfAFileThatIsGoneThePresentOneCounts) {
  std::ofstream(log_path()) << "one\n";
  LogTail log(log_path(), {12345678, 100});
  EXPECT_THAT(log.Read(Unfinished::kLeave), ElementsAre("one"));
  LogTail none(directory_.path() + "/none", {1, 1});
  EXPECT_TRUE(none.Read(Unfinished::kTake).empty());
  EXPECT_TRUE(none.Preceding(3).empty());
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
  const TempDir directory;
  options.log_path = directory.path() + "/rank.log";
  const auto process = TrainerProcess::Start(
      options, [](const std::vector<std::string>&, const LogPosition&) {},
      [](const ProcessExit&) { FAIL() << "no exit"; });
  ASSERT_FALSE(process.ok());
  EXPECT_THAT(std::string(process.status().message()), HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace tercio::agent

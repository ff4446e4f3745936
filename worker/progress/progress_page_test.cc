#include "worker/progress/progress_page.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "absl/time/clock.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::progress {
namespace {

using ::testing::HasSubstr;

class ProgressPageTest : public ::testing::Test {
 protected:
  TempDir directory_;
  const std::string path_ = directory_.path() + "/rank-0";
};

TEST_F(ProgressPageTest, ReaderSeesWhatWasWritten) {
  auto writer = ProgressPage::Create(path_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  (*writer)->SetPhase(4);
  (*writer)->BeginStep(97);
  (*writer)->BeginAction("forward 3");
  (*writer)->BeginWait({"pipeline 1", 812, "receive", "f32", 4096, 5});
  auto reader = ProgressReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  RankProgress seen = reader->Read().value();
  EXPECT_EQ(seen.pid, getpid());
  EXPECT_EQ(seen.phase, 4);
  EXPECT_EQ(seen.step, 97);
  EXPECT_EQ(seen.action, "forward 3");
  EXPECT_EQ(seen.waiting.group, "pipeline 1");
  EXPECT_EQ(seen.waiting.operation, "receive");
  EXPECT_EQ(seen.waiting.sequence, 812);
  EXPECT_EQ(seen.waiting.count, 4096);
  EXPECT_EQ(seen.waiting.peer, 5);
  EXPECT_FALSE(seen.torn);
  EXPECT_NEAR(seen.last_beat, MonotonicSeconds(), 5);
  const uint64_t beats = seen.beats;
  (*writer)->EndWait();
  (*writer)->EndStep(97, 0.5, 0.25);
  seen = reader->Read().value();
  EXPECT_EQ(seen.waiting.operation, "");
  EXPECT_EQ(seen.timed_step, 97);
  EXPECT_EQ(seen.compute_seconds, 0.25);
  EXPECT_GT(seen.beats, beats);
  EXPECT_FALSE(reader->Exit().has_value());
}

TEST_F(ProgressPageTest, TheExitNoteOutlivesAKilledWriter) {
  const pid_t child = fork();
  if (child == 0) {
    auto writer = ProgressPage::Create(path_);
    (*writer)->NoteExit({3, true, std::string(5000, 'x')});
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  auto reader = ProgressReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const std::optional<ExitNote> note = reader->Exit();
  ASSERT_TRUE(note.has_value());
  EXPECT_EQ(note->exit_code, 3);
  EXPECT_TRUE(note->permanent);
  EXPECT_EQ(note->reason, std::string(2035, 'x'));
  EXPECT_EQ(reader->Read()->pid, child);
}

// Every field of a position carries the same number: a mixture would show.
TEST_F(ProgressPageTest, PositionsAreWholeWhileTheyChange) {
  auto writer = ProgressPage::Create(path_);
  auto reader = ProgressReader::Open(path_);
  ASSERT_TRUE(writer.ok() && reader.ok());
  (*writer)->BeginWait({"0", 0, "0", "", 0, 0});
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    for (int64_t i = 1; !stop; ++i) {
      const std::string text = std::to_string(i);
      (*writer)->BeginWait({text, i, text, "", i, static_cast<int>(i)});
      std::this_thread::sleep_for(
          std::chrono::microseconds(1));  // that of a rank is less busy, too
    }
  });
  int64_t whole = 0;
  std::set<int64_t> different;
  // A busy machine may let the writer wait for longer than that many reads take.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  for (int i = 0; i < 20'000 || (different.size() <= 10 && absl::Now() < deadline); ++i) {
    const auto seen = reader->Read();
    ASSERT_TRUE(seen.has_value());
    if (seen->torn) continue;
    ++whole;
    different.insert(seen->waiting.sequence);
    const std::string text = std::to_string(seen->waiting.sequence);
    ASSERT_EQ(seen->waiting.group, text);
    ASSERT_EQ(seen->waiting.operation, text);
    ASSERT_EQ(seen->waiting.count, seen->waiting.sequence);
  }
  stop = true;
  thread.join();
  EXPECT_GT(whole, 10'000);
  EXPECT_GT(different.size(), 10u);
}

TEST_F(ProgressPageTest, LoadingIsASignOfLife) {
  auto writer = ProgressPage::Create(path_);
  auto reader = ProgressReader::Open(path_);
  ASSERT_TRUE(writer.ok() && reader.ok());
  const uint64_t beats = reader->Read()->beats;
  (*writer)->SetLoaded(int64_t{3} << 32, int64_t{5} << 32);
  const RankProgress seen = reader->Read().value();
  EXPECT_EQ(seen.loaded_bytes, int64_t{3} << 32);
  EXPECT_EQ(seen.load_total_bytes, int64_t{5} << 32);
  EXPECT_GT(seen.beats, beats);
}

TEST_F(ProgressPageTest, OtherFilesAreRefused) {
  EXPECT_EQ(ProgressReader::Open(path_).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(path_) << std::string(4096, 'x');
  const auto opened = ProgressReader::Open(path_);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr(path_));
}

// Its writer has fewer rights than its reader.
TEST_F(ProgressPageTest, AReaderSurvivesAPageThatBecomesShorter) {
  const auto writer = ProgressPage::Create(path_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto reader = ProgressReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE(reader->Read().has_value());
  std::filesystem::resize_file(path_, 100);
  EXPECT_FALSE(reader->Read().has_value());
  EXPECT_FALSE(reader->Exit().has_value());
  EXPECT_FALSE(ProgressReader::Open(path_).ok());
  std::filesystem::resize_file(path_, 0);
  EXPECT_FALSE(reader->Read().has_value());
}

TEST_F(ProgressPageTest, AReaderFollowsNoLinkAndWaitsForNoFifo) {
  const std::string other = directory_.path() + "/other";
  ASSERT_TRUE(ProgressPage::Create(other).ok());
  std::filesystem::create_symlink(other, path_);
  EXPECT_EQ(ProgressReader::Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(ProgressReader::Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ProgressPageTest, NumbersAreFiniteWhateverWasWritten) {
  auto writer = ProgressPage::Create(path_);
  ASSERT_TRUE(writer.ok());
  (*writer)->EndStep(1, std::nan(""), INFINITY);
  const auto reader = ProgressReader::Open(path_);
  ASSERT_TRUE(reader.ok());
  const auto seen = reader->Read();
  ASSERT_TRUE(seen.has_value());
  EXPECT_EQ(seen->step_seconds, 0);
  EXPECT_EQ(seen->compute_seconds, 0);
}

}  // namespace
}  // namespace tercio::progress

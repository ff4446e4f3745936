#include "common/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using ::testing::ElementsAre;

TEST(WriteFileDurablyTest, ASecretIsNeverReadableByOthers) {
  const TempDir directory;
  const std::string path = directory.path() + "/key";
  const std::string elsewhere = directory.path() + "/elsewhere";
  ASSERT_TRUE(WriteFileDurably(elsewhere, "before").ok());
  // Leftovers of a process with the same id, or links that someone has put there, under any name
  // that the temporary file could have.
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(symlink(elsewhere.c_str(), absl::StrCat(path, ".tmp.", getpid(), ".", i).c_str()), 0);
  }
  ASSERT_TRUE(WriteFileDurably(path, "secret", 0600).ok());
  EXPECT_EQ(*ReadFile(path), "secret");
  EXPECT_EQ(*ReadFile(elsewhere), "before");
  struct stat info = {};
  ASSERT_EQ(lstat(path.c_str(), &info), 0);
  EXPECT_TRUE(S_ISREG(info.st_mode));
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST(WriteFileDurablyTest, EveryThreadWritesAWhole) {
  const TempDir directory;
  const std::string path = directory.path() + "/file";
  std::vector<std::thread> threads;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    threads.emplace_back([&path, letter] {
      for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(WriteFileDurably(path, std::string(1 << 16, letter)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = *ReadFile(path);
  EXPECT_EQ(text, std::string(1 << 16, text[0]));
  EXPECT_THAT(ListDirectory(directory.path()), ElementsAre("file"));
}

TEST(WriteFileDurablyTest, LeavesNothingWhereItCannotTakeItsPlace) {
  const TempDir directory;
  ASSERT_TRUE(MakeDirectories(directory.path() + "/taken/by-a-folder").ok());
  EXPECT_FALSE(WriteFileDurably(directory.path() + "/taken", "text").ok());
  EXPECT_THAT(ListDirectory(directory.path()), ElementsAre("taken"));
}

TEST(WriteFileDurablyTest, AnFsyncThatFailsLeavesTheFileAsItWas) {
  const TempDir directory;
  const std::string path = directory.path() + "/file";
  const std::string rules = directory.path() + "/rules";
  ASSERT_TRUE(WriteFileDurably(path, "before").ok());
  setenv("FAILING_FILES", rules.c_str(), 1);
  ASSERT_TRUE(WriteFileDurably(rules, "fail fsync /file").ok());
  EXPECT_EQ(WriteFileDurably(path, "after").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(*ReadFile(path), "before");
  EXPECT_EQ(ListDirectory(directory.path()), (std::vector<std::string>{"file", "rules"}));
}

TEST(FileErrorTest, SaysWhatKindItIs) {
  const TempDir directory;
  // A directory or an impossible name is the caller's mistake.
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(directory.path()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadInput(directory.path(), 10).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(std::string(300, 'x')).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadFile(directory.path() + "/none").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(AsConflict(FileError(EACCES, "cannot write", "x"))));
  EXPECT_TRUE(absl::IsResourceExhausted(AsConflict(FileError(ENOSPC, "cannot write", "x"))));
  EXPECT_TRUE(AsConflict(absl::OkStatus()).ok());
}

TEST(FileLockTest, LookingTakesNothing) {
  const TempDir directory;
  const std::string path = directory.path() + "/lock";
  EXPECT_FALSE(FileLock::IsHeld(path));
  EXPECT_FALSE(PathExists(path));
  {
    const auto lock = FileLock::Acquire(path, WhenHeld::kFail);
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_TRUE(FileLock::IsHeld(path));
  }
  EXPECT_FALSE(FileLock::IsHeld(path));
  EXPECT_TRUE(FileLock::Acquire(path, WhenHeld::kFail).ok());
}

}  // namespace
}  // namespace tercio

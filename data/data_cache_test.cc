// Which entries of the cache of tokenised texts go, and which stay.
#include "data/data_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "data/prepared_data.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

constexpr int64_t kEntryBytes = 1 << 20;

class DataCacheTest : public ::testing::Test {
 protected:
  std::string Prefix(char digit) const {
    return absl::StrCat(dir_.path(), "/", std::string(64, digit));
  }
  // Used `age` seconds ago for the last time.
  void Make(char digit, int age) const {
    std::ofstream(Prefix(digit) + ".bin") << std::string(kEntryBytes, 'x');
    std::filesystem::create_directory(Prefix(digit) + ".partial");
    std::ofstream(Prefix(digit) + ".partial/journal") << "x";
    ASSERT_NE(UseCacheEntry(Prefix(digit)), nullptr);
    timespec times[2] = {};
    ASSERT_EQ(clock_gettime(CLOCK_REALTIME, &times[0]), 0);
    times[0].tv_sec -= age;
    times[1] = times[0];
    ASSERT_EQ(utimensat(AT_FDCWD, (Prefix(digit) + ".use").c_str(), times, 0), 0);
  }
  bool IsThere(char digit) const { return PathExists(Prefix(digit) + ".bin"); }

  TempDir dir_;
};

TEST_F(DataCacheTest, WhatWasNotUsedForLongestGoes) {
  Make('a', 10);
  Make('b', 30);
  Make('c', 20);
  EXPECT_EQ(TrimDataCache(dir_.path(), 4 * kEntryBytes), 0);
  EXPECT_EQ(TrimDataCache(dir_.path(), 2 * kEntryBytes + (64 << 10)), 1);
  EXPECT_FALSE(IsThere('b'));
  EXPECT_FALSE(PathExists(Prefix('b') + ".partial"));
  EXPECT_FALSE(PathExists(Prefix('b') + ".use"));
  EXPECT_FALSE(PathExists(Prefix('b') + ".lock"));
  ASSERT_NE(UseCacheEntry(Prefix('c')), nullptr);  // used again
  EXPECT_EQ(TrimDataCache(dir_.path(), kEntryBytes + (64 << 10)), 1);
  EXPECT_FALSE(IsThere('a'));
  EXPECT_TRUE(IsThere('c'));
}

// An agent is told of entries by a process with fewer rights, which has the directory.
TEST_F(DataCacheTest, AnAgentHoldsEntriesOnly) {
  Make('a', 10);
  auto held = HoldCacheEntry(dir_.path(), std::string(64, 'a'));
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(TrimDataCache(dir_.path(), 0), 0);
  held = nullptr;
  EXPECT_EQ(TrimDataCache(dir_.path(), 0), 1);
  for (const std::string& name : {std::string(), std::string("../secret"), std::string(64, '/'),
                                  absl::StrCat("../", std::string(61, 'a'))}) {
    EXPECT_EQ(HoldCacheEntry(dir_.path(), name), nullptr) << name;
  }
  const std::string victim = dir_.path() + "/victim";
  std::filesystem::create_symlink(victim, Prefix('b') + ".use");
  EXPECT_EQ(HoldCacheEntry(dir_.path(), std::string(64, 'b')), nullptr);
  EXPECT_EQ(TrimDataCache(dir_.path(), -1), 0);
  EXPECT_FALSE(PathExists(victim)) << "made through a link";
}

TEST_F(DataCacheTest, AnAgentDoesNotWaitForAnEntry) {
  const auto other = FileLock::Acquire(Prefix('a') + ".use", WhenHeld::kFail);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(HoldCacheEntry(dir_.path(), std::string(64, 'a')), nullptr);
}

TEST_F(DataCacheTest, WhatIsUsedOrMadeStays) {
  for (const char digit : {'a', 'b', 'c'}) Make(digit, 10);
  auto first = UseCacheEntry(Prefix('a'));
  const auto second = UseCacheEntry(Prefix('a'));
  {
    const auto made = FileLock::Acquire(Prefix('b') + ".lock", WhenHeld::kFail);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(TrimDataCache(dir_.path(), 0), 1);
  }
  EXPECT_TRUE(IsThere('a'));
  EXPECT_TRUE(IsThere('b'));
  EXPECT_FALSE(IsThere('c'));
  first = nullptr;
  EXPECT_EQ(TrimDataCache(dir_.path(), 0), 1);
  EXPECT_TRUE(IsThere('a')) << "another one uses it still";
  EXPECT_FALSE(IsThere('b'));
}

TEST_F(DataCacheTest, OtherFilesAreNotItsOwn) {
  std::filesystem::create_directory(dir_.path() + "/products");
  std::ofstream(dir_.path() + "/products/table") << std::string(kEntryBytes, 'x');
  std::ofstream(dir_.path() + "/notes.txt") << std::string(kEntryBytes, 'x');
  EXPECT_EQ(TrimDataCache(dir_.path(), 0), 0);
  EXPECT_TRUE(PathExists(dir_.path() + "/products/table"));
  EXPECT_TRUE(PathExists(dir_.path() + "/notes.txt"));
  EXPECT_EQ(TrimDataCache(dir_.path() + "/missing", 0), 0);
}

TEST_F(DataCacheTest, PreparedDataKeepsItsEntries) {
  const std::string text = dir_.path() + "/corpus.txt";
  std::ofstream(text) << std::string(1000, 'a') << "bcd";
  v1::DataSpec spec;
  spec.set_train(text);
  spec.set_tokenizer("chars");
  v1::ModelSpec model;
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_context(8);
  const std::string cache = dir_.path() + "/cache";
  {
    const auto prepared = PrepareData(spec, model, cache);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    const std::vector<std::string> files = ListDirectory(cache);
    EXPECT_GT(files.size(), 2u);
    EXPECT_EQ(TrimDataCache(cache, 0), 0);
    EXPECT_EQ(ListDirectory(cache), files);
  }
  EXPECT_EQ(TrimDataCache(cache, 0), 1);
  EXPECT_TRUE(ListDirectory(cache).empty());
  const auto again = PrepareData(spec, model, cache);
  EXPECT_TRUE(again.ok()) << again.status();
}

// A lock whose file its holder has removed must not be granted to a process that waited for it.
TEST_F(DataCacheTest, ALockWhoseFileIsGoneIsNoLock) {
  const std::string path = dir_.path() + "/lock";
  auto holder = FileLock::Acquire(path, WhenHeld::kFail);
  ASSERT_TRUE(holder.ok());
  unlink(path.c_str());
  const auto next = FileLock::Acquire(path, WhenHeld::kFail);
  ASSERT_TRUE(next.ok()) << "another file";
  EXPECT_FALSE(FileLock::Acquire(path, WhenHeld::kFail).ok());
}

}  // namespace
}  // namespace tercio::data

#include "common/append_file.h"

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::string Content(size_t bytes) {
  std::string content(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(i * 2654435761u >> 13);
  return content;
}

// Runs in a directory on disk, and in one of /dev/shm, which has no disk behind it.
class AppendFileTest
    : public ::testing::TestWithParam<std::tuple<AppendFile::PageCache, const char*>> {
 protected:
  std::unique_ptr<AppendFile> Create(int64_t expected_bytes = 0) {
    auto file = AppendFile::Create(path_, AppendFile::Existing::kReplace, std::get<0>(GetParam()),
                                   expected_bytes);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  TempDir directory_{std::get<1>(GetParam())};
  const std::string path_ = directory_.path() + "/file";
};

TEST_P(AppendFileTest, HoldsWhatWasAppended) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, 2 * kMiB - 1, 2 * kMiB,
                             2 * kMiB + 1, 7 * kMiB + 12345, 8 * kMiB}) {
    for (const size_t piece : {size_t{777}, kMiB, 5 * kMiB}) {
      const std::string content = Content(bytes);
      const auto file = Create();
      for (size_t at = 0; at < bytes; at += piece) {
        ASSERT_TRUE(file->Append(std::string_view(content).substr(at, piece)).ok());
      }
      ASSERT_TRUE(file->Close().ok());
      EXPECT_TRUE(*ReadFile(path_) == content) << bytes << " bytes in pieces of " << piece;
    }
  }
}

TEST_P(AppendFileTest, MayBeOfAnotherSizeThanExpected) {
  const std::string content = Content(5 * kMiB + 3);
  for (const int64_t expected : {int64_t{1}, int64_t{5 << 20}, int64_t{16 << 20}}) {
    const auto file = Create(expected);
    ASSERT_TRUE(file->Append(content).ok());
    ASSERT_TRUE(file->Close().ok());
    EXPECT_TRUE(*ReadFile(path_) == content) << expected;
  }
}

TEST_P(AppendFileTest, MayBeGivenUp) {
  const auto file = Create();
  ASSERT_TRUE(file->Append(Content(9 * kMiB)).ok());
}

TEST_P(AppendFileTest, AFileThatIsThereIsReplacedOrRefused) {
  ASSERT_TRUE(WriteFileDurably(path_, Content(3 * kMiB)).ok());
  const auto refused =
      AppendFile::Create(path_, AppendFile::Existing::kRefuse, std::get<0>(GetParam()));
  EXPECT_FALSE(refused.ok());
  const auto file = Create();
  ASSERT_TRUE(file->Append("short").ok());
  ASSERT_TRUE(file->Close().ok());
  EXPECT_EQ(*ReadFile(path_), "short");
}

INSTANTIATE_TEST_SUITE_P(All, AppendFileTest,
                         ::testing::Combine(::testing::Values(AppendFile::PageCache::kKeep,
                                                              AppendFile::PageCache::kBypass),
                                            ::testing::Values("", "/dev/shm")));

std::unique_ptr<AppendFile> CreateIn(const TempDir& directory, int number, WriterThreads& threads) {
  auto file =
      AppendFile::Create(absl::StrCat(directory.path(), "/", number),
                         AppendFile::Existing::kReplace, AppendFile::PageCache::kKeep, 0, threads);
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

// Fails as if the system's limit of processes were reached.
TEST(AppendFile, NeedsNoThread) {
  TempDir directory;
  int tried = 0;
  WriterThreads none(8, [&](const std::function<void()>&) -> std::thread {
    ++tried;
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  const std::string content = Content(7 * kMiB + 12345);
  const auto file = CreateIn(directory, 1, none);
  ASSERT_TRUE(file->Append(content).ok());
  ASSERT_TRUE(file->Close().ok());
  EXPECT_GT(tried, 0);
  EXPECT_TRUE(*ReadFile(directory.path() + "/1") == content);
}

TEST(AppendFile, ManyThatAreOpenHaveFewThreads) {
  constexpr int kFiles = 20;
  TempDir directory;
  int started = 0;
  WriterThreads few(3, [&](std::function<void()> run) {
    ++started;
    return std::thread(std::move(run));
  });
  const std::string content = Content(4 * kMiB + 7);
  std::vector<std::unique_ptr<AppendFile>> files;
  for (int i = 0; i < kFiles; ++i) {
    files.push_back(CreateIn(directory, i, few));
    ASSERT_TRUE(files.back()->Append(content).ok());
  }
  EXPECT_EQ(started, 3);
  for (int i = 0; i < kFiles; ++i) {
    ASSERT_TRUE(files[static_cast<size_t>(i)]->Close().ok());
    EXPECT_TRUE(*ReadFile(absl::StrCat(directory.path(), "/", i)) == content) << i;
  }
  files.clear();
  const auto next = CreateIn(directory, kFiles, few);
  ASSERT_TRUE(next->Append(content).ok());
  EXPECT_EQ(started, 5) << "those of files that were closed serve others";
}

TEST(AppendFile, AFullDiskIsToldAtTheLatestByClose) {
  const auto file =
      AppendFile::Create("/dev/full", AppendFile::Existing::kReplace, AppendFile::PageCache::kKeep);
  ASSERT_TRUE(file.ok()) << file.status();
  absl::Status status = (*file)->Append(Content(11 * kMiB));
  if (status.ok()) status = (*file)->Close();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

// A failed write is never taken for a successful one, whether it fails immediately or later.
TEST(AppendFile, AnFsyncThatFailsIsToldByClose) {
  const TempDir directory;
  const std::string rules = directory.path() + "/rules";
  setenv("FAILING_FILES", rules.c_str(), 1);
  ASSERT_TRUE(WriteFileDurably(rules, "fail fsync /part").ok());
  for (const size_t bytes : {size_t{1}, 7 * kMiB}) {
    const auto file =
        AppendFile::Create(directory.path() + "/part", AppendFile::Existing::kReplace,
                           AppendFile::PageCache::kBypass, static_cast<int64_t>(bytes));
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append(Content(bytes)).ok());
    const absl::Status status = (*file)->Close();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_NE(status.message().find("cannot sync " + directory.path() + "/part"), std::string::npos)
        << status;
  }
}

TEST(AppendFile, ADirectoryThatIsNotThereIsNamed) {
  const auto file = AppendFile::Create("/nowhere/file", AppendFile::Existing::kReplace,
                                       AppendFile::PageCache::kKeep);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tercio

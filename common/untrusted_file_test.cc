#include "common/untrusted_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using ::testing::HasSubstr;

class UntrustedFileTest : public ::testing::Test {
 protected:
  UntrustedFileTest() {
    std::ofstream(secret_) << "secret";
    std::filesystem::create_directory(directory_.path() + "/theirs");
  }

  void ExpectRefused(const std::string& path) {
    for (const auto& opened : {UntrustedFile::Open(path), UntrustedFile::OpenToAppend(path)}) {
      EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << opened.status();
      EXPECT_THAT(std::string(opened.status().message()), HasSubstr(path));
    }
  }

  TempDir directory_;
  const std::string secret_ = directory_.path() + "/secret";
  const std::string path_ = directory_.path() + "/theirs/file";
};

TEST_F(UntrustedFileTest, ReadsWhatThereIs) {
  EXPECT_EQ(UntrustedFile::Open(path_).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(path_) << "0123456789";
  const auto file = UntrustedFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 10);
  EXPECT_EQ(file->Read(0, 100), "0123456789");
  EXPECT_EQ(file->Read(0, 4), "0123") << "no more than is asked for, however large the file is";
  EXPECT_EQ(file->Read(8, 4), "89");
  EXPECT_EQ(file->Read(10, 4), "");
  EXPECT_EQ(file->Read(1 << 20, 4), "");
}

TEST_F(UntrustedFileTest, AppendsAndMakes) {
  for (const char* text : {"one", "two"}) {
    const auto file = UntrustedFile::OpenToAppend(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(write(file->descriptor(), text, 3), 3);
  }
  EXPECT_EQ(*ReadFile(path_), "onetwo");
}

TEST_F(UntrustedFileTest, FollowsNoLink) {
  std::filesystem::create_symlink(secret_, path_);
  ExpectRefused(path_);
  std::filesystem::remove(path_);
  std::filesystem::create_symlink(directory_.path() + "/none", path_);
  ExpectRefused(path_);
  EXPECT_FALSE(PathExists(directory_.path() + "/none")) << "made through a link";
}

TEST_F(UntrustedFileTest, FollowsNoLinkInThePlaceOfTheDirectory) {
  std::filesystem::create_directory_symlink(directory_.path(), directory_.path() + "/link");
  EXPECT_FALSE(UntrustedFile::Open(directory_.path() + "/link/secret").ok());
  EXPECT_FALSE(UntrustedFile::OpenToAppend(directory_.path() + "/link/new").ok());
  EXPECT_FALSE(PathExists(directory_.path() + "/new"));
  EXPECT_TRUE(UntrustedFile::Open(directory_.path() + "/link/theirs/../secret").ok())
      << "above the directory they may be";
}

TEST_F(UntrustedFileTest, TakesNoFileWithASecondName) {
  std::filesystem::create_hard_link(secret_, path_);
  ExpectRefused(path_);
}

TEST_F(UntrustedFileTest, WaitsForNoOtherEndOfAFifo) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  ExpectRefused(path_);
  // Also a FIFO that is open at both ends.
  const int ends = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(ends, 0);
  ExpectRefused(path_);
  close(ends);
}

TEST_F(UntrustedFileTest, ADirectoryIsNoFile) {
  std::filesystem::create_directory(path_);
  EXPECT_EQ(UntrustedFile::Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(UntrustedFile::OpenToAppend(path_).ok());
  EXPECT_FALSE(UntrustedFile::Open("/dev/null").ok());
}

TEST_F(UntrustedFileTest, OfAShrinkingFileTheRestIsRead) {
  std::ofstream(path_) << std::string(100'000, 'x');
  const auto file = UntrustedFile::Open(path_);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path_, 10);
  EXPECT_EQ(file->Read(0, 100'000), std::string(10, 'x'));
  EXPECT_EQ(file->Read(50'000, 100), "");
  EXPECT_EQ(file->size(), 10);
}

TEST_F(UntrustedFileTest, StaysWithTheFileThatItHasOpened) {
  std::ofstream(path_) << "theirs";
  auto file = UntrustedFile::Open(path_);
  ASSERT_TRUE(file.ok());
  std::filesystem::remove(path_);
  std::filesystem::create_symlink(secret_, path_);
  const UntrustedFile moved = *std::move(file);
  EXPECT_EQ(moved.Read(0, 100), "theirs");
}

}  // namespace
}  // namespace tercio

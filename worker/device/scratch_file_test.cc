#include "worker/device/scratch_file.h"

#include <cstring>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::device {
namespace {

using ::testing::HasSubstr;

TEST(ScratchFile, IsZeroAtFirstAndKeepsWhatIsWritten) {
  const auto file = ScratchFile::Create(::testing::TempDir(), 3 << 20);
  ASSERT_TRUE(file.ok()) << file.status();
  std::byte* const data = (*file)->data();
  EXPECT_EQ(data[(3 << 20) - 1], std::byte{0});
  std::memset(data + 5000, 7, 100000);
  (*file)->WriteBehind(5000, 100000);
  (*file)->ReadAhead(5000, 100000);
  EXPECT_EQ(data[4999], std::byte{0});
  EXPECT_EQ(data[104999], std::byte{7});
  EXPECT_EQ((*file)->size_bytes(), 3 << 20);
  EXPECT_TRUE((*file)->Contains(data + (3 << 20) - 1));
  EXPECT_FALSE((*file)->Contains(data + (3 << 20)));
}

// So that nothing stays of a process that is killed.
TEST(ScratchFile, HasNoName) {
  const std::string directory = ::testing::TempDir() + "/nameless";
  std::filesystem::create_directory(directory);
  const auto file = ScratchFile::Create(directory, 4096);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(std::filesystem::is_empty(directory));
}

TEST(ScratchFile, ADirectoryThatCannotBeUsedIsNamed) {
  const absl::Status status = ScratchFile::Create("/no/such/directory", 4096).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/directory: No such file"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--scratch"));
}

TEST(ScratchFile, ADiskWithoutRoomIsFoundAtTheStart) {
  const absl::Status status = ScratchFile::Create(::testing::TempDir(), int64_t{1} << 50).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  // No space, or larger than the file system's files.
  EXPECT_THAT(std::string(status.message()), HasSubstr("GiB are free"));
}

}  // namespace
}  // namespace tercio::device

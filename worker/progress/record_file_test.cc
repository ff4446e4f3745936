#include "worker/progress/record_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::progress {
namespace {

using ::testing::ElementsAre;

TEST(RecordFile, GivesBackWhatIsWhole) {
  const TempDir directory;
  const std::string path = directory.path() + "/records";
  EXPECT_TRUE(RecordFile::Read(path, 1000).empty());
  RecordFile file;
  file.Append("before it is open");
  file.Create(path);
  file.Append("one");
  file.Append("");
  file.Append(std::string("t\0w", 3));
  EXPECT_THAT(RecordFile::Read(path, 1000), ElementsAre("one", "", std::string("t\0w", 3)));
  EXPECT_THAT(RecordFile::Read(path, 17), ElementsAre("one", "")) << "bounded";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(RecordFile::Read(path, 1000), ElementsAre("one", "")) << "torn";
  file.Create(path);
  EXPECT_TRUE(file.is_open());
  EXPECT_TRUE(RecordFile::Read(path, 1000).empty()) << "begun anew";
}

// Its writer has fewer rights than its reader.
TEST(RecordFile, ReadsNoOtherFileThroughALinkAndWaitsForNoFifo) {
  const TempDir directory;
  const std::string path = directory.path() + "/records";
  RecordFile other;
  other.Create(directory.path() + "/other");
  other.Append("secret");
  std::filesystem::create_symlink(directory.path() + "/other", path);
  EXPECT_TRUE(RecordFile::Read(path, 1000).empty());
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(RecordFile::Read(path, 1000).empty());
}

TEST(RecordFile, ALengthThatIsMadeUpReservesNothing) {
  const TempDir directory;
  const std::string path = directory.path() + "/records";
  std::ofstream(path, std::ios::binary) << std::string(4, '\xff') << "x";
  EXPECT_TRUE(RecordFile::Read(path, int64_t{1} << 40).empty());
}

}  // namespace
}  // namespace tercio::progress

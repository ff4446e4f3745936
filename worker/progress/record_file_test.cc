#include "worker/progress/record_file.h"

#include <filesystem>

#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
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

}  // namespace
}  // namespace tercio

#include "common/read_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

TEST(RandomAccessFileTest, ReadsAnyPart) {
  const TempDir directory;
  const std::string path = directory.path() + "/file";
  ASSERT_TRUE(WriteFileDurably(path, "0123456789").ok());
  const auto file = RandomAccessFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size(), 10);
  std::string part(4, '\0');
  ASSERT_TRUE((*file)->Read(3, 4, part.data()).ok());
  EXPECT_EQ(part, "3456");
}

TEST(RandomAccessFileTest, AFileThatShrinksIsAnError) {
  const TempDir directory;
  const std::string path = directory.path() + "/file";
  ASSERT_TRUE(WriteFileDurably(path, std::string(1 << 20, 'x')).ok());
  const auto file = RandomAccessFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(truncate(path.c_str(), 1000), 0);
  std::string part(2000, '\0');
  EXPECT_TRUE((*file)->Read(0, 1000, part.data()).ok());
  const absl::Status status = (*file)->Read(0, 2000, part.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find(path), std::string::npos) << status;
}

TEST(RandomAccessFileTest, WhatIsNoFileIsRefusedAtOnce) {
  const TempDir directory;
  EXPECT_EQ(RandomAccessFile::Open(directory.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string fifo = directory.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(RandomAccessFile::Open(fifo).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RandomAccessFile::Open(directory.path() + "/none").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tercio

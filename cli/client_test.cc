#include "cli/client.h"

#include "common/exit_codes.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::HasSubstr;

TEST(CallStatus, ACallThatAnOlderCoordinatorHasNot) {
  const absl::Status status =
      CallStatus(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""), Client());
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("runs a version that does not support this"));
  EXPECT_EQ(ExitCodeOf(status), kExitUsage);
}

TEST(CallStatus, WhatTheCoordinatorSaysIsKept) {
  const absl::Status status =
      CallStatus(grpc::Status(grpc::StatusCode::NOT_FOUND, "no job x"), Client());
  EXPECT_EQ(status.message(), "no job x");
  EXPECT_EQ(ExitCodeOf(status), kExitNotFound);
}

TEST(HoldsNoJobs, WhereNoCoordinatorHasBeen) {
  const TempDir directory;
  EXPECT_TRUE(HoldsNoJobs(directory.path()));
  EXPECT_TRUE(HoldsNoJobs(directory.path() + "/missing"));
  const std::string state = directory.path() + "/state.sqlite";
  ASSERT_TRUE(WriteFileDurably(state, "").ok());
  EXPECT_FALSE(HoldsNoJobs(directory.path()));
  EXPECT_FALSE(HoldsNoJobs(state));  // a file is no state directory
}

TEST(GlobalOptions, TheCoordinatorOfTheEnvironmentIsADefault) {
  setenv("TERCIO_COORDINATOR", "train.example:7077", 1);
  EXPECT_EQ(GlobalOptions().coordinator, "train.example:7077");
  unsetenv("TERCIO_COORDINATOR");
  EXPECT_EQ(GlobalOptions().coordinator, "");
}

}  // namespace
}  // namespace tercio::cli

#include "common/version.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

bool Together(const std::string& theirs, const std::string& ours) {
  return CheckVersions("node a", theirs, "the coordinator", ours).ok();
}

TEST(CheckVersions, OneMinorVersionApart) {
  EXPECT_TRUE(Together("0.3.0", "0.3.9"));
  EXPECT_TRUE(Together("0.2.7", "0.3.0"));
  EXPECT_TRUE(Together("0.4.0", "0.3.0"));
  EXPECT_TRUE(Together("1.10.0", "1.9.0"));
  EXPECT_FALSE(Together("0.1.0", "0.3.0"));
  EXPECT_FALSE(Together("0.5.0", "0.3.0"));
  EXPECT_FALSE(Together("1.3.0", "0.3.0"));
  EXPECT_FALSE(Together("1.0.0", "0.9.0"));
}

TEST(CheckVersions, WhatIsNoVersion) {
  for (const char* version : {"", "1", "x.y", "0.x", "new"}) {
    EXPECT_FALSE(Together(version, "0.3.0")) << version;
  }
}

TEST(CheckVersions, TheMessageNamesBoth) {
  const absl::Status status = CheckVersions("node a", "0.5.1", "the coordinator", "0.3.0");
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("node a runs Tercio 0.5.1 and the coordinator 0.3.0"));
}

TEST(Version, OfThisBuild) {
  EXPECT_TRUE(CheckVersions("this", kVersion, "itself").ok()) << kVersion;
  EXPECT_STREQ(kCommit, "unknown");  // tests are not stamped
}

}  // namespace
}  // namespace tercio

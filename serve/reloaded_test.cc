#include "serve/reloaded.h"

#include <unistd.h>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::serve {
namespace {

class ReloadedTest : public testing::Test {
 protected:
  // A new file each time, as a renewal leaves it.
  void Write(const std::string& content) { ASSERT_TRUE(WriteFileDurably(path_, content).ok()); }
  absl::StatusOr<std::unique_ptr<Reloaded<std::string>>> Make() {
    return Reloaded<std::string>::Make("word", {path_}, [this]() -> absl::StatusOr<std::string> {
      ++loads_;
      TERCIO_ASSIGN_OR_RETURN(std::string content, ReadFile(path_));
      if (content.empty()) return absl::InvalidArgumentError("no word");
      return content;
    });
  }

  TempDir scratch_;
  const std::string path_ = scratch_.path() + "/word";
  int loads_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(ReloadedTest, FollowsTheFile) {
  Write("one");
  const auto made = Make();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->Current(now_), "one");
  Write("two");
  // Not looked at so soon.
  EXPECT_EQ((*made)->Current(now_ + kBetweenLooks / 2), "one");
  EXPECT_EQ((*made)->Current(now_ + kBetweenLooks), "two");
  for (int i = 2; i < 9; ++i) EXPECT_EQ((*made)->Current(now_ + i * kBetweenLooks), "two");
  EXPECT_EQ(loads_, 2);
}

TEST_F(ReloadedTest, KeepsWhatCanBeUsed) {
  Write("one");
  const auto made = Make();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->Current(now_), "one");
  testing::internal::CaptureStderr();
  Write("");
  now_ += kBetweenLooks;
  EXPECT_EQ((*made)->Current(now_), "one");
  const absl::Time retry = now_ + kBetweenTries;
  for (now_ += kBetweenLooks; now_ < retry; now_ += kBetweenLooks) {
    EXPECT_EQ((*made)->Current(now_), "one");
  }
  EXPECT_EQ(loads_, 2);
  EXPECT_EQ((*made)->Current(retry), "one");
  EXPECT_EQ(loads_, 3);
  ASSERT_EQ(unlink(path_.c_str()), 0);
  EXPECT_EQ((*made)->Current(retry + kBetweenLooks), "one");
  const std::string log = testing::internal::GetCapturedStderr();
  // Once for each change, not for each try.
  EXPECT_THAT(log, testing::HasSubstr("the previous word stays in use: no word"));
  EXPECT_EQ(log.find("no word"), log.rfind("no word"));
  Write("two");
  EXPECT_EQ((*made)->Current(retry + 2 * kBetweenLooks), "two");
}

TEST_F(ReloadedTest, BeginsWithUsableFilesOnly) {
  EXPECT_EQ(Make().status().code(), absl::StatusCode::kNotFound);
  Write("");
  EXPECT_EQ(Make().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tercio::serve

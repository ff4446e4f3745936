// Parts of checkpoints as files, with file systems that are well, fail, or hang.
#include "worker/trainer/part_file.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/steady_time.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/testing/fake_engine.h"

namespace tercio::trainer {
namespace {

using Wrote = std::function<bool(int64_t bytes)>;

class PartFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<PartFile> Start(WritePart write) {
    return std::make_unique<PartFile>(path_, std::vector<v1::TensorSlice>{Rows("w", 0, 3)},
                                      ValueParts{values_}, std::move(write));
  }
  static absl::StatusOr<v1::UploadEnd> WriteSome(const std::string& path,
                                                 const std::vector<v1::TensorSlice>&,
                                                 const ValueParts& values, const Wrote& wrote) {
    std::ofstream(path) << "part";
    v1::UploadEnd end;
    end.set_bytes(BytesOf(values));
    wrote(BytesOf(values));
    return end;
  }
  bool IsThere() const { return std::filesystem::exists(path_); }

  const TempDir directory_;
  const std::string path_ = directory_.path() + "/part";
  const std::vector<float> values_ = {1, 2, 3};
};

TEST_F(PartFileTest, OneThatIsKeptStays) {
  auto part = Start(WriteSome);
  ASSERT_TRUE(part->Ended(absl::Seconds(20)));
  EXPECT_EQ(part->bytes(), 12);
  EXPECT_EQ(part->result()->bytes(), 12);
  part->Keep();
  part.reset();
  EXPECT_TRUE(IsThere());
}

TEST_F(PartFileTest, AllOthersAreRemoved) {
  auto part = Start(WriteSome);
  ASSERT_TRUE(part->Ended(absl::Seconds(20)));
  EXPECT_TRUE(IsThere());
  part.reset();
  EXPECT_FALSE(IsThere());
  part = Start([](const std::string& path, const auto& slices, const auto& values,
                  const Wrote& wrote) -> absl::StatusOr<v1::UploadEnd> {
    EXPECT_TRUE(WriteSome(path, slices, values, wrote).ok());
    return absl::ResourceExhaustedError("no space");
  });
  ASSERT_TRUE(part->Ended(absl::Seconds(20)));
  EXPECT_EQ(part->result().status().code(), absl::StatusCode::kResourceExhausted);
  part->Keep();
  part.reset();
  EXPECT_FALSE(IsThere()) << "a part that is not whole";
}

TEST_F(PartFileTest, AWriteIsToldThatItIsNotWanted) {
  absl::Notification removed;
  bool wanted = true;
  auto part = Start([&](const std::string&, const auto&, const auto&,
                        const Wrote& wrote) -> absl::StatusOr<v1::UploadEnd> {
    EXPECT_TRUE(wrote(1));
    removed.WaitForNotification();
    wanted = wrote(2);
    return absl::CancelledError("not wanted");
  });
  while (part->bytes() == 0) EXPECT_FALSE(part->Ended(absl::Milliseconds(1)));
  part->Remove();
  removed.Notify();
  ASSERT_TRUE(part->Ended(absl::Seconds(20)));
  EXPECT_FALSE(wanted);
}

// What the thread uses must outlive the test: it is left behind.
TEST_F(PartFileTest, AWriteThatHangsIsLeftBehindAndItsFileRemovedLater) {
  static absl::Notification over;
  auto part = Start([](const std::string& path, const auto& slices, const auto& values,
                       const Wrote& wrote) -> absl::StatusOr<v1::UploadEnd> {
    auto end = WriteSome(path, slices, values, wrote);
    over.WaitForNotification();
    return end;
  });
  EXPECT_FALSE(part->Ended(absl::Milliseconds(10)));
  const absl::Time start = SteadyNow();
  part.reset();
  EXPECT_LT(SteadyNow() - start, absl::Seconds(20));
  over.Notify();
  for (int i = 0; i < 2000 && IsThere(); ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_FALSE(IsThere());
}

}  // namespace
}  // namespace tercio::trainer

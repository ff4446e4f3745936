#include <atomic>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/rank_file.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"
#include "common/checksum.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 12;
constexpr int64_t kColumns = 10;

v1::TensorSlice Slice(int64_t row_begin, int64_t row_end, int64_t column_begin,
                      int64_t column_end) {
  v1::TensorSlice slice;
  slice.set_tensor("w");
  slice.add_shape(kRows);
  slice.add_shape(kColumns);
  slice.set_row_begin(row_begin);
  slice.set_row_end(row_end);
  slice.set_column_begin(column_begin);
  slice.set_column_end(column_end);
  slice.set_dtype("F32");
  return slice;
}

// The value of element (r, c) says where it belongs.
std::string BytesOf(const v1::TensorSlice& slice, float add = 0) {
  std::vector<float> values;
  for (int64_t r = slice.row_begin(); r < slice.row_end(); ++r) {
    for (int64_t c = slice.column_begin(); c < slice.column_end(); ++c) {
      values.push_back(static_cast<float>(r * kColumns + c) + add);
    }
  }
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

class CheckpointTest : public ::testing::Test {
 protected:
  absl::StatusOr<Manifest> Upload(int rank, const v1::TensorSlice& slice, int64_t step) {
    v1::UploadBegin begin;
    begin.mutable_run()->set_job_id("job");
    begin.mutable_run()->set_attempt(1);
    begin.set_rank(rank);
    begin.set_step(step);
    *begin.add_slices() = slice;
    auto upload = store_.Begin(begin);
    if (!upload.ok()) return upload.status();
    const std::string bytes = BytesOf(slice);
    for (size_t at = 0; at < bytes.size(); at += 7) {
      if (auto status = (*upload)->Write(bytes.substr(at, 7)); !status.ok()) return status;
    }
    if (auto status = (*upload)->Finish(EndOf(begin, bytes)); !status.ok()) return status;
    return (*upload)->part();
  }

  static v1::UploadEnd EndOf(const v1::UploadBegin& begin, const std::string& bytes) {
    v1::UploadEnd end;
    end.set_bytes(static_cast<int64_t>(bytes.size()));
    end.set_checksum(ChecksumHex(RankFileOf(begin.slices())->header + bytes));
    return end;
  }

  absl::StatusOr<Committed> Save(int64_t step, const std::vector<v1::TensorSlice>& slices) {
    std::vector<Manifest> parts;
    for (const v1::TensorSlice& slice : slices) {
      auto part = Upload(static_cast<int>(parts.size()), slice, step);
      if (!part.ok()) return part.status();
      parts.push_back(*part);
    }
    return store_.Commit("job", step, 1, "{\"hidden\":10}", "{\"step\":1}", "{\"kind\":\"bytes\"}",
                         parts);
  }

  TempDir dir_;
  Store store_{dir_.path()};
};

TEST_F(CheckpointTest, AnyLayoutReadsWhatAnyLayoutWrote) {
  const std::vector<std::vector<v1::TensorSlice>> layouts = {
      {Slice(0, 12, 0, 10)},
      {Slice(0, 6, 0, 10), Slice(6, 12, 0, 10)},
      {Slice(0, 12, 0, 5), Slice(0, 12, 5, 10)},
      {Slice(0, 5, 0, 3), Slice(0, 5, 3, 10), Slice(5, 12, 0, 9), Slice(5, 12, 9, 10)}};
  int64_t step = 0;
  for (const auto& written : layouts) {
    const auto committed = Save(++step, written);
    ASSERT_TRUE(committed.ok()) << committed.status();
    const auto reader = Reader::Open(committed->path, true);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->model().hidden(), 10);
    for (const auto& wanted : layouts) {
      for (const v1::TensorSlice& slice : wanted) {
        const std::string expected = BytesOf(slice);
        std::string actual(expected.size(), '\0');
        ASSERT_TRUE((*reader)->ReadSlice(slice, reinterpret_cast<float*>(actual.data())).ok());
        EXPECT_EQ(actual, expected);
      }
    }
  }
}

// A crash at any moment leaves one of them: here somebody looks at all moments.
TEST_F(CheckpointTest, AStepThatIsSavedAgainIsThereAllTheTime) {
  const std::string path = Save(5, {Slice(0, 12, 0, 10)})->path + "/manifest.json";
  std::atomic<bool> done = false;
  int missing = 0;
  std::thread watcher([&] {
    while (!done) missing += PathExists(path) ? 0 : 1;
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Save(5, {Slice(0, 12, 0, 10)}).ok());
  done = true;
  watcher.join();
  EXPECT_EQ(missing, 0);
  EXPECT_EQ(ListDirectory(dir_.path() + "/job"), std::vector<std::string>{"step-00000005"});
}

TEST_F(CheckpointTest, DividedSlicesAreTheSlice) {
  for (const v1::TensorSlice& slice :
       {Slice(0, 12, 0, 10), Slice(3, 11, 2, 9), Slice(4, 5, 6, 7)}) {
    const int64_t elements =
        (slice.row_end() - slice.row_begin()) * (slice.column_end() - slice.column_begin());
    for (const int64_t most : {1, 3, 7, 10, 24, 1000}) {
      const std::vector<v1::TensorSlice> parts = DivideSlice(slice, most);
      std::string bytes;
      for (const v1::TensorSlice& part : parts) {
        const std::string more = BytesOf(part);
        EXPECT_LE(static_cast<int64_t>(more.size()), most * 4);
        bytes += more;
      }
      EXPECT_EQ(bytes, BytesOf(slice)) << "at most " << most;
      EXPECT_TRUE(most < elements || parts.size() == 1);
    }
  }
}

TEST_F(CheckpointTest, SlicesOutsideOfATensorAreRefused) {
  const auto committed = Save(1, {Slice(0, 12, 0, 10)});
  ASSERT_TRUE(committed.ok()) << committed.status();
  const auto reader = Reader::Open(committed->path, true);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->CheckSlice(Slice(1, 2, 0, 10)).ok());
  for (const v1::TensorSlice& bad :
       {Slice(0, 13, 0, 10), Slice(0, 12, 0, int64_t{1} << 60), Slice(-1, 12, 0, 10),
        Slice(5, 4, 0, 10), Slice(0, 12, 3, 2)}) {
    EXPECT_EQ((*reader)->CheckSlice(bad).code(), absl::StatusCode::kInvalidArgument);
  }
  v1::TensorSlice missing = Slice(0, 1, 0, 1);
  missing.set_tensor("v");
  EXPECT_EQ((*reader)->CheckSlice(missing).code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, GapsAndOverlapsAreRefused) {
  EXPECT_THAT(std::string(Save(1, {Slice(0, 6, 0, 10)}).status().message()),
              HasSubstr("exactly once"));
  EXPECT_THAT(std::string(Save(2, {Slice(0, 7, 0, 10), Slice(6, 12, 0, 10)}).status().message()),
              HasSubstr("exactly once"));
  EXPECT_TRUE(store_.List("job").empty());
}

TEST_F(CheckpointTest, EveryDamageIsFoundAndTheOneBeforeIsUsed) {
  ASSERT_TRUE(Save(10, {Slice(0, 12, 0, 10)}).ok());
  const auto newest = Save(20, {Slice(0, 6, 0, 10), Slice(6, 12, 0, 10)});
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ(store_.LatestGood("job", nullptr).step, 20);
  for (const std::string& name : ListDirectory(newest->path)) {
    const std::string path = newest->path + "/" + name;
    const std::string good = *ReadFile(path);
    std::string flipped = good;
    flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 1);
    for (const std::string& damage : {good.substr(0, good.size() - 1), flipped, std::string()}) {
      ASSERT_TRUE(WriteFileDurably(path, damage).ok());
      std::vector<std::string> damaged;
      // A flipped bit in the manifest may fall where nothing reads it: the step in it, say. All
      // else is found.
      if (name != "manifest.json" || damage != flipped) {
        EXPECT_EQ(store_.LatestGood("job", &damaged).step, 10) << name;
        EXPECT_EQ(damaged.size(), 1u);
        int problems = 0;
        for (const Finding& finding : VerifyCheckpoint(newest->path))
          problems += !finding.problem.empty();
        EXPECT_EQ(problems, 1) << name;
      }
    }
    ASSERT_TRUE(WriteFileDurably(path, good).ok());
  }
  EXPECT_EQ(store_.LatestGood("job", nullptr).step, 20);
}

TEST_F(CheckpointTest, AManifestMayNotLeaveItsDirectory) {
  const auto saved = Save(10, {Slice(0, 12, 0, 10)});
  ASSERT_TRUE(saved.ok());
  const std::string path = saved->path + "/manifest.json";
  const std::string good = *ReadFile(path);
  ASSERT_TRUE(ManifestFromJson(good).ok());
  for (const char* name : {"../rank-0.safetensors", "/etc/passwd", "..", ""}) {
    std::string text = good;
    const std::string from = "\"rank-00000.safetensors\"";
    size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    for (; at != std::string::npos; at = text.find(from)) {
      text.replace(at, from.size(), std::string("\"") + name + "\"");
    }
    const auto refused = ManifestFromJson(text);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kDataLoss) << name;
    EXPECT_NE(refused.status().message().find("not in its directory"), std::string::npos);
  }
}

TEST_F(CheckpointTest, AStreamThatDidNotArriveAsItWasSentIsRefused) {
  v1::UploadBegin begin;
  begin.mutable_run()->set_job_id("job");
  begin.set_step(1);
  *begin.add_slices() = Slice(0, 12, 0, 10);
  const std::string bytes = BytesOf(begin.slices(0));
  std::string flipped = bytes;
  flipped[bytes.size() / 2] ^= 1;
  const auto finish = [&](const std::string& arrived, const v1::UploadEnd& end) {
    const auto upload = store_.Begin(begin);
    EXPECT_TRUE(upload.ok()) << upload.status();
    EXPECT_TRUE((*upload)->Write(arrived).ok());
    return (*upload)->Finish(end).code();
  };
  EXPECT_EQ(finish(bytes, EndOf(begin, bytes)), absl::StatusCode::kOk);
  EXPECT_EQ(finish(flipped, EndOf(begin, bytes)), absl::StatusCode::kDataLoss);
  EXPECT_EQ(finish(bytes.substr(4), EndOf(begin, bytes)), absl::StatusCode::kDataLoss);
  const auto upload = store_.Begin(begin);
  ASSERT_TRUE((*upload)->Write(bytes).ok());
  EXPECT_EQ((*upload)->Write("x").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointTest, PruneKeepsTheNewest) {
  for (int64_t step = 1; step <= 4; ++step) ASSERT_TRUE(Save(step, {Slice(0, 12, 0, 10)}).ok());
  ASSERT_TRUE(store_.Prune("job", 2, 0).ok());
  const auto left = store_.List("job");
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left.front().step, 3);
}

TEST_F(CheckpointTest, PruneLeavesTheMultiplesOfKeepEvery) {
  for (int64_t step = 1; step <= 7; ++step) ASSERT_TRUE(Save(step, {Slice(0, 12, 0, 10)}).ok());
  EXPECT_EQ(*store_.Prune("job", 1, 3), (std::vector<int64_t>{1, 2, 4, 5}));
  std::vector<int64_t> left;
  for (const Committed& committed : store_.List("job")) left.push_back(committed.step);
  EXPECT_EQ(left, (std::vector<int64_t>{3, 6, 7}));
}

TEST_F(CheckpointTest, PartialSavesAreInvisibleAndRemoved) {
  ASSERT_TRUE(Upload(0, Slice(0, 12, 0, 10), 5).ok());
  EXPECT_TRUE(store_.List("job").empty());
  ASSERT_TRUE(store_.RemovePartials().ok());
  EXPECT_TRUE(ListDirectory(dir_.path() + "/job").empty());
}

TEST(Safetensors, HeaderRoundTrip) {
  std::vector<TensorEntry> entries(2);
  entries[0].name = "a";
  entries[0].shape = {2, 3};
  entries[1].name = "b";
  entries[1].shape = {4};
  const std::string header = SafetensorsHeader(&entries);
  EXPECT_EQ(header.size() % 8, 0u);
  const auto layout = ParseSafetensors(header, static_cast<int64_t>(header.size()) + 40);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->tensors[1].begin, 24);
  EXPECT_EQ(layout->tensors[1].end, 40);
  EXPECT_FALSE(ParseSafetensors(header, static_cast<int64_t>(header.size()) + 39).ok());
  EXPECT_FALSE(ParseSafetensors("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 100).ok());
}

}  // namespace
}  // namespace tercio::checkpoint

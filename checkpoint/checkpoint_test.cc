#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/part_writer.h"
#include "checkpoint/rank_file.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"
#include "common/checksum.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/state_digest.h"

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
    return (*upload)->Finish(EndOf(begin, bytes));
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
    return store_.Commit(
        {"job", step, 1, "{\"hidden\":10}", training_state_, "{\"kind\":\"bytes\"}", parts});
  }

  // The newest one whose every byte is right; 0: there is none.
  int64_t NewestGood() {
    const auto all = store_.List("job");
    if (!all.ok()) return 0;
    for (auto at = all->rbegin(); at != all->rend(); ++at) {
      if (Reader::Open(at->path, DigestCheck::kEveryByte).ok()) return at->step;
    }
    return 0;
  }

  // Relative to the checkpoint's directory.
  static std::vector<std::string> FilesOf(const std::string& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      const std::string name = entry.path().string().substr(directory.size() + 1);
      // But for the copy of the tokenizer, which is for others.
      if (entry.is_regular_file() && name != "tokenizer.json") names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string training_state_ = R"({"step":1})";
  TempDir dir_;
  Store store_{dir_.path()};
};

TEST(Numerics, AreThoseOfTheTrainingState) {
  Manifest manifest;
  const auto numerics = [&](const char* state) {
    manifest.training_state_json = state;
    return NumericsOf(manifest);
  };
  EXPECT_EQ(numerics(R"({"step": 3, "numerics": 2})"), 2);
  // Versions before, and other programs.
  EXPECT_EQ(numerics(R"({"step": 3})"), 1);
  EXPECT_EQ(numerics(R"({"numerics": "two"})"), 1);
  EXPECT_EQ(numerics("[]"), 1);
  EXPECT_EQ(numerics(""), 1);
}

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
    const auto reader = Reader::Open(committed->path, DigestCheck::kEveryByte);
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
  EXPECT_EQ(FilesOf(store_.PathOf("job", 5)).size(), 3u) << "what was saved before is gone";
}

// A client that lost its connection begins again before the server has noticed.
TEST_F(CheckpointTest, APartThatBeginsAgainDestroysNothing) {
  const v1::TensorSlice slice = Slice(0, 12, 0, 10);
  const auto part = Upload(0, slice, 5);
  ASSERT_TRUE(part.ok()) << part.status();
  v1::UploadBegin begin;
  begin.mutable_run()->set_job_id("job");
  begin.mutable_run()->set_attempt(1);
  begin.set_step(5);
  *begin.add_slices() = slice;
  const auto again = store_.Begin(begin);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE((*again)->Write("half").ok());
  ASSERT_TRUE(store_.Commit({"job", 5, 1, "{}", "{}", "", {*part}}).ok());
  EXPECT_EQ(NewestGood(), 5);
}

TEST_F(CheckpointTest, ACommitThatIsNotWantedAnyMoreIsInvisible) {
  const auto part = Upload(0, Slice(0, 12, 0, 10), 5);
  ASSERT_TRUE(part.ok()) << part.status();
  const auto committed =
      store_.Commit({"job", 5, 1, "{}", "{}", "", {*part}}, [] { return false; });
  EXPECT_EQ(committed.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(NewestGood(), 0);
  ASSERT_TRUE(store_.Abandon("job", 5, 1).ok());
  EXPECT_TRUE(ListDirectory(dir_.path() + "/job").empty());
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
  const auto reader = Reader::Open(committed->path, DigestCheck::kEveryByte);
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

// Sizes whose products and sums leave int64 come from a broken or hostile client.
TEST_F(CheckpointTest, SlicesBeyondAnyFileAreRefused) {
  const int64_t huge = int64_t{1} << 40;
  v1::TensorSlice slice = Slice(0, huge, 0, huge);
  slice.set_shape(0, huge);
  slice.set_shape(1, huge);
  google::protobuf::RepeatedPtrField<v1::TensorSlice> slices;
  *slices.Add() = slice;
  EXPECT_EQ(RankFileOf(slices).status().code(), absl::StatusCode::kInvalidArgument);
  slices.Clear();
  slice.set_row_end(int64_t{1} << 17);
  *slices.Add() = slice;
  EXPECT_TRUE(RankFileOf(slices).ok());
  *slices.Add() = slice;  // each is possible, both are not
  *slices.Add() = slice;
  EXPECT_THAT(RankFileOf(slices).status().message(), HasSubstr("2^58"));

  Manifest manifest;
  ManifestTensor& tensor = manifest.tensors["w"];
  tensor.dtype = "F32";
  tensor.shape = {huge, huge};
  EXPECT_EQ(CheckCoverage(manifest).code(), absl::StatusCode::kDataLoss);
  tensor.shape = {2, 1};
  manifest.files["a"].bytes = 8;
  Piece piece{.file = "a"};
  piece.row_end = 2;
  piece.column_end = 1;
  piece.offset = std::numeric_limits<int64_t>::max() - 4;
  tensor.pieces.push_back(piece);
  EXPECT_THAT(CheckCoverage(manifest).message(), HasSubstr("lies outside"));
  tensor.pieces[0].offset = 0;
  EXPECT_TRUE(CheckCoverage(manifest).ok());
}

TEST_F(CheckpointTest, GapsAndOverlapsAreRefused) {
  EXPECT_THAT(std::string(Save(1, {Slice(0, 6, 0, 10)}).status().message()),
              HasSubstr("exactly once"));
  EXPECT_THAT(std::string(Save(2, {Slice(0, 7, 0, 10), Slice(6, 12, 0, 10)}).status().message()),
              HasSubstr("exactly once"));
  EXPECT_EQ(NewestGood(), 0);
}

TEST_F(CheckpointTest, EveryDamageIsFoundAndTheOneBeforeIsUsed) {
  ASSERT_TRUE(Save(10, {Slice(0, 12, 0, 10)}).ok());
  const auto newest = Save(20, {Slice(0, 6, 0, 10), Slice(6, 12, 0, 10)});
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ(NewestGood(), 20);
  for (const std::string& name : FilesOf(newest->path)) {
    const std::string path = newest->path + "/" + name;
    const std::string good = *ReadFile(path);
    std::string flipped = good;
    flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 1);
    for (const std::string& damage : {good.substr(0, good.size() - 1), flipped, std::string()}) {
      ASSERT_TRUE(WriteFileDurably(path, damage).ok());
      EXPECT_EQ(NewestGood(), 10) << name;
      int problems = 0;
      for (const Finding& finding : VerifyCheckpoint(newest->path)) {
        problems += finding.problem.empty() ? 0 : 1;
        EXPECT_EQ(finding.problem.empty(), !finding.damaged) << finding.problem;
      }
      EXPECT_EQ(problems, 1) << name;
    }
    ASSERT_TRUE(WriteFileDurably(path, good).ok());
  }
  EXPECT_EQ(NewestGood(), 20);
}

// Files may hold to the byte what a faulty rank had in its memory.
TEST_F(CheckpointTest, FilesOfAnotherStateAreFound) {
  const std::string bytes = BytesOf(Slice(0, kRows, 0, kColumns));
  std::vector<float> values(static_cast<size_t>(kRows * kColumns));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  const uint64_t digest = plan::FactorOfTensor("w") * plan::DigestOfElements(values, 0);
  const std::vector<v1::TensorSlice> slices = {Slice(0, 5, 0, 3), Slice(0, 5, 3, 10),
                                               Slice(5, 12, 0, 10)};
  for (const bool right : {true, false}) {
    training_state_ = absl::StrCat(R"({"step": 1, "state_digest": ")",
                                   plan::StateDigestText(right ? digest : digest + 1), "\"}");
    const auto saved = Save(right ? 10 : 20, slices);
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_EQ(saved->state_digest, right ? digest : digest + 1);
    const std::vector<Finding> findings = VerifyCheckpoint(saved->path);
    EXPECT_EQ(findings.front().damaged, !right);
    EXPECT_EQ(findings.front().problem.empty(), right);
    EXPECT_THAT(findings.front().problem, HasSubstr(right ? "" : "but its trainers had"));
  }
}

// What a rank reads it verifies, and no more: nobody waits for all of it to be read.
TEST_F(CheckpointTest, WhatIsReadIsVerified) {
  const auto saved = Save(10, {Slice(0, 6, 0, 10), Slice(6, 12, 0, 10)});
  ASSERT_TRUE(saved.ok()) << saved.status();
  std::string second;
  for (const std::string& name : FilesOf(saved->path)) {
    if (name.find("rank-00001") != std::string::npos) second = saved->path + "/" + name;
  }
  std::string content = *ReadFile(second);
  content[content.size() - 3] ^= 1;
  ASSERT_TRUE(WriteFileDurably(second, content).ok());
  const auto reader = Reader::Open(saved->path, DigestCheck::kNone);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> values(static_cast<size_t>(kRows * kColumns));
  EXPECT_TRUE((*reader)->ReadSlice(Slice(0, 6, 0, 10), values.data()).ok());
  EXPECT_EQ((*reader)->bytes_read(), 6 * 10 * 4);
  const absl::Status damaged = (*reader)->ReadSlice(Slice(0, 12, 0, 1), values.data());
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << damaged;
  EXPECT_THAT(std::string(damaged.message()), HasSubstr(second));
}

// Several blocks, and parts of them: every layout reads each block once, and gets the bytes.
TEST_F(CheckpointTest, LargeTensorsAreReadBlockByBlock) {
  constexpr int64_t kLargeRows = 700;
  constexpr int64_t kLargeColumns = 5000;  // 14 MB: four blocks
  v1::TensorSlice whole = Slice(0, kLargeRows, 0, kLargeColumns);
  whole.set_shape(0, kLargeRows);
  whole.set_shape(1, kLargeColumns);
  std::vector<float> values(static_cast<size_t>(kLargeRows * kLargeColumns));
  std::iota(values.begin(), values.end(), 0.0f);
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  v1::UploadBegin begin;
  begin.mutable_run()->set_job_id("job");
  begin.mutable_run()->set_attempt(1);
  *begin.add_slices() = whole;
  const auto upload = store_.Begin(begin);
  ASSERT_TRUE(upload.ok()) << upload.status();
  ASSERT_TRUE((*upload)->Write(bytes).ok());
  const auto part = (*upload)->Finish(EndOf(begin, bytes));
  ASSERT_TRUE(part.ok()) << part.status();
  const auto saved = store_.Commit({"job", 0, 1, "{}", "{}", "", {*part}});
  ASSERT_TRUE(saved.ok()) << saved.status();
  const auto reader = Reader::Open(saved->path, DigestCheck::kNone);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> read(values.size());
  ASSERT_TRUE((*reader)->ReadSlice(whole, read.data()).ok());
  EXPECT_EQ(read, values);
  EXPECT_EQ((*reader)->bytes_read(), static_cast<int64_t>(bytes.size()));
  SliceCursor cursor(**reader);
  float* out = read.data();
  std::fill(read.begin(), read.end(), 0.0f);
  for (const v1::TensorSlice& some : DivideSlice(whole, 1 << 18)) {
    ASSERT_TRUE(cursor.Read(some, out).ok());
    out += (some.row_end() - some.row_begin()) * (some.column_end() - some.column_begin());
  }
  EXPECT_EQ(read, values);
  EXPECT_EQ((*reader)->bytes_read(), 2 * static_cast<int64_t>(bytes.size()));
  v1::TensorSlice half = whole;
  half.set_column_begin(kLargeColumns / 2);
  ASSERT_TRUE((*reader)->ReadSlice(half, read.data()).ok());
  EXPECT_EQ(read[0], static_cast<float>(kLargeColumns / 2));
  EXPECT_EQ((*reader)->bytes_read(), 3 * static_cast<int64_t>(bytes.size()));
}

TEST_F(CheckpointTest, WhatARankHasWrittenItselfIsTheSameCheckpoint) {
  v1::UploadBegin begin;
  begin.mutable_run()->set_job_id("job");
  begin.mutable_run()->set_attempt(3);
  begin.set_step(7);
  begin.set_file("attempt-3/rank-00000-0a.safetensors");
  *begin.add_slices() = Slice(0, 12, 0, 10);
  const std::string bytes = BytesOf(begin.slices(0));
  const std::string path = store_.PathOf("job", 7) + "/" + begin.file();
  auto writer = PartWriter::Create(path, begin.slices());
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append(bytes).ok());
  const auto end = (*writer)->Close();
  ASSERT_TRUE(end.ok()) << end.status();
  const auto part = store_.Adopt(begin, *end);
  ASSERT_TRUE(part.ok()) << part.status();
  ASSERT_TRUE(store_.Commit({"job", 7, 3, "{}", "{}", "", {*part}}).ok());
  EXPECT_EQ(NewestGood(), 7);
  // What is not there, is another rank's, or has another size, is not taken.
  for (const char* name :
       {"attempt-3/rank-00000-0b.safetensors", "attempt-2/rank-00000-0a.safetensors",
        "attempt-3/rank-00001-0a.safetensors", "attempt-3/rank-00000/../../x", ""}) {
    v1::UploadBegin other = begin;
    other.set_file(name);
    EXPECT_FALSE(store_.Adopt(other, *end).ok()) << name;
  }
  ASSERT_TRUE(WriteFileDurably(path, "short").ok());
  EXPECT_EQ(store_.Adopt(begin, *end).status().code(), absl::StatusCode::kDataLoss);
  v1::UploadEnd no_digests = *end;
  no_digests.clear_block_digests();
  EXPECT_EQ(store_.Adopt(begin, no_digests).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointTest, ManifestsOfTheVersionBeforeAreRead) {
  const auto saved = Save(10, {Slice(0, 12, 0, 10)});
  ASSERT_TRUE(saved.ok());
  auto json = nlohmann::json::parse(*ReadFile(saved->path + "/manifest.json"));
  json["version"] = 2;
  json.erase("digest");
  json.erase("tokenizer");
  for (auto& [name, tensor] : json["tensors"].items()) {
    for (auto& piece : tensor["pieces"]) piece.erase("blocks");
  }
  ASSERT_TRUE(WriteFileDurably(saved->path + "/manifest.json", json.dump()).ok());
  const auto reader = Reader::Open(saved->path, DigestCheck::kEveryByte);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> values(static_cast<size_t>(kRows * kColumns));
  EXPECT_TRUE((*reader)->ReadSlice(Slice(0, 12, 0, 10), values.data()).ok());
  EXPECT_EQ(values[17], 17.0f);
  json["version"] = 4;
  ASSERT_TRUE(WriteFileDurably(saved->path + "/manifest.json", json.dump()).ok());
  EXPECT_EQ(Reader::Open(saved->path, DigestCheck::kNone).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "not damaged, only newer";
  json["version"] = 1;
  ASSERT_TRUE(WriteFileDurably(saved->path + "/manifest.json", json.dump()).ok());
  EXPECT_EQ(Reader::Open(saved->path, DigestCheck::kNone).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(TrainingState, IsAJsonObjectThatIsNotDeep) {
  EXPECT_TRUE(CheckTrainingState("{\"step\": 1, \"a\": [1, {\"b\": null}]}").ok());
  for (const std::string& bad :
       {std::string("x"), std::string(), std::string("[1]"), std::string("{\"a\":"),
        "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
        "{\"a\":\"" + std::string(2 << 20, 'x') + "\"}"}) {
    EXPECT_EQ(CheckTrainingState(bad).code(), absl::StatusCode::kInvalidArgument)
        << bad.substr(0, 20);
  }
}

TEST_F(CheckpointTest, AManifestMayNotLeaveItsDirectory) {
  const auto saved = Save(10, {Slice(0, 12, 0, 10)});
  ASSERT_TRUE(saved.ok());
  const std::string path = saved->path + "/manifest.json";
  auto json = nlohmann::json::parse(*ReadFile(path));
  json["version"] = 2;  // which has no digest of itself
  const std::string good = json.dump();
  const std::string file = json["files"].begin().key();
  ASSERT_TRUE(ManifestFromJson(good).ok());
  for (const char* name : {"../rank-0.safetensors", "/etc/passwd", "..", ""}) {
    std::string text = good;
    const std::string from = absl::StrCat("\"", file, "\"");
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
    return (*upload)->Finish(end).status().code();
  };
  EXPECT_EQ(finish(bytes, EndOf(begin, bytes)), absl::StatusCode::kOk);
  EXPECT_EQ(finish(flipped, EndOf(begin, bytes)), absl::StatusCode::kDataLoss);
  EXPECT_EQ(finish(bytes.substr(4), EndOf(begin, bytes)), absl::StatusCode::kDataLoss);
  const auto upload = store_.Begin(begin);
  ASSERT_TRUE((*upload)->Write(bytes).ok());
  EXPECT_EQ((*upload)->Write("x").code(), absl::StatusCode::kInvalidArgument);
}

// A disk that loses what it was given says so at an fsync: of a part, the manifest, or the
// directory that names them.
TEST_F(CheckpointTest, WhatTheDiskDidNotTakeIsNoCheckpoint) {
  const std::string rules = dir_.path() + "/rules";
  setenv("FAILING_FILES", rules.c_str(), 1);
  ASSERT_TRUE(Save(5, {Slice(0, kRows, 0, kColumns)}).ok());
  int64_t step = 5;
  for (const char* part : {"/rank-", "/manifest.json", "/attempt-1$"}) {
    SCOPED_TRACE(part);
    const int64_t before = step;
    step += 5;
    ASSERT_TRUE(WriteFileDurably(rules, absl::StrCat("fail fsync ", part)).ok());
    const auto failed = Save(step, {Slice(0, kRows, 0, kColumns)});
    EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal) << failed.status();
    EXPECT_THAT(std::string(failed.status().message()), HasSubstr("cannot sync"));
    EXPECT_EQ(NewestGood(), before);
    EXPECT_EQ(store_.List("job")->back().step, before);
    std::filesystem::remove(rules);
    EXPECT_TRUE(store_.Abandon("job", step, 1).ok());
    EXPECT_FALSE(std::filesystem::exists(store_.PathOf("job", step)));
    ASSERT_TRUE(Save(step, {Slice(0, kRows, 0, kColumns)}).ok());
    EXPECT_EQ(NewestGood(), step);
  }
  // What cannot be read is not damaged: it is tried again.
  for (const char* part : {"/rank-", "/manifest.json"}) {
    ASSERT_TRUE(WriteFileDurably(rules, absl::StrCat("fail read ", part)).ok());
    const auto reader = Reader::Open(store_.PathOf("job", step), DigestCheck::kEveryByte);
    EXPECT_EQ(reader.status().code(), absl::StatusCode::kInternal) << reader.status();
    std::filesystem::remove(rules);
    EXPECT_EQ(NewestGood(), step);
  }
}

TEST_F(CheckpointTest, PartialSavesAreInvisibleAndRemoved) {
  ASSERT_TRUE(Upload(0, Slice(0, 12, 0, 10), 5).ok());
  EXPECT_TRUE(store_.List("job")->empty());
  EXPECT_EQ(store_.List("another").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store_.RemoveUnfinished().ok());
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

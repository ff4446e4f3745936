#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "checkpoint/logits/reader.h"
#include "checkpoint/logits/writer.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tercio::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kDigest[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

LogitsHeader HeaderOf(int64_t vocabulary, std::vector<int64_t> samples, int64_t k = 2) {
  LogitsHeader header;
  header.subject = {.vocabulary = vocabulary,
                    .context = 4,
                    .chat_template = "chatml",
                    .loss_on = "assistant",
                    .data = kDigest,
                    .tokenizer = kDigest,
                    .samples = std::move(samples)};
  header.teacher = {.name = "teacher", .digest = "0011223344556677"};
  header.k = k;
  return header;
}

struct Rows {
  std::vector<int32_t> ids;
  std::vector<float> logits;
};

// Rows that tell their sample: as many as its number, modulo 5.
Rows RowsOf(int64_t sample, const LogitsHeader& header) {
  Rows rows;
  for (int64_t i = 0; i < sample % 5 * header.k; ++i) {
    rows.ids.push_back(static_cast<int32_t>((sample * 31 + i * 7) % header.subject.vocabulary));
    rows.logits.push_back(0.125f * static_cast<float>(sample) - static_cast<float>(i));
  }
  return rows;
}

absl::Status AddSamples(LogitsWriter& writer, const LogitsHeader& header, int64_t end) {
  while (writer.samples() < end) {
    const Rows rows = RowsOf(writer.samples(), header);
    if (absl::Status status = writer.Add(rows.ids, rows.logits); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void WriteAll(const std::string& directory, const LogitsHeader& header, int64_t shard_bytes) {
  auto writer = LogitsWriter::Create(directory, header, shard_bytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(AddSamples(**writer, header, header.subject.sample_count()).ok());
  const absl::Status committed = (*writer)->Commit();
  ASSERT_TRUE(committed.ok()) << committed;
}

void ExpectAll(const std::string& directory, const LogitsHeader& header) {
  const auto logits = StoredLogits::Open(directory, DigestCheck::kEveryByte);
  ASSERT_TRUE(logits.ok()) << logits.status();
  EXPECT_EQ((*logits)->header().subject, header.subject);
  EXPECT_EQ((*logits)->header().teacher, header.teacher);
  Rows read;
  for (int64_t i = header.subject.sample_count(); i-- > 0;) {
    const Rows expected = RowsOf(i, header);
    (*logits)->Read(i, &read.ids, &read.logits);
    EXPECT_EQ((*logits)->RowsOf(i) * header.k, static_cast<int64_t>(expected.ids.size()));
    EXPECT_EQ(read.ids, expected.ids) << "sample " << i;
    EXPECT_EQ(read.logits, expected.logits) << "sample " << i;
  }
}

TEST(StoredLogitsTest, ComeBackAsTheyWereWritten) {
  const TempDir directory;
  // The first vocabulary fits 16 bits, the second does not.
  for (const int64_t vocabulary : {65536, 65537}) {
    const std::string path = absl::StrCat(directory.path(), "/logits", vocabulary);
    const LogitsHeader header = HeaderOf(vocabulary, {11, 6});
    WriteAll(path, header, /*shard_bytes=*/100);
    ExpectAll(path, header);
    EXPECT_GT(ReadLogitsHeader(path)->shards.size(), 3u);
    EXPECT_FALSE(PathExists(path + ".partial"));
    // Every file is one of the header's, and the header.
    EXPECT_EQ(ListDirectory(path).size(), ReadLogitsHeader(path)->shards.size() + 1);
  }
}

TEST(StoredLogitsTest, SamplesThatPredictNothingHaveNoRows) {
  const TempDir directory;
  LogitsHeader header = HeaderOf(10, {1});
  WriteAll(directory.path() + "/one", header, kShardBytes);
  ExpectAll(directory.path() + "/one", header);
}

TEST(StoredLogitsTest, AnInterruptedRunIsResumedBehindItsLastFile) {
  const TempDir directory;
  const std::string path = directory.path() + "/logits";
  const LogitsHeader header = HeaderOf(10, {23});
  {
    auto writer = LogitsWriter::Create(path, header, /*shard_bytes=*/60);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(AddSamples(**writer, header, 13).ok());
    EXPECT_EQ(LogitsWriter::Create(path, header).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_FALSE(PathExists(path));
  EXPECT_EQ(ReadLogitsHeader(path).status().code(), absl::StatusCode::kNotFound);
  {
    auto writer = LogitsWriter::Create(path, header, /*shard_bytes=*/60);
    ASSERT_TRUE(writer.ok());
    EXPECT_GT((*writer)->resumed_samples(), 5);
    EXPECT_LT((*writer)->resumed_samples(), 13);
    EXPECT_FALSE((*writer)->removed_others());
    ASSERT_TRUE(AddSamples(**writer, header, 23).ok());
    ASSERT_TRUE((*writer)->Commit().ok());
  }
  ExpectAll(path, header);
}

TEST(StoredLogitsTest, UnfinishedLogitsOfAnotherTeacherAreRemoved) {
  const TempDir directory;
  const std::string path = directory.path() + "/logits";
  LogitsHeader header = HeaderOf(10, {23});
  {
    auto writer = LogitsWriter::Create(path, header, /*shard_bytes=*/60);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(AddSamples(**writer, header, 13).ok());
  }
  header.teacher.digest = "8899aabbccddeeff";
  auto writer = LogitsWriter::Create(path, header, /*shard_bytes=*/60);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->samples(), 0);
  EXPECT_TRUE((*writer)->removed_others());
  ASSERT_TRUE(AddSamples(**writer, header, 23).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  ExpectAll(path, header);
}

TEST(StoredLogitsTest, ADamagedFileOfAnInterruptedRunIsWrittenAgain) {
  const TempDir directory;
  const std::string path = directory.path() + "/logits";
  const LogitsHeader header = HeaderOf(10, {23});
  {
    auto writer = LogitsWriter::Create(path, header, /*shard_bytes=*/60);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(AddSamples(**writer, header, 20).ok());
  }
  ASSERT_EQ(truncate((path + ".partial/logits-00001.safetensors").c_str(), 40), 0);
  auto writer = LogitsWriter::Create(path, header, /*shard_bytes=*/60);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(AddSamples(**writer, header, 23).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  ExpectAll(path, header);
}

TEST(StoredLogitsTest, APlaceThatIsTakenIsAConflict) {
  const TempDir directory;
  const auto writer = LogitsWriter::Create(directory.path(), HeaderOf(10, {3}));
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(writer.status().message(), HasSubstr(directory.path() + " exists"));
}

TEST(StoredLogitsTest, AFullDiskIsNamedWithThePathAndTheBytes) {
  const TempDir directory;
  const std::string path = directory.path() + "/logits";
  const LogitsHeader header = HeaderOf(10, {9});
  { ASSERT_TRUE(LogitsWriter::Create(path, header).ok()); }
  const std::string shard = path + ".partial/logits-00000.safetensors";
  ASSERT_EQ(symlink("/dev/full", (shard + ".unfinished").c_str()), 0);
  auto writer = LogitsWriter::Create(path, header);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(AddSamples(**writer, header, 9).ok());
  const absl::Status full = (*writer)->Commit();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(full.message(), AllOf(HasSubstr(shard), HasSubstr("this file takes ")));
  EXPECT_FALSE(PathExists(path));

  const absl::Status small = CheckRoom("/a/logits", 1000, 999);
  EXPECT_EQ(small.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(small.message(),
              AllOf(HasSubstr("/a/logits"), HasSubstr("1000 bytes"), HasSubstr("999")));
  EXPECT_TRUE(CheckRoom("/a/logits", 1000, 1000).ok());
}

// ---- damage ----

class DamagedLogitsTest : public ::testing::Test {
 protected:
  DamagedLogitsTest() { WriteAll(path_, header_, /*shard_bytes=*/60); }

  std::string FileOf(const std::string& name) const { return absl::StrCat(path_, "/", name); }
  void Change(const std::string& name, const std::function<void(std::string&)>& change) {
    std::string content = *ReadFile(FileOf(name));
    change(content);
    // Waiting for the disk would take most of the time.
    std::ofstream(FileOf(name), std::ios::binary | std::ios::trunc) << content;
  }
  absl::Status Opened(DigestCheck check = DigestCheck::kNone) {
    return StoredLogits::Open(path_, check).status();
  }
  void ExpectDamage(const absl::Status& status, const std::string& file, const std::string& what) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(FileOf(file)), HasSubstr(what),
                                        HasSubstr("write the logits again")));
  }

  const TempDir directory_;
  const std::string path_ = directory_.path() + "/logits";
  const LogitsHeader header_ = HeaderOf(10, {23});
};

TEST_F(DamagedLogitsTest, ATruncatedFileIsNamedWithItsSizes) {
  Change("logits-00002.safetensors", [](std::string& content) { content.pop_back(); });
  ExpectDamage(Opened(), "logits-00002.safetensors", "bytes, but logits.json names");
}

TEST_F(DamagedLogitsTest, AMissingFileIsNamed) {
  ASSERT_TRUE(RemoveTree(FileOf("logits-00001.safetensors")).ok());
  ExpectDamage(Opened(), "logits-00001.safetensors", "the file is missing");
}

TEST_F(DamagedLogitsTest, AChangedByteIsFoundByTheDigest) {
  Change("logits-00001.safetensors", [](std::string& content) { content.back() ^= 1; });
  ExpectDamage(Opened(DigestCheck::kEveryByte), "logits-00001.safetensors", "digest");
}

TEST_F(DamagedLogitsTest, AnEditedHeaderIsFound) {
  Change("logits.json", [](std::string& content) {
    const size_t at = content.find("\"context\": 4");
    ASSERT_NE(at, std::string::npos);
    content[at + 11] = '5';
  });
  ExpectDamage(Opened(), "logits.json", "its digest is another one");
}

TEST_F(DamagedLogitsTest, WhatIsNoHeaderIsSaid) {
  for (const char* text :
       {"", "[]", "{}", "{\"format\":\"tercio-logits\",\"version\":1}", "\xff"}) {
    Change("logits.json", [&](std::string& content) { content = text; });
    ExpectDamage(Opened(), "logits.json", "it ");
  }
}

TEST_F(DamagedLogitsTest, ALaterVersionIsNamed) {
  Change("logits.json", [](std::string& content) {
    nlohmann::json json = nlohmann::json::parse(content);
    json["version"] = 2;
    content = json.dump();
  });
  ExpectDamage(Opened(), "logits.json", "has version 2, and this program reads 1");
}

// Whatever is in the files: an answer, or an error that names one of them.
TEST_F(DamagedLogitsTest, RandomDamageNeverEndsTheProcess) {
  const uint32_t seed = 20260729;
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  const std::vector<std::string> names = ListDirectory(path_);
  for (int round = 0; round < 200; ++round) {
    const std::string& name = names[random() % names.size()];
    const std::string before = *ReadFile(FileOf(name));
    Change(name, [&](std::string& content) {
      // The beginning has the sizes and offsets, which are the most dangerous.
      const size_t range =
          random() % 2 == 0 ? std::min<size_t>(64, content.size()) : content.size();
      for (int i = 0; i < 3; ++i) content[random() % range] = static_cast<char>(random());
    });
    const auto logits = StoredLogits::Open(path_, DigestCheck::kNone);
    if (logits.ok()) {
      Rows rows;
      for (int64_t i = 0; i < 23; ++i) (*logits)->Read(i, &rows.ids, &rows.logits);
    } else {
      EXPECT_THAT(logits.status().message(), HasSubstr(path_));
    }
    EXPECT_FALSE(Opened(DigestCheck::kEveryByte).ok() && *ReadFile(FileOf(name)) != before &&
                 name != kLogitsHeader);
    Change(name, [&](std::string& content) { content = before; });
  }
  ExpectAll(path_, header_);
}

// ---- the samples that they belong to ----

TEST(LogitsSubjectTest, EachDifferenceIsNamed) {
  const LogitsHeader header = HeaderOf(10, {20, 3});
  EXPECT_TRUE(CheckSubject(header, header.subject, "DIR").ok());
  const auto message_with = [&](const std::function<void(LogitsSubject&)>& change) {
    LogitsSubject job = header.subject;
    change(job);
    const absl::Status status = CheckSubject(header, job, "DIR");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("DIR/logits.json"), HasSubstr("--write-logits")));
    return std::string(status.message());
  };
  EXPECT_THAT(message_with([](auto& job) { job.vocabulary = 11; }),
              HasSubstr("a vocabulary of 10, the job has 11"));
  EXPECT_THAT(message_with([](auto& job) { job.context = 8; }),
              HasSubstr("model.context 4, the job has 8"));
  EXPECT_THAT(message_with([](auto& job) { job.chat_template = ""; }),
              HasSubstr("data.template chatml, the job has none"));
  EXPECT_THAT(message_with([](auto& job) { job.loss_on = "all"; }),
              HasSubstr("data.loss_on assistant, the job has all"));
  EXPECT_THAT(message_with([](auto& job) { job.tokenizer[0] = 'f'; }),
              HasSubstr("the tokenizer 0123456789ab, the job has f123456789ab"));
  EXPECT_THAT(message_with([](auto& job) { job.data[0] = 'f'; }),
              HasSubstr("data 0123456789ab, the job has f123456789ab"));
  EXPECT_THAT(message_with([](auto& job) { job.samples = {23}; }),
              HasSubstr("samples 20 + 3, the job has 23"));
}

}  // namespace
}  // namespace tercio::checkpoint

// Damaged files: cut at every length, and with random bytes changed. A reader may refuse a file or
// read it; it never crashes, and what it hands out lies within the file.
#include <fstream>
#include <random>

#include "common/file.h"
#include "common/temp_dir.h"
#include "data/data_files.h"
#include "data/indexed_dataset.h"
#include "data/indexed_dataset_writer.h"
#include "data/jsonl.h"
#include "data/llmc_tokens.h"
#include "data/tokenize.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

constexpr uint64_t kSeed = 90210;

// Without syncing: these files need not outlive anything.
void Write(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  ASSERT_TRUE(file.write(content.data(), static_cast<std::streamsize>(content.size())).good());
}

std::string Damaged(const std::string& content, std::mt19937_64& random) {
  std::string damaged = content;
  const int changes = 1 + static_cast<int>(random() % 3);
  for (int c = 0; c < changes; ++c) {
    char& byte = damaged[random() % damaged.size()];
    byte = static_cast<char>(byte ^ (1 + random() % 255));
  }
  return damaged;
}

// Reads all that a file claims to hold.
void ReadAll(const TokenDataset& tokens, int64_t file_bytes) {
  ASSERT_LE(tokens.tokens(), file_bytes);
  std::vector<int32_t> ids(static_cast<size_t>(tokens.tokens()));
  tokens.Read(0, tokens.tokens(), ids.data());
  (void)tokens.HighestToken("fuzz");
}

class ReaderFuzz : public ::testing::Test {
 protected:
  ReaderFuzz() {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    const auto writer = IndexedDatasetWriter::Open(prefix_, TokenType::kUint16, "fuzz");
    for (const std::vector<int32_t>& document :
         std::vector<std::vector<int32_t>>{{1, 2, 3}, {4}, {5, 6}}) {
      EXPECT_TRUE((*writer)->Append(document).ok());
      (*writer)->EndDocument();
    }
    EXPECT_TRUE((*writer)->Commit("").ok());
    EXPECT_TRUE((*writer)->Finish(tokenizer::Tokenizer::Bytes()).ok());
    index_ = *ReadFile(prefix_ + ".idx");
    bin_ = *ReadFile(prefix_ + ".bin");
  }

  absl::StatusCode Open() {
    const auto dataset = OpenIndexedDataset(prefix_);
    if (dataset.ok()) ReadAll(dataset->tokens, static_cast<int64_t>(bin_.size()));
    return dataset.status().code();
  }

  TempDir dir_;
  std::string prefix_ = dir_.path() + "/tokens";
  std::string index_;
  std::string bin_;
};

TEST_F(ReaderFuzz, IndexCutAtEveryLength) {
  ASSERT_EQ(Open(), absl::StatusCode::kOk);
  for (size_t length = 0; length < index_.size(); ++length) {
    Write(prefix_ + ".idx", index_.substr(0, length));
    EXPECT_EQ(Open(), absl::StatusCode::kInvalidArgument) << length;
  }
}

TEST_F(ReaderFuzz, TokensCutAtEveryLength) {
  for (size_t length = 0; length < bin_.size(); ++length) {
    Write(prefix_ + ".bin", bin_.substr(0, length));
    EXPECT_EQ(Open(), absl::StatusCode::kInvalidArgument) << length;
  }
}

TEST_F(ReaderFuzz, IndexWithOtherBytes) {
  std::mt19937_64 random(kSeed);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    Write(prefix_ + ".idx", Damaged(index_, random));
    refused += Open() != absl::StatusCode::kOk;
  }
  EXPECT_GT(refused, 500);
  // Every byte of the tables counts; only a document's border may move and still be one.
  for (size_t at = 0; at < 34 + 12 * 3; ++at) {
    std::string damaged = index_;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    Write(prefix_ + ".idx", damaged);
    EXPECT_EQ(Open(), absl::StatusCode::kInvalidArgument) << at;
  }
}

class LlmcFuzz : public ::testing::Test {
 protected:
  static std::string File(int32_t magic, int32_t version, int32_t count, const std::string& ids) {
    std::vector<int32_t> header(256, 0);
    header[0] = magic;
    header[1] = version;
    header[2] = count;
    return std::string(reinterpret_cast<const char*>(header.data()), 1024) + ids;
  }
  absl::Status Open(const std::string& content) {
    Write(path_, content);
    const auto file = OpenLlmcTokens(path_);
    if (file.ok()) ReadAll(file->tokens, static_cast<int64_t>(content.size()));
    return file.status();
  }
  TempDir dir_;
  std::string path_ = dir_.path() + "/tokens.bin";
};

TEST_F(LlmcFuzz, CutAtEveryLength) {
  for (const std::string& good :
       {File(20240520, 1, 3, "123456"), File(20240801, 7, 2, "12345678")}) {
    ASSERT_TRUE(Open(good).ok());
    for (size_t length = 0; length < good.size(); ++length) {
      EXPECT_EQ(Open(good.substr(0, length)).code(), absl::StatusCode::kInvalidArgument) << length;
    }
    EXPECT_EQ(Open(good + "x").code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(LlmcFuzz, HeadersThatLie) {
  const auto fault = [this](int32_t magic, int32_t version, int32_t count) {
    return std::string(Open(File(magic, version, count, "123456")).message());
  };
  EXPECT_THAT(fault(20240522, 1, 3), ::testing::HasSubstr("magic 20240522, expected 20240520"));
  EXPECT_THAT(fault(20240520, 2, 3), ::testing::HasSubstr("version 2, expected 1 in a GPT-2 file"));
  EXPECT_THAT(fault(20240801, 1, 3), ::testing::HasSubstr("version 1, expected 7"));
  for (const int32_t count : {-1, 0, 2, 4, 0x7fffffff, static_cast<int32_t>(0x80000003)}) {
    EXPECT_THAT(fault(20240520, 1, count), ::testing::HasSubstr("the header counts")) << count;
  }
  std::mt19937_64 random(kSeed);
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  const std::string good = File(20240520, 1, 3, "123456");
  for (int round = 0; round < 300; ++round) (void)Open(Damaged(good, random));
}

// Whatever stands in PREFIX.partial, the result is that of an undisturbed run, or an error.
TEST(JournalFuzz, DamagedProgressNeverDamagesTheResult) {
  const TempDir dir;
  const std::string text = dir.path() + "/a.jsonl";
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += "{\"text\":\"document " + std::to_string(i) + "\"}\n";
  Write(text, lines);
  TokenizeOptions options;
  options.block_bytes = 250;
  const std::string whole = dir.path() + "/whole";
  ASSERT_TRUE(TokenizeTexts({text}, tokenizer::Tokenizer::Bytes(), whole, options).ok());
  // Stopped: all blocks are there, but the files have not appeared.
  TokenizeOptions stopped = options;
  stopped.progress = [](const TokenizeProgress&) { return false; };
  const std::string prefix = dir.path() + "/part";
  ASSERT_TRUE(absl::IsCancelled(
      TokenizeTexts({text}, tokenizer::Tokenizer::Bytes(), prefix, stopped).status()));
  std::vector<std::pair<std::string, std::string>> files;
  for (const char* name : {"journal", "tokens", "lengths"}) {
    files.emplace_back(prefix + ".partial/" + name, *ReadFile(prefix + ".partial/" + name));
    ASSERT_FALSE(files.back().second.empty());
  }
  std::mt19937_64 random(kSeed);
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  int continued = 0;
  for (int round = 0; round < 50; ++round) {
    ASSERT_TRUE(MakeDirectories(prefix + ".partial").ok());
    for (const auto& [path, content] : files) Write(path, content);
    const auto& [path, content] = files[random() % files.size()];
    Write(path, round % 2 == 0 ? Damaged(content, random)
                               : content.substr(0, random() % (content.size() + 1)));
    const auto report = TokenizeTexts({text}, tokenizer::Tokenizer::Bytes(), prefix, options);
    ASSERT_TRUE(report.ok()) << "seed " << kSeed << " round " << round << report.status();
    continued += report->resumed;
    for (const char* suffix : {".bin", ".idx", ".tokenizer.json"}) {
      ASSERT_EQ(*ReadFile(prefix + suffix), *ReadFile(whole + suffix)) << "round " << round;
    }
  }
  EXPECT_GT(continued, 12);
}

TEST(JsonFuzz, LinesThatAreCutOrChanged) {
  const std::string line =
      R"({"id": 1, "meta": {"text": "inner", "tags": [true, null, 1.5e3]}, "text": "a\u00e9\n"})";
  ASSERT_EQ(*TextOfJsonLine(line, "text"), "a\u00e9\n");
  for (size_t length = 0; length < line.size(); ++length) {
    EXPECT_FALSE(TextOfJsonLine(line.substr(0, length), "text").ok()) << length;
  }
  std::mt19937_64 random(kSeed);
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  for (int round = 0; round < 5000; ++round) (void)TextOfJsonLine(Damaged(line, random), "text");
  // As deep as a line may be: neither the stack nor the memory grows with it.
  EXPECT_FALSE(TextOfJsonLine(std::string(1 << 20, '['), "text").ok());
  std::string deep = "{\"text\": \"x\", \"y\": ";
  deep += std::string(1 << 18, '[') + std::string(1 << 18, ']') + "}";
  EXPECT_EQ(*TextOfJsonLine(deep, "text"), "x");
}

TEST(JsonLine, SaysWhatIsWrong) {
  const auto fault = [](const std::string& line) {
    return std::string(TextOfJsonLine(line, "text").status().message());
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(fault("[1]"), HasSubstr("the line is a list, expected an object"));
  EXPECT_THAT(fault("\"x\""), HasSubstr("the line is text, expected an object"));
  EXPECT_THAT(fault("{\"body\":\"x\"}"), HasSubstr("no key 'text'"));
  EXPECT_THAT(fault("{\"text\":null}"), HasSubstr("the value of 'text' is null, expected text"));
  EXPECT_THAT(fault("{\"text\":{\"text\":\"x\"}}"), HasSubstr("is an object, expected text"));
  EXPECT_THAT(fault("{\"text\":\"\xff\"}"), HasSubstr("not valid JSON at byte"));
  EXPECT_THAT(fault("{\"text\":\"x\"} trailing"), HasSubstr("not valid JSON"));
  EXPECT_EQ(*TextOfJsonLine("{\"text\":\"x\",\"text\":\"y\"}", "text"), "y");
}

}  // namespace
}  // namespace tercio::data

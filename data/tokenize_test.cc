#include "data/tokenize.h"

#include <random>

#include "common/file.h"
#include "common/temp_dir.h"
#include "data/document_batch.h"
#include "data/indexed_dataset.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 4711;

class TokenizeTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) { return dir_.path() + "/" + name; }
  std::string Write(const std::string& name, const std::string& content) {
    EXPECT_TRUE(WriteFileDurably(Path(name), content).ok());
    return Path(name);
  }
  // A corpus of several batches, with characters of one to four bytes.
  std::vector<std::string> LargeCorpus() {
    std::mt19937_64 random(kSeed);
    std::string lines;
    while (lines.size() < (3 << 20)) {
      lines += "{\"n\":" + std::to_string(random() % 100) + ",\"text\":\"";
      for (uint64_t i = random() % 200; i > 0; --i) lines += Character(random);
      lines += "\"}\n";
    }
    std::string text;
    while (text.size() < (2 << 20)) text += Character(random);
    return {Write("a.jsonl", lines), Write("b.txt", text)};
  }
  static const char* Character(std::mt19937_64& random) {
    static const char* const kCharacters[] = {"a", "b", " ", "z", "\u00e9", "\u20ac", "\U0001f600"};
    return kCharacters[random() % 7];
  }
  std::string Files(const std::string& prefix) {
    std::string all;
    for (const char* suffix : {".bin", ".idx", ".tokenizer.json"}) {
      all += *ReadFile(Path(prefix) + suffix);
    }
    return all;
  }
  TempDir dir_;
};

TEST_F(TokenizeTest, FilesDoNotDependOnThreads) {
  const std::vector<std::string> corpus = LargeCorpus();
  TokenizeOptions options;
  const auto tokenizer = ChooseTokenizer("chars", corpus, options.text);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->vocab_size(), 7);
  const auto one = TokenizeTexts(corpus, *tokenizer, Path("one"), options);
  ASSERT_TRUE(one.ok()) << one.status();
  options.text.threads = 5;
  options.block_bytes = 100000;
  EXPECT_EQ(*ChooseTokenizer("chars", corpus, options.text), *tokenizer);
  const auto five = TokenizeTexts(corpus, *tokenizer, Path("five"), options);
  ASSERT_TRUE(five.ok()) << five.status();
  EXPECT_EQ(five->documents, one->documents);
  EXPECT_TRUE(Files("one") == Files("five"));
  // The last document is the text, whole.
  const auto dataset = OpenIndexedDataset(Path("five"));
  ASSERT_TRUE(dataset.ok());
  const auto expected = tokenizer->Encode(*ReadFile(corpus[1]));
  std::vector<int32_t> ids(expected->size());
  const auto count = static_cast<int64_t>(ids.size());
  dataset->tokens.Read(dataset->tokens.tokens() - count, count, ids.data());
  EXPECT_TRUE(ids == *expected);
}

TEST_F(TokenizeTest, StoppedAnywhereEndsWithTheSameBytes) {
  const std::vector<std::string> corpus = LargeCorpus();
  TokenizeOptions options;
  const auto tokenizer = ChooseTokenizer("chars", corpus, options.text);
  ASSERT_TRUE(TokenizeTexts(corpus, *tokenizer, Path("whole"), options).ok());
  options.block_bytes = 30000;
  int stops = 0;
  options.progress = [&stops](const TokenizeProgress& progress) {
    EXPECT_EQ(progress.resumed, stops > 0);
    return false;
  };
  absl::StatusOr<TokenizeReport> report = absl::UnknownError("not run");
  while (true) {
    report = TokenizeTexts(corpus, *tokenizer, Path("stopped"), options);
    if (report.ok()) break;
    ASSERT_TRUE(absl::IsCancelled(report.status())) << report.status();
    EXPECT_FALSE(PathExists(Path("stopped.idx")));
    ASSERT_LT(++stops, 100);
  }
  EXPECT_GT(stops, 3);
  EXPECT_TRUE(report->resumed);
  EXPECT_TRUE(Files("whole") == Files("stopped"));
  EXPECT_FALSE(PathExists(Path("stopped.partial")));
}

TEST_F(TokenizeTest, AnotherCorpusStartsAgain) {
  TokenizeOptions options;
  options.progress = [](const TokenizeProgress&) { return false; };
  const std::string text = Write("a.txt", "hello");
  ASSERT_TRUE(absl::IsCancelled(
      TokenizeTexts({text}, tokenizer::Tokenizer::Bytes(), Path("t"), options).status()));
  Write("a.txt", "HELLO!");
  options.progress = nullptr;
  const auto report = TokenizeTexts({text}, tokenizer::Tokenizer::Bytes(), Path("t"), options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->resumed);
  EXPECT_EQ(report->tokens, 6);
}

TEST_F(TokenizeTest, SkippedLinesAreCountedAcrossAStop) {
  TokenizeOptions options;
  options.text.skip_bad_lines = true;
  const std::string path = Write("a.jsonl", "{\"text\":\"ab\"}\n{\n{\"text\":\"c\"}\n[]\n");
  options.progress = [](const TokenizeProgress&) { return false; };
  ASSERT_FALSE(TokenizeTexts({path}, tokenizer::Tokenizer::Bytes(), Path("t"), options).ok());
  options.progress = nullptr;
  const auto report = TokenizeTexts({path}, tokenizer::Tokenizer::Bytes(), Path("t"), options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->resumed);
  EXPECT_EQ(report->documents, 2);
  EXPECT_EQ(report->skipped_lines, 2);
  EXPECT_THAT(report->first_skipped, HasSubstr("a.jsonl:2: not valid JSON"));
}

TEST_F(TokenizeTest, SaysWhatIsWrong) {
  const auto fault = [this](const std::string& name, const std::string& prefix = "t",
                            bool eod = false) {
    TokenizeOptions options;
    options.append_end_of_text = eod;
    return std::string(
        TokenizeTexts({Path(name)}, tokenizer::Tokenizer::Bytes(), Path(prefix), options)
            .status()
            .message());
  };
  Write("bad.jsonl", "{\"text\":\"a\"}\n\nnothing\n");
  EXPECT_THAT(fault("bad.jsonl"), HasSubstr("bad.jsonl:3: not valid JSON"));
  Write("empty.txt", "");
  EXPECT_THAT(fault("empty.txt"), HasSubstr("the file is empty"));
  Write("blank.jsonl", "\n \n");
  EXPECT_THAT(fault("blank.jsonl"), HasSubstr("no text to train on"));
  EXPECT_THAT(fault("none.txt"), HasSubstr("none.txt"));
  Write("a.txt", "abc");
  EXPECT_THAT(fault("a.txt", "folder/"), HasSubstr("is not a PREFIX of file names"));
  EXPECT_THAT(fault("a.txt", "t", true), HasSubstr("has no end-of-text id"));
  Write("latin.txt", "ab\ncaf\xe9");
  EXPECT_THAT(std::string(ChooseTokenizer("chars", {Path("latin.txt")}, {}).status().message()),
              HasSubstr("latin.txt: the text is not UTF-8 at byte 6 (line 2)"));
}

TEST_F(TokenizeTest, CharactersOfAllTextsAndDocuments) {
  const std::string lines = Write("a.jsonl", "{\"text\":\"b\\u00e9\"}\n{\"other\":\"q\"}\n");
  const std::string text = Write("b.txt", "a\n");
  const auto tokenizer = ChooseTokenizer("chars", {lines, text}, {});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*tokenizer, *tokenizer::Tokenizer::CharsOf({"\nab\u00e9"}));
  const std::string file = Write("t.json", tokenizer->ToJson());
  EXPECT_EQ(*ChooseTokenizer(file, {}, {}), *tokenizer);
  EXPECT_THAT(std::string(ChooseTokenizer(text, {}, {}).status().message()),
              HasSubstr("b.txt: WordPiece"));  // what a .txt may be
}

TEST(TextSource, PiecesCoverTheTextAndKeepCharactersWhole) {
  const TempDir dir;
  const std::string path = dir.path() + "/a.txt";
  std::string text;
  for (int i = 0; i < 50; ++i) text += "a\u00e9\u20ac\U0001f600";
  ASSERT_TRUE(WriteFileDurably(path, text).ok());
  for (int64_t split = 1; split < 20; ++split) {
    auto source = TextSource::Open({path}, split);
    ASSERT_TRUE(source.ok());
    std::string joined;
    TextPiece piece;
    int ends = 0;
    while (source->Next(&piece)) {
      EXPECT_TRUE(split < 4 || tokenizer::Tokenizer::CharsOf({piece.text}).ok());
      joined += std::string(piece.text);
      ends += piece.ends_document;
    }
    EXPECT_EQ(joined, text);
    EXPECT_EQ(ends, 1);
  }
}

TEST(ForEachOnThreads, CallsEachOnce) {
  for (const int threads : {1, 3, 8}) {
    std::vector<int> calls(5, 0);
    ForEachOnThreads(5, threads, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
    EXPECT_THAT(calls, ElementsAre(1, 1, 1, 1, 1));
  }
}

}  // namespace
}  // namespace tercio::data

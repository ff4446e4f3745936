#include "data/sentences.h"

#include <string>

#include "common/file.h"
#include "common/temp_dir.h"
#include "data/indexed_dataset.h"
#include "data/tokenize.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Sentences, EndBehindMarks) {
  EXPECT_THAT(Sentences("One. Two! Three? 4 is a number."),
              ElementsAre("One.", " Two!", " Three?", " 4 is a number."));
  EXPECT_THAT(Sentences("He said \"no.\" \"Why?\" (Nobody knew.) Then"),
              ElementsAre("He said \"no.\"", " \"Why?\"", " (Nobody knew.)", " Then"));
  EXPECT_THAT(
      Sentences("\u00bfQu\u00e9? \u00c9l vino. \u041e\u043d \u0442\u043e\u0436\u0435"),
      ElementsAre("\u00bfQu\u00e9?", " \u00c9l vino.", " \u041e\u043d \u0442\u043e\u0436\u0435"));
}

TEST(Sentences, DoNotEndElsewhere) {
  EXPECT_THAT(Sentences("about 3.5 of a.b, e.g. this one"),
              ElementsAre("about 3.5 of a.b, e.g. this one"));
  EXPECT_THAT(Sentences("one\ntwo.\nthree"), ElementsAre("one\ntwo.\nthree"));
  EXPECT_THAT(Sentences("a, \"B"), ElementsAre("a, \"B"));
}

TEST(Sentences, EmptyLinesEndThem) {
  EXPECT_THAT(Sentences("a title\n\nthe text\n \nmore\r\n\r\nend\n\n"),
              ElementsAre("a title", "\n\nthe text", "\n \nmore", "\r\n\r\nend\n\n"));
}

TEST(Sentences, TogetherTheyAreTheText) {
  const std::string text = "\n\n A. \xff\xfe. B?\n\n\n\"C.\" D.  \n";
  std::string joined;
  for (const std::string_view sentence : Sentences(text)) joined += sentence;
  EXPECT_EQ(joined, text);
  EXPECT_THAT(Sentences(" \n\n "), ElementsAre());
  EXPECT_THAT(Sentences(""), ElementsAre());
}

class SplitSentences : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    EXPECT_TRUE(WriteFileDurably(Path(name), content).ok());
    return Path(name);
  }
  std::string Path(const std::string& name) { return dir_.path() + "/" + name; }
  TempDir dir_;
};

TEST_F(SplitSentences, TheIndexHasThem) {
  const std::string lines =
      Write("a.jsonl", "{\"text\":\"Go. Stop! Now\"}\n{\"text\":\" \"}\n{\"text\":\"Alone\"}\n");
  const std::string text = Write("b.txt", "Yes. No.");
  TokenizeOptions options;
  options.split_sentences = true;
  const auto report =
      TokenizeTexts({lines, text}, tokenizer::Tokenizer::Bytes(), Path("t"), options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->documents, 3);
  const auto dataset = OpenIndexedDataset(Path("t"));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->documents, 3);
  EXPECT_EQ(dataset->sequences, 6);
  const DocumentBorders& borders = dataset->borders;
  ASSERT_EQ(borders.documents(), 3);
  EXPECT_EQ(borders.Document(0).end, 13);
  EXPECT_THAT(borders.SequencesBetween(0, 0, 13), ElementsAre(3, 9));
  EXPECT_EQ(borders.Document(1).end, 18);
  EXPECT_THAT(borders.SequencesBetween(1, 13, 18), ElementsAre());
  EXPECT_THAT(borders.SequencesBetween(2, 18, 26), ElementsAre(22));
  options.append_end_of_text = true;
  EXPECT_THAT(std::string(TokenizeTexts({text}, tokenizer::Tokenizer::Bytes(), Path("u"), options)
                              .status()
                              .message()),
              HasSubstr("no end-of-text id"));
}

TEST_F(SplitSentences, StoppedAnywhereEndsWithTheSameBytes) {
  std::string lines;
  for (int i = 0; i < 40000; ++i) {
    lines += "{\"text\":\"" + std::string(static_cast<size_t>(i % 7), 'x') + "One. Two " +
             std::to_string(i) + ". Three.\"}\n";
  }
  const std::string path = Write("a.jsonl", lines);
  TokenizeOptions options;
  options.split_sentences = true;
  options.block_bytes = 50000;
  ASSERT_TRUE(TokenizeTexts({path}, tokenizer::Tokenizer::Bytes(), Path("whole"), options).ok());
  options.progress = [](const TokenizeProgress&) { return false; };
  int stops = 0;
  while (!TokenizeTexts({path}, tokenizer::Tokenizer::Bytes(), Path("part"), options).ok()) {
    ASSERT_LT(++stops, 20);
  }
  EXPECT_GT(stops, 1);
  for (const char* suffix : {".bin", ".idx"}) {
    EXPECT_TRUE(*ReadFile(Path("whole") + suffix) == *ReadFile(Path("part") + suffix)) << suffix;
  }
}

}  // namespace
}  // namespace tercio::data

#include "data/delimited.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// All records of a file with their fields; a fault ends the list with its message.
std::vector<std::vector<std::string>> RecordsOf(std::string_view content, TableKind kind) {
  std::vector<std::vector<std::string>> records;
  while (!content.empty()) {
    const Record record = FirstRecord(content, kind);
    EXPECT_GE(record.bytes, 1u);
    EXPECT_LE(record.bytes, content.size());
    content.remove_prefix(record.bytes);
    if (record.text.empty()) continue;
    const auto fields = FieldsOf(record.text, kind);
    records.push_back(
        fields.ok() ? *fields : std::vector<std::string>{std::string(fields.status().message())});
  }
  return records;
}

TEST(Delimited, KindsByName) {
  EXPECT_EQ(TableKindOf("a/b.csv"), TableKind::kCsv);
  EXPECT_EQ(TableKindOf("b.tsv"), TableKind::kTsv);
  EXPECT_EQ(TableKindOf("b.tsv.gz"), std::nullopt);
  EXPECT_EQ(TableKindOf(""), std::nullopt);
}

TEST(Delimited, QuotesOfCsv) {
  EXPECT_THAT(
      RecordsOf("a,b\r\n\"x, \"\"y\"\"\",\"1\n2\r\n3\"\n\n,\"\"\nit's 5\" wide,z", TableKind::kCsv),
      ElementsAre(ElementsAre("a", "b"), ElementsAre("x, \"y\"", "1\n2\r\n3"), ElementsAre("", ""),
                  ElementsAre("it's 5\" wide", "z")));
  EXPECT_THAT(RecordsOf("a,\r\n", TableKind::kCsv), ElementsAre(ElementsAre("a", "")));
  EXPECT_EQ(FirstRecord("\"1\n2\",a\nrest", TableKind::kCsv).lines, 2);
}

TEST(Delimited, CsvThatCannotBeRead) {
  const auto closed = FieldsOf("a,\"b\"c", TableKind::kCsv);
  EXPECT_EQ(closed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(closed.status().message()),
              HasSubstr("field 2 continues behind its closing quote"));
  const auto open = FieldsOf("a,b,\"c", TableKind::kCsv);
  EXPECT_EQ(open.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(open.status().message()),
              HasSubstr("the quotes of field 3 are not closed"));
  EXPECT_FALSE(FieldsOf("\"a\"\"", TableKind::kCsv).ok());
  // The record of such a field is all that is left.
  EXPECT_EQ(FirstRecord("a,\"b\nc,d\n", TableKind::kCsv).bytes, 9u);
}

TEST(Delimited, QuotesOfTsvAreCharacters) {
  EXPECT_THAT(RecordsOf("sentence\tlabel\r\n\"fun , it 's\t1\r\n\t\n\n a\"\t", TableKind::kTsv),
              ElementsAre(ElementsAre("sentence", "label"), ElementsAre("\"fun , it 's", "1"),
                          ElementsAre("", ""), ElementsAre(" a\"", "")));
}

// Where records end and what their fields are is decided by two functions, which must agree.
TEST(Delimited, WrittenTablesReadBack) {
  std::mt19937 random(7);
  constexpr std::string_view kLetters = "a\",\n\r\t";
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::vector<std::string>> table(1 + random() % 4);
    std::string csv;
    for (auto& row : table) {
      row.resize(1 + random() % 3);
      for (size_t i = 0; i < row.size(); ++i) {
        for (auto n = random() % 5; n > 0; --n) row[i] += kLetters[random() % kLetters.size()];
        csv += i > 0 ? ",\"" : "\"";
        for (const char c : row[i]) csv += c == '"' ? "\"\"" : std::string(1, c);
        csv += '"';
      }
      csv += random() % 2 == 0 ? "\n" : "\r\n";
    }
    ASSERT_EQ(RecordsOf(csv, TableKind::kCsv), table) << csv;
  }
}

// Anything may be in a file: every record ends, and none is read beyond its end.
TEST(Delimited, AnyBytesEnd) {
  std::mt19937 random(8);
  constexpr std::string_view kBytes = "a\",\n\r\t\"\xff";
  for (int round = 0; round < 2000; ++round) {
    std::string content;
    for (auto n = random() % 30; n > 0; --n) content += kBytes[random() % kBytes.size()];
    RecordsOf(content, TableKind::kCsv);
    RecordsOf(content, TableKind::kTsv);
  }
}

TEST(Delimited, Columns) {
  const std::vector<std::string> header = {"index", "sentence", "label", "label"};
  EXPECT_EQ(*FindColumn(header, "sentence", "data.text_key"), 1u);
  EXPECT_EQ(
      FindColumn(header, "sentense", "data.text_key").status().message(),
      "the header has no column 'sentense' (data.text_key); its columns are: index, sentence, "
      "label, label; did you mean 'sentence'?");
  EXPECT_THAT(std::string(FindColumn(header, "label", "k").status().message()),
              HasSubstr("names the column 'label' twice"));
  const std::string line(1000, 'x');
  const std::string fault(
      FindColumn(std::vector<std::string>(100, line + "\x1b"), "text", "k").status().message());
  EXPECT_THAT(fault, HasSubstr("x..., and 80 more"));
  EXPECT_LT(fault.size(), 2000u);
}

TEST(Delimited, ByteOrderMarks) {
  EXPECT_EQ(ByteOrderMark("\xEF\xBB\xBFsentence"), 3u);
  EXPECT_EQ(ByteOrderMark("sentence"), 0u);
}

}  // namespace
}  // namespace tercio::data

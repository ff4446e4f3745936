#include "data/labelled_dataset.h"

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ids are bytes; 1, 2 and 0 stand around them.
class LabelledDatasetTest : public ::testing::Test {
 protected:
  LabelledDatasetTest() {
    rules_.context = 8;
    rules_.cls = 1;
    rules_.sep = 2;
    rules_.pad = 0;
    rules_.labels = 2;
    rules_.label_names = {"neg", "pos"};
  }
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = dir_.path() + "/" + name;
    EXPECT_TRUE(WriteFileDurably(path, content).ok());
    return path;
  }
  absl::StatusOr<LabelledExamples> ReadFiles(const std::vector<std::string>& paths) {
    return ReadLabelledExamples(paths, tokenizer::Tokenizer::Bytes(), rules_);
  }
  absl::StatusOr<LabelledExamples> ReadLines(const std::string& content) {
    return ReadFiles({Write("train.jsonl", content)});
  }
  std::string FaultOfTable(const std::string& name, const std::string& content) {
    return std::string(ReadFiles({Write(name, content)}).status().message());
  }
  std::string FaultOf(const std::string& content) {
    return std::string(ReadLines(content).status().message());
  }
  std::vector<Sample> Samples(const std::string& content) {
    auto examples = ReadLines(content);
    EXPECT_TRUE(examples.ok()) << examples.status();
    if (!examples.ok()) return {};
    const auto count = static_cast<int64_t>(examples->examples.size());
    const LabelledDataset dataset(std::make_shared<const LabelledExamples>(*std::move(examples)), 0,
                                  count, rules_);
    std::vector<Sample> samples(static_cast<size_t>(dataset.samples()), Sample(1));
    for (int64_t i = 0; i < dataset.samples(); ++i) {
      dataset.Read(i, {}, &samples[static_cast<size_t>(i)]);
    }
    return samples;
  }
  TempDir dir_;
  LabelRules rules_;
};

TEST_F(LabelledDatasetTest, TextsAndPairs) {
  const std::vector<Sample> samples = Samples(
      R"({"text": "ab", "label": 1}
{"id": 7, "label": "neg", "text": "a", "text_pair": "bc"}

{"text": "a", "label": "pos", "text_pair": null}
{"text": "a", "label": 0, "text_pair": ""})");
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_THAT(samples[0].inputs, ElementsAre(1, 'a', 'b', 2, 0, 0, 0, 0));
  EXPECT_THAT(samples[0].types, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(samples[0].length, 4);
  EXPECT_EQ(samples[0].label, 1);
  EXPECT_THAT(samples[0].targets, testing::Each(kNoTarget));
  EXPECT_THAT(samples[1].inputs, ElementsAre(1, 'a', 2, 'b', 'c', 2, 0, 0));
  EXPECT_THAT(samples[1].types, ElementsAre(0, 0, 0, 1, 1, 1, 0, 0));
  EXPECT_EQ(samples[1].length, 6);
  EXPECT_EQ(samples[1].label, 0);
  EXPECT_EQ(samples[2].length, 3);
  EXPECT_THAT(samples[3].inputs, ElementsAre(1, 'a', 2, 2, 0, 0, 0, 0));
  rules_.token_types = 1;
  EXPECT_THAT(Samples(R"({"text": "a", "text_pair": "b", "label": 0})")[0].types, testing::Each(0));
}

// The longer text loses its last token until both fit, the second one where both are as long.
TEST_F(LabelledDatasetTest, CutsTheLongerOne) {
  EXPECT_THAT(Samples(R"({"text": "abcdefghi", "label": 0})")[0].inputs,
              ElementsAre(1, 'a', 'b', 'c', 'd', 'e', 'f', 2));
  for (rules_.context = 4; rules_.context < 12; ++rules_.context) {
    for (size_t first = 1; first < 12; ++first) {
      for (size_t second = 0; second < 12; ++second) {
        size_t a = first, b = second;
        while (a + b > static_cast<size_t>(rules_.context - 3)) a > b ? --a : --b;
        std::vector<int32_t> expected = {1};
        expected.insert(expected.end(), a, 'a');
        expected.push_back(2);
        expected.insert(expected.end(), b, 'b');
        expected.push_back(2);
        const auto length = static_cast<int32_t>(expected.size());
        expected.resize(static_cast<size_t>(rules_.context), 0);
        const Sample sample =
            Samples("{\"label\": 0, \"text\": \"" + std::string(first, 'a') +
                    "\", \"text_pair\": \"" + std::string(second, 'b') + "\"}")[0];
        ASSERT_EQ(sample.inputs, expected) << first << " " << second;
        ASSERT_EQ(sample.length, length);
      }
    }
  }
}

TEST_F(LabelledDatasetTest, FaultsNameTheLine) {
  const std::string good = "{\"text\":\"a\",\"label\":0}\n";
  EXPECT_THAT(FaultOf(good + "\n{\"text\":\"a\",\"label\":\"x\"}"),
              HasSubstr("train.jsonl:3: label 'x' is not one of model.labels (neg, pos)"));
  EXPECT_THAT(FaultOf(good + "{\"text\":\"a\",\"label\":2}"),
              HasSubstr("train.jsonl:2: label 2 is outside 0 to 1"));
  EXPECT_THAT(FaultOf("{\"text\":\"a\",\"label\":-1}"), HasSubstr("label -1 is outside"));
  EXPECT_THAT(FaultOf("{\"text\":\"a\",\"label\":0.5}"),
              HasSubstr("the value of 'label' is a number with a fraction"));
  EXPECT_THAT(FaultOf("{\"text\":\"a\",\"label\":18446744073709551615}"),
              HasSubstr("a number above 2^63-1"));
  EXPECT_THAT(FaultOf("{\"text\":\"a\"}"), HasSubstr("the object has no key 'label'"));
  EXPECT_THAT(FaultOf("{\"label\":0}"), HasSubstr("the object has no key 'text'"));
  EXPECT_THAT(FaultOf("{\"text\":3,\"label\":0}"), HasSubstr("'text' is a number, expected text"));
  EXPECT_THAT(FaultOf("{\"text\":\"a\",\"text_pair\":[],\"label\":0}"),
              HasSubstr("the value of 'text_pair' is a list"));
  EXPECT_THAT(FaultOf("{\"text\":\"\",\"label\":0}"),
              HasSubstr("train.jsonl:1: the text is empty"));
  EXPECT_THAT(FaultOf("{\"text\":\" \\t\",\"label\":0}"), HasSubstr("the text is empty"));
  EXPECT_THAT(FaultOf("\n\n"), HasSubstr("train.jsonl: no example"));
  EXPECT_THAT(FaultOf("{oops"), HasSubstr("train.jsonl:1: not valid JSON"));
  rules_.label_names.clear();
  EXPECT_THAT(FaultOf("{\"text\":\"a\",\"label\":\"pos\"}"),
              HasSubstr("model.labels names no classes; list all 2 names there"));
  rules_.text_key = "sentence";
  EXPECT_THAT(FaultOf(good), HasSubstr("no key 'sentence'; name the key with data.text_key"));
  EXPECT_THAT(std::string(ReadLabelledExamples({"a.txt"}, tokenizer::Tokenizer::Bytes(), rules_)
                              .status()
                              .message()),
              HasSubstr("a.txt: a classifier (model.labels) learns from .jsonl, .csv or .tsv"));
}

// As GLUE has them: classes are numbers, quotes are characters, and there may be more columns.
TEST_F(LabelledDatasetTest, Tables) {
  rules_.text_key = "sentence";
  rules_.threads = 3;
  const auto examples =
      ReadFiles({Write("a.tsv", "\xEF\xBB\xBFsentence\tlabel\r\n\"a\t1\r\n\r\nb\t0"),
                 Write("b.csv", "label,id,sentence\npos,7,\"c,\n\"\"d\"\"\"\n1,8,e\n"),
                 Write("c.jsonl", "{\"sentence\":\"f\",\"label\":\"neg\"}")});
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_THAT(examples->ids, ElementsAre('"', 'a', 'b', 'c', ',', '\n', '"', 'd', '"', 'e', 'f'));
  std::vector<int32_t> labels;
  for (const auto& example : examples->examples) {
    labels.push_back(example.label);
    EXPECT_FALSE(example.pair);
  }
  EXPECT_THAT(labels, ElementsAre(1, 0, 1, 1, 0));
}

TEST_F(LabelledDatasetTest, PairsOfTables) {
  const std::string path = Write("a.tsv", "text\ttext_pair\tlabel\na\tb\t0\nc\t\t1\n");
  const auto examples = ReadFiles({path});
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_TRUE(examples->examples[0].pair);
  EXPECT_FALSE(examples->examples[1].pair);
  EXPECT_THAT(examples->ids, ElementsAre('a', 'b', 'c'));
  // A name that is not the default one was given, and must be there.
  rules_.text_pair_key = "sentence2";
  EXPECT_THAT(std::string(ReadFiles({path}).status().message()),
              HasSubstr("a.tsv:1: the header has no column 'sentence2' (data.text_pair_key"));
}

TEST_F(LabelledDatasetTest, ANameOfAClassCountsBeforeItsNumber) {
  rules_.label_names = {"1", "0"};
  const auto examples = ReadFiles({Write("a.csv", "text,label\na,1\nb,0\n")});
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_EQ(examples->examples[0].label, 0);
  EXPECT_EQ(examples->examples[1].label, 1);
}

TEST_F(LabelledDatasetTest, FaultsOfTablesNameLineAndColumn) {
  const std::string good = "text\tlabel\na\t0\n";
  EXPECT_THAT(FaultOfTable("t.tsv", good + "b\n"),
              HasSubstr("t.tsv:3: has 1 field, but the header names 2 columns; fix the line, or"));
  EXPECT_THAT(FaultOfTable("t.tsv", good + "b\t0\t1\n"), HasSubstr("t.tsv:3: has 3 fields"));
  EXPECT_THAT(FaultOfTable("t.tsv", good + "\n \t1\n"),
              HasSubstr("t.tsv:4: column 'text': the text is empty"));
  EXPECT_THAT(FaultOfTable("t.tsv", good + "b\tgood\n"),
              HasSubstr("t.tsv:3: column 'label': label 'good' is not known; expected one of "
                        "model.labels (neg, pos), or a number from 0 to 1"));
  EXPECT_THAT(FaultOfTable("t.tsv", good + "b\t-1\n"), HasSubstr("label -1 is outside 0 to 1"));
  EXPECT_THAT(FaultOfTable("t.tsv", good + "b\t1.0\n"), HasSubstr("label '1.0' is not known"));
  EXPECT_THAT(FaultOfTable("t.tsv", good + "b\t\n"), HasSubstr("'label': the label is empty"));
  EXPECT_THAT(FaultOfTable("t.tsv", good + "b\t" + std::string(100, 'x') + "\n"),
              HasSubstr("label '" + std::string(40, 'x') + "...' is not known"));
  EXPECT_THAT(FaultOfTable("t.tsv", good + "\xff\t1\n"), HasSubstr("column 'text': not UTF-8"));
  EXPECT_THAT(FaultOfTable("t.tsv", "index\ttext\n0\ta\n"),
              HasSubstr("t.tsv:1: the header has no column 'label' (data.label_key, --label-key); "
                        "its columns are: index, text; every file of a classifier needs labels"));
  EXPECT_THAT(FaultOfTable("t.csv", "\ntext,label\n\"a\nb\",0\n\"c,1\n"),
              HasSubstr("t.csv:5: the quotes of field 1 are not closed"));
  EXPECT_THAT(FaultOfTable("t.csv", "\"text,label\n"), HasSubstr("t.csv:1: the quotes of"));
  EXPECT_THAT(FaultOfTable("t.csv", "text,label\r\n"),
              HasSubstr("t.csv: no example behind the line of the header"));
  EXPECT_THAT(FaultOfTable("t.csv", "\n\r\n"), HasSubstr("the file is empty; a header names"));
  EXPECT_THAT(FaultOfTable("t.csv", std::string("\xFF\xFEt\0e\0", 6)), HasSubstr("is UTF-16"));
  rules_.label_names.clear();
  EXPECT_THAT(FaultOfTable("t.tsv", good + "b\tpos\n"),
              HasSubstr("label 'pos' is not known; expected a number from 0 to 1"));
}

TEST_F(LabelledDatasetTest, BadLinesOfTablesMayBeSkipped) {
  rules_.skip_bad_lines = true;
  const auto examples = ReadFiles({Write("t.csv", "text,label\na,0\nb\n,1\n\"c\"d,1\ne,1\nf,2\n")});
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_EQ(examples->skipped_lines, 4);
  EXPECT_THAT(examples->first_skipped, HasSubstr("t.csv:3: has 1 field"));
  EXPECT_THAT(examples->ids, ElementsAre('a', 'e'));
  // All lines behind quotes that are not closed would be one that is skipped.
  EXPECT_THAT(FaultOfTable("u.csv", "text,label\na,0\n\"b,1\nc,0\n"),
              HasSubstr("u.csv:3: the quotes of field 1 are not closed"));
}

TEST_F(LabelledDatasetTest, BadLinesMayBeSkipped) {
  rules_.skip_bad_lines = true;
  rules_.threads = 3;
  const auto examples =
      ReadLines("{\"text\":\"a\",\"label\":0}\n{\"text\":\"b\"}\n[]\n{\"text\":\"c\",\"label\":1}");
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_EQ(examples->skipped_lines, 2);
  EXPECT_THAT(examples->first_skipped, HasSubstr("train.jsonl:2: the object has no key 'label'"));
  EXPECT_THAT(examples->ids, ElementsAre('a', 'c'));
}

}  // namespace
}  // namespace tercio::data

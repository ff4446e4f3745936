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
  absl::StatusOr<LabelledExamples> ReadLines(const std::string& content) {
    const std::string path = dir_.path() + "/train.jsonl";
    EXPECT_TRUE(WriteFileDurably(path, content).ok());
    return ReadLabelledExamples({path}, tokenizer::Tokenizer::Bytes(), rules_);
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
  EXPECT_THAT(FaultOf("{\"text\":\"\",\"label\":0}"), HasSubstr("the text has no tokens"));
  EXPECT_THAT(FaultOf("{oops"), HasSubstr("train.jsonl:1: not valid JSON"));
  rules_.label_names.clear();
  EXPECT_THAT(FaultOf("{\"text\":\"a\",\"label\":\"pos\"}"),
              HasSubstr("model.labels names no classes; list all 2 names there"));
  rules_.text_key = "sentence";
  EXPECT_THAT(FaultOf(good), HasSubstr("no key 'sentence'; name the key with data.text_key"));
  EXPECT_THAT(std::string(ReadLabelledExamples({"a.txt"}, tokenizer::Tokenizer::Bytes(), rules_)
                              .status()
                              .message()),
              HasSubstr("a.txt: a classifier (model.labels) learns from .jsonl files"));
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

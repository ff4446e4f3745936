#include "worker/inference/evaluation.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "data/bert_rules.h"
#include "data/labelled_dataset.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/quality.h"

namespace tercio::inference {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kGpt2[] = "tests/huggingface/fixtures/gpt2";

std::vector<int32_t> Ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * i + 3 * i) % 40));
  return ids;
}

data::TokenDataset DatasetOf(const std::vector<int32_t>& ids) {
  auto owner = std::make_shared<std::vector<int32_t>>(ids);
  return {owner, owner->data(), data::TokenType::kInt32, static_cast<int64_t>(ids.size())};
}

// The loss of ids[at] after up to `seen` ids before it, from NextLogits.
double LossAt(LanguageModel& model, const std::vector<int32_t>& ids, size_t at, size_t seen) {
  const auto logits = model.NextLogits(absl::MakeConstSpan(ids).subspan(at - seen, seen));
  EXPECT_TRUE(logits.ok()) << logits.status();
  double sum = 0;
  for (const float logit : *logits) sum += std::exp(static_cast<double>(logit));
  return std::log(sum) - (*logits)[static_cast<size_t>(ids[at])];
}

TEST(Evaluation, WindowsOverlapByTheStride) {
  const auto model = LanguageModel::Load(kGpt2, 1);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto context = static_cast<size_t>((*model)->context());
  ASSERT_EQ(context, 16u);
  const std::vector<int32_t> ids = Ids(41);
  for (const int64_t stride : {1, 5, 16}) {
    const auto result = (*model)->Evaluate(DatasetOf(ids), stride);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->tokens, 40);
    double sum = 0;
    for (size_t at = 1; at < ids.size(); ++at) {
      // The first window that has the id among its targets.
      size_t begin = 0;
      while (at > begin + context) begin += static_cast<size_t>(stride);
      sum += LossAt(**model, ids, at, at - begin);
    }
    EXPECT_NEAR(result->loss, sum / 40, 1e-5) << stride;
  }
}

TEST(Evaluation, AContinuationIsForeseenTokenByToken) {
  const auto model = LanguageModel::Load(kGpt2, 1);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<int32_t> ids = Ids(20);
  const auto all = absl::MakeConstSpan(ids);
  const auto prediction = (*model)->Predict(all.subspan(0, 17), all.subspan(17));
  ASSERT_TRUE(prediction.ok()) << prediction.status();
  double sum = 0;
  for (size_t at = 17; at < 20; ++at) sum += LossAt(**model, ids, at, at - 3);
  EXPECT_NEAR(prediction->loss, sum, 1e-4);
  EXPECT_FALSE(prediction->likeliest);
  // What the model itself would say is what it foresees.
  std::vector<int32_t> said;
  GenerateOptions greedy;
  greedy.temperature = 0;
  greedy.tokens = 3;
  ASSERT_TRUE((*model)
                  ->Generate({{1, 2, 3}}, greedy,
                             [&](size_t, int32_t id) {
                               said.push_back(id);
                               return true;
                             })
                  .ok());
  const auto own = (*model)->Predict(std::vector<int32_t>{1, 2, 3}, said);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_TRUE(own->likeliest);
  EXPECT_FALSE((*model)->Predict({}, said).ok());
  EXPECT_FALSE((*model)->Predict(said, Ids(17)).ok());
}

TEST(Evaluation, ModelsWithoutWhatAMetricNeedsSayIt) {
  const auto model = LanguageModel::Load(kGpt2, 1);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(std::string(EvaluateLastWords(**model, "x.txt").status().message()),
              AllOf(HasSubstr("no tokenizer"), HasSubstr("--tokenizer PATH")));
  EXPECT_THAT(std::string(EncoderModel::Load(kGpt2, 1).status().message()),
              HasSubstr("holds a gpt2, but a bert is needed"));
}

// A model of three classes, with words that it can be asked about.
class ClassEvaluation : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (char letter = 'a'; letter <= 'z'; ++letter) vocabulary += std::string(1, letter) + "\n";
    ASSERT_TRUE(WriteFileDurably(Path("vocab.txt"), vocabulary).ok());
    auto tokenizer = tokenizer::Tokenizer::Load(Path("vocab.txt"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    auto opened = OpenModel("tests/huggingface/fixtures/bert_classes", *tokenizer);
    ASSERT_TRUE(opened.ok()) << opened.status();
    opened_ = *std::move(opened);
  }
  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }
  // Texts of 1 to `longest` words, in a table whose columns have names of their own.
  v1::DataSpec WriteExamples(int count, int longest) const {
    std::string table = "kind\tsentence\n";
    for (int i = 0; i < count; ++i) {
      table += absl::StrCat(i % 3, "\t");
      for (int word = 0; word <= (7 * i) % longest; ++word) {
        table += std::string(1, static_cast<char>('a' + (i * i + 5 * word) % 26)) + " ";
      }
      table += "\n";
    }
    v1::DataSpec data;
    data.set_train(Path("examples.tsv"));
    data.set_text_key("sentence");
    data.set_label_key("kind");
    EXPECT_TRUE(WriteFileDurably(data.train(), table).ok());
    return data;
  }

  TempDir directory_;
  OpenedModel opened_;
};

// Logits one example at a time, in the model's whole context.
TEST_F(ClassEvaluation, BitsDoNotDependOnThePass) {
  const v1::DataSpec data = WriteExamples(11, 12);
  auto rules = data::LabelRulesOf(data, opened_.spec(), *opened_.tokenizer);
  ASSERT_TRUE(rules.ok()) << rules.status();
  auto read = data::ReadLabelledExamples({data.train()}, *opened_.tokenizer, *rules);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(data::LongestSample(*read), 14);
  const auto shared = std::make_shared<const data::LabelledExamples>(*std::move(read));
  std::vector<std::vector<float>> all;
  for (const PassSize pass :
       {PassSize{1, 16}, PassSize{1, 14}, PassSize{4, 14}, PassSize{11, 15}}) {
    rules->context = pass.context;
    const data::LabelledDataset dataset(shared, 0, 11, *rules);
    const auto model = EncoderModel::Load(opened_, 2, pass);
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<float>& logits = all.emplace_back();
    for (int64_t first = 0; first < 11; first += pass.sequences) {
      std::vector<data::Sample> samples(
          static_cast<size_t>(std::min<int64_t>(pass.sequences, 11 - first)),
          data::Sample(pass.context));
      for (size_t i = 0; i < samples.size(); ++i) {
        dataset.Read(first + static_cast<int64_t>(i), {}, &samples[i]);
      }
      const auto some = (*model)->ClassLogits(samples);
      ASSERT_TRUE(some.ok()) << some.status();
      logits.insert(logits.end(), some->begin(), some->end());
    }
    EXPECT_EQ(logits.size(), 33u);
    EXPECT_EQ(logits, all.front()) << pass.sequences << " x " << pass.context;
  }
}

TEST_F(ClassEvaluation, CountsEveryExampleOnce) {
  // More than one pass, the last of which is not full.
  const v1::DataSpec data = WriteExamples(150, 12);
  std::vector<int64_t> seen;
  const auto found = EvaluateClasses(opened_, data, 2, 0, [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 150);
    seen.push_back(done);
  });
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GE(seen.size(), 2u);
  EXPECT_EQ(seen.back(), 150);
  ASSERT_TRUE(plan::IsConfusion(found->confusion()));
  const plan::Quality quality = plan::QualityOf(found->confusion());
  EXPECT_EQ(quality.macro.support, 150);
  for (const plan::ClassScores& scores : quality.classes) EXPECT_EQ(scores.support, 50);
  EXPECT_GT(found->loss(), 0);
  const auto shorter = EvaluateClasses(opened_, data, 1, 5);
  ASSERT_TRUE(shorter.ok()) << shorter.status();
  EXPECT_NE(shorter->loss(), found->loss());
  EXPECT_THAT(std::string(EvaluateClasses(opened_, data, 1, 17).status().message()),
              HasSubstr("a context of 17 is longer than the 16"));
}

TEST_F(ClassEvaluation, FaultsOfTheFileAreNamed) {
  v1::DataSpec data = WriteExamples(3, 2);
  data.set_label_key("label");
  EXPECT_THAT(std::string(EvaluateClasses(opened_, data, 1, 0).status().message()),
              AllOf(HasSubstr("examples.tsv:1: the header has no column 'label'"),
                    HasSubstr("--label-key")));
  opened_.tokenizer.reset();
  EXPECT_THAT(std::string(EvaluateClasses(opened_, data, 1, 0).status().message()),
              HasSubstr("no tokenizer"));
}

TEST(Evaluation, AGivenTokenizerStandsInForTheModels) {
  const TempDir directory;
  const std::string passages = directory.path() + "/passages.txt";
  ASSERT_TRUE(WriteFileDurably(passages, "ab cd\n").ok());
  const auto chars = tokenizer::Tokenizer::CharsOf({"abcd "});
  ASSERT_TRUE(chars.ok()) << chars.status();
  const auto model = LanguageModel::Load(kGpt2, 1, {}, *chars);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_NE((*model)->tokenizer(), nullptr);
  EXPECT_TRUE(*(*model)->tokenizer() == *chars);
  const auto words = EvaluateLastWords(**model, passages);
  ASSERT_TRUE(words.ok()) << words.status();
  EXPECT_EQ(words->passages, 1);
  EXPECT_EQ(words->tokens, 3);  // a space and two letters
}

}  // namespace
}  // namespace tercio::inference

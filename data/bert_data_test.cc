// From a job to BERT's samples: special tokens, checks before training, digests, and sources that
// give the same samples whoever asks for them.
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "data/bert_rules.h"
#include "data/indexed_dataset_writer.h"
#include "data/prepared_data.h"
#include "data/sample_sources.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kBert[] = "tests/tokenizer/fixtures/bert_cased";
constexpr char kText[] = "The first world. That was the year 1984 in Moskva. Other years came.";

class BertData : public ::testing::Test {
 protected:
  BertData() {
    spec_.mutable_model()->set_architecture(v1::ARCHITECTURE_BERT);
    spec_.mutable_model()->set_context(16);
    spec_.mutable_model()->set_token_types(2);
    spec_.mutable_data()->set_tokenizer(kBert);
    spec_.mutable_data()->mutable_masking()->set_probability(0.15);
    spec_.mutable_training()->set_seed(5);
    spec_.mutable_training()->set_global_batch(4);
  }
  v1::ModelSpec& model() { return *spec_.mutable_model(); }
  v1::DataSpec& data() { return *spec_.mutable_data(); }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = dir_.path() + "/" + name;
    EXPECT_TRUE(WriteFileDurably(path, content).ok());
    return path;
  }
  // Token files without a tokenizer beside them.
  std::string WriteTokens(const std::string& name,
                          const std::vector<std::vector<int32_t>>& documents) {
    const std::string prefix = dir_.path() + "/" + name;
    const auto writer = IndexedDatasetWriter::Open(prefix, TokenType::kUint16, "test");
    for (const std::vector<int32_t>& document : documents) {
      EXPECT_TRUE((*writer)->Append(document).ok());
      (*writer)->EndDocument();
    }
    EXPECT_TRUE((*writer)->Commit("").ok());
    EXPECT_TRUE((*writer)->Finish(tokenizer::Tokenizer::Bytes()).ok());
    EXPECT_TRUE(RemoveTree(prefix + ".tokenizer.json").ok());
    return prefix;
  }
  absl::StatusOr<PreparedData> Prepare() {
    return PrepareData(spec_.data(), spec_.model(), dir_.path() + "/cache");
  }
  std::string Fault() { return std::string(Prepare().status().message()); }
  std::string Digest() {
    const auto prepared = Prepare();
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return prepared.ok() ? prepared->digest : "";
  }
  std::unique_ptr<SampleSource> Source() {
    auto prepared = Prepare();
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return prepared.ok() ? MakeSampleSource(*std::move(prepared), spec_) : nullptr;
  }
  static Sample Training(SampleSource& source, int64_t step, int64_t sequence) {
    Sample sample(16);
    source.TrainingSample(step, sequence, &sample);
    return sample;
  }
  TempDir dir_;
  v1::JobSpec spec_;
};

TEST_F(BertData, TextsOfAJob) {
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += absl::StrCat("{\"text\":\"", kText, "\"}\n");
  data().set_train(Write("a.jsonl", lines));
  data().set_validation_fraction(0.25);
  const auto source = Source();
  ASSERT_NE(source, nullptr);
  const auto again = Source();
  EXPECT_GT(source->held_out_samples(HeldOut::kValidation), 5);
  int64_t differing = 0;
  const int64_t samples = Prepare()->train_samples.datasets()[0]->samples();
  for (int64_t p = 0; p < samples; ++p) {
    const Sample sample = Training(*source, 1 + p / 4, p % 4);
    EXPECT_EQ(sample.inputs[0], 2);
    EXPECT_EQ(sample.inputs[static_cast<size_t>(sample.length) - 1], 3);
    EXPECT_EQ(sample.label, kNoTarget);
    // The end-of-text id of .jsonl documents, which is [SEP], does not stand twice.
    EXPECT_NE(sample.inputs[static_cast<size_t>(sample.length) - 2], 3);
    EXPECT_EQ(Training(*again, 1 + p / 4, p % 4).inputs, sample.inputs);
    // Whoever has another batch finds the same sample at the same position.
    spec_.mutable_training()->set_global_batch(2);
    EXPECT_EQ(Training(*Source(), 1 + p / 2, p % 2).targets, sample.targets);
    spec_.mutable_training()->set_global_batch(4);
    differing += Training(*source, 1 + p / 4 + samples / 4 * 5, p % 4).targets != sample.targets;
  }
  EXPECT_GT(differing, samples / 2);
  // Validation does not change with the seed of the job.
  spec_.mutable_training()->set_seed(6);
  const auto other = Source();
  EXPECT_NE(Training(*other, 1, 0).targets, Training(*source, 1, 0).targets);
  for (int64_t i = 0; i < source->held_out_samples(HeldOut::kValidation); ++i) {
    Sample one(16), two(16);
    source->HeldOutSample(HeldOut::kValidation, i, &one);
    other->HeldOutSample(HeldOut::kValidation, i, &two);
    EXPECT_EQ(one.inputs, two.inputs);
    EXPECT_EQ(one.targets, two.targets);
  }
}

TEST_F(BertData, SentencesOfRawText) {
  model().set_sentence_order(true);
  data().set_train(Write("a.txt", kText));
  data().mutable_masking()->set_whole_word(true);
  const auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const auto tokenizer = tokenizer::Tokenizer::FromJson(prepared->tokenizer_json);
  const auto first = tokenizer->Encode("The first world.");
  const SampleDataset& dataset = *prepared->train_samples.datasets()[0];
  Sample sample(16);
  for (uint64_t epoch = 0; epoch < 20; ++epoch) {
    dataset.Read(0, {1, epoch}, &sample);
    std::vector<int32_t> ids = sample.inputs;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (sample.targets[i] != kNoTarget) ids[i] = sample.targets[i];
    }
    auto segment = ids.begin() + 1;
    if (sample.label == 1) segment = std::find(ids.begin(), ids.end(), 3) + 1;
    EXPECT_TRUE(std::equal(first->begin(), first->end(), segment)) << epoch;
    EXPECT_EQ(segment[static_cast<ptrdiff_t>(first->size())], 3) << epoch;
  }
}

TEST_F(BertData, TheDigestHasAllThatDecidesSamples) {
  data().set_train(Write("a.jsonl", absl::StrCat("{\"text\":\"", kText, "\"}\n")));
  std::set<std::string> digests = {Digest()};
  EXPECT_EQ(digests.count(Digest()), 1u);
  const auto changed = [&](const auto& change) {
    const v1::JobSpec before = spec_;
    change();
    EXPECT_TRUE(digests.insert(Digest()).second) << spec_.ShortDebugString();
    spec_ = before;
  };
  changed([&] { data().mutable_masking()->set_probability(0.2); });
  changed([&] { data().mutable_masking()->set_whole_word(true); });
  changed([&] { model().set_context(15); });
  changed([&] { model().set_sentence_order(true); });
  changed([&] { data().mutable_special_tokens()->set_cls(9); });
  // The same tokens in other documents.
  data().set_tokenizer("");
  data().mutable_special_tokens()->set_mask(3);
  data().set_train(WriteTokens("one", {{5, 6, 7, 8}}));
  digests.insert(Digest());
  changed([&] { data().set_train(WriteTokens("two", {{5, 6}, {7, 8}})); });
}

TEST_F(BertData, TokenFilesNeedSpecialTokens) {
  data().set_tokenizer("");
  data().set_train(WriteTokens("t", {{5, 6, 7}, {8, 9}}));
  EXPECT_THAT(Fault(), HasSubstr("data.special_tokens is missing: token files without"));
  v1::SpecialTokens* special = data().mutable_special_tokens();
  special->set_cls(1);
  special->set_sep(2);
  special->set_mask(30);
  special->set_pad(0);
  const auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->vocab_size, 31);
  EXPECT_EQ(prepared->train_tokens, 5);
  EXPECT_EQ(prepared->train_samples.samples(), 2);
  model().set_vocab_size(20);
  EXPECT_THAT(Fault(), HasSubstr("data.special_tokens.mask is 30, outside the vocabulary of 20"));
  model().set_vocab_size(40);
  data().mutable_masking()->set_whole_word(true);
  EXPECT_THAT(Fault(), HasSubstr("whole_word: token files without a tokenizer do not say"));
}

TEST_F(BertData, SaysWhatIsWrong) {
  data().set_train(Write("a.txt", kText));
  data().set_tokenizer("bytes");
  EXPECT_THAT(Fault(), HasSubstr("the tokenizer (bytes) has no [CLS], [SEP], [MASK], [PAD]"));
  data().set_tokenizer(kBert);
  model().set_context(3);
  EXPECT_THAT(Fault(), HasSubstr("model.context is 3, but a sample needs at least 4"));
  model().set_sentence_order(true);
  model().set_context(6);
  EXPECT_THAT(Fault(), HasSubstr("a sample of two segments needs at least 7"));
  model().set_context(16);
  model().set_token_types(1);
  EXPECT_THAT(Fault(), HasSubstr("model.token_types is 1"));
  model().set_token_types(2);
  data().set_validation_path(Write("b.txt", "The"));
  EXPECT_THAT(Fault(), HasSubstr("b.txt: the validation part has no document of 4 tokens"));
}

TEST_F(BertData, ClassesOfABlend) {
  model().set_labels(3);
  const std::string a = Write("a.jsonl",
                              "{\"text\":\"The world\",\"label\":0}\n"
                              "{\"text\":\"years\",\"label\":0}\n");
  const std::string b = Write("b.jsonl",
                              "{\"text\":\"was\",\"label\":2}\n{\"oops\":1}\n"
                              "{\"text\":\"world\",\"label\":2}\n");
  for (const auto& [path, weight] : {std::pair(a, 3.0), std::pair(b, 1.0)}) {
    v1::WeightedData* part = data().add_train_blend();
    part->add_paths(path);
    part->set_weight(weight);
  }
  EXPECT_THAT(Fault(), HasSubstr("b.jsonl:2: the object has no key 'text'"));
  data().set_skip_bad_lines(true);
  data().set_validation_fraction(0.5);
  const auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(prepared->notices,
              ElementsAre(HasSubstr("1 line was skipped: "), "no training example has label 1"));
  EXPECT_EQ(prepared->train_tokens, 3);
  const auto source = Source();
  EXPECT_EQ(source->held_out_samples(HeldOut::kValidation),
            1);  // the second would repeat the one of a.jsonl
  std::vector<int32_t> labels;
  for (int64_t s = 0; s < 8; ++s) labels.push_back(Training(*source, 1 + s / 4, s % 4).label);
  EXPECT_EQ(std::count(labels.begin(), labels.end(), 2), 2);
  const std::string digest = prepared->digest;
  model().add_label_names("x");
  EXPECT_THAT(Fault(), HasSubstr("model.labels has 1 names for 3 classes"));
  model().add_label_names("y");
  model().add_label_names("z");
  EXPECT_NE(Digest(), digest);
  data().clear_train_blend();
  data().set_train(WriteTokens("t", {{5, 6, 7}}));
  EXPECT_THAT(Fault(), HasSubstr("holds tokens, but a classifier (model.labels) learns from"));
}

// The test is part of the digest, and evaluated in the order of its lines.
TEST_F(BertData, TestOfAClassifier) {
  model().set_labels(2);
  data().set_train(Write("a.tsv", "text\tlabel\nThe world\t0\nyears\t1\nwas\t1\n"));
  data().set_validation_path(Write("b.tsv", "text\tlabel\nworld\t1\nThe\t0\n"));
  const std::string without = Digest();
  data().set_test_path(Write("c.tsv", "text\tlabel\nyear\t0\n"));
  data().add_test_more_paths(Write("d.tsv", "label\ttext\n1\tyears\n1\twas\n"));
  const auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->train_sample_count, 3);
  EXPECT_EQ(prepared->validation_sample_count, 2);
  EXPECT_EQ(prepared->test_sample_count, 3);
  EXPECT_NE(prepared->digest, without);
  const auto source = Source();
  EXPECT_EQ(source->held_out_samples(HeldOut::kTest), 3);
  std::vector<int32_t> labels;
  Sample sample(16);
  for (int64_t i = 0; i < 3; ++i) {
    source->HeldOutSample(HeldOut::kTest, i, &sample);
    labels.push_back(sample.label);
  }
  EXPECT_THAT(labels, ElementsAre(0, 1, 1));
  source->HeldOutSample(HeldOut::kValidation, 0, &sample);
  EXPECT_EQ(sample.label, 1);
  Write("d.tsv", "text\tlabel\nwas\t2\n");
  EXPECT_THAT(Fault(), HasSubstr("d.tsv:2: column 'label': label 2 is outside 0 to 1"));
  // A test alone is a job that only evaluates.
  Write("d.tsv", "text\tlabel\nwas\t1\n");
  data().clear_train();
  data().clear_validation_path();
  const auto alone = Prepare();
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->train_sample_count, 0);
  EXPECT_EQ(alone->test_sample_count, 2);
  EXPECT_TRUE(alone->notices.empty());
  data().clear_test_path();
  EXPECT_THAT(Fault(), HasSubstr("data.train names no files"));
}

TEST_F(BertData, TestOfAMaskedModel) {
  data().set_train(Write("a.txt", kText));
  data().set_test_path(Write("b.txt", kText));
  const auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_GT(prepared->test_sample_count, 0);
  EXPECT_EQ(prepared->test_sample_count, prepared->train_sample_count);
  data().set_test_path(Write("c.txt", "."));
  EXPECT_THAT(Fault(), AllOf(HasSubstr("c.txt: the test part has no document of 2 tokens"),
                             HasSubstr("another data.test")));
}

TEST(WordContinuations, OfEveryKind) {
  const auto count = [](const char* name, std::string_view text) {
    const auto tokenizer =
        tokenizer::Tokenizer::Load(absl::StrCat("tests/tokenizer/fixtures/", name));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    const auto continues = tokenizer->WordContinuations();
    EXPECT_TRUE(continues.has_value());
    EXPECT_EQ(continues->size(), static_cast<size_t>(tokenizer->vocab_size()));
    int words = 0;
    const std::vector<int32_t> ids = *tokenizer->Encode(text);
    EXPECT_GT(ids.size(), 4u) << name;
    for (const int32_t id : ids) words += !(*continues)[static_cast<size_t>(id)];
    return words;
  };
  // The words of a text, the first of which gpt2 does not know to begin one.
  EXPECT_EQ(count("bert_cased", "checking Straßes outworldly once"), 4);
  EXPECT_EQ(count("roberta.json", "checking somethings outworldly once"), 4);
  EXPECT_EQ(count("gpt2", "checking somethings outworldly once"), 3);
  EXPECT_EQ(count("unigram.model", "checking somethings outworldly once"), 4);
  const auto suffix = tokenizer::Tokenizer::Load("tests/tokenizer/fixtures/suffix.model");
  ASSERT_TRUE(suffix.ok());
  EXPECT_EQ(suffix->WordContinuations(), std::nullopt);
  const auto bytes = tokenizer::Tokenizer::Bytes().WordContinuations();
  EXPECT_FALSE((*bytes)[' ']);
  EXPECT_TRUE((*bytes)['a']);
}

TEST(BertIds, OfBertAndRoberta) {
  const auto bert = tokenizer::Tokenizer::Load(kBert)->bert_ids();
  EXPECT_EQ(bert.cls, 2);
  EXPECT_EQ(bert.sep, 3);
  EXPECT_EQ(bert.mask, 4);
  EXPECT_EQ(bert.pad, 0);
  const auto roberta =
      tokenizer::Tokenizer::Load("tests/tokenizer/fixtures/roberta.json")->bert_ids();
  EXPECT_EQ(roberta.cls, 0);
  EXPECT_EQ(roberta.sep, 2);
  EXPECT_EQ(roberta.mask, 4);
  EXPECT_EQ(roberta.pad, 1);
  EXPECT_EQ(tokenizer::Tokenizer::Load("tests/tokenizer/fixtures/gpt2")->bert_ids().cls,
            std::nullopt);
}

}  // namespace
}  // namespace tercio::data

// Samples of span corruption: they hold the raw text, have the lengths that the model has, depend
// on nothing but their key, and use the special tokens of the job or the tokenizer.
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "data/prepared_data.h"
#include "data/sample_sources.h"
#include "data/span_dataset.h"
#include "data/span_rules.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kPad = 1000;
constexpr int32_t kEos = 1001;
constexpr int32_t kFirstSentinel = 1101;

SpanDataset DatasetOf(int64_t tokens, int64_t context) {
  auto ids = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(tokens));
  std::iota(ids->begin(), ids->end(), 0);
  return SpanDataset(TokenDataset(ids, ids->data(), TokenType::kInt32, tokens),
                     {*plan::SpanLengthsOf(context, {}), kPad, kEos, kFirstSentinel});
}

// The raw tokens, from the inputs with the spans of the targets in place of their sentinels. Faults
// in either sequence give another result.
std::vector<int32_t> RawOf(const Sample& sample) {
  std::vector<int32_t> raw;
  size_t target = 0;
  int32_t sentinel = kFirstSentinel;
  for (const int32_t id : sample.inputs) {
    if (id < kPad) {
      raw.push_back(id);
    } else if (id == sentinel && sample.targets[target] == sentinel) {
      --sentinel;
      while (sample.targets[++target] < kPad) raw.push_back(sample.targets[target]);
    } else {
      raw.push_back(id);
    }
  }
  raw.push_back(sample.targets[target]);
  return raw;
}

TEST(SpanDataset, SamplesHoldTheRawText) {
  for (const int64_t context : {3, 4, 7, 32, 128, 512}) {
    const plan::SpanLengths lengths = *plan::SpanLengthsOf(context, {});
    const SpanDataset dataset = DatasetOf(999, context);
    ASSERT_EQ(dataset.samples(), 999 / lengths.raw);
    Sample sample(1);
    for (int64_t i = 0; i < dataset.samples(); ++i) {
      dataset.Read(i, {7, 3}, &sample);
      std::vector<int32_t> expected(static_cast<size_t>(lengths.raw));
      std::iota(expected.begin(), expected.end(), static_cast<int32_t>(i * lengths.raw));
      expected.insert(expected.end(), {kEos, kEos});
      EXPECT_EQ(RawOf(sample), expected);
      EXPECT_EQ(static_cast<int64_t>(sample.inputs.size()), context);
      EXPECT_EQ(static_cast<int64_t>(sample.targets.size()), lengths.targets);
      EXPECT_EQ(sample.length, context);
      EXPECT_EQ(sample.types, std::vector<int32_t>(sample.inputs.size(), 0));
      EXPECT_EQ(sample.label, kNoTarget);
      // A kept token stands first, and between two spans.
      for (size_t p = 0; p < sample.inputs.size(); p += 1) {
        if (sample.inputs[p] <= kEos) continue;
        EXPECT_TRUE(p > 0 && sample.inputs[p - 1] < kPad);
      }
      std::vector<int32_t> shifted = {kPad};
      shifted.insert(shifted.end(), sample.targets.begin(), sample.targets.end() - 1);
      EXPECT_EQ(sample.decoder_inputs, shifted);
    }
  }
}

TEST(SpanDataset, EverySetOfBordersOccursEquallyOften) {
  // 11 raw tokens with 6 masked ones in 2 spans: 4 borders of kept tokens, 5 of masked ones.
  v1::MaskingSpec masking;
  masking.set_probability(0.5);
  masking.set_mean_span(2.5);
  const plan::SpanLengths lengths = *plan::SpanLengthsOf(8, masking);
  ASSERT_EQ(lengths.noise, 6);
  ASSERT_EQ(lengths.spans, 2);
  auto ids = std::make_shared<std::vector<int32_t>>(11, 5);
  const SpanDataset dataset(TokenDataset(ids, ids->data(), TokenType::kInt32, 11),
                            {lengths, kPad, kEos, kFirstSentinel});
  std::map<std::pair<size_t, size_t>, int> counts;
  Sample sample(1);
  for (uint64_t epoch = 0; epoch < 16000; ++epoch) {
    dataset.Read(0, {1, epoch}, &sample);
    const auto place = [](const std::vector<int32_t>& of, int32_t id) {
      return static_cast<size_t>(std::find(of.begin(), of.end(), id) - of.begin());
    };
    ++counts[{place(sample.inputs, kFirstSentinel), place(sample.targets, kFirstSentinel - 1)}];
  }
  ASSERT_EQ(counts.size(), 20u);
  // 800 each, with a standard deviation of 28.
  for (const auto& [borders, count] : counts) EXPECT_NEAR(count, 800, 140);
}

TEST(SpanDataset, SamplesDependOnTheirKeyOnly) {
  const SpanDataset dataset = DatasetOf(999, 128);
  Sample one(1), two(1);
  std::set<std::vector<int32_t>> different;
  for (const SampleKey key : {SampleKey{7, 0}, SampleKey{7, 1}, SampleKey{8, 0}}) {
    dataset.Read(2, key, &one);
    dataset.Read(0, key, &two);
    dataset.Read(2, key, &two);
    EXPECT_EQ(one.inputs, two.inputs);
    EXPECT_EQ(one.targets, two.targets);
    different.insert(one.inputs);
  }
  EXPECT_EQ(different.size(), 3u);
}

TEST(SpanVocabulary, OfTheJobAndTheTokenizer) {
  v1::DataSpec data;
  // Behind the vocabulary.
  auto found = SpanVocabularyOf(data, tokenizer::Tokenizer::Bytes(), 0, -1);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->data_ids, 256);
  EXPECT_EQ(found->pad, 256);
  EXPECT_EQ(found->eos, 257);
  EXPECT_EQ(found->first_sentinel, 357);
  EXPECT_EQ(found->sentinels, 100);
  EXPECT_EQ(found->vocab_size, 358);
  // Token files: once the size is known, special tokens stay where they are.
  EXPECT_EQ(SpanVocabularyOf(data, std::nullopt, 0, 49)->vocab_size, 152);
  EXPECT_EQ(SpanVocabularyOf(data, std::nullopt, 152, 49)->vocab_size, 152);
  EXPECT_EQ(SpanVocabularyOf(data, std::nullopt, 152, 49)->pad, 50);
  EXPECT_THAT(std::string(SpanVocabularyOf(data, std::nullopt, 102, 9).status().message()),
              HasSubstr("model.vocab_size is 102, of which 102"));
  v1::SpecialTokens& special = *data.mutable_special_tokens();
  special.set_eos(1);
  special.set_first_sentinel(99);
  special.set_sentinels(98);
  found = SpanVocabularyOf(data, std::nullopt, 0, 49);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->vocab_size, 100);
  special.set_sentinels(99);
  EXPECT_THAT(std::string(SpanVocabularyOf(data, std::nullopt, 0, 49).status().message()),
              HasSubstr("data.special_tokens.eos is 1, one of the sentinels 1 to 99"));
  special.set_sentinels(101);
  EXPECT_THAT(std::string(SpanVocabularyOf(data, std::nullopt, 0, 49).status().message()),
              HasSubstr("data.special_tokens.sentinels is 101, expected from 1 to"));
  special.set_sentinels(1);
  EXPECT_THAT(std::string(SpanVocabularyOf(data, std::nullopt, 99, 49).status().message()),
              HasSubstr("first_sentinel is 99, outside the vocabulary of 99"));
}

// A small vocabulary of T5's kind, with `sentinels` of them at its end.
absl::StatusOr<tokenizer::Tokenizer> T5Tokenizer(int sentinels, bool has_pad) {
  std::string pieces = R"(["<pad>","</s>","<unk>","\u2581","a")";
  std::string scores = "[0,0,0,-1,-2";
  std::string types = "[3,3,2,1,1";
  for (int k = sentinels - 1; k >= 0; --k) {
    absl::StrAppend(&pieces, ",\"<extra_id_", k, ">\"");
    absl::StrAppend(&scores, ",0");
    absl::StrAppend(&types, ",4");
  }
  return tokenizer::Tokenizer::FromJson(
      absl::StrCat(R"({"kind":"sentence_piece","algorithm":"unigram","special":{"end_of_text":1)",
                   has_pad ? R"(,"pad":0)" : "", R"(},"pieces":)", pieces, R"(],"scores":)", scores,
                   R"(],"types":)", types, "]}"));
}

TEST(SpanVocabulary, OfTokenizersWithSomeOfTheTokens) {
  const auto of = [](int sentinels, bool has_pad) -> absl::StatusOr<SpanVocabulary> {
    const auto tokenizer = T5Tokenizer(sentinels, has_pad);
    if (!tokenizer.ok()) return tokenizer.status();
    return SpanVocabularyOf({}, *tokenizer, 0, -1);
  };
  const auto all = of(3, true);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->data_ids, 8);
  EXPECT_EQ(all->vocab_size, 8);
  EXPECT_EQ(all->pad, 0);
  EXPECT_EQ(all->eos, 1);
  EXPECT_EQ(all->first_sentinel, 7);
  EXPECT_EQ(all->sentinels, 3);
  // Sentinels alone are placed behind, as the published spiece.model has it.
  const auto no_sentinels = of(0, true);
  ASSERT_TRUE(no_sentinels.ok()) << no_sentinels.status();
  EXPECT_EQ(no_sentinels->data_ids, 5);
  EXPECT_EQ(no_sentinels->vocab_size, 105);
  EXPECT_EQ(no_sentinels->pad, 0);
  EXPECT_EQ(no_sentinels->first_sentinel, 104);
  EXPECT_EQ(no_sentinels->sentinels, 100);
  const auto no_pad = of(3, false);
  ASSERT_TRUE(no_pad.ok()) << no_pad.status();
  EXPECT_EQ(no_pad->pad, 8);
  EXPECT_EQ(no_pad->eos, 9);
  EXPECT_EQ(no_pad->vocab_size, 10);
  EXPECT_EQ(no_pad->first_sentinel, 7);
}

class SpanData : public ::testing::Test {
 protected:
  SpanData() {
    v1::ModelSpec& model = *spec_.mutable_model();
    model.set_architecture(v1::ARCHITECTURE_T5);
    model.set_context(32);
    model.set_decoder_context(static_cast<int32_t>(plan::SpanLengthsOf(32, {})->targets));
    std::string text;
    for (int i = 0; i < 100; ++i) absl::StrAppend(&text, "line ", i, "\n");
    EXPECT_TRUE(WriteFileDurably(dir_.path() + "/a.txt", text).ok());
    spec_.mutable_data()->set_train(dir_.path() + "/a.txt");
    spec_.mutable_data()->set_validation_fraction(0.2);
    spec_.mutable_data()->set_tokenizer("bytes");
    spec_.mutable_training()->set_global_batch(4);
  }
  absl::StatusOr<PreparedData> Prepare() {
    return PrepareData(spec_.data(), spec_.model(), dir_.path() + "/cache");
  }
  std::string Fault() { return std::string(Prepare().status().message()); }

  TempDir dir_;
  v1::JobSpec spec_;
};

TEST_F(SpanData, AJob) {
  auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->vocab_size, 358);
  EXPECT_EQ(*ExpectedVocabulary(spec_.data(), spec_.model()), 358);
  const int64_t raw = plan::SpanLengthsOf(32, {})->raw;
  EXPECT_EQ(prepared->train_sample_count, prepared->train_tokens / raw);
  EXPECT_EQ(prepared->validation_sample_count, prepared->validation_tokens / raw);
  const std::string digest = prepared->digest;
  const auto source = MakeSampleSource(*std::move(prepared), spec_);
  Sample sample(32, spec_.model().decoder_context());
  source->TrainingSample(1, 0, &sample);
  EXPECT_EQ(sample.inputs.back(), 257);
  EXPECT_EQ(sample.decoder_inputs.front(), 256);
  EXPECT_EQ(sample.targets.front(), 357);
  source->HeldOutSample(HeldOut::kValidation, 0, &sample);
  EXPECT_EQ(sample.targets.back(), 257);
  spec_.mutable_data()->mutable_masking()->set_mean_span(1);
  spec_.mutable_model()->set_decoder_context(
      static_cast<int32_t>(plan::SpanLengthsOf(32, spec_.data().masking())->targets));
  EXPECT_NE(Prepare()->digest, digest);
}

TEST_F(SpanData, BlendsAndATest) {
  std::string text(500, 'x');
  ASSERT_TRUE(WriteFileDurably(dir_.path() + "/b.txt", text).ok());
  v1::DataSpec& data = *spec_.mutable_data();
  data.clear_train();
  data.clear_validation_fraction();
  for (const char* name : {"/a.txt", "/b.txt"}) {
    v1::WeightedData& part = *data.add_train_blend();
    part.set_weight(1);
    part.add_paths(dir_.path() + name);
  }
  data.set_test_path(dir_.path() + "/b.txt");
  auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->validation_sample_count, 0);
  EXPECT_EQ(prepared->test_sample_count, 500 / plan::SpanLengthsOf(32, {})->raw);
  const auto source = MakeSampleSource(*std::move(prepared), spec_);
  // Half of the samples are of each data set, and those of the second hold one letter.
  int of_second = 0;
  Sample sample(32, spec_.model().decoder_context());
  for (int64_t i = 0; i < 20; ++i) {
    source->TrainingSample(1 + i / 4, i % 4, &sample);
    of_second += sample.inputs.front() == 'x' && sample.targets[1] == 'x';
  }
  EXPECT_EQ(of_second, 10);
  source->HeldOutSample(HeldOut::kTest, 0, &sample);
  EXPECT_EQ(sample.inputs.front(), 'x');
}

TEST_F(SpanData, Faults) {
  spec_.mutable_model()->set_decoder_context(1);
  EXPECT_THAT(Fault(), HasSubstr("model.decoder_context is 1, but samples of 32 tokens"));
  spec_.mutable_model()->set_context(2048);
  spec_.mutable_model()->set_decoder_context(
      static_cast<int32_t>(plan::SpanLengthsOf(2048, {})->targets));
  EXPECT_THAT(Fault(), HasSubstr("but there are only 100 sentinels; use a larger"));
  spec_.mutable_model()->set_context(1024);
  spec_.mutable_model()->set_decoder_context(
      static_cast<int32_t>(plan::SpanLengthsOf(1024, {})->targets));
  EXPECT_THAT(Fault(), HasSubstr("tokens, but one sample needs 1137"));
}

}  // namespace
}  // namespace tercio::data

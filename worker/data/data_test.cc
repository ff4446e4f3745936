#include <set>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/prepared_data.h"
#include "worker/data/sample_order.h"

namespace tercio::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SampleOrder, EveryEpochIsAPermutation) {
  for (const int64_t samples : {1, 2, 3, 4, 5, 17, 64, 1000}) {
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      const EpochPermutation permutation(7, epoch, samples);
      std::set<int64_t> seen;
      for (int64_t i = 0; i < samples; ++i) seen.insert(permutation(i));
      EXPECT_EQ(static_cast<int64_t>(seen.size()), samples);
      EXPECT_EQ(*seen.rbegin(), samples - 1);
    }
  }
}

TEST(SampleOrder, DependsOnSeedAndEpoch) {
  const auto order = [](uint64_t seed, uint64_t epoch) {
    std::vector<int64_t> result;
    const EpochPermutation permutation(seed, epoch, 100);
    for (int64_t i = 0; i < 100; ++i) result.push_back(permutation(i));
    return result;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_EQ(SampleAt(1, 100, 105), order(1, 1)[5]);
}

TEST(Tokenizer, CharsAreSortedCodePoints) {
  const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::CharsOf({"bañb", "a€"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->vocab_size(), 4);
  const auto ids = tokenizer->Encode("añ€b");
  ASSERT_TRUE(ids.ok());
  EXPECT_THAT(*ids, ElementsAre(0, 2, 3, 1));
  EXPECT_EQ(*tokenizer->Decode(*ids), "añ€b");
  EXPECT_EQ(*Tokenizer::FromJson(tokenizer->ToJson()), *tokenizer);
  EXPECT_THAT(std::string(tokenizer->Encode("x").status().message()), HasSubstr("'x'"));
}

TEST(Tokenizer, RefusesWhatIsNotUtf8) {
  for (const std::string bad :
       {"ab\xff", "\xc0\x80", "\xed\xa0\x80", "\xe2\x82", "\xf5\x80\x80\x80"}) {
    const auto tokenizer = Tokenizer::CharsOf({bad});
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(std::string(Tokenizer::CharsOf({"a\nb\xff"}).status().message()),
              HasSubstr("byte 3 (line 2)"));
}

TEST(IndexedDataset, RoundTrip) {
  const TempDir dir;
  const std::string prefix = dir.path() + "/tokens";
  const std::vector<int32_t> ids = {3, 1, 4, 1, 5};
  ASSERT_TRUE(WriteIndexedDataset(prefix, ids, Tokenizer::Bytes()).ok());
  const auto dataset = OpenIndexedDataset(prefix);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<int32_t> read(5);
  dataset->tokens.Read(0, 5, read.data());
  EXPECT_EQ(read, ids);
  const auto summary = InspectDataset(prefix);
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->documents, 1);
  EXPECT_EQ(summary->dtype, "uint16");
  EXPECT_EQ(summary->vocab_size, 256);
}

TEST(IndexedDataset, RefusesDamage) {
  const TempDir dir;
  const std::string prefix = dir.path() + "/tokens";
  ASSERT_TRUE(WriteIndexedDataset(prefix, {1, 2, 3}, Tokenizer::Bytes()).ok());
  const std::string index = *ReadFile(prefix + ".idx");
  for (const size_t length : {0u, 8u, 33u, 40u}) {
    ASSERT_TRUE(WriteFileDurably(prefix + ".idx", index.substr(0, length)).ok());
    EXPECT_EQ(OpenIndexedDataset(prefix).status().code(), absl::StatusCode::kInvalidArgument)
        << length;
  }
  for (const size_t at : {0u, 9u, 17u, 18u, 34u, 38u}) {
    std::string damaged = index;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    ASSERT_TRUE(WriteFileDurably(prefix + ".idx", damaged).ok());
    EXPECT_EQ(OpenIndexedDataset(prefix).status().code(), absl::StatusCode::kInvalidArgument) << at;
  }
}

class PreparedDataTest : public ::testing::Test {
 protected:
  absl::StatusOr<PreparedData> Prepare(const std::string& text, double fraction, int64_t context) {
    v1::DataSpec spec;
    spec.set_train(dir_.path() + "/text.txt");
    spec.set_tokenizer("chars");
    spec.set_validation_fraction(fraction);
    EXPECT_TRUE(WriteFileDurably(spec.train(), text).ok());
    return PrepareData(spec, context, dir_.path() + "/cache");
  }
  TempDir dir_;
};

TEST_F(PreparedDataTest, SplitsAndCaches) {
  const auto first = Prepare("abcdefghij", 0.3, 2);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->train_tokens, 7);
  EXPECT_EQ(first->validation_tokens, 3);
  EXPECT_EQ(first->vocab_size, 10);
  EXPECT_EQ(first->train.Samples(2), 3);
  int32_t sample[3];
  first->train.ReadSample(1, 2, sample);
  EXPECT_THAT(sample, ElementsAre(2, 3, 4));
  const auto again = Prepare("abcdefghij", 0.3, 2);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->digest, first->digest);
  EXPECT_NE(Prepare("abcdefghik", 0.3, 2)->digest, first->digest);
}

TEST_F(PreparedDataTest, SaysWhatIsWrong) {
  EXPECT_THAT(std::string(Prepare("", 0, 4).status().message()), HasSubstr("empty"));
  EXPECT_THAT(std::string(Prepare("abc", 0, 4).status().message()), HasSubstr("3 tokens"));
  EXPECT_THAT(std::string(Prepare("abcdefgh", 0.1, 4).status().message()),
              HasSubstr("validation part"));
  EXPECT_THAT(std::string(Prepare("a\xff", 0, 1).status().message()), HasSubstr("UTF-8"));
  v1::DataSpec missing;
  missing.set_train(dir_.path() + "/nothing.txt");
  missing.set_tokenizer("bytes");
  EXPECT_EQ(PrepareData(missing, 4, dir_.path() + "/cache").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tercio::data

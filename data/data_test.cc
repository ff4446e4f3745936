#include <set>

#include "common/file.h"
#include "common/temp_dir.h"
#include "data/data_files.h"
#include "data/indexed_dataset.h"
#include "data/indexed_dataset_writer.h"
#include "data/prepared_data.h"
#include "data/sample_order.h"
#include "data/sample_sources.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::AllOf;
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
  const absl::StatusOr<tokenizer::Tokenizer> tokenizer =
      tokenizer::Tokenizer::CharsOf({"bañb", "a€"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->vocab_size(), 4);
  const auto ids = tokenizer->Encode("añ€b");
  ASSERT_TRUE(ids.ok());
  EXPECT_THAT(*ids, ElementsAre(0, 2, 3, 1));
  EXPECT_EQ(*tokenizer->Decode(*ids), "añ€b");
  EXPECT_EQ(*tokenizer::Tokenizer::FromJson(tokenizer->ToJson()), *tokenizer);
  EXPECT_THAT(std::string(tokenizer->Encode("x").status().message()), HasSubstr("'x'"));
}

TEST(Tokenizer, RefusesWhatIsNotUtf8) {
  for (const std::string bad :
       {"ab\xff", "\xc0\x80", "\xed\xa0\x80", "\xe2\x82", "\xf5\x80\x80\x80"}) {
    const auto tokenizer = tokenizer::Tokenizer::CharsOf({bad});
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(std::string(tokenizer::Tokenizer::CharsOf({"a\nb\xff"}).status().message()),
              HasSubstr("byte 3 (line 2)"));
}

// A data set of the given documents.
void WriteDataset(const std::string& prefix, const std::vector<std::vector<int32_t>>& documents,
                  const tokenizer::Tokenizer& tokenizer = tokenizer::Tokenizer::Bytes()) {
  const auto writer =
      IndexedDatasetWriter::Open(prefix, TokenTypeFor(tokenizer.vocab_size()), "test");
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const std::vector<int32_t>& document : documents) {
    ASSERT_TRUE((*writer)->Append(document).ok());
    (*writer)->EndDocument();
  }
  ASSERT_TRUE((*writer)->Commit("").ok());
  ASSERT_TRUE((*writer)->Finish(tokenizer).ok());
}

TEST(IndexedDataset, RoundTrip) {
  const TempDir dir;
  const std::string prefix = dir.path() + "/tokens";
  WriteDataset(prefix, {{3, 1, 4}, {}, {1, 5}});
  const auto dataset = OpenIndexedDataset(prefix);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<int32_t> read(5);
  dataset->tokens.Read(0, 5, read.data());
  EXPECT_THAT(read, ElementsAre(3, 1, 4, 1, 5));
  EXPECT_FALSE(PathExists(prefix + ".partial"));
  const auto summary = InspectDataset(prefix, "text");
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->format, "megatron");
  EXPECT_EQ(summary->documents, 2);
  EXPECT_EQ(summary->tokens, 5);
  EXPECT_EQ(summary->dtype, "uint16");
  EXPECT_EQ(summary->vocab_size, 256);
}

// The bytes that Megatron's own writer gives for two documents of three and two uint16 tokens.
TEST(IndexedDataset, IndexHasMegatronsBytes) {
  const TempDir dir;
  WriteDataset(dir.path() + "/tokens", {{3, 1, 4}, {1, 5}});
  std::string expected("MMIDIDX\0\0", 9);
  const auto add = [&expected](auto value) {
    expected.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(uint64_t{1});
  add(uint8_t{8});
  add(uint64_t{2});
  add(uint64_t{3});
  for (const int32_t length : {3, 2}) add(length);
  for (const int64_t offset : {0, 6}) add(offset);
  for (const int64_t border : {0, 1, 2}) add(border);
  EXPECT_EQ(*ReadFile(dir.path() + "/tokens.idx"), expected);
  EXPECT_EQ(*ReadFile(dir.path() + "/tokens.bin"), std::string("\3\0\1\0\4\0\1\0\5\0", 10));
}

TEST(IndexedDataset, OneWriterAtATime) {
  const TempDir dir;
  const std::string prefix = dir.path() + "/tokens";
  const auto first = IndexedDatasetWriter::Open(prefix, TokenType::kUint16, "test");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(IndexedDatasetWriter::Open(prefix, TokenType::kUint16, "test").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(TokenDataset, PartsAreOneSequence) {
  const auto part = [](std::vector<int32_t> ids) {
    auto owner = std::make_shared<std::vector<int32_t>>(std::move(ids));
    return TokenDataset(owner, owner->data(), TokenType::kInt32,
                        static_cast<int64_t>(owner->size()));
  };
  const TokenDataset whole =
      TokenDataset::Concatenate({part({0, 1, 2}), part({}), part({3}), part({4, 5, 6, 7})});
  ASSERT_EQ(whole.tokens(), 8);
  for (int64_t begin = 0; begin <= 8; ++begin) {
    for (int64_t end = begin; end <= 8; ++end) {
      const TokenDataset slice = whole.Slice(begin, end);
      ASSERT_EQ(slice.tokens(), end - begin);
      std::vector<int32_t> direct(static_cast<size_t>(end - begin) + 1, -1);
      std::vector<int32_t> sliced = direct;
      whole.Read(begin, end - begin, direct.data());
      slice.Read(0, end - begin, sliced.data());
      EXPECT_EQ(direct, sliced);
      for (int64_t i = begin; i < end; ++i) EXPECT_EQ(direct[static_cast<size_t>(i - begin)], i);
      EXPECT_EQ(direct.back(), -1);  // nothing beyond
    }
  }
  EXPECT_EQ(*whole.HighestToken("x"), 7);
  EXPECT_EQ(*TokenDataset().HighestToken("x"), -1);
}

TEST(TokenDataset, IdsThatAreNoIds) {
  const std::vector<int32_t> negative = {1, 2, -3};
  const std::vector<int64_t> large = {1, int64_t{1} << 31};
  const std::vector<uint32_t> high = {0x80000000u};
  const auto fault = [](const void* bytes, TokenType type, int64_t count) {
    return std::string(
        TokenDataset(nullptr, bytes, type, count).HighestToken("a.bin").status().message());
  };
  EXPECT_THAT(fault(negative.data(), TokenType::kInt32, 3), HasSubstr("a.bin: token 2 is -3"));
  EXPECT_THAT(fault(large.data(), TokenType::kInt64, 2), HasSubstr("token 1 is 2147483648"));
  EXPECT_THAT(fault(high.data(), TokenType::kUint32, 1), HasSubstr("token 0 is 2147483648"));
}

v1::ModelSpec ModelOf(int64_t context, int32_t vocab_size = 0) {
  v1::ModelSpec model;
  model.set_context(static_cast<int32_t>(context));
  model.set_vocab_size(vocab_size);
  return model;
}

class PreparedDataTest : public ::testing::Test {
 protected:
  absl::StatusOr<PreparedData> Prepare(const std::string& text, double fraction, int64_t context) {
    v1::DataSpec spec;
    spec.set_train(dir_.path() + "/text.txt");
    spec.set_tokenizer("chars");
    spec.set_validation_fraction(fraction);
    EXPECT_TRUE(WriteFileDurably(spec.train(), text).ok());
    return PrepareData(spec, ModelOf(context), dir_.path() + "/cache");
  }
  TempDir dir_;
};

TEST_F(PreparedDataTest, SplitsAndCaches) {
  const auto first = Prepare("abcdefghij", 0.3, 2);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->train_tokens, 7);
  EXPECT_EQ(first->validation_tokens, 3);
  EXPECT_EQ(first->vocab_size, 10);
  ASSERT_EQ(first->train.datasets().size(), 1u);
  EXPECT_EQ(first->train.Samples(2), 3);
  int32_t sample[3];
  first->train.ReadInOrder(1, 2, sample);
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
  EXPECT_EQ(PrepareData(missing, ModelOf(4), dir_.path() + "/cache").status().code(),
            absl::StatusCode::kNotFound);
}

// Files of all kinds in one directory.
class DataKindsTest : public PreparedDataTest {
 protected:
  std::string Path(const std::string& name) { return dir_.path() + "/" + name; }
  std::string Write(const std::string& name, const std::string& content) {
    EXPECT_TRUE(WriteFileDurably(Path(name), content).ok());
    return Path(name);
  }
  template <typename T>
  std::string WriteLlmc(const std::string& name, int32_t magic, int32_t version,
                        const std::vector<T>& ids) {
    std::vector<int32_t> header(256, 0);
    header[0] = magic;
    header[1] = version;
    header[2] = static_cast<int32_t>(ids.size());
    std::string content(reinterpret_cast<const char*>(header.data()), 1024);
    content.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(T));
    return Write(name, content);
  }
  absl::StatusOr<PreparedData> Of(const v1::DataSpec& spec, int32_t vocab_size = 0,
                                  int64_t context = 2) {
    return PrepareData(spec, ModelOf(context, vocab_size), Path("cache"));
  }
  std::string FaultOf(const v1::DataSpec& spec, int32_t vocab_size = 0) {
    return std::string(Of(spec, vocab_size).status().message());
  }
  static v1::DataSpec Train(const std::string& path, const std::string& tokenizer = "") {
    v1::DataSpec spec;
    spec.set_train(path);
    spec.set_tokenizer(tokenizer);
    return spec;
  }
  static void Add(const std::string& path, double weight, v1::DataSpec* spec) {
    v1::WeightedData* data = spec->add_train_blend();
    data->add_paths(path);
    data->set_weight(weight);
  }
  static std::vector<int32_t> Ids(const TokenDataset& tokens) {
    std::vector<int32_t> ids(static_cast<size_t>(tokens.tokens()));
    tokens.Read(0, tokens.tokens(), ids.data());
    return ids;
  }
};

TEST_F(DataKindsTest, JsonLinesAreDocuments) {
  const auto data = Of(Train(
      Write("a.jsonl", "{\"id\":1,\"text\":\"abc\"}\n\n{\"text\":\"\"}\n{\"text\":\"d\\u00e9\"}"),
      "chars"));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->vocab_size, 5);
  EXPECT_THAT(Ids(data->train.datasets()[0]), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_TRUE(data->notices.empty());
}

TEST_F(DataKindsTest, BrokenJsonLines) {
  v1::DataSpec spec =
      Train(Write("a.jsonl", "{\"text\":\"abc\"}\n{\"text\": 7}\n{oops\n"), "bytes");
  EXPECT_THAT(FaultOf(spec), HasSubstr("a.jsonl:2: the value of 'text' is a number"));
  spec.set_skip_bad_lines(true);
  for (const char* run : {"made", "cached"}) {
    const auto data = Of(spec);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->train_tokens, 3) << run;
    ASSERT_EQ(data->notices.size(), 1u) << run;
    EXPECT_THAT(data->notices[0], HasSubstr("2 lines were skipped, the first is"));
  }
  spec.set_text_key("body");
  EXPECT_THAT(FaultOf(spec), HasSubstr("no text to train on"));
}

// What an agent has checked its trainers need not read again, from end to end.
TEST_F(DataKindsTest, ContentThatWasCheckedIsNotReadAgain) {
  WriteLlmc("a.bin", 20240520, 1, std::vector<uint16_t>{1, 2, 3, 60000, 5});
  const v1::DataSpec spec = Train(Path("a.bin"));
  EXPECT_THAT(FaultOf(spec, 50257), HasSubstr("token id 60000 is outside the vocabulary"));
  const auto data = PrepareData(spec, ModelOf(2, 50257), Path("cache"), ContentCheck::kDone);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->digest, "");
  EXPECT_EQ(data->vocab_size, 50257);
  EXPECT_THAT(Ids(data->train.datasets()[0]), ElementsAre(1, 2, 3, 60000, 5));
  // Nobody else says how large the vocabulary is.
  const auto unknown = PrepareData(spec, ModelOf(2, 0), Path("cache"), ContentCheck::kDone);
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_EQ(unknown->vocab_size, 60001);
  const v1::DataSpec text = Train(Write("a.txt", "abcabc"), "chars");
  const auto made = Of(text);
  const auto again = PrepareData(text, ModelOf(2, 0), Path("cache"), ContentCheck::kDone);
  ASSERT_TRUE(made.ok() && again.ok()) << made.status() << again.status();
  EXPECT_NE(made->digest, "");
  EXPECT_EQ(Ids(again->train.datasets()[0]), Ids(made->train.datasets()[0]));
}

TEST_F(DataKindsTest, LlmcFilesAndShards) {
  const std::vector<uint16_t> first = {1, 2, 3};
  const std::vector<uint16_t> second = {4, 65535};
  WriteLlmc("s_000.bin", 20240520, 1, first);
  WriteLlmc("s_001.bin", 20240520, 1, second);
  WriteLlmc("llama.bin", 20240801, 7, std::vector<uint32_t>{7, 100000, 9});
  const auto shards = Of(Train(Path("s_*.bin")));
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_THAT(Ids(shards->train.datasets()[0]), ElementsAre(1, 2, 3, 4, 65535));
  EXPECT_EQ(shards->vocab_size, 65536);
  const auto llama = Of(Train(Path("llama.bin")), 128256);
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->vocab_size, 128256);
  EXPECT_THAT(FaultOf(Train(Path("llama.bin")), 50257),
              HasSubstr("token id 100000 is outside the vocabulary of 50257"));
  const auto summary = InspectDataset(Path("llama.bin"), "text");
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->dtype, "uint32");
  EXPECT_EQ(summary->documents, std::nullopt);
  EXPECT_EQ(summary->vocab_size, 100001);
}

TEST_F(DataKindsTest, BlendOfTextAndTokens) {
  WriteDataset(Path("tokens"), {{97, 98, 99, 100, 101}});
  v1::DataSpec spec;
  spec.set_tokenizer("bytes");
  Add(Write("a.jsonl", "{\"text\":\"0123456\"}"), 3, &spec);
  Add(Path("tokens"), 1, &spec);
  const auto data = Of(spec);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train_tokens, 12);
  EXPECT_EQ(data->train.blend().units(), (std::vector<int64_t>{3, 1}));
  v1::DataSpec other = spec;
  other.mutable_train_blend(0)->set_weight(2);
  EXPECT_NE(Of(other)->digest, data->digest);
  other.mutable_train_blend(0)->set_weight(0);
  EXPECT_THAT(FaultOf(other), HasSubstr("weight 0 is 0; a weight is a positive number"));
}

TEST_F(DataKindsTest, TestDataOfALanguageModel) {
  v1::DataSpec spec = Train(Write("a.txt", "abcdefghij"), "chars");
  spec.set_validation_fraction(0.5);
  const std::string without = Of(spec)->digest;
  spec.set_test_path(Write("b.txt", "jihg"));
  spec.add_test_more_paths(Write("c.txt", "fedcb"));
  const auto data = Of(spec);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train_sample_count, 2);
  EXPECT_EQ(data->validation_sample_count, 2);
  EXPECT_EQ(data->test_sample_count, 4);
  EXPECT_NE(data->digest, without);
  v1::JobSpec job;
  *job.mutable_model() = ModelOf(2);
  const auto source = MakeSampleSource(*data, job);
  ASSERT_EQ(source->held_out_samples(HeldOut::kTest), 4);
  Sample sample(2);
  source->HeldOutSample(HeldOut::kTest, 1, &sample);
  EXPECT_THAT(sample.inputs, ElementsAre(7, 6));
  EXPECT_THAT(sample.targets, ElementsAre(6, 5));
  source->HeldOutSample(HeldOut::kValidation, 0, &sample);
  EXPECT_THAT(sample.inputs, ElementsAre(5, 6));
  // Validation data of the same content are not the same job.
  v1::DataSpec other = Train(Path("a.txt"), "chars");
  other.set_validation_path(Path("b.txt"));
  v1::DataSpec same = Train(Path("a.txt"), "chars");
  same.set_test_path(Path("b.txt"));
  EXPECT_NE(Of(other)->digest, Of(same)->digest);
  spec.set_test_path(Write("d.txt", "a"));
  spec.clear_test_more_paths();
  EXPECT_THAT(FaultOf(spec), AllOf(HasSubstr("d.txt: the test part has 1 tokens"),
                                   HasSubstr("another data.test")));
}

TEST_F(DataKindsTest, TokenizersAndVocabulariesMustAgree) {
  WriteDataset(Path("tokens"), {{0, 1, 2, 3}}, *tokenizer::Tokenizer::CharsOf({"abcd"}));
  v1::DataSpec spec;
  spec.set_tokenizer("chars");
  Add(Write("a.txt", "wxyz"), 1, &spec);
  Add(Path("tokens"), 1, &spec);
  EXPECT_THAT(FaultOf(spec), HasSubstr("was made with a different tokenizer (chars, 4 ids)"));
  EXPECT_THAT(FaultOf(Train(Path("a.txt"), "bytes"), 100),
              HasSubstr("model.vocab_size is 100, but the tokenizer 'bytes' has 256 ids"));
  spec = Train(Path("a.txt"), Path("tokens.tokenizer.json"));
  EXPECT_THAT(FaultOf(spec), HasSubstr("a.txt: the character 'w' is not in the tokenizer's"));
}

TEST_F(DataKindsTest, WhatCannotBeData) {
  ASSERT_TRUE(MakeDirectories(Path("folder.txt")).ok());
  EXPECT_THAT(FaultOf(Train(Path("folder.txt"), "bytes")), HasSubstr("is a directory"));
  EXPECT_THAT(FaultOf(Train(Path("none"), "bytes")), HasSubstr("no such file"));
  EXPECT_THAT(FaultOf(Train(Path("none_*.bin"))), HasSubstr("no file matches; check the pattern"));
  EXPECT_THAT(FaultOf(Train(Write("half.bin", "abcdefgh"))),
              HasSubstr("half.idx, which a Megatron data set needs, is missing"));
  EXPECT_THAT(FaultOf(Train(Write("x.txt", "abc"), "morse")),
              HasSubstr("data.tokenizer: there is no tokenizer at 'morse'"));
  v1::DataSpec mixed;
  WriteDataset(Path("tokens"), {{0, 1, 2, 3}});
  Add(Path("x.txt"), 1, &mixed);
  mixed.mutable_train_blend(0)->add_paths(Path("tokens"));
  EXPECT_THAT(FaultOf(mixed), HasSubstr("all files of a data set must be of one kind"));
}

TEST_F(DataKindsTest, ValidationOfABlendStopsBeforeItRepeats) {
  v1::DataSpec spec;
  spec.set_tokenizer("bytes");
  spec.set_validation_fraction(0.5);
  Add(Write("a.txt", std::string(40, 'a')), 1, &spec);
  Add(Write("b.txt", std::string(14, 'b')), 1, &spec);
  const auto data = Of(spec);
  ASSERT_TRUE(data.ok()) << data.status();
  // 20 and 7 tokens: 9 and 3 samples of two tokens. a b a b a b a, then b would begin again.
  EXPECT_EQ(data->validation.Samples(2), 7);
  std::string seen;
  for (int64_t i = 0; i < 7; ++i) {
    int32_t sample[3];
    data->validation.ReadInOrder(i, 2, sample);
    seen.push_back(static_cast<char>(sample[0]));
  }
  EXPECT_EQ(seen, "abababa");
}

}  // namespace
}  // namespace tercio::data

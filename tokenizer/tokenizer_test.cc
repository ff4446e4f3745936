// Tokenizers agree with the libraries that their files come from, in ids and in decoded text, for a
// list of nasty texts; they survive their JSON form, threads, and damaged files. The fixtures and
// what they are: tests/tokenizer/make_fixtures.py.
#include "tokenizer/tokenizer.h"

#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kFolder[] = "tests/tokenizer/fixtures/";

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteText(const std::string& path, std::string_view content) {
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  ASSERT_TRUE(file.good()) << path;
}

const json& Expected() {
  static const json& expected =
      *new json(json::parse(ReadText(absl::StrCat(kFolder, "expected.json"))));
  return expected;
}

Tokenizer LoadFixture(const std::string& name) {
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(kFolder + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *tokenizer : Tokenizer::Bytes();
}

std::vector<std::string> Texts() {
  std::vector<std::string> texts;
  for (const json& text : Expected()["texts"]) texts.push_back(text);
  return texts;
}

class Fixture : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Tokenizer, Fixture,
                         ::testing::Values("gpt2", "roberta.json", "llama3.json", "bert.json",
                                           "bert_cased", "unigram.model", "bytes.model",
                                           "suffix.model", "llama2.json", "no_prefix.json",
                                           "llama2_spaces.json", "mistral.json", "metaspace.json"),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

void ExpectAgreement(const Tokenizer& tokenizer, const std::string& name) {
  const std::vector<std::string> texts = Texts();
  ASSERT_GT(texts.size(), 100u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto ids = tokenizer.Encode(texts[i]);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(json(*ids), Expected()["ids"][name][i]) << "text " << i << ": " << texts[i];
    const auto decoded = tokenizer.Decode(*ids);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const json& known = Expected()["decoded"][name][i];
    EXPECT_EQ(*decoded, known.is_null() ? texts[i] : known.get<std::string>()) << "text " << i;
  }
}

TEST_P(Fixture, GivesTheIdsAndTextsOfTheLibrary) {
  ExpectAgreement(LoadFixture(GetParam()), GetParam());
}

TEST_P(Fixture, SurvivesItsJsonForm) {
  const Tokenizer tokenizer = LoadFixture(GetParam());
  const absl::StatusOr<Tokenizer> read = Tokenizer::FromJson(tokenizer.ToJson());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, tokenizer);
  EXPECT_EQ(read->vocab_size(), tokenizer.vocab_size());
  EXPECT_EQ(read->end_of_text(), tokenizer.end_of_text());
  EXPECT_EQ(read->mask(), tokenizer.mask());
  ExpectAgreement(*read, GetParam());
}

// Wherever a text may be cut, the two sides give the ids of the whole.
TEST_P(Fixture, EveryBorderIsSafe) {
  const Tokenizer tokenizer = LoadFixture(GetParam());
  const TokenizerModel& model = tokenizer.model();
  std::string all;
  for (const std::string& text : Texts()) all += text + (all.size() % 2 == 0 ? " " : "\n");
  std::vector<std::string> texts = Texts();
  for (size_t i = 0; i + 700 < all.size(); i += 311) texts.push_back(all.substr(i, 700));
  size_t borders = 0;
  for (const std::string& text : texts) {
    const std::optional<std::string> prepared = model.Prepare(text);
    const std::string_view whole = prepared.has_value() ? *prepared : text;
    const auto ids = model.EncodePart(whole);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (size_t at = 0; at < whole.size();) {
      at = model.FindBorder(whole, at);
      auto joined = model.EncodePart(whole.substr(0, at));
      const auto right = model.EncodePart(whole.substr(at));
      ASSERT_TRUE(joined.ok() && right.ok());
      model.Join(*right, &*joined);
      ASSERT_EQ(*joined, *ids) << "cut at byte " << at << " of " << whole;
      borders += at < whole.size();
    }
  }
  // These cannot be cut: a token that takes the space after it, sums over 128 KiB, spaces that
  // belong to the word before them.
  const bool whole_only =
      GetParam() == "roberta.json" || GetParam() == "unigram.model" || GetParam() == "suffix.model";
  EXPECT_EQ(borders == 0, whole_only) << borders;
}

TEST_P(Fixture, ManyThreadsGiveTheIdsOfOne) {
  const Tokenizer tokenizer = LoadFixture(GetParam());
  std::string text;
  while (text.size() < 400000) {
    for (const std::string& each : Texts()) text += each + " \n"[text.size() % 2];
  }
  const auto ids = tokenizer.Encode(text);
  ASSERT_TRUE(ids.ok()) << ids.status();
  for (const int threads : {1, 2, 3, 7}) {
    const auto parallel = EncodeParallel(tokenizer, text, threads);
    ASSERT_TRUE(parallel.ok()) << parallel.status();
    EXPECT_TRUE(*parallel == *ids) << threads << " threads";
  }
}

// A sum in fp32 over the whole of this text would have no digits left to tell covers apart.
TEST(SentencePieceUnigram, LongTextsLoseNoPrecision) {
  const Tokenizer tokenizer = LoadFixture("unigram.model");
  const std::string line = "the quick training of tokenizers in parallel, they're 1984. ";
  const auto one = tokenizer.Encode(line);
  ASSERT_TRUE(one.ok());
  std::string text;
  for (int i = 0; i < 50000; ++i) text += line;
  const auto all = tokenizer.Encode(text);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->size(), 50000 * one->size());
  for (size_t i = 0; i < all->size(); ++i) ASSERT_EQ((*all)[i], (*one)[i % one->size()]) << i;
  EXPECT_TRUE(*EncodeParallel(tokenizer, text, 3) == *all);
}

TEST(EncodeParallel, NamesThePlaceOfAFaultInTheWholeText) {
  const auto tokenizer = Tokenizer::CharsOf({"ab\n"});
  ASSERT_TRUE(tokenizer.ok());
  std::string text(300000, 'a');
  EXPECT_EQ(EncodeParallel(*tokenizer, text, 3)->size(), text.size());
  text[200000] = '\xff';
  EXPECT_THAT(std::string(EncodeParallel(*tokenizer, text, 3).status().message()),
              HasSubstr("byte 200000 (line 1)"));
}

TEST(Load, KnowsSpecialTokens) {
  const Tokenizer gpt2 = LoadFixture("gpt2");
  EXPECT_EQ(gpt2.kind(), "byte_level_bpe");
  EXPECT_EQ(gpt2.vocab_size(), 700);
  EXPECT_EQ(gpt2.end_of_text(), 0);
  EXPECT_EQ(gpt2.beginning(), std::nullopt);

  const Tokenizer roberta = LoadFixture("roberta.json");
  EXPECT_EQ(roberta.beginning(), 0);
  EXPECT_EQ(roberta.pad(), 1);
  EXPECT_EQ(roberta.end_of_text(), 2);
  EXPECT_EQ(roberta.mask(), 4);

  const Tokenizer llama = LoadFixture("llama3.json");
  EXPECT_EQ(llama.beginning(), 651);
  EXPECT_EQ(llama.end_of_text(), 652);
  EXPECT_EQ(llama.vocab_size(), 654);

  const Tokenizer llama2 = LoadFixture("llama2.json");
  EXPECT_EQ(llama2.kind(), "sentence_piece");
  EXPECT_EQ(llama2.beginning(), 1);
  EXPECT_EQ(llama2.end_of_text(), 2);
  EXPECT_EQ(llama2.vocab_size(), 601);

  for (const char* const name : {"bert.json", "bert_cased"}) {
    const Tokenizer bert = LoadFixture(name);
    EXPECT_EQ(bert.kind(), "word_piece");
    EXPECT_EQ(bert.pad(), 0);
    EXPECT_EQ(bert.cls(), 2);
    EXPECT_EQ(bert.separator(), 3);
    EXPECT_EQ(bert.end_of_text(), 3);
    EXPECT_EQ(bert.mask(), 4);
  }
  for (const char* const name : {"unigram.model", "bytes.model", "suffix.model"}) {
    const Tokenizer pieces = LoadFixture(name);
    json roles = {{"beginning", *pieces.beginning()}, {"end_of_text", *pieces.end_of_text()}};
    if (pieces.pad().has_value()) roles["pad"] = *pieces.pad();
    EXPECT_EQ(roles, Expected()["special"][name]) << name;
  }
}

TEST(Load, ByteLevelKeepsBytesThatAreNotUtf8) {
  const std::string bad = "a\xff\xfe b\xc3 \xe4\xbd\n\xf0\x9f\x98 \x80\x80'\xc0\xafs\xed\xa0\x80.";
  for (const char* const name : {"gpt2", "llama3.json"}) {
    const Tokenizer tokenizer = LoadFixture(name);
    const auto ids = tokenizer.Encode(bad);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*tokenizer.Decode(*ids), bad);
  }
  // Where texts are normalized, each such byte is U+FFFD: BERT drops it.
  EXPECT_EQ(*LoadFixture("bert.json")
                 .Encode("th\xff"
                         "e"),
            *LoadFixture("bert.json").Encode("the"));
  const Tokenizer bytes = LoadFixture("bytes.model");
  EXPECT_EQ(*bytes.Encode("a\xff"), *bytes.Encode("a\uFFFD"));
}

TEST(Load, RefusesIdsWithoutAToken) {
  for (const char* const name : {"gpt2", "bert.json", "unigram.model"}) {
    const Tokenizer tokenizer = LoadFixture(name);
    for (const int32_t id : {-1, tokenizer.vocab_size()}) {
      EXPECT_EQ(tokenizer.Decode({id}).status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(Load, SaysWhatIsMissing) {
  const TempDir directory;
  EXPECT_EQ(Tokenizer::Load(directory.path() + "/none").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Tokenizer::Load(directory.path()).status().message()),
              HasSubstr("holds no tokenizer.json"));
  WriteText(directory.path() + "/vocab.json", R"({"a": 0})");
  EXPECT_THAT(std::string(Tokenizer::Load(directory.path()).status().message()),
              HasSubstr("merges.txt"));
  WriteText(directory.path() + "/notes.md", "");
  EXPECT_THAT(std::string(Tokenizer::Load(directory.path() + "/notes.md").status().message()),
              HasSubstr("not a tokenizer"));
}

TEST(Load, ConfigurationBesideTheFileNamesSpecialTokens) {
  const TempDir directory;
  WriteText(directory.path() + "/vocab.txt", "[UNK]\nthe\n<end>\n##s\n");
  WriteText(directory.path() + "/tokenizer_config.json",
            R"({"eos_token": {"content": "<end>"}, "do_lower_case": false})");
  const auto tokenizer = Tokenizer::Load(directory.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->end_of_text(), 2);
  EXPECT_EQ(*tokenizer->Encode("the thes The<end>"), (std::vector<int32_t>{1, 1, 3, 0, 2}));
}

// What a fixture says when one place of its JSON is changed.
std::string RefusalOf(const std::string& name, const std::string& pointer, const json& value) {
  json root = json::parse(ReadText(kFolder + name));
  root[json::json_pointer(pointer)] = value;
  const TempDir directory;
  const std::string path = directory.path() + "/tokenizer.json";
  WriteText(path, root.dump());
  const absl::Status status = Tokenizer::Load(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pointer;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  return std::string(status.message());
}

TEST(Load, RefusesByNameWhatItDoesNotKnow) {
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "\\w+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  struct Case {
    std::string file;
    std::string pointer;
    json value;
    std::string said;
  };
  const std::vector<Case> cases = {
      {"llama3.json", "/normalizer", {{"type", "NFC"}}, "normalizer {\"type\":\"NFC\"}"},
      {"llama3.json", "/pre_tokenizer/pretokenizers/0", split, "the pattern \"\\\\w+\""},
      {"llama3.json", "/pre_tokenizer/pretokenizers/0/behavior", "Removed", "pre_tokenizer"},
      {"llama3.json", "/pre_tokenizer/pretokenizers/1/use_regex", true, "pre_tokenizer"},
      {"llama3.json", "/pre_tokenizer/pretokenizers/1/add_prefix_space", true, "pre_tokenizer"},
      {"llama3.json", "/model/type", "Unigram", "model.type \"Unigram\""},
      {"llama3.json", "/model/dropout", 0.1, "model.dropout 0.1"},
      {"llama3.json", "/model/byte_fallback", true, "model.byte_fallback"},
      {"llama3.json", "/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"llama3.json", "/model/unk_token", "nope", "'nope'"},
      {"llama3.json", "/model/merges/0", json::array({"a", "nope"}), "'a nope'"},
      {"llama3.json", "/model/merges/0", json::array({"Ġ", "Ġ"}), "not in the vocabulary"},
      {"llama3.json", "/model/vocab/new", 2000000000, "the id 2000000000"},
      {"llama3.json", "/model/vocab/new", 5, "the id 5"},
      {"llama3.json", "/decoder/type", "Metaspace", "decoder"},
      {"llama3.json", "/post_processor/type", "Odd", "post_processor"},
      {"llama3.json", "/added_tokens/0/single_word", true, "single_word"},
      {"llama3.json", "/added_tokens/0/id", 2000000000, "2000000000"},
      {"llama3.json", "/added_tokens/0/id", 7, "contradicts"},
      {"roberta.json", "/pre_tokenizer/type", "Whitespace", "pre_tokenizer"},
      {"llama2.json",
       "/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "▁"}},
       "with Metaspace, the normalizer"},
      {"mistral.json", "/normalizer", {{"type", "NFC"}}, "with Metaspace, the normalizer"},
      {"mistral.json", "/pre_tokenizer/replacement", "_", "pre_tokenizer"},
      {"mistral.json", "/pre_tokenizer/prepend_scheme", "sometimes", "pre_tokenizer"},
      {"mistral.json", "/pre_tokenizer/add_prefix_space", false, "pre_tokenizer"},
      {"mistral.json", "/pre_tokenizer/split", 1, "split"},
      {"mistral.json", "/decoder/decoders/3/type", "Fuse", "decoder"},
      {"mistral.json", "/added_tokens/3/single_word", true, "single_word"},
      {"llama2.json", "/normalizer/normalizers/0/prepend", "_", "normalizer"},
      {"llama2.json", "/normalizer", {{"type", "NFC"}}, "normalizer"},
      {"llama2.json", "/normalizer", json(), "normalizer"},
      {"llama2.json", "/decoder/decoders/0/type", "Metaspace", "decoder"},
      {"llama2.json", "/decoder/decoders/3/type", "Fuse", "decoder"},
      {"llama2.json", "/model/ignore_merges", true, "model.ignore_merges"},
      {"llama2.json", "/model/unk_token", "nope", "unknown piece"},
      {"llama2.json", "/model/unk_token", json(), "unknown piece"},
      {"llama2.json", "/model/vocab/new", 700, "no token with the id"},
      {"llama2.json", "/model/vocab/xyzzy", 3, "the id 3"},
      {"llama2.json", "/model/merges/0", json::array({"▁", "nope"}), "'▁ nope'"},
      {"llama2.json", "/model/merges/0", json::array({"<0x41>", "<0x42>"}),
       "not in the vocabulary"},
      {"llama2.json", "/model/merges/1", json::array({"▁t", "h"}), "lack '▁ th'"},
      {"llama2.json", "/model/merges/40", json::array({"▁", "t"}), "stands apart"},
      {"llama2.json", "/added_tokens/3/id", 900, "leaves ids"},
      {"llama2.json", "/added_tokens/3/id", 7, "contradicts"},
      {"bert.json", "/normalizer/type", "Lowercase", "normalizer"},
      {"bert.json", "/pre_tokenizer/type", "Whitespace", "pre_tokenizer"},
      {"bert.json", "/model/unk_token", "nope", "'nope'"},
      {"bert.json", "/decoder/type", "BPEDecoder", "decoder"},
  };
  for (const Case& each : cases) {
    EXPECT_THAT(RefusalOf(each.file, each.pointer, each.value), HasSubstr(each.said))
        << each.pointer;
  }
}

// The tokenizer of a fixture with parts of its JSON replaced.
Tokenizer Changed(const std::string& name, const json& patch) {
  json root = json::parse(ReadText(kFolder + name));
  root = root.patch(patch);
  const TempDir directory;
  const std::string path = directory.path() + "/tokenizer.json";
  WriteText(path, root.dump());
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *tokenizer : Tokenizer::Bytes();
}

void ExpectEqualIds(const Tokenizer& left, const Tokenizer& right) {
  for (const std::string& text : Texts()) {
    const auto ids = left.Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, *right.Encode(text)) << text;
    EXPECT_EQ(*left.Decode(*ids), *right.Decode(*ids)) << text;
  }
}

TEST(Load, MetaspaceWithoutAPrefixIsTheReplacingNormalizer) {
  const json never = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "never"}, {"split", false}};
  ExpectEqualIds(
      Changed("no_prefix.json", {{{"op", "replace"}, {"path", "/pre_tokenizer"}, {"value", never}},
                                 {{"op", "replace"}, {"path", "/normalizer"}, {"value", nullptr}}}),
      LoadFixture("no_prefix.json"));
}

TEST(Load, MetaspaceOfOldFilesPrependsAndSplits) {
  const json old = {{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", true}};
  ExpectEqualIds(
      Changed("metaspace.json", {{{"op", "replace"}, {"path", "/pre_tokenizer"}, {"value", old}}}),
      LoadFixture("metaspace.json"));
}

// A field of a protobuf message: bytes.
std::string BytesField(int number, std::string_view bytes) {
  return absl::StrCat(std::string(1, static_cast<char>(number << 3 | 2)),
                      std::string(1, static_cast<char>(bytes.size())), std::string(bytes));
}

TEST(Load, RefusesSentencePieceModelsThatItDoesNotKnow) {
  const std::string good = ReadText(absl::StrCat(kFolder, "suffix.model"));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {BytesField(2, "\x18\x03"), "'word'"},
      {BytesField(2, "\x18\x04"), "'char'"},
      {BytesField(2, "\x98\x02\x01"), "byte fallback without the piece <0x00>"},
      {BytesField(3, "\x38\x01"), "unknown field 7"},
      {BytesField(3, BytesField(2, std::string("\x40\0\0\0abcd", 8))), "rules"},
      {BytesField(5, BytesField(2, "abcd")), "denormalizer_spec"},
      {BytesField(1, BytesField(1, "\xff")), "not UTF-8"},
      {BytesField(1, BytesField(1, "q") + std::string("\x18\x02", 2)), "two unknown"},
      {BytesField(1, BytesField(1, "q") + std::string("\x18\x06", 2)), "without byte fallback"},
      {BytesField(1, BytesField(1, "the") + "\x18\x01") + BytesField(1, BytesField(1, "the")),
       "twice"},
      {BytesField(1, BytesField(1, "qqq") + "\x15" + std::string("\0\0\xc0\x7f", 4)), "no score"},
      {"\x0b", "unknown wire type"},
      {"\x0b\x0c", "unknown wire type"},
      {"\x0a\x05", "truncated"},
      {"\x10\x01", "field 2 has the wrong wire type"},
      {BytesField(1, "\x08\x01"), "field 1 has the wrong wire type"},
      {BytesField(1, BytesField(1, "q") + "\x18\x07"), "unknown type 7"},
      {BytesField(2, "\x18\x05"), "model type 5 is not supported"},
  };
  const TempDir directory;
  const std::string path = directory.path() + "/changed.model";
  for (const auto& [added, said] : cases) {
    WriteText(path, good + added);
    EXPECT_THAT(std::string(Tokenizer::Load(path).status().message()), HasSubstr(said));
  }
}

// A damaged file is refused, or is a tokenizer: then it encodes and decodes.
void ExpectNoCrash(const absl::StatusOr<Tokenizer>& tokenizer) {
  if (!tokenizer.ok()) {
    EXPECT_NE(tokenizer.status().message(), "");
    return;
  }
  for (const char* const text : {"Hello, world! 1234 don't", "ﬁ 東京\u2581\xff <mask> <user>\n"}) {
    const auto ids = tokenizer->Encode(text);
    if (ids.ok()) {
      EXPECT_TRUE(tokenizer->Decode(*ids).ok());
    }
  }
  EXPECT_TRUE(Tokenizer::FromJson(tokenizer->ToJson()).ok());
}

std::vector<std::string> DamagedCopies(const std::string& good, std::mt19937* random) {
  std::vector<std::string> copies;
  for (int i = 0; i < 30; ++i) copies.push_back(good.substr(0, (*random)() % good.size()));
  for (int i = 0; i < 100; ++i) {
    std::string copy = good;
    for (uint32_t flips = 1 + (*random)() % 4; flips > 0; --flips) {
      // The beginning holds what the rest depends on.
      const size_t range = (*random)() % 2 == 0 ? copy.size() : std::min<size_t>(copy.size(), 64);
      copy[(*random)() % range] = static_cast<char>((*random)());
    }
    copies.push_back(copy);
  }
  return copies;
}

TEST(DamagedFiles, NeverCrash) {
  const uint32_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  const TempDir directory;
  int refused = 0;
  for (const char* const name :
       {"roberta.json", "llama3.json", "llama2.json", "bert.json", "unigram.model", "bytes.model",
        "suffix.model", "bert_cased/vocab.txt"}) {
    const std::string path =
        absl::StrCat(directory.path(), "/", name[0] == 'b' && name[4] == '_' ? "vocab.txt" : name);
    for (const std::string& copy : DamagedCopies(ReadText(absl::StrCat(kFolder, name)), &random)) {
      WriteText(path, copy);
      const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(path);
      ExpectNoCrash(tokenizer);
      refused += !tokenizer.ok();
    }
  }
  for (const char* const changed : {"/vocab.json", "/merges.txt"}) {
    for (const char* const name : {"/vocab.json", "/merges.txt"}) {
      WriteText(directory.path() + name, ReadText(absl::StrCat(kFolder, "gpt2", name)));
    }
    const std::string good = ReadText(absl::StrCat(kFolder, "gpt2", changed));
    for (const std::string& copy : DamagedCopies(good, &random)) {
      WriteText(directory.path() + changed, copy);
      const auto tokenizer = Tokenizer::Load(directory.path() + "/vocab.json");
      ExpectNoCrash(tokenizer);
      refused += !tokenizer.ok();
    }
  }
  EXPECT_GT(refused, 250);
}

TEST(DamagedFiles, JsonFormsNeverCrash) {
  const uint32_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  int refused = 0;
  for (const char* const name :
       {"gpt2", "bert.json", "unigram.model", "bytes.model", "llama2.json"}) {
    for (const std::string& copy : DamagedCopies(LoadFixture(name).ToJson(), &random)) {
      const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::FromJson(copy);
      ExpectNoCrash(tokenizer);
      refused += !tokenizer.ok();
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace tercio::tokenizer

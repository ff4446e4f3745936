// Every kind of tokenizer in the form of Hugging Face: Tercio reads it back and gives the same ids
// and texts. What transformers says of these files: tests/huggingface/check_tokenizers.py.
#include "tokenizer/export/huggingface_tokenizer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tokenizer/tokenizer.h"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;
using tokenizer::Tokenizer;

constexpr char kFolder[] = "tests/tokenizer/fixtures/";
constexpr const char* kFixtures[] = {"gpt2",           "roberta.json",       "llama3.json",
                                     "bert.json",      "bert_cased",         "unigram.model",
                                     "bytes.model",    "suffix.model",       "llama2.json",
                                     "no_prefix.json", "llama2_spaces.json", "mistral.json",
                                     "metaspace.json"};
constexpr TokenizerUse kDecoder = {.context = 16};
constexpr TokenizerUse kEncoder = {.context = 16, .encodes_texts = true};

const json& Expected() {
  static const json& expected =
      *new json(json::parse(*ReadFile(absl::StrCat(kFolder, "expected.json"))));
  return expected;
}

Tokenizer LoadFixture(const std::string& name) {
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(kFolder + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *tokenizer : Tokenizer::Bytes();
}

TokenizerFiles FilesOf(const Tokenizer& tokenizer, const TokenizerUse& use) {
  const std::optional<TokenizerFiles> files = HuggingFaceTokenizer(tokenizer.ToJson(), use);
  EXPECT_TRUE(files.has_value()) << tokenizer.kind();
  return files.value_or(TokenizerFiles());
}

// What Tercio reads out of a directory with these files.
absl::StatusOr<Tokenizer> ReadBack(const TokenizerFiles& files) {
  const TempDir directory;
  for (const auto& [name, content] : files) {
    EXPECT_TRUE(WriteFileDurably(absl::StrCat(directory.path(), "/", name), content).ok());
  }
  return Tokenizer::Load(directory.path());
}

// All that a tokenizer is; the order of its added tokens says nothing.
json WholeOf(const Tokenizer& tokenizer) {
  json whole = json::parse(tokenizer.ToJson());
  if (whole.contains("added_tokens")) {
    std::sort(whole["added_tokens"].begin(), whole["added_tokens"].end(),
              [](const json& a, const json& b) { return a["id"] < b["id"]; });
  }
  return whole;
}

TEST(HuggingFaceTokenizer, EveryFixtureComesBack) {
  for (const std::string name : kFixtures) {
    const Tokenizer tokenizer = LoadFixture(name);
    const auto back = ReadBack(FilesOf(tokenizer, kDecoder));
    ASSERT_TRUE(back.ok()) << name << ": " << back.status();
    // Merges have an order and no scores.
    json whole = WholeOf(*back);
    if (name == "bytes.model") whole["scores"] = WholeOf(tokenizer)["scores"];
    if (name == "bytes.model") whole["unknown_surface"] = WholeOf(tokenizer)["unknown_surface"];
    EXPECT_EQ(json::diff(whole, WholeOf(tokenizer)), json::array()) << name;
    const json& texts = Expected()["texts"];
    ASSERT_GT(texts.size(), 100u);
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto ids = back->Encode(texts[i].get<std::string>());
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(json(*ids), Expected()["ids"][name][i])
          << name << ", text " << i << ": " << texts[i];
    }
  }
}

TEST(HuggingFaceTokenizer, PlainKindsComeBack) {
  std::vector<std::string_view> texts;
  for (const json& text : Expected()["texts"]) texts.push_back(text.get_ref<const std::string&>());
  const auto chars = Tokenizer::CharsOf(texts);
  ASSERT_TRUE(chars.ok());
  for (const Tokenizer& tokenizer : {Tokenizer::Bytes(), *chars}) {
    const auto back = ReadBack(FilesOf(tokenizer, kDecoder));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->kind(), tokenizer.kind());
    for (const std::string_view text : texts) {
      EXPECT_EQ(*back->Encode(text), *tokenizer.Encode(text)) << text;
    }
  }
  EXPECT_FALSE(ReadBack(FilesOf(*Tokenizer::CharsOf({"ab"}), kDecoder))->Encode("c").ok());
}

TEST(HuggingFaceTokenizer, OnlyEncodersPutTokensAroundATextAndTakeTypes) {
  for (const std::string name : {"bert.json", "roberta.json", "gpt2"}) {
    const Tokenizer tokenizer = LoadFixture(name);
    const TokenizerFiles encoder = FilesOf(tokenizer, kEncoder);
    const json processor = json::parse(encoder.at("tokenizer.json"))["post_processor"];
    const json config = json::parse(encoder.at("tokenizer_config.json"));
    EXPECT_EQ(config["model_input_names"].size(), 3u);
    // GPT-2 has no token for the beginning.
    EXPECT_EQ(processor.is_null(), name == "gpt2") << name;
    if (name != "gpt2") {
      const std::string cls = config["cls_token"];
      const std::string sep = config["sep_token"];
      EXPECT_EQ(cls, name == "bert.json" ? "[CLS]" : "<s>");
      EXPECT_EQ(sep, name == "bert.json" ? "[SEP]" : "</s>");
      EXPECT_EQ(processor["special_tokens"][cls]["ids"], json({*tokenizer.bert_ids().cls}));
      EXPECT_EQ(processor["pair"].size(), 5u);
    }
    const auto back = ReadBack(encoder);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->bert_ids().cls, tokenizer.bert_ids().cls);
    EXPECT_EQ(back->bert_ids().sep, tokenizer.bert_ids().sep);

    const TokenizerFiles decoder = FilesOf(tokenizer, kDecoder);
    EXPECT_TRUE(json::parse(decoder.at("tokenizer.json"))["post_processor"].is_null());
    EXPECT_EQ(json::parse(decoder.at("tokenizer_config.json"))["model_input_names"],
              json({"input_ids", "attention_mask"}));
  }
}

// transformers would find a token in texts because it is named.
TEST(HuggingFaceTokenizer, NamesNoTokenThatTextsDoNotHold) {
  json json_form = json::parse(LoadFixture("llama3.json").ToJson());
  const auto config = [&] {
    return json::parse(
        HuggingFaceTokenizer(json_form.dump(), kDecoder)->at("tokenizer_config.json"));
  };
  EXPECT_EQ(config()["eos_token"], "<|end_of_text|>");
  EXPECT_FALSE(config().contains("split_special_tokens"));
  json_form["special"]["end_of_text"] = 40;
  EXPECT_FALSE(config().contains("eos_token"));
  EXPECT_EQ(config()["bos_token"], "<|begin_of_text|>");
  json_form["added_tokens"] = json::array();
  EXPECT_EQ(config()["eos_token"], json_form["vocabulary"][40]);
  EXPECT_EQ(config()["split_special_tokens"], true);
}

TEST(HuggingFaceTokenizer, VocabularyTextGivesTheSameTokenizer) {
  TokenizerFiles files = FilesOf(LoadFixture("bert_cased"), kEncoder);
  ASSERT_EQ(files.erase("tokenizer.json"), 1u);
  const auto back = ReadBack(files);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(json::diff(WholeOf(*back), WholeOf(LoadFixture("bert_cased"))), json::array());
  json gap = json::parse(LoadFixture("bert_cased").ToJson());
  gap["vocabulary"][300] = nullptr;
  EXPECT_FALSE(HuggingFaceTokenizer(gap.dump(), kEncoder)->contains("vocab.txt"));
}

TEST(HuggingFaceTokenizer, PiecesBecomeMergesWhereTheseSayAll) {
  const json good = json::parse(LoadFixture("bytes.model").ToJson());
  const TokenizerFiles files = *HuggingFaceTokenizer(good.dump(), kDecoder);
  EXPECT_TRUE(files.contains("tokenizer.json"));
  TokenizerFiles model = files;  // the library's file says the same
  model.erase("tokenizer.json");
  EXPECT_EQ(json::diff(WholeOf(*ReadBack(model)), good), json::array());
  // One piece more, and other rules: then only the library does what SentencePiece does.
  const auto changed = [&](const json& patch) {
    json bad = good;
    bad.merge_patch(patch);
    const auto made = HuggingFaceTokenizer(bad.dump(), kDecoder);
    EXPECT_TRUE(made.has_value());
    return made->contains("tokenizer.json");
  };
  const auto with_piece = [&](const std::string& text, double score, int type) {
    json patch = {{"pieces", good["pieces"]}, {"scores", good["scores"]}, {"types", good["types"]}};
    patch["pieces"].push_back(text);
    patch["scores"].push_back(score);
    patch["types"].push_back(type);
    return patch;
  };
  EXPECT_TRUE(changed(json::object()));
  EXPECT_TRUE(changed({{"add_dummy_prefix", false}}));
  EXPECT_FALSE(changed({{"remove_extra_whitespaces", true}}));
  EXPECT_FALSE(changed({{"charsmap", "AAAA"}}));
  EXPECT_TRUE(changed(with_piece("thth", -5000, 1)));
  EXPECT_FALSE(changed(with_piece("thth", -1, 1)));         // two pieces of one score
  EXPECT_FALSE(changed(with_piece("th\u9f98", -5000, 1)));  // a character that is no piece
  EXPECT_FALSE(changed(with_piece("thth", -5000, 4)));
  EXPECT_FALSE(changed(with_piece("thth", -5000, 5)));
}

TEST(HuggingFaceTokenizer, RefusesWhatItCannotSay) {
  json rules = json::parse(LoadFixture("llama2.json").ToJson());
  EXPECT_FALSE(HuggingFaceTokenizer(rules.dump(), kDecoder)->contains("tokenizer.model"));
  rules["remove_extra_whitespaces"] = true;
  EXPECT_FALSE(HuggingFaceTokenizer(rules.dump(), kDecoder).has_value());

  json prefixed = json::parse(LoadFixture("llama3.json").ToJson());
  prefixed["add_prefix_space"] = true;
  EXPECT_FALSE(HuggingFaceTokenizer(prefixed.dump(), kDecoder).has_value());
  for (const char* const text : {"", "[]", "{}", R"({"kind": 3})", R"({"kind": "other"})"}) {
    EXPECT_FALSE(HuggingFaceTokenizer(text, kDecoder).has_value()) << text;
  }
}

// Each value of each kind replaced by others: no form, or some form, but no crash.
TEST(HuggingFaceTokenizer, DamagedJsonNeverCrashes) {
  int refused = 0;
  for (const std::string name : {"gpt2", "bert.json", "bytes.model"}) {
    const json good = json::parse(LoadFixture(name).ToJson());
    for (const auto& [key, value] : good.items()) {
      for (const json& other : {json(), json(-1), json(1e9), json("x"), json({1, "a", nullptr}),
                                json({{"end_of_text", -5}, {"beginning", 4000000000u}})}) {
        json bad = good;
        bad[key] = other;
        refused += !HuggingFaceTokenizer(bad.dump(), kEncoder).has_value();
        HasVocabularyOf(bad.dump(), {{"vocab.json", "[]"}, {"tokenizer.json", "3"}});
      }
    }
  }
  EXPECT_GT(refused, 20);
}

TEST(HasVocabularyOf, TellsTokenizersApart) {
  const auto file = [](const std::string& name) { return *ReadFile(kFolder + name); };
  const std::vector<std::pair<std::string, TokenizerFiles>> origins = {
      {"gpt2", {{"merges.txt", file("gpt2/merges.txt")}, {"vocab.json", file("gpt2/vocab.json")}}},
      {"llama3.json", {{"tokenizer.json", file("llama3.json")}}},
      {"bert.json", {{"tokenizer.json", file("bert.json")}}},
      {"bert_cased", {{"vocab.txt", file("bert_cased/vocab.txt")}}},
      {"unigram.model", {{"spiece.model", file("unigram.model")}}},
      {"suffix.model", {{"tokenizer.model", file("suffix.model")}}},
      {"llama2.json", {{"tokenizer.json", file("llama2.json")}}},
  };
  for (const auto& [name, unused] : origins) {
    const std::string stored = LoadFixture(name).ToJson();
    for (const auto& [origin, files] : origins) {
      EXPECT_EQ(HasVocabularyOf(stored, files), name == origin) << name << " in " << origin;
    }
    EXPECT_FALSE(HasVocabularyOf(stored, {}));
  }
  EXPECT_FALSE(HasVocabularyOf(Tokenizer::Bytes().ToJson(), origins[0].second));
}

}  // namespace
}  // namespace tercio::tokenizer

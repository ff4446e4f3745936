#include "tokenizer/export/huggingface_tokenizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/utf8.h"
#include "nlohmann/json.hpp"
#include "tokenizer/export/merges_of_pieces.h"
#include "tokenizer/export/sentence_piece_model.h"

namespace tercio::tokenizer {
namespace {

using Stored = nlohmann::json;              // the input
using OutputJson = nlohmann::ordered_json;  // the output

// The pattern of Llama 3's tokenizers; `tokenizer/word_scanner.cc` cuts words as it does.
constexpr char kLlama3Words[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The stored form may be damaged or of another kind, and operator[] of a constant object is
// undefined for a key that is missing.
const Stored& At(const Stored& object, const char* key) {
  static const Stored& null = *new Stored();
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool IsSet(const Stored& object, const char* key) { return At(object, key) == Stored(true); }

std::string ContentOf(const Stored& object, const char* key) {
  const Stored& value = At(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

// Appends an entry without looking for its key, for which an ordered map walks all of them.
void PutLast(std::string key, OutputJson value, OutputJson* object) {
  object->get_ref<OutputJson::object_t&>().emplace_back(std::move(key), std::move(value));
}

// The tokens by id: SentencePiece calls them pieces.
const Stored& TokensOf(const Stored& json) {
  return At(json, json.contains("pieces") ? "pieces" : "vocabulary");
}

// The tokens of a stored vocabulary and their ids; nullopt if it is not one.
std::optional<OutputJson> VocabularyOf(const Stored& json) {
  const Stored& tokens = TokensOf(json);
  if (!tokens.is_array()) return std::nullopt;
  OutputJson vocabulary = OutputJson::object();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].is_null()) continue;  // an id without a token
    if (!tokens[id].is_string()) return std::nullopt;
    PutLast(tokens[id].get<std::string>(), id, &vocabulary);
  }
  return vocabulary;
}

// The token at an index of a list; "" if there is none.
std::string TokenAt(const Stored& tokens, const Stored& id) {
  if (!tokens.is_array() || !id.is_number_unsigned()) return "";
  const auto place = id.get<uint64_t>();
  return place < tokens.size() && tokens[place].is_string() ? tokens[place].get<std::string>() : "";
}

// The token of an id, from the vocabulary or an added one; "" if there is none.
std::string TokenOf(const Stored& json, const Stored& id) {
  for (const Stored& token : At(json, "added_tokens")) {
    if (!id.is_null() && At(token, "id") == id) return ContentOf(token, "content");
  }
  return TokenAt(TokensOf(json), id);
}

OutputJson AddedTokensOf(const Stored& json) {
  std::vector<const Stored*> tokens;
  for (const Stored& token : At(json, "added_tokens")) {
    if (At(token, "id").is_number_unsigned()) tokens.push_back(&token);
  }
  // The tokenizers library numbers new tokens in the order in which it reads them.
  std::sort(tokens.begin(), tokens.end(), [](const Stored* a, const Stored* b) {
    return At(*a, "id").get<uint64_t>() < At(*b, "id").get<uint64_t>();
  });
  OutputJson list = OutputJson::array();
  for (const Stored* token : tokens) {
    list.push_back({{"id", At(*token, "id").get<uint64_t>()},
                    {"content", ContentOf(*token, "content")},
                    {"single_word", false},
                    {"lstrip", IsSet(*token, "lstrip")},
                    {"rstrip", IsSet(*token, "rstrip")},
                    {"normalized", IsSet(*token, "normalized")},
                    {"special", IsSet(*token, "special")}});
  }
  return list;
}

// ---- special tokens ----

struct SpecialToken {
  std::string text;
  int64_t id = 0;
};
using SpecialTokens = std::map<std::string, SpecialToken>;  // by transformers' name of the role

SpecialTokens SpecialTokensOf(const Stored& json, const TokenizerUse& use) {
  constexpr std::pair<const char*, const char*> kRoles[] = {
      {"bos_token", "beginning"}, {"eos_token", "end_of_text"}, {"pad_token", "pad"},
      {"mask_token", "mask"},     {"cls_token", "cls"},         {"sep_token", "separator"}};
  SpecialTokens tokens;
  for (const auto& [role, key] : kRoles) {
    const Stored& id = At(At(json, "special"), key);
    // A role whose id has no token cannot be named in any file, so it is left out.
    const std::string text = TokenOf(json, id);
    if (!text.empty()) tokens[role] = {text, id.get<int64_t>()};
  }
  // As in tokenizer/tokenizer.h, a beginning and an end that differ can replace bert's two.
  const bool differ =
      tokens.contains("bos_token") != tokens.contains("eos_token") ||
      (tokens.contains("bos_token") && tokens["bos_token"].id != tokens["eos_token"].id);
  if (!use.encodes_texts || !differ) return tokens;
  for (const auto& [role, other] :
       {std::pair("cls_token", "bos_token"), std::pair("sep_token", "eos_token")}) {
    if (!tokens.contains(role) && tokens.contains(other)) tokens[role] = tokens[other];
  }
  return tokens;
}

// The processor that puts cls and separator around one text and between two; null if it is not
// wanted.
OutputJson PostProcessor(const SpecialTokens& tokens, const TokenizerUse& use) {
  if (!use.encodes_texts || !tokens.contains("cls_token") || !tokens.contains("sep_token")) {
    return nullptr;
  }
  const auto special = [&](const char* role, int type) {
    return OutputJson({{"SpecialToken", {{"id", tokens.at(role).text}, {"type_id", type}}}});
  };
  const auto text = [](const char* name, int type) {
    return OutputJson({{"Sequence", {{"id", name}, {"type_id", type}}}});
  };
  // The processor refers to its tokens by text, and transformers resolves them with this table.
  OutputJson known = OutputJson::object();
  for (const char* role : {"cls_token", "sep_token"}) {
    const SpecialToken& token = tokens.at(role);
    known[token.text] = {{"id", token.text},
                         {"ids", OutputJson::array({token.id})},
                         {"tokens", OutputJson::array({token.text})}};
  }
  OutputJson single =
      OutputJson::array({special("cls_token", 0), text("A", 0), special("sep_token", 0)});
  OutputJson pair = single;
  pair.push_back(text("B", 1));
  pair.push_back(special("sep_token", 1));
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(known)}};
}

// A token is compared by its content, which is unique among the added tokens.
bool IsAdded(const Stored& json, const Stored& content) {
  const Stored& added = At(json, "added_tokens");
  return std::any_of(added.begin(), added.end(),
                     [&](const Stored& token) { return At(token, "content") == content; });
}

// transformers finds every token that is named here in a text. Tercio only finds added tokens, so
// others are named only if transformers can be told to find none.
OutputJson Config(const Stored& json, const SpecialTokens& tokens, const TokenizerUse& use) {
  OutputJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"model_max_length", use.context},
                       {"clean_up_tokenization_spaces", false}};
  // Versions of transformers differ in whether token types, which only encoders take, are returned.
  config["model_input_names"] = {"input_ids", "attention_mask"};
  if (use.encodes_texts) config["model_input_names"].push_back("token_type_ids");
  const bool finds_none = At(json, "added_tokens").empty();
  for (const auto& [role, token] : tokens) {
    if (finds_none || IsAdded(json, token.text)) config[role] = token.text;
  }
  if (finds_none && !tokens.empty()) config["split_special_tokens"] = true;
  return config;
}

// ---- the kinds ----

struct Parts {
  OutputJson normalizer;
  OutputJson pre_tokenizer;
  OutputJson post_processor;
  OutputJson decoder;
  OutputJson model;
  OutputJson added_tokens = OutputJson::array();
};

std::string TokenizerJson(Parts parts) {
  const OutputJson json = {{"version", "1.0"},
                           {"truncation", nullptr},
                           {"padding", nullptr},
                           {"added_tokens", std::move(parts.added_tokens)},
                           {"normalizer", std::move(parts.normalizer)},
                           {"pre_tokenizer", std::move(parts.pre_tokenizer)},
                           {"post_processor", std::move(parts.post_processor)},
                           {"decoder", std::move(parts.decoder)},
                           {"model", std::move(parts.model)}};
  return json.dump(1) + "\n";
}

TokenizerFiles Files(Parts parts, const OutputJson& config) {
  return {{"tokenizer.json", TokenizerJson(std::move(parts))},
          {"tokenizer_config.json", config.dump(2) + "\n"}};
}

OutputJson ByteLevel(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

// All keys are written, so that the file does not depend on a version's defaults.
OutputJson BpeModel(OutputJson vocabulary, OutputJson merges, OutputJson unknown) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", std::move(unknown)},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

// GPT-2's alphabet of bytes: those that Latin-1 prints stand for themselves, the others follow from
// 256 in ascending order.
std::optional<TokenizerFiles> Bytes(const Stored& json, const TokenizerUse& use) {
  OutputJson vocabulary = OutputJson::object();
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printed = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    std::string character;
    AppendUtf8(printed ? byte : next++, &character);
    vocabulary[character] = byte;
  }
  Parts parts;
  // Without merges words do not matter, so the text need not be cut.
  parts.pre_tokenizer = ByteLevel(/*add_prefix_space=*/false, /*use_regex=*/false);
  parts.decoder = parts.pre_tokenizer;
  parts.model = BpeModel(std::move(vocabulary), OutputJson::array(), nullptr);
  return Files(std::move(parts), Config(json, {}, use));
}

std::optional<TokenizerFiles> Chars(const Stored& json, const TokenizerUse& use) {
  const std::string characters = ContentOf(json, "characters");
  if (characters.empty()) return std::nullopt;
  OutputJson vocabulary = OutputJson::object();
  int id = 0;
  for (size_t at = 0; at < characters.size();) {
    const size_t bytes = DecodeUtf8(characters, at).length;
    PutLast(characters.substr(at, bytes), id++, &vocabulary);
    at += bytes;
  }
  Parts parts;
  // A dot would not match line ends, which are characters of the vocabulary like others.
  parts.pre_tokenizer = {{"type", "Split"},
                         {"pattern", {{"Regex", "[\\s\\S]"}}},
                         {"behavior", "Isolated"},
                         {"invert", false}};
  parts.decoder = {{"type", "Fuse"}};
  // All entries are single characters, so there is no entry for this name: the library fails at an
  // unknown character as Tercio does.
  parts.model = {{"type", "WordLevel"}, {"vocab", std::move(vocabulary)}, {"unk_token", "<unk>"}};
  return Files(std::move(parts), Config(json, {}, use));
}

std::optional<TokenizerFiles> ByteLevelBpe(const Stored& json, const TokenizerUse& use) {
  const std::string pattern = ContentOf(json, "pattern");
  const bool prefix = IsSet(json, "add_prefix_space");
  Parts parts;
  if (pattern == "gpt2") {
    parts.pre_tokenizer = ByteLevel(prefix, /*use_regex=*/true);
  } else if (pattern == "llama3" && !prefix) {
    const OutputJson split = {{"type", "Split"},
                              {"pattern", {{"Regex", kLlama3Words}}},
                              {"behavior", "Isolated"},
                              {"invert", false}};
    parts.pre_tokenizer = {
        {"type", "Sequence"},
        {"pretokenizers",
         OutputJson::array({split, ByteLevel(/*add_prefix_space=*/false, /*use_regex=*/false)})}};
  } else {
    return std::nullopt;  // a Split before it would put the space before every word
  }
  std::optional<OutputJson> vocabulary = VocabularyOf(json);
  const Stored& tokens = At(json, "vocabulary");
  // The stored form has ids, the file texts; an id without a token becomes "", which the library
  // refuses when it reads the file.
  const Stored& ids = At(json, "merges");
  if (!vocabulary.has_value() || !ids.is_array()) return std::nullopt;
  OutputJson merges = OutputJson::array();
  for (size_t i = 0; i + 1 < ids.size(); i += 2) {
    merges.push_back(OutputJson::array({TokenAt(tokens, ids[i]), TokenAt(tokens, ids[i + 1])}));
  }
  const std::string unknown = TokenAt(tokens, At(json, "unknown"));
  const SpecialTokens special = SpecialTokensOf(json, use);
  parts.added_tokens = AddedTokensOf(json);
  parts.post_processor = PostProcessor(special, use);
  // Decoding depends on neither flag.
  parts.decoder = ByteLevel(/*add_prefix_space=*/true, /*use_regex=*/true);
  parts.model = BpeModel(*std::move(vocabulary), std::move(merges),
                         unknown.empty() ? OutputJson() : OutputJson(unknown));
  parts.model["ignore_merges"] = IsSet(json, "ignore_merges");
  OutputJson config = Config(json, special, use);
  // transformers may set the flag of the pre-tokenizer from here, so both agree.
  config["add_prefix_space"] = prefix;
  return Files(std::move(parts), config);
}

// One token a line; nullopt if that form cannot express the vocabulary.
std::optional<std::string> VocabularyText(const Stored& json) {
  std::string text;
  for (const Stored& token : At(json, "vocabulary")) {
    if (!token.is_string()) return std::nullopt;
    const std::string& line = token.get_ref<const std::string&>();
    if (line.find_first_of("\r\n") != line.npos) return std::nullopt;
    text += line + "\n";
  }
  return text;
}

std::optional<TokenizerFiles> WordPiece(const Stored& json, const TokenizerUse& use) {
  std::optional<OutputJson> vocabulary = VocabularyOf(json);
  const Stored& most = At(json, "most_characters");
  if (!vocabulary.has_value() || !most.is_number_unsigned()) return std::nullopt;
  const SpecialTokens special = SpecialTokensOf(json, use);
  Parts parts;
  parts.added_tokens = AddedTokensOf(json);
  parts.normalizer = {{"type", "BertNormalizer"},
                      {"clean_text", IsSet(json, "clean_text")},
                      {"handle_chinese_chars", IsSet(json, "space_chinese")},
                      {"strip_accents", IsSet(json, "strip_accents")},
                      {"lowercase", IsSet(json, "lowercase")}};
  parts.pre_tokenizer = {{"type", "BertPreTokenizer"}};
  parts.post_processor = PostProcessor(special, use);
  parts.decoder = {{"type", "WordPiece"},
                   {"prefix", ContentOf(json, "continuation")},
                   {"cleanup", IsSet(json, "tidy_decoded")}};
  parts.model = {{"type", "WordPiece"},
                 {"unk_token", ContentOf(json, "unknown")},
                 {"continuing_subword_prefix", ContentOf(json, "continuation")},
                 {"max_input_chars_per_word", most.get<uint64_t>()},
                 {"vocab", *std::move(vocabulary)}};
  OutputJson config = Config(json, special, use);
  // For programs that read vocab.txt.
  config["do_lower_case"] = IsSet(json, "lowercase");
  config["strip_accents"] = IsSet(json, "strip_accents");
  config["tokenize_chinese_chars"] = IsSet(json, "space_chinese");
  TokenizerFiles files = Files(std::move(parts), config);
  if (const std::optional<std::string> text = VocabularyText(json)) files["vocab.txt"] = *text;
  return files;
}

// The tokenizer.json of pieces that merges can make, as Llama 2 has it.
std::optional<TokenizerFiles> MergedPieces(const Stored& json, const std::string& unknown,
                                           const TokenizerUse& use) {
  const std::optional<std::vector<Merge>> pairs = MergesOfPieces(json);
  std::optional<OutputJson> vocabulary = VocabularyOf(json);
  if (!pairs.has_value() || !vocabulary.has_value()) return std::nullopt;
  OutputJson merges = OutputJson::array();
  for (const auto& [left, right] : *pairs) merges.push_back(OutputJson::array({left, right}));
  const SpecialTokens special = SpecialTokensOf(json, use);
  const OutputJson spaces = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  OutputJson decoders = OutputJson::array(
      {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
       {{"type", "ByteFallback"}},
       {{"type", "Fuse"}}});
  Parts parts;
  const bool prefixed = IsSet(json, "add_dummy_prefix");
  if (const Stored& metaspace = At(json, "metaspace"); metaspace.is_object()) {
    parts.pre_tokenizer = {{"type", "Metaspace"},
                           {"replacement", "\u2581"},
                           {"prepend_scheme", !prefixed                        ? "never"
                                              : IsSet(metaspace, "first_only") ? "first"
                                                                               : "always"},
                           {"split", IsSet(metaspace, "splits")}};
  } else if (prefixed) {
    const OutputJson prefix = {{"type", "Prepend"}, {"prepend", "\u2581"}};
    parts.normalizer = {{"type", "Sequence"}, {"normalizers", OutputJson::array({prefix, spaces})}};
  } else {
    parts.normalizer = spaces;
  }
  // The decoder removes the one space that the prefix put before the text, and no more.
  if (prefixed) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  parts.added_tokens = AddedTokensOf(json);
  parts.post_processor = PostProcessor(special, use);
  parts.decoder = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
  parts.model = BpeModel(*std::move(vocabulary), std::move(merges), unknown);
  // SentencePiece gives one id to a run of unknown characters.
  parts.model["fuse_unk"] = true;
  parts.model["byte_fallback"] = IsSet(json, "byte_fallback");
  return Files(std::move(parts), Config(json, special, use));
}

std::optional<TokenizerFiles> SentencePiece(const Stored& json, const TokenizerUse& use) {
  const std::optional<SentencePieceModel> model = SentencePieceModelOf(json);
  if (!model.has_value()) return std::nullopt;
  // A .model file can express neither.
  const bool fits_model = At(json, "added_tokens").empty() && At(json, "metaspace").is_null();
  if (std::optional<TokenizerFiles> files = MergedPieces(json, model->unknown, use)) {
    if (fits_model) (*files)["tokenizer.model"] = model->pieces + model->rest;
    return files;
  }
  if (!fits_model) return std::nullopt;
  const SpecialTokens special = SpecialTokensOf(json, use);
  OutputJson config = Config(json, special, use);
  config["tokenizer_class"] = "SentencePieceBackend";
  config["unk_token"] = model->unknown;
  config["legacy"] = true;                // the library puts the space before a text
  config["split_special_tokens"] = true;  // even of the unknown piece
  const bool surrounded =
      use.encodes_texts && special.contains("cls_token") && special.contains("sep_token");
  config["special_tokens_pattern"] = surrounded ? "cls_sep" : "none";
  return TokenizerFiles{{"tokenizer.model", model->pieces + model->rest},
                        {"tokenizer_config.json", config.dump(2) + "\n"}};
}

Stored Parsed(std::string_view text) {
  // Damaged text becomes a value that is no object, in which At finds nothing.
  return Stored::parse(text, nullptr, /*allow_exceptions=*/false);
}

bool HasVocabularyOfObject(const Stored& json, const Stored& object) {
  const Stored& tokens = TokensOf(json);
  if (!tokens.is_array() || !object.is_object()) return false;
  size_t known = 0;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].is_string()) continue;
    const auto found = object.find(tokens[id].get_ref<const std::string&>());
    // Tokens that were added to a vocabulary of pieces are pieces, too.
    if (found == object.end() && IsAdded(json, tokens[id])) continue;
    if (found == object.end() || *found != Stored(id)) return false;
    ++known;
  }
  // Each token was found; a larger object has tokens that this vocabulary lacks.
  return known == object.size();
}

}  // namespace

std::optional<TokenizerFiles> HuggingFaceTokenizer(std::string_view text, const TokenizerUse& use) {
  const Stored json = Parsed(text);
  const std::string kind = ContentOf(json, "kind");
  if (kind == "bytes") return Bytes(json, use);
  if (kind == "chars") return Chars(json, use);
  if (kind == "byte_level_bpe") return ByteLevelBpe(json, use);
  if (kind == "word_piece") return WordPiece(json, use);
  if (kind == "sentence_piece") return SentencePiece(json, use);
  return std::nullopt;
}

bool HasVocabularyOf(std::string_view text, const TokenizerFiles& files) {
  const Stored json = Parsed(text);
  // One file that agrees is enough: the others of a directory describe the same tokenizer.
  for (const auto& [name, content] : files) {
    if (name == "tokenizer.json") {
      if (HasVocabularyOfObject(json, At(At(Parsed(content), "model"), "vocab"))) return true;
    } else if (name == "vocab.json") {
      if (HasVocabularyOfObject(json, Parsed(content))) return true;
    } else if (name == "vocab.txt") {
      if (VocabularyText(json) == content) return true;
    } else if (absl::EndsWith(name, ".model")) {
      const std::optional<SentencePieceModel> model = SentencePieceModelOf(json);
      // Only the pieces are compared, since Tercio does not store the settings of the training that
      // follow them.
      if (model.has_value() && absl::StartsWith(content, model->pieces)) return true;
    }
  }
  return false;
}

}  // namespace tercio::tokenizer

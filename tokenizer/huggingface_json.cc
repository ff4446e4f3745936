#include "tokenizer/huggingface_json.h"

#include <initializer_list>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/huggingface_parts.h"
#include "tokenizer/huggingface_pieces.h"
#include "tokenizer/plain_tokenizers.h"
#include "tokenizer/unicode.h"
#include "tokenizer/word_piece.h"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;

// These kinds only put tokens around a text or change offsets, and so leave its ids as they are.
absl::Status CheckPostProcessor(const json& part) {
  if (part.is_null()) return absl::OkStatus();
  const std::string type = TypeOfPart(part);
  if (type == "ByteLevel" || type == "TemplateProcessing" || type == "BertProcessing" ||
      type == "RobertaProcessing") {
    return absl::OkStatus();
  }
  if (type != "Sequence" || !JsonAt(part, "processors").is_array()) {
    return UnknownPart("post_processor", part);
  }
  for (const json& each : JsonAt(part, "processors")) {
    // A sequence within a sequence is refused, which also bounds the depth of this recursion.
    if (TypeOfPart(each) == "Sequence") return UnknownPart("post_processor", part);
    TERCIO_RETURN_IF_ERROR(CheckPostProcessor(each));
  }
  return absl::OkStatus();
}

// ByteLevel alone cuts words as GPT-2 does; after a Split it cuts nothing. Without merges, words do
// not matter.
absl::Status ReadBpePreTokenizer(const json& given, ByteLevelBpe* bpe) {
  const json& part = UnwrappedPart(given, "pretokenizers");
  const auto unknown = [&] { return UnknownPart("pre_tokenizer", given); };
  if (TypeOfPart(part) == "ByteLevel") {
    TERCIO_ASSIGN_OR_RETURN(const bool cuts, JsonFlag(part, "use_regex", true));
    if (!cuts && (!bpe->merges.empty() || bpe->ignore_merges)) return unknown();
    bpe->pattern = WordPattern::kGpt2;
    TERCIO_ASSIGN_OR_RETURN(bpe->add_prefix_space, JsonFlag(part, "add_prefix_space", true));
    return absl::OkStatus();
  }
  const json& parts = JsonAt(part, "pretokenizers");
  if (TypeOfPart(part) != "Sequence" || !parts.is_array() || parts.size() != 2 ||
      TypeOfPart(parts[0]) != "Split" || TypeOfPart(parts[1]) != "ByteLevel") {
    return unknown();
  }
  TERCIO_ASSIGN_OR_RETURN(const bool cuts, JsonFlag(parts[1], "use_regex", true));
  TERCIO_ASSIGN_OR_RETURN(const bool prefix, JsonFlag(parts[1], "add_prefix_space", true));
  TERCIO_ASSIGN_OR_RETURN(const bool inverted, JsonFlag(parts[0], "invert", false));
  TERCIO_ASSIGN_OR_RETURN(const std::string behavior, JsonText(parts[0], "behavior", ""));
  // An inverted pattern or another behavior would give other words than the scanner does.
  if (cuts || prefix || inverted || behavior != "Isolated") return unknown();
  TERCIO_ASSIGN_OR_RETURN(const std::string regex,
                          JsonText(JsonAt(parts[0], "pattern"), "Regex", ""));
  const std::optional<WordPattern> pattern = WordPatternOfRegex(regex);
  if (!pattern.has_value()) return UnknownPart("pre_tokenizer: the pattern", json(regex));
  bpe->pattern = *pattern;
  return absl::OkStatus();
}

absl::Status ReadMerges(const json& merges, ByteLevelBpe* bpe) {
  if (!merges.is_array()) return absl::InvalidArgumentError("model.merges is not a list");
  bpe->merges.reserve(merges.size());
  for (const json& merge : merges) {
    // The two forms of an entry become one, so that both are checked in the same way.
    TERCIO_ASSIGN_OR_RETURN(const std::string line, MergeLine(merge));
    TERCIO_ASSIGN_OR_RETURN(const auto pair, ParseMerge(bpe->vocabulary, line));
    bpe->merges.push_back(pair);
  }
  return absl::OkStatus();
}

// The export of the tokenizer `bytes` is a byte-level BPE without merges. Only its ids tell that it
// is `bytes`, which reading it back has to give.
bool IdsAreBytes(const TokenizerModel& model) {
  for (int32_t byte = 0; byte < 256; ++byte) {
    const auto ids = model.EncodePart(std::string(1, static_cast<char>(byte)));
    if (!ids.ok() || *ids != std::vector<int32_t>{byte}) return false;
  }
  return model.vocab_size() == 256;
}

absl::StatusOr<std::shared_ptr<const TokenizerModel>> ParseBpe(const json& root,
                                                               const json& config) {
  const json& model = JsonAt(root, "model");
  ByteLevelBpe bpe;
  if (const json& normalizer = UnwrappedPart(JsonAt(root, "normalizer"), "normalizers");
      !normalizer.is_null()) {
    return UnknownPart("normalizer", normalizer);
  }
  if (TypeOfPart(JsonAt(root, "decoder")) != "ByteLevel") {
    return UnknownPart("decoder", JsonAt(root, "decoder"));
  }
  // Dropout would make ids depend on chance; the other settings change what a word consists of.
  TERCIO_RETURN_IF_ERROR(ExpectNone(model, {"dropout", "continuing_subword_prefix",
                                            "end_of_word_suffix", "fuse_unk", "byte_fallback"}));
  TERCIO_ASSIGN_OR_RETURN(bpe.ignore_merges, JsonFlag(model, "ignore_merges", false));
  TERCIO_ASSIGN_OR_RETURN(bpe.vocabulary, Vocabulary::FromObject(JsonAt(model, "vocab")));
  TERCIO_ASSIGN_OR_RETURN(const std::string unknown, JsonText(model, "unk_token", ""));
  if (!unknown.empty()) {
    bpe.unknown = bpe.vocabulary.Find(unknown);
    if (!bpe.unknown.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.unk_token '", unknown, "' is not in the vocabulary"));
    }
  }
  // Merges name tokens, so the vocabulary is read before them; whether a missing cut matters
  // depends on the merges, so the pre-tokenizer is read after them.
  TERCIO_RETURN_IF_ERROR(ReadMerges(JsonAt(model, "merges"), &bpe));
  TERCIO_RETURN_IF_ERROR(ReadBpePreTokenizer(JsonAt(root, "pre_tokenizer"), &bpe));
  if (const json& added = JsonAt(root, "added_tokens"); !added.is_null()) {
    TERCIO_ASSIGN_OR_RETURN(bpe.added, ParseAddedTokens(added));
  }
  bpe.special = FindSpecialIds(config, bpe.vocabulary, bpe.added);
  // This is found out before the definition is moved away.
  const bool plain = bpe.merges.empty() && bpe.added.empty() && !bpe.add_prefix_space;
  TERCIO_ASSIGN_OR_RETURN(std::shared_ptr<const TokenizerModel> made,
                          MakeByteLevelBpe(std::move(bpe)));
  if (plain && IdsAreBytes(*made)) return MakeBytes();
  return made;
}

// The tokenizer `chars`: each character of a text is a token.
absl::StatusOr<std::shared_ptr<const TokenizerModel>> ParseWordLevel(const json& root) {
  const json& cuts = UnwrappedPart(JsonAt(root, "pre_tokenizer"), "pretokenizers");
  TERCIO_ASSIGN_OR_RETURN(const std::string regex, JsonText(JsonAt(cuts, "pattern"), "Regex", ""));
  TERCIO_ASSIGN_OR_RETURN(const std::string behavior, JsonText(cuts, "behavior", ""));
  if (TypeOfPart(cuts) != "Split" || regex != "[\\s\\S]" || behavior != "Isolated") {
    return UnknownPart("pre_tokenizer", cuts);
  }
  // `chars` has neither, so a file that has one would give other ids.
  for (const char* const key : {"normalizer", "added_tokens"}) {
    if (const json& value = JsonAt(root, key); !value.empty()) return UnknownPart(key, value);
  }
  if (TypeOfPart(JsonAt(root, "decoder")) != "Fuse")
    return UnknownPart("decoder", JsonAt(root, "decoder"));
  const json& model = JsonAt(root, "model");
  TERCIO_ASSIGN_OR_RETURN(const Vocabulary vocabulary,
                          Vocabulary::FromObject(JsonAt(model, "vocab")));
  TERCIO_ASSIGN_OR_RETURN(const std::string unknown, JsonText(model, "unk_token", ""));
  // With such a token the library would accept unknown characters, which `chars` refuses.
  if (vocabulary.Find(unknown).has_value()) return UnknownPart("model.unk_token", json(unknown));
  std::string characters;
  // `chars` numbers its characters without gaps, so that each id must have one.
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string* const token = vocabulary.token(id);
    if (token == nullptr || token->empty() || DecodeUtf8(*token, 0).length != token->size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.vocab: the id ", id, " is not that of a single character"));
    }
    characters += *token;
  }
  return CharsFromJson({{"characters", characters}});
}

absl::Status ReadBertNormalizer(const json& part, WordPiece* definition) {
  // Without a normalizer the library leaves a text as it is, unlike BERT's defaults.
  if (part.is_null()) {
    definition->clean_text = false;
    definition->space_chinese = false;
    definition->strip_accents = false;
    definition->lowercase = false;
    return absl::OkStatus();
  }
  if (TypeOfPart(part) != "BertNormalizer") return UnknownPart("normalizer", part);
  TERCIO_ASSIGN_OR_RETURN(definition->clean_text, JsonFlag(part, "clean_text", true));
  TERCIO_ASSIGN_OR_RETURN(definition->space_chinese, JsonFlag(part, "handle_chinese_chars", true));
  TERCIO_ASSIGN_OR_RETURN(definition->lowercase, JsonFlag(part, "lowercase", true));
  // null is the usual value, and means that accents go where capitals go.
  TERCIO_ASSIGN_OR_RETURN(definition->strip_accents,
                          JsonFlag(part, "strip_accents", definition->lowercase));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const TokenizerModel>> ParseWordPiece(const json& root,
                                                                     const json& config) {
  const json& model = JsonAt(root, "model");
  WordPiece definition;
  TERCIO_RETURN_IF_ERROR(
      ReadBertNormalizer(UnwrappedPart(JsonAt(root, "normalizer"), "normalizers"), &definition));
  const json& cuts = UnwrappedPart(JsonAt(root, "pre_tokenizer"), "pretokenizers");
  if (TypeOfPart(cuts) != "BertPreTokenizer") return UnknownPart("pre_tokenizer", cuts);
  TERCIO_ASSIGN_OR_RETURN(definition.continuation,
                          JsonText(model, "continuing_subword_prefix", "##"));
  TERCIO_ASSIGN_OR_RETURN(definition.unknown, JsonText(model, "unk_token", "[UNK]"));
  if (const json& most = JsonAt(model, "max_input_chars_per_word"); !most.is_null()) {
    // A word of more characters is unknown; the count is kept at 32 bits.
    if (!most.is_number_integer() || most.get<int64_t>() < 1 || most.get<int64_t>() > INT32_MAX) {
      return absl::InvalidArgumentError("model.max_input_chars_per_word is not a count");
    }
    definition.most_characters = most.get<int32_t>();
  }
  const json& decoder = JsonAt(root, "decoder");
  TERCIO_ASSIGN_OR_RETURN(const std::string prefix, JsonText(decoder, "prefix", "##"));
  // Decode has only one form of continuation, so encoding and decoding must agree on it.
  if (TypeOfPart(decoder) != "WordPiece" || prefix != definition.continuation) {
    return UnknownPart("decoder", decoder);
  }
  TERCIO_ASSIGN_OR_RETURN(definition.tidy_decoded, JsonFlag(decoder, "cleanup", true));
  TERCIO_ASSIGN_OR_RETURN(definition.vocabulary, Vocabulary::FromObject(JsonAt(model, "vocab")));
  if (const json& added = JsonAt(root, "added_tokens"); !added.is_null()) {
    TERCIO_ASSIGN_OR_RETURN(definition.added, ParseAddedTokens(added));
  }
  definition.special = FindSpecialIds(config, definition.vocabulary, definition.added);
  return MakeWordPiece(std::move(definition));
}

std::optional<int32_t> FindToken(std::string_view token, const Vocabulary& vocabulary,
                                 const std::vector<AddedToken>& added) {
  // The library looks for added tokens before all others, so they take precedence.
  for (const AddedToken& each : added) {
    if (each.content == token) return each.id;
  }
  return vocabulary.Find(token);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenizerModel>> ParseHuggingFaceJson(const json& root,
                                                                           const json& config) {
  const json& model = JsonAt(root, "model");
  if (!model.is_object()) {
    return absl::InvalidArgumentError("not a tokenizer.json: there is no object 'model'");
  }
  TERCIO_RETURN_IF_ERROR(CheckPostProcessor(JsonAt(root, "post_processor")));
  std::string type = TypeOfPart(model);
  // Files of early versions do not name the type.
  if (type.empty()) {
    type = model.contains("merges")                     ? "BPE"
           : model.contains("max_input_chars_per_word") ? "WordPiece"
                                                        : "";
  }
  if (type == "BPE") {
    // Both kinds call themselves BPE; their decoders and pre-tokenizers tell them apart.
    return HoldsPieces(root) ? ParseHuggingFacePieces(root, config) : ParseBpe(root, config);
  }
  if (type == "WordPiece") return ParseWordPiece(root, config);
  if (type == "WordLevel") return ParseWordLevel(root);
  return UnknownPart("model.type", JsonAt(model, "type"));
}

absl::StatusOr<std::string> MergeLine(const json& merge) {
  if (merge.is_string()) return merge.get<std::string>();
  // The library writes this form since its version 0.20, since it allows spaces in tokens.
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>());
  }
  return absl::InvalidArgumentError("model.merges has an entry that is not of two tokens");
}

absl::StatusOr<std::pair<int32_t, int32_t>> ParseMerge(const Vocabulary& vocabulary,
                                                       std::string_view line) {
  const size_t space = line.find(' ');
  // A token that holds a space cannot be told from two, so such a merge is refused.
  if (space == line.npos || line.find(' ', space + 1) != line.npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the merge '", std::string(line), "' is not of two tokens"));
  }
  const std::optional<int32_t> left = vocabulary.Find(line.substr(0, space));
  const std::optional<int32_t> right = vocabulary.Find(line.substr(space + 1));
  if (!left.has_value() || !right.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("the merge '", std::string(line),
                                                   "' has a token that is not in the vocabulary"));
  }
  return std::pair(*left, *right);
}

std::string ConfiguredToken(const json& config, const char* role) {
  const json& token = JsonAt(config, role);
  if (token.is_string()) return token.get<std::string>();
  // transformers writes a token as its text, or as an object with its flags.
  const json& content = JsonAt(token, "content");
  return content.is_string() ? content.get<std::string>() : "";
}

SpecialIds FindSpecialIds(const json& config, const Vocabulary& vocabulary,
                          const std::vector<AddedToken>& added) {
  const auto find = [&](const char* role, std::initializer_list<const char*> usual) {
    const std::string configured = ConfiguredToken(config, role);
    std::optional<int32_t> id;
    if (!configured.empty()) id = FindToken(configured, vocabulary, added);
    // Files of the library alone name no roles, so the names of well-known models are tried.
    for (const char* const name : usual) {
      if (!id.has_value()) id = FindToken(name, vocabulary, added);
    }
    return id;
  };
  return {.end_of_text = find("eos_token", {"<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]"}),
          .beginning = find("bos_token", {"<|begin_of_text|>", "<s>", "[CLS]"}),
          .pad = find("pad_token", {"[PAD]", "<pad>"}),
          .mask = find("mask_token", {"[MASK]", "<mask>"}),
          .cls = find("cls_token", {"[CLS]"}),
          .separator = find("sep_token", {"[SEP]"})};
}

}  // namespace tercio::tokenizer

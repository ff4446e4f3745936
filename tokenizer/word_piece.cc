#include "tokenizer/word_piece.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "tokenizer/byte_trie.h"
#include "tokenizer/unicode.h"
#include "tokenizer/word_cache.h"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;

constexpr char kWordPieceKind[] = "word_piece";

absl::Status WordPieceFault(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("WordPiece: ", std::string(what)));
}

// BERT's ranges, with their gap from U+2B820 to U+2B91F.
bool IsChinese(uint32_t code) {
  return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
         (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B81F) ||
         (code >= 0x2B920 && code <= 0x2CEAF) || (code >= 0xF900 && code <= 0xFAFF) ||
         (code >= 0x2F800 && code <= 0x2FA1F);
}

// The text after BERT's cleaning.
std::string Normalize(const WordPiece& rules, std::string_view text) {
  const uint8_t* const classes = CharacterClasses();
  std::u32string codes;
  codes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = DecodeUtf8(text, i);
    i += point.length;
    uint32_t code = point.code;
    if (rules.clean_text) {
      // Removal comes first, as in BERT, so that a removed character never counts as a space.
      if ((classes[code] & kBertDropped) != 0) continue;
      if ((classes[code] & kSpace) != 0) code = ' ';
    }
    // With spaces around it each such character becomes a word of its own.
    const bool spaced = rules.space_chinese && IsChinese(code);
    if (spaced) codes.push_back(' ');
    codes.push_back(code);
    if (spaced) codes.push_back(' ');
  }
  // Accents go before capitals, in the order of the library: a letter may decompose to a capital
  // with an accent.
  if (rules.strip_accents) {
    codes = Decompose(codes);
    std::erase_if(codes, [&](char32_t code) { return (classes[code] & kMark) != 0; });
  }
  if (rules.lowercase) {
    // Lower case may take two code points, so it cannot be written in place.
    std::u32string lower;
    lower.reserve(codes.size());
    for (const char32_t code : codes) AppendLowercase(code, &lower);
    codes = std::move(lower);
  }
  std::string out;
  out.reserve(text.size());
  for (const char32_t code : codes) AppendUtf8(code, &out);
  return out;
}

// Python's rules for a decoded token that follows others, applied one after the other.
std::string Tidy(std::string token) {
  constexpr std::pair<const char*, const char*> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  // The order of the rules matters, for one may produce what another replaces.
  for (const auto& rule : kRules) token = absl::StrReplaceAll(token, {rule});
  return token;
}

class WordPieceModel : public TokenizerModel {
 public:
  static absl::StatusOr<std::shared_ptr<const TokenizerModel>> Create(WordPiece definition);

  const std::string& kind() const override { return kind_; }
  int32_t vocab_size() const override { return vocab_size_; }
  const SpecialIds& special() const override { return definition_.special; }

  absl::StatusOr<std::vector<int32_t>> EncodePart(std::string_view text) const override;
  size_t FindBorder(std::string_view text, size_t from) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override;
  std::optional<std::vector<bool>> WordContinuations() const override;
  std::string ToJson() const override;

 private:
  absl::Status ReadTokens();
  void EncodePlain(std::string_view text, WordCache* cache, std::vector<int32_t>* ids) const;
  void EncodeWord(std::string_view word, std::vector<int32_t>* ids) const;

  const std::string kind_ = kWordPieceKind;
  WordPiece definition_;
  const uint32_t cache_owner_ = WordCache::NewOwner();
  int32_t vocab_size_ = 0;
  int32_t unknown_ = 0;
  std::optional<AddedTokenMatcher> added_;
  ByteTrie beginnings_;     // pieces at the beginning of words
  ByteTrie continuations_;  // without their ##
  std::vector<std::optional<std::string>> token_of_;
};

absl::StatusOr<std::shared_ptr<const TokenizerModel>> WordPieceModel::Create(WordPiece definition) {
  auto model = std::make_shared<WordPieceModel>();
  model->definition_ = std::move(definition);
  const WordPiece& rules = model->definition_;
  TERCIO_RETURN_IF_ERROR(model->ReadTokens());
  // The tokens that normalization changes are searched for in the form that it gives them.
  TERCIO_ASSIGN_OR_RETURN(model->added_,
                          AddedTokenMatcher::Create(rules.added, [&rules](std::string_view text) {
                            return Normalize(rules, text);
                          }));
  return model;
}

absl::Status WordPieceModel::ReadTokens() {
  const Vocabulary& vocabulary = definition_.vocabulary;
  TERCIO_ASSIGN_OR_RETURN(vocab_size_, SizeWithAdded(vocabulary, definition_.added));
  const std::optional<int32_t> unknown = vocabulary.Find(definition_.unknown);
  if (!unknown.has_value()) {
    return WordPieceFault(absl::StrCat("'", definition_.unknown, "' is not in the vocabulary"));
  }
  unknown_ = *unknown;
  // A limit of 0 would make every word unknown.
  if (definition_.most_characters < 1) return WordPieceFault("words of less than 1 character");
  token_of_.resize(static_cast<size_t>(vocab_size_));
  size_t bytes = 0;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string* const token = vocabulary.token(id);
    if (token == nullptr) continue;
    bytes += token->size();
    if (bytes > ByteTrie::kMostBytes)
      // The limit is that of the tries, and counts each token once, since both share it.
      return WordPieceFault("the vocabulary has more than 16 MiB of text");
    token_of_[static_cast<size_t>(id)] = *token;
    // Tokens with ## may also begin a word: there the library compares them as they are written.
    beginnings_.Insert(*token, id);
    if (token->starts_with(definition_.continuation)) {
      continuations_.Insert(std::string_view(*token).substr(definition_.continuation.size()), id);
    }
  }
  // Added tokens come second, since they may replace an entry that decodes to the same text.
  for (const AddedToken& token : definition_.added) {
    token_of_[static_cast<size_t>(token.id)] = token.content;
  }
  return absl::OkStatus();
}

void WordPieceModel::EncodeWord(std::string_view word, std::vector<int32_t>* ids) const {
  int32_t characters = 0;
  // The limit counts characters, so bytes that continue one (10xxxxxx) do not count.
  for (const char c : word) characters += static_cast<uint8_t>(c) >> 6 != 2;
  const size_t begin = ids->size();
  // A word that is too long is unknown without a search, as in BERT, which also bounds its cost.
  bool covered = characters <= definition_.most_characters;
  for (size_t at = 0; covered && at < word.size();) {
    const ByteTrie::Match match =
        (at == 0 ? beginnings_ : continuations_).LongestPrefix(word.substr(at));
    covered = match.length != 0;
    if (covered) ids->push_back(match.value);
    at += match.length;
  }
  if (covered) return;
  // One part that no token covers makes the whole word unknown.
  ids->resize(begin);
  ids->push_back(unknown_);
}

void WordPieceModel::EncodePlain(std::string_view text, WordCache* cache,
                                 std::vector<int32_t>* ids) const {
  const uint8_t* const classes = CharacterClasses();
  // A word of punctuation is encoded like any other, and may be in the cache, too.
  const auto finish = [&](size_t begin, size_t end) {
    if (begin == end) return;
    const std::string_view word = text.substr(begin, end - begin);
    WordCache::Entry* const entry = cache->Find(word, cache_owner_);
    if (entry != nullptr && entry->Get(ids)) return;
    const size_t first = ids->size();
    EncodeWord(word, ids);
    if (entry != nullptr) entry->Set({ids->data() + first, ids->size() - first});
  };
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = DecodeUtf8(text, at);
    const size_t end = at + point.length;
    if ((classes[point.code] & (kSpace | kBertPunctuation)) != 0) {
      finish(begin, at);
      // White space only divides, whereas punctuation is a word itself.
      if ((classes[point.code] & kSpace) == 0) finish(at, end);
      begin = end;
    }
    at = end;
  }
  finish(begin, text.size());
}

absl::StatusOr<std::vector<int32_t>> WordPieceModel::EncodePart(std::string_view text) const {
  std::vector<int32_t> ids;
  // Tokens of prose cover about four bytes.
  ids.reserve(text.size() / 4 + 1);
  WordCache& cache = WordCache::OfThisThread();
  const auto on_id = [&](int32_t id) { ids.push_back(id); };
  added_->SplitRaw(
      text,
      [&](std::string_view plain) {
        // Each section is normalized alone: no rule reaches over a token that was found in the raw
        // text.
        added_->SplitNormalized(
            Normalize(definition_, plain),
            [&](std::string_view words) { EncodePlain(words, &cache, &ids); }, on_id);
      },
      on_id);
  return ids;
}

// White space ends words and does not affect the cleaning of its neighbours: it does not compose,
// and accents are not moved over it.
size_t WordPieceModel::FindBorder(std::string_view text, size_t from) const {
  if (!added_->allows_cuts_at_spaces()) return text.size();
  for (size_t at = from + 1; at < text.size(); ++at) {
    if (text[at] != ' ' && text[at] != '\n') continue;
    // White space before the position could belong to an added token, which takes it.
    if ((CharacterClasses()[DecodeUtf8Before(text, at).code] & kSpace) == 0) return at;
  }
  return text.size();
}

absl::StatusOr<std::string> WordPieceModel::Decode(absl::Span<const int32_t> ids) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t id = ids[i];
    if (id < 0 || id >= vocab_size_ || !token_of_[static_cast<size_t>(id)].has_value()) {
      return UnknownId(id, vocab_size_);
    }
    std::string token = *token_of_[static_cast<size_t>(id)];
    // The first token keeps its ##, as in the library: it continues no word here.
    if (i > 0) {
      token = token.starts_with(definition_.continuation)
                  ? token.substr(definition_.continuation.size())
                  : absl::StrCat(" ", token);
    }
    // The library tidies each token by itself, so a rule never matches across two of them.
    text += definition_.tidy_decoded ? Tidy(std::move(token)) : token;
  }
  return text;
}

std::optional<std::vector<bool>> WordPieceModel::WordContinuations() const {
  std::vector<bool> continues(static_cast<size_t>(vocab_size_), false);
  for (size_t id = 0; id < continues.size(); ++id) {
    const std::optional<std::string>& token = token_of_[id];
    // The mark alone is a token like others, and continues nothing.
    continues[id] = token.has_value() && token->size() > definition_.continuation.size() &&
                    token->starts_with(definition_.continuation);
  }
  return continues;
}

std::string WordPieceModel::ToJson() const {
  return json{{"kind", kWordPieceKind},
              {"vocab_size", vocab_size_},
              {"clean_text", definition_.clean_text},
              {"space_chinese", definition_.space_chinese},
              {"strip_accents", definition_.strip_accents},
              {"lowercase", definition_.lowercase},
              {"continuation", definition_.continuation},
              {"unknown", definition_.unknown},
              {"most_characters", definition_.most_characters},
              {"tidy_decoded", definition_.tidy_decoded},
              {"vocabulary", definition_.vocabulary.ToList()},
              {"added_tokens", AddedTokensToJson(definition_.added)},
              {"special", SpecialIdsToJson(definition_.special)}}
      .dump();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenizerModel>> MakeWordPiece(WordPiece definition) {
  return WordPieceModel::Create(std::move(definition));
}

absl::StatusOr<std::shared_ptr<const TokenizerModel>> WordPieceFromJson(const json& object) {
  WordPiece definition;
  // The defaults are those of BERT's uncased models.
  TERCIO_ASSIGN_OR_RETURN(definition.clean_text, JsonFlag(object, "clean_text", true));
  TERCIO_ASSIGN_OR_RETURN(definition.space_chinese, JsonFlag(object, "space_chinese", true));
  TERCIO_ASSIGN_OR_RETURN(definition.strip_accents, JsonFlag(object, "strip_accents", true));
  TERCIO_ASSIGN_OR_RETURN(definition.lowercase, JsonFlag(object, "lowercase", true));
  TERCIO_ASSIGN_OR_RETURN(definition.tidy_decoded, JsonFlag(object, "tidy_decoded", true));
  TERCIO_ASSIGN_OR_RETURN(definition.continuation, JsonText(object, "continuation", "##"));
  TERCIO_ASSIGN_OR_RETURN(definition.unknown, JsonText(object, "unknown", "[UNK]"));
  const json& most = JsonAt(object, "most_characters");
  if (!most.is_number_integer() || most.get<int64_t>() < 1 || most.get<int64_t>() > INT32_MAX) {
    return WordPieceFault("'most_characters' is not a count");
  }
  definition.most_characters = most.get<int32_t>();
  TERCIO_ASSIGN_OR_RETURN(definition.vocabulary,
                          Vocabulary::FromList(JsonAt(object, "vocabulary")));
  // Special ids may be those of added tokens, so the size counts both.
  TERCIO_ASSIGN_OR_RETURN(definition.added, ParseAddedTokens(JsonAt(object, "added_tokens")));
  TERCIO_ASSIGN_OR_RETURN(const int32_t size,
                          SizeWithAdded(definition.vocabulary, definition.added));
  TERCIO_ASSIGN_OR_RETURN(definition.special, SpecialIdsFromJson(JsonAt(object, "special"), size));
  return MakeWordPiece(std::move(definition));
}

}  // namespace tercio::tokenizer

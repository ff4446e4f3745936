#include "tokenizer/byte_level_bpe.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tokenizer/merge_rules.h"
#include "tokenizer/unicode.h"
#include "tokenizer/word_cache.h"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;

constexpr char kByteLevelBpeKind[] = "byte_level_bpe";
constexpr int32_t kNoToken = -1;

absl::Status BpeFault(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("byte-level BPE: ", std::string(what)));
}

// The printable character of each byte: itself where it is printable in Latin-1, else the next free
// one from U+0100 on.
const std::array<uint32_t, 256>& CharacterOfByte() {
  static const std::array<uint32_t, 256> characters = [] {
    std::array<uint32_t, 256> table = {};
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      table[byte] = printable ? byte : next++;
    }
    return table;
  }();
  return characters;
}

// The bytes of a token that is written in these characters; nullopt if it has others.
std::optional<std::string> BytesOfToken(std::string_view token) {
  // The table is never destroyed, so that the order of destruction at exit does not matter.
  static const auto& byte_of = *new absl::flat_hash_map<uint32_t, char>([] {
    absl::flat_hash_map<uint32_t, char> table;
    for (size_t byte = 0; byte < 256; ++byte) {
      table[CharacterOfByte()[byte]] = static_cast<char>(byte);
    }
    return table;
  }());
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const CodePoint point = DecodeUtf8(token, i);
    const auto found = byte_of.find(point.code);
    // Not every token is made of bytes: special tokens may stand in a vocabulary as they are read.
    if (!point.valid || found == byte_of.end()) return std::nullopt;
    bytes.push_back(found->second);
    i += point.length;
  }
  return bytes;
}

class ByteLevelBpeModel : public TokenizerModel {
 public:
  static absl::StatusOr<std::shared_ptr<const TokenizerModel>> Create(ByteLevelBpe definition);

  const std::string& kind() const override { return kind_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(bytes_of_.size()); }
  const SpecialIds& special() const override { return definition_.special; }

  absl::StatusOr<std::vector<int32_t>> EncodePart(std::string_view text) const override;
  size_t FindBorder(std::string_view text, size_t from) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override;
  std::string ToJson() const override;

 private:
  absl::Status ReadTokens();
  absl::Status ReadMerges();
  bool EncodePlain(std::string_view text, WordCache* cache, std::vector<int32_t>* ids) const;
  bool EncodeWord(std::string_view word, std::vector<int32_t>* ids) const;
  absl::Status UnknownByte(std::string_view text) const;

  const std::string kind_ = kByteLevelBpeKind;
  ByteLevelBpe definition_;
  const uint32_t cache_owner_ = WordCache::NewOwner();
  std::optional<AddedTokenMatcher> added_;
  MergeRules rules_;
  std::array<int32_t, 256> byte_ids_;                     // kNoToken if there is none
  std::vector<std::optional<std::string>> bytes_of_;      // what each id decodes to
  absl::flat_hash_map<std::string, int32_t> id_of_word_;  // if merges are ignored
};

absl::StatusOr<std::shared_ptr<const TokenizerModel>> ByteLevelBpeModel::Create(
    ByteLevelBpe definition) {
  auto model = std::make_shared<ByteLevelBpeModel>();
  model->definition_ = std::move(definition);
  TERCIO_RETURN_IF_ERROR(model->ReadTokens());
  TERCIO_RETURN_IF_ERROR(model->ReadMerges());
  TERCIO_ASSIGN_OR_RETURN(
      model->added_, AddedTokenMatcher::Create(model->definition_.added, [](std::string_view text) {
        return std::string(text);
      }));
  return model;
}

absl::Status ByteLevelBpeModel::ReadTokens() {
  const Vocabulary& vocabulary = definition_.vocabulary;
  TERCIO_ASSIGN_OR_RETURN(const int32_t size, SizeWithAdded(vocabulary, definition_.added));
  bytes_of_.resize(static_cast<size_t>(size));
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string* const token = vocabulary.token(id);
    if (token == nullptr) continue;
    std::optional<std::string> bytes = BytesOfToken(*token);
    // Words are compared as bytes, so the tokens that replace their merges are kept as bytes, too.
    if (bytes.has_value() && definition_.ignore_merges) id_of_word_[*bytes] = id;
    bytes_of_[static_cast<size_t>(id)] = bytes.has_value() ? *std::move(bytes) : *token;
  }
  // Added tokens come second. They may share an id with the vocabulary, and their content is text
  // and not written in the characters of bytes.
  for (const AddedToken& token : definition_.added) {
    bytes_of_[static_cast<size_t>(token.id)] = token.content;
  }
  if (definition_.unknown.has_value() && vocabulary.token(*definition_.unknown) == nullptr) {
    return BpeFault("the unknown token is not in the vocabulary");
  }
  // A byte without a token becomes the unknown one. Only where there is none of that either does a
  // text with this byte fail.
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string character;
    AppendUtf8(CharacterOfByte()[byte], &character);
    byte_ids_[byte] = vocabulary.Find(character).value_or(definition_.unknown.value_or(kNoToken));
  }
  return absl::OkStatus();
}

absl::Status ByteLevelBpeModel::ReadMerges() {
  const Vocabulary& vocabulary = definition_.vocabulary;
  for (size_t rank = 0; rank < definition_.merges.size(); ++rank) {
    const auto& [left, right] = definition_.merges[rank];
    // ByteLevelBpeFromJson passes ids that no vocabulary has as -1, and leaves their refusal to
    // this check.
    const std::string* const left_token = vocabulary.token(left);
    const std::string* const right_token = vocabulary.token(right);
    if (left_token == nullptr || right_token == nullptr) {
      return BpeFault(absl::StrCat("merge ", rank, " is of tokens that are not in the vocabulary"));
    }
    // The format names only the two halves, so the token that they make is found by its text.
    const std::optional<int32_t> merged = vocabulary.Find(absl::StrCat(*left_token, *right_token));
    if (!merged.has_value()) {
      return BpeFault(absl::StrCat("merge ", rank, " makes '", *left_token, *right_token,
                                   "', which is not in the vocabulary"));
    }
    rules_.Set(left, right, static_cast<uint32_t>(rank), *merged);
  }
  return absl::OkStatus();
}

bool ByteLevelBpeModel::EncodeWord(std::string_view word, std::vector<int32_t>* ids) const {
  // The library takes such a word as it is (Llama 3), even where no order of merges leads to it.
  if (definition_.ignore_merges) {
    if (const auto found = id_of_word_.find(absl::string_view(word.data(), word.size()));
        found != id_of_word_.end()) {
      ids->push_back(found->second);
      return true;
    }
  }
  const size_t begin = ids->size();
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    // What was appended stays behind, since the caller drops all ids after a failure.
    if (id == kNoToken) return false;
    ids->push_back(id);
  }
  rules_.Apply(begin, ids);
  return true;
}

bool ByteLevelBpeModel::EncodePlain(std::string_view text, WordCache* cache,
                                    std::vector<int32_t>* ids) const {
  std::string prefixed;
  // AddedTokenMatcher passes no empty section, so there is a first character.
  if (definition_.add_prefix_space && text.front() != ' ') {
    prefixed.append(" ").append(text);
    text = prefixed;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = WordEnd(definition_.pattern, text, at);
    const std::string_view word = text.substr(at, end - at);
    at = end;
    WordCache::Entry* const entry = cache->Find(word, cache_owner_);
    // The cache holds only words that were encoded: a word with an unknown byte fails each time.
    if (entry != nullptr && entry->Get(ids)) continue;
    const size_t begin = ids->size();
    if (!EncodeWord(word, ids)) return false;
    if (entry != nullptr) entry->Set({ids->data() + begin, ids->size() - begin});
  }
  return true;
}

absl::StatusOr<std::vector<int32_t>> ByteLevelBpeModel::EncodePart(std::string_view text) const {
  std::vector<int32_t> ids;
  // Tokens of prose cover about four bytes; with three there is rarely a second allocation.
  ids.reserve(text.size() / 3 + 1);
  WordCache& cache = WordCache::OfThisThread();
  // The callbacks cannot stop the search, so a failure is kept until it ends.
  bool known = true;
  const auto on_id = [&](int32_t id) { ids.push_back(id); };
  added_->SplitRaw(
      text,
      [&](std::string_view plain) {
        added_->SplitNormalized(
            plain,
            [&](std::string_view words) { known = known && EncodePlain(words, &cache, &ids); },
            on_id);
      },
      on_id);
  if (!known) return UnknownByte(text);
  return ids;
}

absl::Status ByteLevelBpeModel::UnknownByte(std::string_view text) const {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte_ids_[byte] == kNoToken) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the byte ", byte, " at position ", i, " is not in the tokenizer's vocabulary; ",
          "train it with all 256 bytes in its initial alphabet"));
    }
  }
  // Each byte of the text has a token, so it was the space that EncodePlain put before it.
  return absl::InvalidArgumentError("a space is not in the tokenizer's vocabulary");
}

// Words are encoded one by one, so any border of words will do, if no added token reaches over it.
// A part that begins with a space gets no second one put before it.
size_t ByteLevelBpeModel::FindBorder(std::string_view text, size_t from) const {
  if (!added_->allows_cuts_at_spaces()) return text.size();
  for (size_t at = from + 1; at < text.size(); ++at) {
    if (definition_.add_prefix_space && text[at] != ' ') continue;
    if (IsWordBorder(definition_.pattern, text, at)) return at;
  }
  return text.size();
}

absl::StatusOr<std::string> ByteLevelBpeModel::Decode(absl::Span<const int32_t> ids) const {
  // Bytes are joined across tokens, because a character may be divided among them.
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || !bytes_of_[static_cast<size_t>(id)].has_value()) {
      return UnknownId(id, vocab_size());
    }
    text += *bytes_of_[static_cast<size_t>(id)];
  }
  return text;
}

std::string ByteLevelBpeModel::ToJson() const {
  // Ids instead of texts, in one list, keep the checkpoint small: a vocabulary has tens of
  // thousands of merges.
  json merges = json::array();
  for (const auto& [left, right] : definition_.merges) {
    merges.push_back(left);
    merges.push_back(right);
  }
  return json{{"kind", kByteLevelBpeKind},
              {"vocab_size", vocab_size()},
              {"pattern", NameOf(definition_.pattern)},
              {"add_prefix_space", definition_.add_prefix_space},
              {"ignore_merges", definition_.ignore_merges},
              {"unknown", definition_.unknown.has_value() ? json(*definition_.unknown) : json()},
              {"vocabulary", definition_.vocabulary.ToList()},
              {"merges", std::move(merges)},
              {"added_tokens", AddedTokensToJson(definition_.added)},
              {"special", SpecialIdsToJson(definition_.special)}}
      .dump();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenizerModel>> MakeByteLevelBpe(ByteLevelBpe definition) {
  return ByteLevelBpeModel::Create(std::move(definition));
}

absl::StatusOr<std::shared_ptr<const TokenizerModel>> ByteLevelBpeFromJson(const json& object) {
  ByteLevelBpe bpe;
  TERCIO_ASSIGN_OR_RETURN(const std::string pattern, JsonText(object, "pattern", ""));
  const std::optional<WordPattern> known = WordPatternNamed(pattern);
  if (!known.has_value()) return BpeFault(absl::StrCat("the pattern '", pattern, "' is unknown"));
  bpe.pattern = *known;
  TERCIO_ASSIGN_OR_RETURN(bpe.add_prefix_space, JsonFlag(object, "add_prefix_space", false));
  TERCIO_ASSIGN_OR_RETURN(bpe.ignore_merges, JsonFlag(object, "ignore_merges", false));
  TERCIO_ASSIGN_OR_RETURN(bpe.vocabulary, Vocabulary::FromList(JsonAt(object, "vocabulary")));
  if (const json& unknown = JsonAt(object, "unknown"); !unknown.is_null()) {
    if (!unknown.is_number_integer()) return BpeFault("'unknown' is not an id");
    const auto id = unknown.get<int64_t>();
    if (id < 0 || id >= bpe.vocabulary.size())
      return BpeFault("'unknown' is not in the vocabulary");
    bpe.unknown = static_cast<int32_t>(id);
  }
  const json& merges = JsonAt(object, "merges");
  if (!merges.is_array() || merges.size() % 2 != 0)
    return BpeFault("'merges' is not a list of pairs");
  for (size_t i = 0; i < merges.size(); i += 2) {
    // Anything but an id becomes -1, which ReadMerges refuses together with its rank.
    const auto id = [&](const json& entry) {
      const int64_t value = entry.is_number_integer() ? entry.get<int64_t>() : -1;
      return static_cast<int32_t>(value >= 0 && value <= INT32_MAX ? value : -1);
    };
    bpe.merges.emplace_back(id(merges[i]), id(merges[i + 1]));
  }
  TERCIO_ASSIGN_OR_RETURN(bpe.added, ParseAddedTokens(JsonAt(object, "added_tokens")));
  // Special ids may be those of added tokens, so the size counts both.
  TERCIO_ASSIGN_OR_RETURN(const int32_t size, SizeWithAdded(bpe.vocabulary, bpe.added));
  TERCIO_ASSIGN_OR_RETURN(bpe.special, SpecialIdsFromJson(JsonAt(object, "special"), size));
  return MakeByteLevelBpe(std::move(bpe));
}

}  // namespace tercio::tokenizer

#include "tokenizer/huggingface_pieces.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "tokenizer/huggingface_json.h"
#include "tokenizer/huggingface_parts.h"
#include "tokenizer/sentence_piece.h"
#include "tokenizer/unicode.h"
#include "tokenizer/vocabulary.h"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;
using Type = SentencePiece::Type;

absl::Status PiecesFault(std::string_view what) {
  return absl::InvalidArgumentError(std::string(what));
}

bool IsSpaceReplacement(const json& part) {
  return TypeOfPart(part) == "Replace" && JsonAt(JsonAt(part, "pattern"), "String") == json(" ") &&
         JsonAt(part, "content") == json(kSpaceSymbol);
}

// Spaces become symbols, and one may be put before a text.
absl::Status ReadMetaspace(const json& part, SentencePiece* pieces) {
  TERCIO_ASSIGN_OR_RETURN(const std::string scheme, JsonText(part, "prepend_scheme", "always"));
  const bool prefix = scheme != "never";
  // Older versions of the library write add_prefix_space; where both stand in a file they have to
  // agree.
  TERCIO_ASSIGN_OR_RETURN(const bool old_prefix, JsonFlag(part, "add_prefix_space", prefix));
  if (JsonAt(part, "replacement") != json(kSpaceSymbol) || (prefix && !old_prefix) ||
      (scheme != "always" && scheme != "first" && prefix)) {
    return UnknownPart("pre_tokenizer", part);
  }
  SentencePiece::Metaspace how;
  how.first_only = scheme == "first";
  TERCIO_ASSIGN_OR_RETURN(how.splits, JsonFlag(part, "split", true));
  pieces->metaspace = how;
  pieces->rules.add_dummy_prefix = prefix;
  return absl::OkStatus();
}

// Replace alone, or after Prepend.
absl::Status ReadNormalizer(const json& given, SentencePieceRules* rules) {
  const json& part = UnwrappedPart(given, "normalizers");
  if (IsSpaceReplacement(part)) return absl::OkStatus();
  const json& parts = JsonAt(part, "normalizers");
  if (TypeOfPart(part) != "Sequence" || !parts.is_array() || parts.size() != 2 ||
      TypeOfPart(parts[0]) != "Prepend" || JsonAt(parts[0], "prepend") != json(kSpaceSymbol) ||
      !IsSpaceReplacement(parts[1])) {
    return UnknownPart("normalizer", given);
  }
  rules->add_dummy_prefix = true;
  return absl::OkStatus();
}

absl::Status ReadSpaces(const json& root, SentencePiece* pieces) {
  const json& normalizer = JsonAt(root, "normalizer");
  const json& cuts = UnwrappedPart(JsonAt(root, "pre_tokenizer"), "pretokenizers");
  // Hugging Face's parts leave extra spaces alone, whereas SentencePiece collapses them by default.
  pieces->rules.remove_extra_whitespaces = false;
  pieces->rules.add_dummy_prefix = false;
  if (cuts.is_null()) return ReadNormalizer(normalizer, &pieces->rules);
  if (!UnwrappedPart(normalizer, "normalizers").is_null()) {
    return UnknownPart("with Metaspace, the normalizer", normalizer);
  }
  return ReadMetaspace(cuts, pieces);
}

// One space is removed from the beginning of a decoded text if one was put there.
absl::Status CheckDecoder(const json& decoder, bool prefix) {
  const json& parts = JsonAt(decoder, "decoders");
  bool strips = false;
  bool known = TypeOfPart(decoder) == "Sequence" && parts.is_array();
  for (size_t i = 0; known && i < parts.size(); ++i) {
    const std::string type = TypeOfPart(parts[i]);
    strips = strips || type == "Strip";
    // Decode has a counterpart for these four and for nothing else.
    known = type == "Replace" || type == "ByteFallback" || type == "Fuse" || type == "Strip";
  }
  return known && strips == prefix ? absl::OkStatus() : UnknownPart("decoder", decoder);
}

// Byte pieces have exactly this form, with two hexadecimal digits; SentencePiece::Model checks that
// these name a byte.
bool IsByteToken(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

bool IsOneCharacter(std::string_view text) {
  return !text.empty() && DecodeUtf8(text, 0).length == text.size();
}

// The tokens that merges make, and whether SentencePiece would make the same.
class MergeOrder {
 public:
  explicit MergeOrder(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  absl::Status Read(const json& merges);
  // The position of a token among those that merges make; none if no merge makes it.
  std::optional<size_t> PlaceOf(int32_t token) const {
    const auto found = places_.find(token);
    if (found == places_.end()) return std::nullopt;
    return found->second;
  }
  size_t count() const { return places_.size(); }
  // Whether two symbols of a text could be adjacent and make this token.
  bool CanBeMade(std::string_view token) const {
    return FirstHalf(token, [](std::string_view, std::string_view) { return true; }) != 0;
  }

 private:
  absl::Status Add(int32_t left, int32_t right);
  absl::Status CheckComplete() const;
  bool IsSymbol(std::string_view text) const {
    if (IsOneCharacter(text)) return true;
    const std::optional<int32_t> id = vocabulary_.Find(text);
    return id.has_value() && places_.contains(*id);
  }
  // The length of the first half with which two symbols make the token and `wanted` is true; 0 for
  // none.
  template <typename Wanted>
  size_t FirstHalf(std::string_view token, const Wanted& wanted) const {
    for (size_t at = 1; at < token.size(); ++at) {
      if (static_cast<uint8_t>(token[at]) >> 6 == 2) continue;  // within a character
      const std::string_view left = token.substr(0, at);
      const std::string_view right = token.substr(at);
      if (IsSymbol(left) && IsSymbol(right) && wanted(left, right)) return at;
    }
    return 0;
  }

  const Vocabulary& vocabulary_;
  absl::flat_hash_map<int32_t, size_t> places_;
  absl::flat_hash_set<std::pair<int32_t, int32_t>> pairs_;
  int32_t last_ = -1;
};

absl::Status MergeOrder::Read(const json& merges) {
  if (!merges.is_array()) return PiecesFault("model.merges is not a list");
  for (const json& merge : merges) {
    TERCIO_ASSIGN_OR_RETURN(const std::string line, MergeLine(merge));
    TERCIO_ASSIGN_OR_RETURN(const auto pair, ParseMerge(vocabulary_, line));
    TERCIO_RETURN_IF_ERROR(Add(pair.first, pair.second));
  }
  return CheckComplete();
}

absl::Status MergeOrder::Add(int32_t left, int32_t right) {
  // ParseMerge has found both ids in the vocabulary, so neither is null.
  const std::string& first = *vocabulary_.token(left);
  const std::string& second = *vocabulary_.token(right);
  const std::optional<int32_t> made = vocabulary_.Find(absl::StrCat(first, second));
  if (!made.has_value()) {
    return PiecesFault(absl::StrCat("the merge '", first, " ", second,
                                    "' makes a token that is not in the vocabulary"));
  }
  // SentencePiece falls back to bytes only after all joining, and never joins them.
  if (IsByteToken(first) || IsByteToken(second)) {
    return PiecesFault(
        absl::StrCat("the merge '", first, " ", second, "' of bytes is not supported"));
  }
  // A piece has one score, so all merges that make it must be neighbours in the order.
  if (*made != last_ && !places_.emplace(*made, places_.size()).second) {
    return PiecesFault(
        absl::StrCat("the merge '", first, " ", second,
                     "' stands apart from the others that make its token, which is not supported"));
  }
  last_ = *made;
  pairs_.emplace(left, right);
  return absl::OkStatus();
}

absl::Status MergeOrder::CheckComplete() const {
  // SentencePiece joins every pair that makes a piece, also one that the file does not list.
  for (const auto& [id, place] : places_) {
    const std::string_view token = *vocabulary_.token(id);
    const size_t at = FirstHalf(token, [&](std::string_view left, std::string_view right) {
      const auto first = vocabulary_.Find(left);
      const auto second = vocabulary_.Find(right);
      return !first.has_value() || !second.has_value() || !pairs_.contains({*first, *second});
    });
    if (at == 0) continue;
    return PiecesFault(absl::StrCat("model.merges lack '", std::string(token.substr(0, at)), " ",
                                    std::string(token.substr(at)), "', which is not supported"));
  }
  return absl::OkStatus();
}

// New tokens get ids after the vocabulary: they are pieces, too, but no text contains them.
absl::Status AppendAdded(const std::vector<AddedToken>& added, SentencePiece* model) {
  for (const AddedToken& token : added) {
    const auto id = static_cast<size_t>(token.id);
    if (id < model->pieces.size()) continue;  // SentencePiece checks its text
    if (id > model->pieces.size()) {
      return PiecesFault(
          absl::StrCat("added_tokens: '", token.content, "' leaves ids without a token"));
    }
    model->pieces.push_back({token.content, 0, Type::kControl});
  }
  return absl::OkStatus();
}

// Scores fall in the order of the merges; those of pieces that no merge makes follow.
absl::Status ReadPieces(const Vocabulary& vocabulary, const MergeOrder& order,
                        const std::string& unknown, SentencePiece* model) {
  size_t next = order.count();
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string* const token = vocabulary.token(id);
    if (token == nullptr)
      return PiecesFault(absl::StrCat("model.vocab has no token with the id ", id));
    Type type = Type::kNormal;
    const std::optional<size_t> place = order.PlaceOf(id);
    if (*token == unknown) {
      type = Type::kUnknown;
    } else if (model->byte_fallback && IsByteToken(*token)) {
      type = Type::kByte;
    } else if (!place.has_value() && !IsOneCharacter(*token) && order.CanBeMade(*token)) {
      type = Type::kControl;  // SentencePiece would make it of two, though no merge does
    }
    // fp32 holds these ranks exactly up to 2^24, which vocabularies do not reach.
    const size_t rank = place.has_value() ? *place : type == Type::kNormal ? next++ : 0;
    model->pieces.push_back({*token, -static_cast<float>(rank), type});
  }
  return absl::OkStatus();
}

}  // namespace

bool HoldsPieces(const json& root) {
  const json& cuts = UnwrappedPart(JsonAt(root, "pre_tokenizer"), "pretokenizers");
  return (cuts.is_null() || TypeOfPart(cuts) == "Metaspace") &&
         TypeOfPart(JsonAt(root, "decoder")) != "ByteLevel";
}

absl::StatusOr<std::shared_ptr<const TokenizerModel>> ParseHuggingFacePieces(const json& root,
                                                                             const json& config) {
  const json& model = JsonAt(root, "model");
  SentencePiece pieces;
  pieces.algorithm = SentencePiece::Algorithm::kBpe;
  TERCIO_RETURN_IF_ERROR(ReadSpaces(root, &pieces));
  TERCIO_RETURN_IF_ERROR(CheckDecoder(JsonAt(root, "decoder"), pieces.rules.add_dummy_prefix));
  TERCIO_RETURN_IF_ERROR(ExpectNone(
      model, {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"}));
  TERCIO_ASSIGN_OR_RETURN(pieces.byte_fallback, JsonFlag(model, "byte_fallback", false));
  TERCIO_ASSIGN_OR_RETURN(const bool fuses, JsonFlag(model, "fuse_unk", false));
  // SentencePiece always makes one piece of a run of unknown characters.
  if (!fuses && !pieces.byte_fallback) return UnknownPart("model.fuse_unk", json(false));
  TERCIO_ASSIGN_OR_RETURN(const std::string unknown, JsonText(model, "unk_token", ""));
  TERCIO_ASSIGN_OR_RETURN(const Vocabulary vocabulary,
                          Vocabulary::FromObject(JsonAt(model, "vocab")));
  // The library restarts a run of unknown characters in every word.
  if (pieces.metaspace.has_value() && pieces.metaspace->splits && !pieces.byte_fallback &&
      !vocabulary.Find(kSpaceSymbol).has_value()) {
    return PiecesFault("model.vocab lacks the symbol of the space, at which Metaspace splits");
  }
  MergeOrder order(vocabulary);
  TERCIO_RETURN_IF_ERROR(order.Read(JsonAt(model, "merges")));
  TERCIO_RETURN_IF_ERROR(ReadPieces(vocabulary, order, unknown, &pieces));
  pieces.unknown_surface = unknown;
  if (const json& added = JsonAt(root, "added_tokens"); !added.is_null()) {
    TERCIO_ASSIGN_OR_RETURN(pieces.added, ParseAddedTokens(added));
    TERCIO_RETURN_IF_ERROR(SizeWithAdded(vocabulary, pieces.added).status());
    TERCIO_RETURN_IF_ERROR(AppendAdded(pieces.added, &pieces));
  }
  pieces.special = FindSpecialIds(config, vocabulary, pieces.added);
  std::vector<std::optional<int32_t>> apart = {pieces.special.beginning, pieces.special.end_of_text,
                                               pieces.special.pad};
  for (const AddedToken& token : pieces.added) apart.emplace_back(token.id);
  // Special tokens are not parts of words: no text is to produce them.
  for (const std::optional<int32_t>& id : apart) {
    if (!id.has_value() || order.PlaceOf(*id).has_value()) continue;
    SentencePiece::Piece& piece = pieces.pieces[static_cast<size_t>(*id)];
    if (piece.type == Type::kNormal && !IsOneCharacter(piece.text)) {
      piece = {piece.text, 0, Type::kControl};
    }
  }
  return MakeSentencePiece(std::move(pieces));
}

}  // namespace tercio::tokenizer

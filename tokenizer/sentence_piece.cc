#include "tokenizer/sentence_piece.h"

#include <array>
#include <cfloat>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "tokenizer/byte_trie.h"
#include "tokenizer/sentence_piece_merges.h"
#include "tokenizer/unicode.h"
#include "tokenizer/vocabulary.h"
#include "tokenizer/word_cache.h"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;
using Type = SentencePiece::Type;

constexpr char kSentencePieceKind[] = "sentence_piece";
// The score of an unknown character is this much below that of the worst piece.
constexpr float kUnknownPenalty = 10.0f;
// Unigram's sums start over at the first word after this many bytes: in fp32 a sum over a book has
// no digits left for the next word.
constexpr size_t kStretch = size_t{128} << 10;
// The score of a user-defined piece for each byte but the first: with other scores below 0 it
// always wins, and the longer of two does. As in version 0.2.3 of the library.
constexpr float kUserDefinedScore = 0.1f;
// Stands for an added token in a prepared text: this byte, which UTF-8 does not have, then its id
// in bytes of seven bits, which no space symbol has.
constexpr char kBorderMark = '\xff';
constexpr size_t kBorderMarkBytes = 6;

absl::Status SentencePieceFault(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("SentencePiece: ", std::string(what)));
}

// Bytes of the character that a byte begins; 1 if it begins none.
size_t CharacterLength(char first) {
  constexpr uint8_t kLengths[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
  return kLengths[static_cast<uint8_t>(first) >> 4];
}

void AppendMark(int32_t id, std::string* text) {
  text->push_back(kBorderMark);
  for (size_t i = 1; i < kBorderMarkBytes; ++i) {
    text->push_back(static_cast<char>(id & 127));
    id >>= 7;
  }
}

// REQUIRES: a whole mark at the beginning.
int32_t IdOfMark(std::string_view mark) {
  uint32_t id = 0;
  for (size_t i = kBorderMarkBytes - 1; i > 0; --i)
    id = id << 7 | (static_cast<uint8_t>(mark[i]) & 127u);
  return static_cast<int32_t>(id);
}

class SentencePieceModel : public TokenizerModel {
 public:
  static absl::StatusOr<std::shared_ptr<const TokenizerModel>> Create(SentencePiece definition);

  const std::string& kind() const override { return kind_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(definition_.pieces.size()); }
  const SpecialIds& special() const override { return definition_.special; }

  std::optional<std::string> Prepare(std::string_view text) const override;
  absl::StatusOr<std::vector<int32_t>> EncodePart(std::string_view text) const override;
  size_t FindBorder(std::string_view text, size_t from) const override;
  void Join(const std::vector<int32_t>& next, std::vector<int32_t>* ids) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override;
  std::optional<std::vector<bool>> WordContinuations() const override;
  std::string ToJson() const override;

 private:
  absl::Status ReadPieces();
  absl::Status CheckAdded() const;
  void PrepareBetweenAdded(std::string_view plain, bool begins_text, std::string* prepared) const;
  std::string FormOf(std::string_view added_token) const;
  std::string WithMetaspace(std::string_view section, bool begins_text) const;
  absl::Status ReadBytePiece(int32_t id);
  bool WordsStandAlone() const;
  bool Splits() const { return definition_.metaspace.has_value() && definition_.metaspace->splits; }
  const SentencePiece::Piece& piece(int32_t id) const {
    return definition_.pieces[static_cast<size_t>(id)];
  }
  int32_t IdOf(std::string_view text) const {
    const auto found = id_of_.find(text);
    return found == id_of_.end() ? unknown_ : found->second;
  }
  std::vector<int32_t> EncodePlain(std::string_view text) const;
  void EncodeUnigram(std::string_view text, std::vector<int32_t>* ids) const;
  void EncodeBpe(std::string_view text, std::vector<int32_t>* ids) const;
  void Append(std::string_view text, int32_t id, std::vector<int32_t>* ids) const;
  size_t WordEnd(std::string_view text, size_t from) const;
  size_t StretchEnd(std::string_view text, size_t begin) const;

  const std::string kind_ = kSentencePieceKind;
  SentencePiece definition_;
  const uint32_t cache_owner_ = WordCache::NewOwner();
  std::optional<SentencePieceNormalizer> normalizer_;
  std::optional<AddedTokenMatcher> added_;
  absl::flat_hash_map<int32_t, std::string> added_surfaces_;  // the text that each decodes to
  int32_t unknown_ = -1;
  std::array<int32_t, 256> byte_ids_;              // -1 if there is none
  absl::flat_hash_map<int32_t, uint8_t> byte_of_;  // bytes of the byte pieces
  float least_score_ = FLT_MAX;
  absl::flat_hash_map<std::string_view, int32_t> id_of_;  // views of definition_.pieces
  ByteTrie matched_;                                      // normal, user-defined and unused pieces
  ByteTrie user_defined_;
  bool words_stand_alone_ = false;
};

absl::StatusOr<std::shared_ptr<const TokenizerModel>> SentencePieceModel::Create(
    SentencePiece definition) {
  auto model = std::make_shared<SentencePieceModel>();
  model->definition_ = std::move(definition);
  // All that follows asks the pieces, so they are checked and indexed first.
  TERCIO_RETURN_IF_ERROR(model->ReadPieces());
  // Rules of normalization would change the text of these pieces, which is found as it is written.
  std::vector<std::string> untouched;
  for (const SentencePiece::Piece& piece : model->definition_.pieces) {
    if (piece.type == Type::kUserDefined) untouched.push_back(piece.text);
  }
  SentencePieceRules rules = model->definition_.rules;
  if (model->definition_.metaspace.has_value()) rules.add_dummy_prefix = false;  // WithMetaspace
  TERCIO_ASSIGN_OR_RETURN(model->normalizer_,
                          SentencePieceNormalizer::Create(std::move(rules), untouched));
  model->words_stand_alone_ = model->Splits() || model->WordsStandAlone();
  // The matcher normalizes the tokens, so those that cannot be supported are refused before.
  TERCIO_RETURN_IF_ERROR(model->CheckAdded());
  TERCIO_ASSIGN_OR_RETURN(model->added_, AddedTokenMatcher::Create(
                                             model->definition_.added, [&](std::string_view text) {
                                               return model->definition_.metaspace.has_value()
                                                          ? std::string(text)
                                                          : model->normalizer_->Normalize(text);
                                             }));
  // As in the library (0.23): in the form in which it is found.
  for (const AddedToken& token : model->definition_.added) {
    const std::string form = token.normalized ? model->FormOf(token.content) : token.content;
    model->added_surfaces_[token.id] = absl::StrReplaceAll(form, {{"\u2581", " "}});
  }
  return model;
}

absl::Status SentencePieceModel::CheckAdded() const {
  // Decode and vocab_size know pieces only, so each added token has to be one.
  const SentencePieceRules& rules = definition_.rules;
  for (const AddedToken& token : definition_.added) {
    if (token.id >= vocab_size() || piece(token.id).text != token.content) {
      return SentencePieceFault(
          absl::StrCat("the added token '", token.content, "' is not the piece ", token.id));
    }
  }
  const bool changes_texts = !rules.charsmap.empty() || rules.remove_extra_whitespaces ||
                             !rules.escape_whitespaces || rules.whitespace_as_suffix;
  if (!definition_.added.empty() && changes_texts) {
    return SentencePieceFault(
        "added tokens together with rules that change a text are not supported");
  }
  if (definition_.metaspace.has_value() &&
      (changes_texts || definition_.algorithm != SentencePiece::Algorithm::kBpe)) {
    return SentencePieceFault(
        "Metaspace with unigram, or together with rules that change a text, is not supported");
  }
  return absl::OkStatus();
}

// The form of an added token that is searched for in normalized text.
std::string SentencePieceModel::FormOf(std::string_view added_token) const {
  return definition_.metaspace.has_value() ? std::string(added_token)
                                           : normalizer_->Normalize(added_token);
}

// Added tokens become marks, so that EncodePart, which may see any part, need not find them again.
std::optional<std::string> SentencePieceModel::Prepare(std::string_view text) const {
  std::string prepared;
  added_->SplitRaw(
      text,
      [&](std::string_view plain) {
        // Only the first section begins the text, which decides on its prefix.
        PrepareBetweenAdded(plain, plain.data() == text.data(), &prepared);
      },
      [&](int32_t id) { AppendMark(id, &prepared); });
  return prepared;
}

// Normalizers come before the tokens that are searched for in normalized text, Metaspace after
// them.
void SentencePieceModel::PrepareBetweenAdded(std::string_view plain, bool begins_text,
                                             std::string* prepared) const {
  const auto mark = [&](int32_t id) { AppendMark(id, prepared); };
  if (!definition_.metaspace.has_value()) {
    added_->SplitNormalized(
        normalizer_->Normalize(plain), [&](std::string_view section) { *prepared += section; },
        mark);
    return;
  }
  added_->SplitNormalized(
      plain,
      [&](std::string_view section) {
        *prepared += WithMetaspace(section, begins_text && section.data() == plain.data());
      },
      mark);
}

std::string SentencePieceModel::WithMetaspace(std::string_view section, bool begins_text) const {
  std::string text = normalizer_->Normalize(section);
  // A section that begins with a space already keeps it as its prefix, unlike in SentencePiece.
  const bool wanted =
      definition_.rules.add_dummy_prefix && (begins_text || !definition_.metaspace->first_only);
  if (wanted && !text.starts_with(kSpaceSymbol)) text.insert(0, kSpaceSymbol);
  return text;
}

absl::Status SentencePieceModel::ReadPieces() {
  size_t bytes = 0;
  byte_ids_.fill(-1);
  // The surface is appended to decoded text, which is UTF-8.
  if (!IsUtf8(definition_.unknown_surface)) return SentencePieceFault("unk_surface is not UTF-8");
  for (size_t i = 0; i < definition_.pieces.size(); ++i) {
    const SentencePiece::Piece& known = definition_.pieces[i];
    const auto id = static_cast<int32_t>(i);
    bytes += known.text.size();
    // The limit is that of the tries, which hold nearly all pieces.
    if (bytes > ByteTrie::kMostBytes) return SentencePieceFault("more than 16 MiB of pieces");
    if (known.text.empty() || !IsUtf8(known.text)) {
      return SentencePieceFault(absl::StrCat("piece ", i, " is empty or not UTF-8"));
    }
    if (!std::isfinite(known.score))
      // A comparison with NaN is always false, and would leave a text without a cover.
      return SentencePieceFault(absl::StrCat("piece ", i, " has no score"));
    // The keys are views, so the list of pieces does not change after this.
    if (!id_of_.emplace(known.text, id).second) {
      return SentencePieceFault(absl::StrCat("the piece '", known.text, "' appears twice"));
    }
    if (known.type == Type::kUnknown) {
      if (unknown_ != -1) return SentencePieceFault("there are two unknown pieces");
      unknown_ = id;
    }
    // An unknown character costs more than any normal piece, so this is the lowest of their scores.
    if (known.type == Type::kNormal) least_score_ = std::min(least_score_, known.score);
    if (known.type == Type::kNormal || known.type == Type::kUserDefined ||
        known.type == Type::kUnused) {
      matched_.Insert(known.text, id);
    }
    if (known.type == Type::kUserDefined) user_defined_.Insert(known.text, id);
    if (known.type == Type::kByte) TERCIO_RETURN_IF_ERROR(ReadBytePiece(id));
  }
  // Texts may hold characters that no piece covers, whatever the pieces are.
  if (unknown_ == -1) return SentencePieceFault("there is no unknown piece");
  // Append looks up any byte, so with byte fallback all 256 need a piece.
  for (size_t byte = 0; byte < 256; ++byte) {
    if (definition_.byte_fallback && byte_ids_[byte] == -1) {
      return SentencePieceFault(absl::StrFormat("byte fallback without the piece <0x%02X>", byte));
    }
  }
  return absl::OkStatus();
}

absl::Status SentencePieceModel::ReadBytePiece(int32_t id) {
  const std::string& text = piece(id).text;
  if (!definition_.byte_fallback) {
    return SentencePieceFault(absl::StrCat("the byte piece '", text, "' without byte fallback"));
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    if (text != absl::StrFormat("<0x%02X>", byte)) continue;
    byte_ids_[byte] = id;
    byte_of_[id] = static_cast<uint8_t>(byte);
    return absl::OkStatus();
  }
  return SentencePieceFault(absl::StrCat("the byte piece '", text, "' names no byte"));
}

// Whether no piece reaches across a space that follows another character, so that words can be
// encoded separately. BPE may also take unused pieces apart as it saw them made elsewhere.
bool SentencePieceModel::WordsStandAlone() const {
  // Words are found by the symbol of the space, which a text without escaping does not have.
  if (!definition_.rules.escape_whitespaces) return false;
  const bool bpe = definition_.algorithm == SentencePiece::Algorithm::kBpe;
  for (const SentencePiece::Piece& piece : definition_.pieces) {
    if (piece.type == Type::kUnused && bpe) return false;
    if (piece.type != Type::kNormal && piece.type != Type::kUserDefined) continue;
    const std::string_view text = piece.text;
    for (size_t at = text.find(kSpaceSymbol, 1); at != text.npos;
         at = text.find(kSpaceSymbol, at + 1)) {
      if (!text.substr(0, at).ends_with(kSpaceSymbol)) return false;
    }
  }
  return true;
}

// The first position after `from` at which a word begins: a space that follows another character,
// or any space if Metaspace splits. Else the end.
size_t SentencePieceModel::WordEnd(std::string_view text, size_t from) const {
  for (size_t at = text.find(kSpaceSymbol, from + 1); at != text.npos;
       at = text.find(kSpaceSymbol, at + 1)) {
    if (Splits() || !text.substr(0, at).ends_with(kSpaceSymbol)) return at;
  }
  return text.size();
}

// The end of a stretch of unigram text that begins at `begin`.
size_t SentencePieceModel::StretchEnd(std::string_view text, size_t begin) const {
  // Where words depend on each other a sum may restart nowhere, however long the text is.
  if (!words_stand_alone_ || text.size() - begin <= kStretch) return text.size();
  return WordEnd(text, begin + kStretch - 1);
}

// BPE may be cut at every word. Rounding errors of unigram's sums decide between covers that are
// equally good, so it may be cut only where EncodePart restarts its sums.
size_t SentencePieceModel::FindBorder(std::string_view text, size_t from) const {
  if (!words_stand_alone_) return text.size();
  // Join would take the unknown piece after one that was found as an added token for its run.
  if (!definition_.added.empty() && !definition_.byte_fallback) return text.size();
  if (definition_.algorithm == SentencePiece::Algorithm::kBpe) return WordEnd(text, from);
  size_t end = 0;
  // The borders are those of EncodePlain on the whole text, which counts from its beginning.
  while (end <= from && end < text.size()) end = StretchEnd(text, end);
  return end;
}

// A run of unknown characters has one id, also over borders.
void SentencePieceModel::Join(const std::vector<int32_t>& next, std::vector<int32_t>* ids) const {
  const bool goes_on =
      !next.empty() && next[0] == unknown_ && !ids->empty() && ids->back() == unknown_;
  ids->insert(ids->end(), next.begin() + (goes_on ? 1 : 0), next.end());
}

void SentencePieceModel::Append(std::string_view text, int32_t id,
                                std::vector<int32_t>* ids) const {
  if (id != unknown_) {
    ids->push_back(id);
  } else if (definition_.byte_fallback) {
    for (const char c : text) ids->push_back(byte_ids_[static_cast<uint8_t>(c)]);
  } else if (ids->empty() || ids->back() != unknown_) {
    ids->push_back(id);
  }
}

absl::StatusOr<std::vector<int32_t>> SentencePieceModel::EncodePart(std::string_view text) const {
  if (definition_.added.empty()) return EncodePlain(text);
  std::vector<int32_t> ids;
  while (!text.empty()) {
    // The size is checked, since IdOfMark needs a whole mark.
    if (text.size() >= kBorderMarkBytes && text[0] == kBorderMark) {
      ids.push_back(IdOfMark(text));
      text.remove_prefix(kBorderMarkBytes);
      continue;
    }
    // The search for the next mark may begin at the second byte: the first one is not a mark here,
    // or stands alone.
    const size_t end = std::min(text.find(kBorderMark, 1), text.size());
    const std::vector<int32_t> plain = EncodePlain(text.substr(0, end));
    ids.insert(ids.end(), plain.begin(), plain.end());
    text.remove_prefix(end);
  }
  return ids;
}

std::vector<int32_t> SentencePieceModel::EncodePlain(std::string_view text) const {
  std::vector<int32_t> ids;
  if (definition_.algorithm == SentencePiece::Algorithm::kUnigram) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = StretchEnd(text, at);
      // Each stretch gets ids of its own, as a thread of its own would give them, and Join fuses a
      // run that crosses the border.
      std::vector<int32_t> stretch;
      EncodeUnigram(text.substr(at, end - at), &stretch);
      Join(stretch, &ids);
      at = end;
    }
    return ids;
  }
  if (!words_stand_alone_) {
    EncodeBpe(text, &ids);
    return ids;
  }
  WordCache& cache = WordCache::OfThisThread();
  // What the cache remembers must not depend on the word before, so words are encoded apart.
  std::vector<int32_t> word_ids;
  for (size_t at = 0; at < text.size();) {
    const size_t end = WordEnd(text, at);
    const std::string_view word = text.substr(at, end - at);
    at = end;
    word_ids.clear();
    WordCache::Entry* const entry = cache.Find(word, cache_owner_);
    if (entry == nullptr || !entry->Get(&word_ids)) {
      EncodeBpe(word, &word_ids);
      if (entry != nullptr) entry->Set(word_ids);
    }
    Join(word_ids, &ids);
  }
  return ids;
}

// The best cover of each prefix of the text, from left to right; the comparisons and the precision
// are the library's, since they decide between covers that are equally good.
void SentencePieceModel::EncodeUnigram(std::string_view text, std::vector<int32_t>* ids) const {
  struct Best {
    float score = 0;
    int32_t id = -1;
    uint32_t length = 0;  // length of the last piece; 0: no cover ends here yet
  };
  std::vector<Best> best(text.size() + 1);
  const float unknown_score = least_score_ - kUnknownPenalty;
  size_t character = 0;
  for (size_t begin = 0; begin < text.size(); begin += character) {
    character = std::min(CharacterLength(text[begin]), text.size() - begin);
    const float score = best[begin].score;
    bool covers_character = false;
    int32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < text.size();) {
      node = matched_.Step(node, static_cast<uint8_t>(text[end++]));
      if (node == ByteTrie::kNone) break;
      const int32_t id = matched_.value(node);
      // Unigram never uses these pieces; they only keep the place of their id.
      if (id == ByteTrie::kNone || piece(id).type == Type::kUnused) continue;
      const size_t length = end - begin;
      const float gain = piece(id).type == Type::kUserDefined
                             ? static_cast<float>(length - 1) * kUserDefinedScore
                             : piece(id).score;
      Best& target = best[end];
      // Among equal sums the first one stays, as in the library.
      if (target.length == 0 || gain + score > target.score) {
        target = {gain + score, id, static_cast<uint32_t>(length)};
      }
      covers_character = covers_character || length == character;
    }
    Best& target = best[begin + character];
    // Where a piece is exactly this character the unknown one is not considered, as in the library.
    if (!covers_character && (target.length == 0 || unknown_score + score > target.score)) {
      target = {unknown_score + score, unknown_, static_cast<uint32_t>(character)};
    }
  }
  // The covers are linked from the end to the beginning, whereas ids are wanted from the beginning.
  std::vector<size_t> ends;
  for (size_t end = text.size(); end > 0; end -= best[end].length) ends.push_back(end);
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Best& last = best[*end];
    Append(text.substr(*end - last.length, last.length), last.id, ids);
  }
}

void SentencePieceModel::EncodeBpe(std::string_view text, std::vector<int32_t>* ids) const {
  std::vector<PieceSymbol> symbols;
  for (size_t at = 0; at < text.size();) {
    // A user-defined piece is found before any joining, and no joining may change it.
    const size_t whole = user_defined_.LongestPrefix(text.substr(at)).length;
    const size_t length =
        whole != 0 ? whole : std::min(CharacterLength(text[at]), text.size() - at);
    symbols.push_back({text.substr(at, length), /*frozen=*/whole != 0});
    at += length;
  }
  const auto score_of = [&](std::string_view joined) -> std::optional<PieceScore> {
    const auto found = id_of_.find(joined);
    if (found == id_of_.end()) return std::nullopt;
    const SentencePiece::Piece& known = piece(found->second);
    // The library joins nothing into the other kinds: control pieces are never made by a text.
    if (known.type != Type::kNormal && known.type != Type::kUserDefined &&
        known.type != Type::kUnused) {
      return std::nullopt;
    }
    return PieceScore{known.score, known.type == Type::kUnused};
  };
  for (const std::string_view part : MergePieces(std::move(symbols), score_of)) {
    Append(part, IdOf(part), ids);
  }
}

absl::StatusOr<std::string> SentencePieceModel::Decode(absl::Span<const int32_t> ids) const {
  const SentencePieceRules& rules = definition_.rules;
  std::string text;
  std::string bytes;  // bytes of a run of byte pieces
  const auto flush = [&] {
    for (size_t i = 0; i < bytes.size();) {
      // Bytes that are not UTF-8 become U+FFFD, as in the library.
      const CodePoint point = DecodeUtf8(bytes, i);
      AppendUtf8(point.code, &text);
      i += point.length;
    }
    bytes.clear();
  };
  bool at_beginning = true;
  bool dropped_space = false;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) return UnknownId(id, vocab_size());
    const SentencePiece::Piece& known = piece(id);
    if (known.type == Type::kByte) {
      bytes.push_back(static_cast<char>(byte_of_.at(id)));
      continue;
    }
    flush();
    // A prefix that was removed ends the beginning as a text does: the next space is one of the
    // text.
    if (dropped_space || !text.empty()) at_beginning = false;
    dropped_space = false;
    if (const auto added = added_surfaces_.find(id); added != added_surfaces_.end()) {
      std::string_view surface = added->second;
      dropped_space = at_beginning && rules.add_dummy_prefix && surface.starts_with(' ');
      if (dropped_space) surface.remove_prefix(1);
      text += surface;
      continue;
    }
    if (known.type == Type::kControl) continue;
    if (known.type == Type::kUnknown) {
      text += definition_.unknown_surface;
      continue;
    }
    std::string_view surface = known.text;
    if (at_beginning && (rules.add_dummy_prefix || rules.remove_extra_whitespaces) &&
        surface.starts_with(kSpaceSymbol)) {
      surface.remove_prefix(kSpaceSymbol.size());
      dropped_space = !rules.remove_extra_whitespaces;
    }
    text +=
        absl::StrReplaceAll(absl::string_view(surface.data(), surface.size()), {{"\u2581", " "}});
  }
  flush();
  return text;
}

std::optional<std::vector<bool>> SentencePieceModel::WordContinuations() const {
  // A space at the end of a word does not tell anything about the piece that it ends.
  if (definition_.rules.whitespace_as_suffix) return std::nullopt;
  std::vector<bool> continues(definition_.pieces.size(), false);
  for (size_t id = 0; id < continues.size(); ++id) {
    const SentencePiece::Piece& known = definition_.pieces[id];
    continues[id] = known.type == Type::kByte ||
                    // Pieces without the symbol of a space stand within a word.
                    ((known.type == Type::kNormal || known.type == Type::kUnused) &&
                     !known.text.starts_with("\u2581"));
  }
  return continues;
}

std::string SentencePieceModel::ToJson() const {
  json pieces = json::array();
  json scores = json::array();
  json types = json::array();
  for (const SentencePiece::Piece& known : definition_.pieces) {
    pieces.push_back(known.text);
    scores.push_back(known.score);
    types.push_back(static_cast<int>(known.type));
  }
  const SentencePieceRules& rules = definition_.rules;
  const bool unigram = definition_.algorithm == SentencePiece::Algorithm::kUnigram;
  json object = {{"kind", kSentencePieceKind},
                 {"vocab_size", vocab_size()},
                 {"algorithm", unigram ? "unigram" : "bpe"},
                 {"byte_fallback", definition_.byte_fallback},
                 {"add_dummy_prefix", rules.add_dummy_prefix},
                 {"remove_extra_whitespaces", rules.remove_extra_whitespaces},
                 {"escape_whitespaces", rules.escape_whitespaces},
                 {"whitespace_as_suffix", rules.whitespace_as_suffix},
                 {"charsmap", std::string(absl::Base64Escape(rules.charsmap))},
                 {"unknown_surface", definition_.unknown_surface},
                 {"pieces", std::move(pieces)},
                 {"scores", std::move(scores)},
                 {"types", std::move(types)},
                 {"special", SpecialIdsToJson(definition_.special)}};
  if (!definition_.added.empty()) object["added_tokens"] = AddedTokensToJson(definition_.added);
  if (definition_.metaspace.has_value()) {
    object["metaspace"] = {{"first_only", definition_.metaspace->first_only},
                           {"splits", definition_.metaspace->splits}};
  }
  return object.dump();
}

absl::Status ReadPieceLists(const json& object, std::vector<SentencePiece::Piece>* out) {
  const json& pieces = JsonAt(object, "pieces");
  const json& scores = JsonAt(object, "scores");
  const json& types = JsonAt(object, "types");
  if (!pieces.is_array() || !scores.is_array() || !types.is_array() ||
      pieces.size() != scores.size() || pieces.size() != types.size()) {
    return SentencePieceFault("pieces, scores and types are not lists of one length");
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    // A type that is not a number becomes 0, which the same check refuses.
    const int64_t type = types[i].is_number_integer() ? types[i].get<int64_t>() : 0;
    if (!pieces[i].is_string() || !scores[i].is_number() || type < 1 || type > 6) {
      return SentencePieceFault(absl::StrCat("piece ", i, " has no text, no score or no type"));
    }
    out->push_back({pieces[i].get<std::string>(), scores[i].get<float>(), static_cast<Type>(type)});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenizerModel>> MakeSentencePiece(SentencePiece definition) {
  return SentencePieceModel::Create(std::move(definition));
}

absl::StatusOr<std::shared_ptr<const TokenizerModel>> SentencePieceFromJson(const json& object) {
  SentencePiece model;
  TERCIO_ASSIGN_OR_RETURN(const std::string algorithm, JsonText(object, "algorithm", ""));
  if (algorithm != "unigram" && algorithm != "bpe") {
    return SentencePieceFault(absl::StrCat("the algorithm '", algorithm, "' is unknown"));
  }
  model.algorithm =
      algorithm == "bpe" ? SentencePiece::Algorithm::kBpe : SentencePiece::Algorithm::kUnigram;
  TERCIO_ASSIGN_OR_RETURN(model.byte_fallback, JsonFlag(object, "byte_fallback", false));
  SentencePieceRules& rules = model.rules;
  // The defaults are those of the library's messages.
  TERCIO_ASSIGN_OR_RETURN(rules.add_dummy_prefix, JsonFlag(object, "add_dummy_prefix", true));
  TERCIO_ASSIGN_OR_RETURN(rules.remove_extra_whitespaces,
                          JsonFlag(object, "remove_extra_whitespaces", true));
  TERCIO_ASSIGN_OR_RETURN(rules.escape_whitespaces, JsonFlag(object, "escape_whitespaces", true));
  TERCIO_ASSIGN_OR_RETURN(rules.whitespace_as_suffix,
                          JsonFlag(object, "whitespace_as_suffix", false));
  TERCIO_ASSIGN_OR_RETURN(const std::string charsmap, JsonText(object, "charsmap", ""));
  if (!absl::Base64Unescape(charsmap, &rules.charsmap))
    return SentencePieceFault("charsmap is not base64");
  TERCIO_ASSIGN_OR_RETURN(model.unknown_surface,
                          JsonText(object, "unknown_surface", model.unknown_surface));
  TERCIO_RETURN_IF_ERROR(ReadPieceLists(object, &model.pieces));
  if (const json& added = JsonAt(object, "added_tokens"); !added.is_null()) {
    TERCIO_ASSIGN_OR_RETURN(model.added, ParseAddedTokens(added));
  }
  if (const json& metaspace = JsonAt(object, "metaspace"); !metaspace.is_null()) {
    SentencePiece::Metaspace how;
    TERCIO_ASSIGN_OR_RETURN(how.first_only, JsonFlag(metaspace, "first_only", false));
    TERCIO_ASSIGN_OR_RETURN(how.splits, JsonFlag(metaspace, "splits", false));
    model.metaspace = how;
  }
  // Special ids are checked against the pieces, so these were read before.
  TERCIO_ASSIGN_OR_RETURN(
      model.special,
      SpecialIdsFromJson(JsonAt(object, "special"), static_cast<int32_t>(model.pieces.size())));
  return MakeSentencePiece(std::move(model));
}

}  // namespace tercio::tokenizer

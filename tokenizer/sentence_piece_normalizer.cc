#include "tokenizer/sentence_piece_normalizer.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tokenizer/unicode.h"

namespace tercio::tokenizer {
namespace {

constexpr std::string_view kReplacementCharacter = "\uFFFD";

absl::Status NormalizerFault(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("SentencePiece: the normalization rules ", std::string(what)));
}

uint32_t LittleEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

// The fields of a unit of the double array: bit 8 is set if a value hangs below, bits 0-7 and 31
// are the label (bit 31 marks values), bits 10-30 the offset to the children, shifted by 8 if bit 9
// is set.
bool HasValue(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t ValueOf(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t LabelOf(uint32_t unit) { return unit & 0x800000FF; }
uint32_t OffsetOf(uint32_t unit) { return unit >> 10 << ((unit & 1 << 9) >> 6); }

}  // namespace

absl::StatusOr<SentencePieceNormalizer> SentencePieceNormalizer::Create(
    SentencePieceRules rules, const std::vector<std::string>& untouched) {
  SentencePieceNormalizer normalizer;
  const std::string_view map = rules.charsmap;
  if (!map.empty()) {
    // The file is not trusted: each size is checked before it is used.
    if (map.size() < 4) return NormalizerFault("are truncated");
    const uint32_t bytes = LittleEndian(map);
    if (bytes == 0 || bytes % 4 != 0 || bytes >= map.size() - 4) {
      return NormalizerFault("declare a trie larger than they are");
    }
    normalizer.units_.resize(bytes / 4);
    for (size_t i = 0; i < normalizer.units_.size(); ++i) {
      normalizer.units_[i] = LittleEndian(map.substr(4 + 4 * i));
    }
    normalizer.replacements_ = map.substr(4 + bytes);
    // Each replacement ends with a zero byte, so a view that begins within this block ends in it,
    // too.
    if (normalizer.replacements_.back() != '\0') return NormalizerFault("end within a text");
    if (!IsUtf8(normalizer.replacements_)) return NormalizerFault("are not UTF-8");
  }
  size_t total = 0;
  for (const std::string& piece : untouched) {
    total += piece.size();
    if (total > ByteTrie::kMostBytes) return NormalizerFault("leave too many pieces untouched");
    // Only the keys matter; the value has no use.
    normalizer.untouched_.Insert(piece, 0);
  }
  normalizer.rules_ = std::move(rules);
  return normalizer;
}

// Length 0 if no rule applies. Every index is checked against the table, since it comes from a
// file.
SentencePieceNormalizer::Prefix SentencePieceNormalizer::LongestRule(std::string_view text) const {
  Prefix longest = {{}, 0};
  if (units_.empty()) return longest;
  size_t place = OffsetOf(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    place ^= byte;
    if (place >= units_.size() || LabelOf(units_[place]) != byte) break;
    const uint32_t unit = units_[place];
    place ^= OffsetOf(unit);
    if (!HasValue(unit)) continue;
    if (place >= units_.size()) break;
    const size_t value = ValueOf(units_[place]);
    // A damaged value points past the end: as if there were no rule.
    if (value < replacements_.size()) longest = {replacements_.data() + value, i + 1};
  }
  return longest;
}

SentencePieceNormalizer::Prefix SentencePieceNormalizer::ReplacePrefix(
    std::string_view text) const {
  // User-defined pieces come before the rules, which could divide them otherwise.
  if (!untouched_.empty()) {
    const size_t length = untouched_.LongestPrefix(text).length;
    if (length != 0) return {text.substr(0, length), length};
  }
  if (const Prefix rule = LongestRule(text); rule.length != 0) return rule;
  const CodePoint point = DecodeUtf8(text, 0);
  if (!point.valid) return {kReplacementCharacter, 1};
  return {text.substr(0, point.length), point.length};
}

std::string SentencePieceNormalizer::Normalize(std::string_view text) const {
  const std::string_view space = rules_.escape_whitespaces ? kSpaceSymbol : " ";
  if (rules_.remove_extra_whitespaces) {
    while (!text.empty()) {
      const Prefix prefix = ReplacePrefix(text);
      if (prefix.replacement != " ") break;
      text.remove_prefix(prefix.length);
    }
  }
  std::string out;
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2);
  if (rules_.add_dummy_prefix && !rules_.whitespace_as_suffix) out += space;
  // The beginning counts as white space, for a rule may still produce a space there.
  bool after_space = rules_.remove_extra_whitespaces;
  while (!text.empty()) {
    const Prefix prefix = ReplacePrefix(text);
    text.remove_prefix(prefix.length);
    std::string_view piece = prefix.replacement;
    while (after_space && piece.starts_with(' ')) piece.remove_prefix(1);
    if (piece.empty()) continue;
    for (const char c : piece) {
      if (c == ' ') {
        out += space;
      } else {
        out.push_back(c);
      }
    }
    after_space = rules_.remove_extra_whitespaces && piece.ends_with(' ');
  }
  if (rules_.remove_extra_whitespaces) {
    while (out.ends_with(space)) out.resize(out.size() - space.size());
  }
  if (rules_.add_dummy_prefix && rules_.whitespace_as_suffix) out += space;
  return out;
}

}  // namespace tercio::tokenizer

#include "tokenizer/unicode.h"

#include <algorithm>
#include <vector>

#include "tokenizer/unicode_tables.h"

namespace tercio::tokenizer {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

// Hangul syllables decompose by arithmetic (Unicode, section 3.12).
constexpr uint32_t kHangulFirst = 0xAC00;
constexpr uint32_t kHangulLast = 0xD7A3;
constexpr uint32_t kLeadingFirst = 0x1100;
constexpr uint32_t kVowelFirst = 0x1161;
constexpr uint32_t kTrailingFirst = 0x11A7;
constexpr uint32_t kVowels = 21;
constexpr uint32_t kTrailings = 28;

// Each class is a bit of one table, so that a single load answers all questions on a character.
void Mark(const CodeRange* ranges, size_t size, uint8_t bit, std::vector<uint8_t>* classes) {
  for (size_t i = 0; i < size; ++i) {
    for (uint32_t code = ranges[i].first; code <= ranges[i].last; ++code) (*classes)[code] |= bit;
  }
}

std::vector<uint8_t> MakeClasses() {
  std::vector<uint8_t> classes(kCodePoints);
  Mark(kLetterRanges, kLetterRangesSize, kLetter, &classes);
  Mark(kNumberRanges, kNumberRangesSize, kNumber, &classes);
  Mark(kSpaceRanges, kSpaceRangesSize, kSpace, &classes);
  Mark(kBertPunctuationRanges, kBertPunctuationRangesSize, kBertPunctuation, &classes);
  Mark(kBertDroppedRanges, kBertDroppedRangesSize, kBertDropped, &classes);
  Mark(kMarkRanges, kMarkRangesSize, kMark, &classes);
  for (size_t i = 0; i < kDecompositionsSize; ++i) {
    classes[kDecompositions[i].code] |= kHasDecomposition;
  }
  // Syllables are not in the table of decompositions, since arithmetic gives theirs.
  for (uint32_t code = kHangulFirst; code <= kHangulLast; ++code) {
    classes[code] |= kHasDecomposition;
  }
  for (size_t i = 0; i < kCombiningRangesSize; ++i) {
    for (uint32_t code = kCombiningRanges[i].first; code <= kCombiningRanges[i].last; ++code) {
      classes[code] |= kReorders;
    }
  }
  return classes;
}

uint8_t CombiningClass(uint32_t code) {
  // Nearly all characters have class 0, and the table of classes says so without a search. For the
  // others there is a range, so that the entry before `after` exists.
  if ((CharacterClasses()[code] & kReorders) == 0) return 0;
  const CombiningRange* const end = kCombiningRanges + kCombiningRangesSize;
  const CombiningRange* const after =
      std::upper_bound(kCombiningRanges, end, code,
                       [](uint32_t c, const CombiningRange& range) { return c < range.first; });
  return (after - 1)->combining_class;
}

void AppendDecomposition(uint32_t code, std::u32string* out) {
  if ((CharacterClasses()[code] & kHasDecomposition) == 0) {
    out->push_back(code);
    return;
  }
  if (code >= kHangulFirst && code <= kHangulLast) {
    const uint32_t index = code - kHangulFirst;
    out->push_back(kLeadingFirst + index / (kVowels * kTrailings));
    out->push_back(kVowelFirst + index % (kVowels * kTrailings) / kTrailings);
    if (index % kTrailings != 0) out->push_back(kTrailingFirst + index % kTrailings);
    return;
  }
  const Decomposition* const found =
      std::lower_bound(kDecompositions, kDecompositions + kDecompositionsSize, code,
                       [](const Decomposition& entry, uint32_t c) { return entry.code < c; });
  // The table holds a single step for each character, so its parts are decomposed in turn.
  AppendDecomposition(found->first, out);
  if (found->second != 0) AppendDecomposition(found->second, out);
}

}  // namespace

const uint8_t* CharacterClasses() {
  // The table is never destroyed, so that threads may encode until the process ends.
  static const std::vector<uint8_t>& classes = *new std::vector<uint8_t>(MakeClasses());
  return classes.data();
}

void AppendLowercase(uint32_t code, std::u32string* out) {
  // This is the only character with two letters in lower case, and not in the runs.
  if (code == 0x130) {
    out->append({0x69, 0x307});
    return;
  }
  const LowercaseRun* const end = kLowercaseRuns + kLowercaseRunsSize;
  const LowercaseRun* const after = std::upper_bound(
      kLowercaseRuns, end, code, [](uint32_t c, const LowercaseRun& run) { return c < run.first; });
  if (after != kLowercaseRuns) {
    const LowercaseRun& run = *(after - 1);
    // Runs with a stride of 2 are alphabets in which capitals and small letters alternate.
    if (code <= run.last && (code - run.first) % run.stride == 0) {
      out->push_back(static_cast<uint32_t>(static_cast<int32_t>(code) + run.difference));
      return;
    }
  }
  out->push_back(code);
}

std::u32string Decompose(const std::u32string& text) {
  std::u32string out;
  out.reserve(text.size());
  for (const char32_t code : text) AppendDecomposition(code, &out);
  const uint8_t* const classes = CharacterClasses();
  for (size_t i = 0; i < out.size();) {
    if ((classes[out[i]] & kReorders) == 0) {
      ++i;
      continue;
    }
    // Only marks between two characters of class 0 change places; those of one class keep their
    // order, as Unicode demands.
    size_t end = i;
    while (end < out.size() && (classes[out[end]] & kReorders) != 0) ++end;
    std::stable_sort(out.begin() + static_cast<ptrdiff_t>(i),
                     out.begin() + static_cast<ptrdiff_t>(end),
                     [](char32_t a, char32_t b) { return CombiningClass(a) < CombiningClass(b); });
    i = end;
  }
  return out;
}

}  // namespace tercio::tokenizer

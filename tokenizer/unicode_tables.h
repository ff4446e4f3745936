// Tables of code points, written by make_unicode_tables.py; unicode.h is how they are used. Ranges
// are ascending and hold both their ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tercio::tokenizer {

struct CodeRange {
  uint32_t first;
  uint32_t last;
};

// Every stride-th code point from first to last; its lower case is itself plus difference.
struct LowercaseRun {
  uint32_t first;
  uint32_t last;
  uint32_t stride;
  int32_t difference;
};

struct CombiningRange {
  uint32_t first;
  uint32_t last;
  uint8_t combining_class;
};

// One step of the canonical decomposition; second is 0 where it is one code point.
struct Decomposition {
  uint32_t code;
  uint32_t first;
  uint32_t second;
};

extern const CodeRange kLetterRanges[];           // \p{L}
extern const CodeRange kNumberRanges[];           // \p{N}
extern const CodeRange kSpaceRanges[];            // \s
extern const CodeRange kBertDroppedRanges[];      // what BERT's cleaning removes
extern const CodeRange kMarkRanges[];             // nonspacing marks, removed with the accents
extern const CodeRange kBertPunctuationRanges[];  // a word of its own
extern const LowercaseRun kLowercaseRuns[];       // all but U+0130
extern const CombiningRange kCombiningRanges[];
extern const Decomposition kDecompositions[];  // ascending by code; without Hangul

extern const size_t kLetterRangesSize;
extern const size_t kNumberRangesSize;
extern const size_t kSpaceRangesSize;
extern const size_t kBertDroppedRangesSize;
extern const size_t kMarkRangesSize;
extern const size_t kBertPunctuationRangesSize;
extern const size_t kLowercaseRunsSize;
extern const size_t kCombiningRangesSize;
extern const size_t kDecompositionsSize;

}  // namespace tercio::tokenizer

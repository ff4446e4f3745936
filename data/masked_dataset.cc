#include "data/masked_dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "data/decisions.h"

namespace tercio::data {
namespace {

// Documents for each entry of the table of samples.
constexpr int64_t kDocumentsOfEntry = 64;

// Decisions of a sample: about the sample itself, and about each position.
enum Decision : uint64_t { kCut = 1, kSwap, kOrder, kReplacement, kRandomId };

// Positions [begin, begin + size) that are masked together.
struct Word {
  int32_t begin;
  int32_t size;
  uint64_t order;
};

class Masker {
 public:
  Masker(const MaskingRules& rules, const Decisions& decisions, Sample* sample)
      : rules_(rules), decisions_(decisions), sample_(sample) {}

  void Mask() {
    std::vector<Word> words = Words();
    int64_t maskable = 0;
    for (const Word& word : words) maskable += word.size;
    if (maskable == 0) return;
    // At least one token is predicted, so that a short sample is not read for nothing.
    const int64_t budget =
        std::max<int64_t>(1, std::llround(rules_.probability * static_cast<double>(maskable)));
    std::sort(words.begin(), words.end(), [](const Word& a, const Word& b) {
      return std::pair(a.order, a.begin) < std::pair(b.order, b.begin);
    });
    int64_t taken = 0;
    for (const Word& word : words) {
      if (taken >= budget) break;
      // A word that does not fit is passed over, not cut; the first one is taken whatever its size.
      if (taken > 0 && taken + word.size > budget) continue;
      for (int32_t i = 0; i < word.size; ++i) MaskToken(word.begin + i);
      taken += word.size;
    }
  }

 private:
  // A prediction of a special token would teach nothing, since they stand at known places.
  bool IsSpecial(int32_t id) const {
    return id == rules_.cls || id == rules_.sep || id == rules_.mask || id == rules_.pad;
  }

  std::vector<Word> Words() const {
    std::vector<Word> words;
    bool in_word = false;
    for (int32_t i = 0; i < sample_->length; ++i) {
      const int32_t id = sample_->inputs[static_cast<size_t>(i)];
      const bool special = IsSpecial(id);
      if (!special && in_word && Continues(id)) {
        ++words.back().size;
      } else if (!special) {
        words.push_back({i, 1, decisions_.At(kOrder, i)});
      }
      in_word = !special;
    }
    return words;
  }

  bool Continues(int32_t id) const {
    return rules_.continues_word != nullptr &&
           static_cast<size_t>(id) < rules_.continues_word->size() &&
           (*rules_.continues_word)[static_cast<size_t>(id)];
  }

  void MaskToken(int32_t position) {
    int32_t& input = sample_->inputs[static_cast<size_t>(position)];
    sample_->targets[static_cast<size_t>(position)] = input;
    const double choice = Fraction(decisions_.At(kReplacement, position));
    // These are BERT's shares, so that fine-tuning, where no mask occurs, is not a surprise.
    if (choice < 0.8) {
      input = rules_.mask;
    } else if (choice < 0.9) {
      input = static_cast<int32_t>(
          Below(decisions_.At(kRandomId, position), static_cast<uint64_t>(rules_.vocab_size)));
    }
  }

  const MaskingRules& rules_;
  const Decisions& decisions_;
  Sample* sample_;
};

}  // namespace

MaskedDataset::MaskedDataset(TokenDataset tokens, DocumentBorders borders, MaskingRules rules)
    : tokens_(std::move(tokens)), borders_(std::move(borders)), rules_(std::move(rules)) {
  TERCIO_CHECK_EQ(tokens_.tokens(), borders_.tokens());
  TERCIO_CHECK_GE(rules_.most_tokens(), rules_.least_tokens());
  for (int64_t document = 0; document < borders_.documents(); ++document) {
    // An entry for each document would be too much memory for a corpus of short ones.
    if (document % kDocumentsOfEntry == 0) samples_before_.push_back(samples_);
    samples_ += SamplesOf(document);
  }
}

int64_t MaskedDataset::SamplesOf(int64_t document) const {
  const DocumentBorders::Range range = borders_.Document(document);
  const int64_t tokens = range.end - range.begin;
  return tokens / rules_.most_tokens() +
         (tokens % rules_.most_tokens() >= rules_.least_tokens() ? 1 : 0);
}

MaskedDataset::Piece MaskedDataset::PieceOf(int64_t sample) const {
  // The last entry at or before the sample begins at most 64 documents before it.
  const auto entry = std::upper_bound(samples_before_.begin(), samples_before_.end(), sample) - 1;
  int64_t document = (entry - samples_before_.begin()) * kDocumentsOfEntry;
  int64_t index = sample - *entry;
  while (index >= SamplesOf(document)) index -= SamplesOf(document++);
  const DocumentBorders::Range range = borders_.Document(document);
  const int64_t begin = range.begin + index * rules_.most_tokens();
  int64_t end = std::min(begin + rules_.most_tokens(), range.end);
  int32_t last = 0;
  tokens_.Read(end - 1, 1, &last);
  // The piece puts a [SEP] of its own there, and two would be one more than in other samples.
  if (end == range.end && last == rules_.sep) --end;
  return {document, {begin, end}};
}

int64_t MaskedDataset::CutPlace(const Piece& piece, uint64_t random) const {
  const auto [begin, end] = piece.tokens;
  if (!rules_.sentence_order) return end - begin;
  const std::vector<int64_t> borders = borders_.SequencesBetween(piece.document, begin, end);
  if (borders.empty()) {
    // Without borders of sentences both segments still get at least one token each.
    return 1 + static_cast<int64_t>(Below(random, static_cast<uint64_t>(end - begin - 1)));
  }
  return borders[Below(random, borders.size())] - begin;
}

void MaskedDataset::Read(int64_t sample, SampleKey key, Sample* out) const {
  TERCIO_CHECK(sample >= 0 && sample < samples_);
  const size_t context = static_cast<size_t>(rules_.context);
  const Decisions decisions(key, sample);
  const Piece piece = PieceOf(sample);
  const int64_t cut = CutPlace(piece, decisions.At(kCut));
  DocumentBorders::Range first = {piece.tokens.begin, piece.tokens.begin + cut};
  DocumentBorders::Range second = {first.end, piece.tokens.end};
  const bool swapped = rules_.sentence_order && (decisions.At(kSwap) >> 63) != 0;
  if (swapped) std::swap(first, second);

  // Every field is written, because callers pass the same sample again.
  out->inputs.assign(context, rules_.pad);
  out->targets.assign(context, kNoTarget);
  out->types.assign(context, 0);
  out->label = rules_.sentence_order ? static_cast<int32_t>(swapped) : kNoTarget;
  int32_t* place = out->inputs.data();
  const auto append = [&](DocumentBorders::Range range) {
    tokens_.Read(range.begin, range.end - range.begin, place);
    place += range.end - range.begin;
    *place++ = rules_.sep;
  };
  *place++ = rules_.cls;
  append(first);
  if (rules_.sentence_order) {
    const auto types_begin = place - out->inputs.data();
    append(second);
    std::fill(out->types.begin() + types_begin, out->types.begin() + (place - out->inputs.data()),
              1);
  }
  out->length = static_cast<int32_t>(place - out->inputs.data());
  // Masking is last, as it needs the special tokens in their places to leave them out.
  Masker(rules_, decisions, out).Mask();
}

}  // namespace tercio::data

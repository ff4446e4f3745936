// Masked samples: layout, labels, exact counts and shares of what is masked, whole words, and that
// a sample depends on nothing but its key.
#include "data/masked_dataset.h"

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kSeed = 20251121;

constexpr int32_t kPad = 0;
constexpr int32_t kCls = 1;
constexpr int32_t kSep = 2;
constexpr int32_t kMask = 3;
constexpr int32_t kFirstWord = 4;

MaskingRules Rules(int64_t context, bool sentence_order = false) {
  MaskingRules rules;
  rules.context = context;
  rules.vocab_size = 1000;
  rules.cls = kCls;
  rules.sep = kSep;
  rules.mask = kMask;
  rules.pad = kPad;
  rules.sentence_order = sentence_order;
  return rules;
}

// Documents of sentences of tokens, as an index says them.
struct Corpus {
  std::vector<std::vector<std::vector<int32_t>>> documents;

  TokenDataset Tokens() const {
    auto ids = std::make_shared<std::vector<int32_t>>();
    for (const auto& document : documents) {
      for (const auto& sentence : document)
        ids->insert(ids->end(), sentence.begin(), sentence.end());
    }
    return TokenDataset(ids, ids->data(), TokenType::kInt32, static_cast<int64_t>(ids->size()));
  }
  DocumentBorders Borders() const {
    auto tables = std::make_shared<std::pair<std::vector<int64_t>, std::vector<int64_t>>>();
    int64_t tokens = 0;
    for (const auto& document : documents) {
      tables->second.push_back(static_cast<int64_t>(tables->first.size()));
      for (const auto& sentence : document) {
        tables->first.push_back(4 * tokens);
        tokens += static_cast<int64_t>(sentence.size());
      }
    }
    const auto sequences = static_cast<int64_t>(tables->first.size());
    tables->second.push_back(sequences);
    return DocumentBorders::OfIndex(
        {.owner = tables,
         .offsets = reinterpret_cast<const char*>(tables->first.data()),
         .borders = reinterpret_cast<const char*>(tables->second.data()),
         .sequences = sequences,
         .border_count = static_cast<int64_t>(tables->second.size()),
         .tokens = tokens,
         .token_bytes = 4});
  }
  MaskedDataset Dataset(const MaskingRules& rules) const {
    return MaskedDataset(Tokens(), Borders(), rules);
  }
};

// `count` ids that are all different from their neighbours, none of them special.
std::vector<int32_t> Words(int count, int32_t from = kFirstWord) {
  std::vector<int32_t> words(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) words[static_cast<size_t>(i)] = from + i % (1000 - from);
  return words;
}

Sample Read(const MaskedDataset& dataset, int64_t index, SampleKey key = {7, 0}) {
  Sample sample(1);  // Read gives it its size
  dataset.Read(index, key, &sample);
  return sample;
}

// The sample before it was masked.
std::vector<int32_t> Original(const Sample& sample) {
  std::vector<int32_t> ids = sample.inputs;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (sample.targets[i] != kNoTarget) ids[i] = sample.targets[i];
  }
  return ids;
}

int64_t Masked(const Sample& sample) {
  return std::count_if(sample.targets.begin(), sample.targets.end(),
                       [](int32_t target) { return target != kNoTarget; });
}

TEST(MaskedDataset, DocumentsAreCutIntoPieces) {
  // 6 tokens a piece: 6, 6, 2 of the first; the 1 and the 0 left over are no sample.
  const Corpus corpus = {{{Words(14)}, {{}}, {{900}}, {Words(7, 20)}, {{50, 51}}}};
  const MaskedDataset dataset = corpus.Dataset(Rules(8));
  ASSERT_EQ(dataset.samples(), 5);
  EXPECT_THAT(Original(Read(dataset, 0)), ElementsAre(kCls, 4, 5, 6, 7, 8, 9, kSep));
  EXPECT_THAT(Original(Read(dataset, 1)), ElementsAre(kCls, 10, 11, 12, 13, 14, 15, kSep));
  const Sample rest = Read(dataset, 2);
  EXPECT_THAT(Original(rest), ElementsAre(kCls, 16, 17, kSep, 0, 0, 0, 0));
  EXPECT_EQ(rest.length, 4);
  EXPECT_EQ(rest.label, kNoTarget);
  EXPECT_THAT(rest.types, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Original(Read(dataset, 3)), ElementsAre(kCls, 20, 21, 22, 23, 24, 25, kSep));
  EXPECT_THAT(Original(Read(dataset, 4)), ElementsAre(kCls, 50, 51, kSep, 0, 0, 0, 0));
}

TEST(MaskedDataset, ASeparatorAtTheEndOfADocumentIsNotDoubled) {
  const Corpus corpus = {{{{10, 11, kSep}}, {{12, kSep, 13}}, {{14, kSep}}}};
  const MaskedDataset dataset = corpus.Dataset(Rules(8));
  ASSERT_EQ(dataset.samples(), 3);
  EXPECT_THAT(Original(Read(dataset, 0)), ElementsAre(kCls, 10, 11, kSep, 0, 0, 0, 0));
  EXPECT_THAT(Original(Read(dataset, 1)), ElementsAre(kCls, 12, kSep, 13, kSep, 0, 0, 0));
  EXPECT_THAT(Original(Read(dataset, 2)), ElementsAre(kCls, 14, kSep, 0, 0, 0, 0, 0));
}

TEST(MaskedDataset, ExactCountsAndNoSpecialTokens) {
  for (const auto& [tokens, expected] :
       std::map<int, int64_t>{{2, 1}, {3, 1}, {9, 1}, {10, 2}, {16, 2}, {17, 3}, {100, 15}}) {
    const Corpus corpus = {{{Words(tokens)}}};
    const MaskedDataset dataset = corpus.Dataset(Rules(128));
    for (uint64_t epoch = 0; epoch < 20; ++epoch) {
      const Sample sample = Read(dataset, 0, {1, epoch});
      EXPECT_EQ(Masked(sample), expected) << tokens;
      EXPECT_EQ(sample.targets[0], kNoTarget);
      for (size_t i = static_cast<size_t>(sample.length) - 1; i < 128; ++i) {
        EXPECT_EQ(sample.targets[i], kNoTarget);
      }
    }
  }
  // Special tokens within the text are not to be predicted.
  const Corpus special = {{{{kMask, kPad, 77, kCls}}, {{kCls, kCls, kCls}}}};
  const MaskedDataset dataset = special.Dataset(Rules(8));
  EXPECT_EQ(Read(dataset, 0).targets[3], 77);
  EXPECT_EQ(Masked(Read(dataset, 0)), 1);
  EXPECT_EQ(Masked(Read(dataset, 1)), 0);
}

TEST(MaskedDataset, EightyTenTen) {
  const Corpus corpus = {{{Words(100 * 126)}}};
  const MaskedDataset dataset = corpus.Dataset(Rules(128));
  int64_t masks = 0, kept = 0, other = 0;
  std::vector<int64_t> at_position(128, 0);
  std::vector<int64_t> random_ids(10, 0);  // by hundreds
  for (uint64_t epoch = 0; epoch < 40; ++epoch) {
    for (int64_t i = 0; i < dataset.samples(); ++i) {
      const Sample sample = Read(dataset, i, {kSeed, epoch});
      ASSERT_EQ(Masked(sample), 19);  // round(0.15 * 126)
      for (size_t p = 0; p < 128; ++p) {
        if (sample.targets[p] == kNoTarget) continue;
        ++at_position[p];
        if (sample.inputs[p] == kMask) {
          ++masks;
        } else if (sample.inputs[p] == sample.targets[p]) {
          ++kept;
        } else {
          ++other;
          ++random_ids[static_cast<size_t>(sample.inputs[p] / 100)];
        }
      }
    }
  }
  const auto all = static_cast<double>(masks + kept + other);
  ASSERT_EQ(all, 40 * 100 * 19);
  // Five standard deviations of a share of 76,000 decisions.
  const auto near = [&](int64_t count, double share) {
    EXPECT_NEAR(static_cast<double>(count) / all, share, 5 * std::sqrt(share * (1 - share) / all));
  };
  near(masks, 0.8 + 0.1 / 1000);
  near(kept, 0.1 + 0.1 / 1000);
  near(other, 0.1 * (1 - 2.0 / 1000));
  for (size_t p = 1; p < 127; ++p) near(at_position[p], 1.0 / 126);
  for (const int64_t count : random_ids) near(count, 0.1 * 0.1);
}

TEST(MaskedDataset, DependsOnItsKeyAlone) {
  const Corpus corpus = {{{Words(496)}, {Words(310, 9)}}};
  const MaskedDataset dataset = corpus.Dataset(Rules(64));
  const MaskedDataset again = corpus.Dataset(Rules(64));
  std::set<std::vector<int32_t>> seen;
  for (const SampleKey key : {SampleKey{1, 0}, {1, 1}, {2, 0}, kValidationKey}) {
    for (int64_t i = dataset.samples() - 1; i >= 0; --i) {
      const Sample sample = Read(dataset, i, key);
      const Sample other = Read(again, i, key);
      EXPECT_EQ(sample.inputs, other.inputs);
      EXPECT_EQ(sample.targets, other.targets);
      EXPECT_TRUE(seen.insert(sample.inputs).second) << "sample " << i;
    }
  }
}

TEST(MaskedDataset, WholeWordsAreNeverCut) {
  std::mt19937_64 random(kSeed);
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  MaskingRules rules = Rules(64);
  // Odd ids continue with a word.
  auto continues = std::make_shared<std::vector<bool>>(1000);
  for (size_t id = kFirstWord; id < 1000; ++id) (*continues)[id] = id % 2 == 1;
  rules.continues_word = continues;
  Corpus corpus;
  for (int d = 0; d < 40; ++d) {
    std::vector<int32_t> document(5 + random() % 120);
    for (int32_t& id : document) id = kFirstWord + static_cast<int32_t>(random() % 996);
    corpus.documents.push_back({document});
  }
  const MaskedDataset dataset = corpus.Dataset(rules);
  int64_t several = 0;
  for (int64_t i = 0; i < dataset.samples(); ++i) {
    const Sample sample = Read(dataset, i, {kSeed, 3});
    const std::vector<int32_t> ids = Original(sample);
    int64_t words = 0;
    for (int32_t p = 1; p + 1 < sample.length; ++p) {
      const auto at = static_cast<size_t>(p);
      const bool masked = sample.targets[at] != kNoTarget;
      if (p > 1 && (*continues)[static_cast<size_t>(ids[at])]) {
        EXPECT_EQ(masked, sample.targets[at - 1] != kNoTarget) << "sample " << i << " at " << p;
      } else {
        words += masked;
      }
    }
    const int64_t budget = std::max<int64_t>(1, std::llround(0.15 * (sample.length - 2)));
    EXPECT_GE(Masked(sample), 1);
    EXPECT_TRUE(Masked(sample) <= budget || words == 1) << Masked(sample) << " of " << budget;
    several += words > 1;
  }
  EXPECT_GT(several, 10);
}

TEST(MaskedDataset, AWordAboveTheBudgetIsTakenAlone) {
  MaskingRules rules = Rules(16);
  auto continues = std::make_shared<std::vector<bool>>(1000, true);
  (*continues)[kSep] = false;
  rules.continues_word = continues;
  const Corpus corpus = {{{{10, 11, 12, 13, 14}}, {{10, 11, kSep, 12, 13}}}};
  const MaskedDataset dataset = corpus.Dataset(rules);
  EXPECT_EQ(Masked(Read(dataset, 0)), 5);
  // A special token ends a word.
  EXPECT_EQ(Masked(Read(dataset, 1)), 2);
}

TEST(SentenceOrder, LayoutLabelsAndTypes) {
  // Sentences 10 11 | 20 | 30 31 32, then a document without borders.
  const Corpus corpus = {{{{10, 11}, {20}, {}, {30, 31, 32}}, {{40, 41, 42, 43}}}};
  MaskingRules rules = Rules(12, /*sentence_order=*/true);
  const MaskedDataset dataset = corpus.Dataset(rules);
  ASSERT_EQ(dataset.samples(), 2);
  std::map<std::vector<int32_t>, int> seen;
  int swapped = 0;
  for (uint64_t epoch = 0; epoch < 400; ++epoch) {
    const Sample sample = Read(dataset, 0, {5, epoch});
    std::vector<int32_t> ids = Original(sample);
    ids.push_back(sample.label);
    ++seen[ids];
    swapped += sample.label;
    EXPECT_EQ(sample.length, 9);
    const auto sep = std::find(ids.begin(), ids.end(), kSep) - ids.begin();
    for (int p = 0; p < 12; ++p) EXPECT_EQ(sample.types[static_cast<size_t>(p)], p > sep && p < 9);
  }
  ASSERT_EQ(seen.size(), 4u);
  using Ids = std::vector<int32_t>;
  for (const Ids& ids : {Ids{1, 10, 11, 2, 20, 30, 31, 32, 2, 0, 0, 0, 0},
                         Ids{1, 20, 30, 31, 32, 2, 10, 11, 2, 0, 0, 0, 1},
                         Ids{1, 10, 11, 20, 2, 30, 31, 32, 2, 0, 0, 0, 0},
                         Ids{1, 30, 31, 32, 2, 10, 11, 20, 2, 0, 0, 0, 1}}) {
    EXPECT_NEAR(seen[ids], 100, 45);  // five standard deviations
  }
  EXPECT_NEAR(swapped, 200, 50);
  std::set<std::vector<int32_t>> places;
  for (uint64_t epoch = 0; epoch < 200; ++epoch) {
    places.insert(Original(Read(dataset, 1, {5, epoch})));
  }
  EXPECT_EQ(places.size(), 6u);  // three places, in order and swapped
}

// The formulas of docs/formats.md, computed apart from this code.
TEST(MaskedDataset, TheDocumentedExample) {
  const Corpus corpus = {{{Words(20, 10)}}};
  const MaskedDataset dataset = corpus.Dataset(Rules(24, /*sentence_order=*/true));
  const Sample in_order = Read(dataset, 0, {7, 0});
  EXPECT_THAT(in_order.inputs, ElementsAre(1, 10, 11, 12, 13, 14, 15, 3, 17, 18, 19, 20, 21, 22, 23,
                                           711, 25, 26, 27, 28, 2, 29, 2, 0));
  EXPECT_EQ(in_order.targets[3], 12);
  EXPECT_EQ(in_order.targets[7], 16);
  EXPECT_EQ(in_order.targets[15], 24);
  EXPECT_EQ(in_order.label, 0);
  const Sample swapped = Read(dataset, 0, {7, 2});
  EXPECT_THAT(swapped.inputs, ElementsAre(1, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 3, 26,
                                          27, 28, 29, 2, 10, 3, 12, 2, 0));
  EXPECT_EQ(swapped.targets[11], 23);
  EXPECT_EQ(swapped.targets[13], 25);
  EXPECT_EQ(swapped.targets[20], 11);
  EXPECT_EQ(swapped.label, 1);
}

// Random corpora: every sample is well formed, and together they are the documents.
TEST(MaskedDataset, SamplesOfRandomCorpora) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    Corpus corpus;
    int32_t next = 0;
    for (uint64_t d = random() % 100; d > 0; --d) {
      auto& document = corpus.documents.emplace_back();
      for (uint64_t s = random() % 5; s > 0; --s) {
        std::vector<int32_t> sentence(random() % 30);
        for (int32_t& id : sentence) id = kFirstWord + next++ % 996;
        document.push_back(sentence);
      }
    }
    const MaskingRules rules = Rules(static_cast<int64_t>(7 + random() % 40), round % 2 == 1);
    const MaskedDataset dataset = corpus.Dataset(rules);
    std::vector<int32_t> covered;
    for (int64_t i = 0; i < dataset.samples(); ++i) {
      const Sample sample = Read(dataset, i, {kSeed, random() % 3});
      ASSERT_EQ(sample.inputs.size(), static_cast<size_t>(rules.context));
      ASSERT_EQ(sample.targets.size(), sample.inputs.size());
      ASSERT_EQ(sample.types.size(), sample.inputs.size());
      ASSERT_LE(sample.length, rules.context);
      std::vector<int32_t> ids = Original(sample);
      for (size_t p = static_cast<size_t>(sample.length); p < ids.size(); ++p) {
        ASSERT_EQ(ids[p], kPad);
      }
      ASSERT_EQ(ids[0], kCls);
      ASSERT_EQ(ids[static_cast<size_t>(sample.length) - 1], kSep);
      auto begin = ids.begin() + 1;
      auto end = ids.begin() + sample.length - 1;
      if (rules.sentence_order) {
        const auto middle = std::find(begin, end, kSep);
        ASSERT_TRUE(middle != begin && middle + 1 < end);
        std::vector<int32_t> a(begin, middle), b(middle + 1, end);
        if (sample.label == 1) std::swap(a, b);
        covered.insert(covered.end(), a.begin(), a.end());
        covered.insert(covered.end(), b.begin(), b.end());
      } else {
        covered.insert(covered.end(), begin, end);
      }
      ASSERT_GE(Masked(sample), 1);
    }
    std::vector<int32_t> expected;
    for (const auto& document : corpus.documents) {
      std::vector<int32_t> ids;
      for (const auto& sentence : document) ids.insert(ids.end(), sentence.begin(), sentence.end());
      const auto most = static_cast<size_t>(rules.most_tokens());
      if (static_cast<int64_t>(ids.size() % most) < rules.least_tokens()) {
        ids.resize(ids.size() / most * most);
      }
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    ASSERT_EQ(covered, expected) << "seed " << kSeed << " round " << round;
  }
}

TEST(DocumentBorders, SlicesAndParts) {
  const Corpus corpus = {{{{1, 2}, {3}}, {}, {{4, 5, 6}}}};
  const DocumentBorders part = corpus.Borders();
  const DocumentBorders whole = DocumentBorders::Concatenate(
      {part, DocumentBorders(), DocumentBorders::OneDocument(4), part});
  ASSERT_EQ(whole.tokens(), 16);
  // First tokens of documents and of sequences that are no document's first.
  const std::set<int64_t> documents = {0, 3, 6, 10, 13};
  const std::set<int64_t> sequences = {2, 12};
  for (int64_t begin = 0; begin <= 16; ++begin) {
    for (int64_t end = begin; end <= 16; ++end) {
      const DocumentBorders slice = whole.Slice(begin, end);
      ASSERT_EQ(slice.tokens(), end - begin);
      int64_t place = 0;
      for (int64_t d = 0; d < slice.documents(); ++d) {
        const DocumentBorders::Range range = slice.Document(d);
        ASSERT_EQ(range.begin, place);
        if (range.begin < range.end && place > 0) {
          EXPECT_TRUE(documents.count(begin + place));
        }
        for (int64_t at = range.begin + 1; at < range.end; ++at) {
          EXPECT_FALSE(documents.count(begin + at));
        }
        std::vector<int64_t> expected;
        for (const int64_t sequence : sequences) {
          if (sequence - begin > range.begin && sequence - begin < range.end) {
            expected.push_back(sequence - begin);
          }
        }
        EXPECT_EQ(slice.SequencesBetween(d, range.begin, range.end), expected);
        place = range.end;
      }
      EXPECT_EQ(place, end - begin);
    }
  }
  EXPECT_EQ(DocumentBorders::OneDocument(0).documents(), 0);
}

}  // namespace
}  // namespace tercio::data

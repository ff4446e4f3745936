// Properties of the packing of drawn lengths, and small cases by hand.
#include "data/packing.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::ElementsAre;

std::vector<std::vector<int64_t>> SequencesOf(const Packing& packing) {
  std::vector<std::vector<int64_t>> all;
  for (int64_t i = 0; i < packing.sequences(); ++i) {
    const auto documents = packing.DocumentsOf(i);
    all.emplace_back(documents.begin(), documents.end());
  }
  return all;
}

TEST(Packing, EachGoesToTheFirstSequenceWithRoom) {
  EXPECT_THAT(SequencesOf(PackDocuments({6, 5, 4, 3, 2, 10, 1}, 10)),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3, 4), ElementsAre(5), ElementsAre(6)));
  EXPECT_THAT(SequencesOf(PackDocuments({1}, 1)), ElementsAre(ElementsAre(0)));
  EXPECT_EQ(PackDocuments({}, 8).sequences(), 0);
}

// Beyond the bound the fullest open sequence is closed, so that the others keep their room.
TEST(Packing, TheFullestIsClosedFirst) {
  std::vector<int32_t> lengths(kOpenSequences, 60);
  lengths[5] = lengths[9] = 90;
  lengths.push_back(70);  // has no room in any of them: sequence 5 is closed
  lengths.push_back(5);   // goes to the first of all
  lengths.push_back(70);  // closes 9
  lengths.push_back(10);
  const auto sequences = SequencesOf(PackDocuments(lengths, 100));
  ASSERT_EQ(sequences.size(), kOpenSequences + 2);
  EXPECT_THAT(sequences[5], ElementsAre(5));
  EXPECT_THAT(sequences[9], ElementsAre(9));
  EXPECT_THAT(sequences[0], ElementsAre(0, kOpenSequences + 1, kOpenSequences + 3));
  EXPECT_THAT(sequences[kOpenSequences], ElementsAre(kOpenSequences));
}

TEST(Packing, HoldsEveryDocumentOnceInsideTheCapacity) {
  constexpr uint64_t kSeed = 20261128;
  RecordProperty("seed", std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const int64_t capacity = std::uniform_int_distribution<int64_t>(1, 300)(random);
    const int count = std::uniform_int_distribution<int>(0, 900)(random);
    // Short ones mostly in every second round.
    const auto longest =
        static_cast<int32_t>(round % 2 == 0 ? capacity : std::max<int64_t>(1, capacity / 8));
    std::uniform_int_distribution<int32_t> draw(1, longest);
    std::vector<int32_t> lengths;
    for (int i = 0; i < count; ++i) lengths.push_back(draw(random));
    const Packing packing = PackDocuments(lengths, capacity);

    std::vector<int64_t> seen = packing.documents;
    std::sort(seen.begin(), seen.end());
    std::vector<int64_t> all(lengths.size());
    std::iota(all.begin(), all.end(), 0);
    ASSERT_EQ(seen, all);
    ASSERT_EQ(packing.begins.back(), count);
    int64_t opened_by = -1;
    for (const std::vector<int64_t>& documents : SequencesOf(packing)) {
      ASSERT_FALSE(documents.empty());
      ASSERT_TRUE(std::is_sorted(documents.begin(), documents.end()));
      ASSERT_GT(documents.front(), opened_by);
      opened_by = documents.front();
      int64_t filled = 0;
      for (const int64_t document : documents) filled += lengths[static_cast<size_t>(document)];
      ASSERT_LE(filled, capacity);
    }
    const Packing again = PackDocuments(lengths, capacity);
    ASSERT_EQ(again.documents, packing.documents);
    ASSERT_EQ(again.begins, packing.begins);
    // What comes later changes nothing of what came before.
    if (count == 0) continue;
    lengths.pop_back();
    std::vector<std::vector<int64_t>> expected = SequencesOf(packing);
    for (std::vector<int64_t>& documents : expected) std::erase(documents, count - 1);
    std::erase_if(expected, [](const auto& documents) { return documents.empty(); });
    ASSERT_EQ(SequencesOf(PackDocuments(lengths, capacity)), expected);
  }
}

// First fit leaves no two sequences that are open together both half empty.
TEST(Packing, FillsMostPositions) {
  std::mt19937_64 random(5);
  std::uniform_int_distribution<int32_t> draw(50, 900);
  std::vector<int32_t> lengths;
  for (int i = 0; i < 20000; ++i) lengths.push_back(draw(random));
  const double filled = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  const Packing packing = PackDocuments(lengths, 2048);
  EXPECT_GT(filled / static_cast<double>(packing.sequences() * 2048), 0.97);
}

}  // namespace
}  // namespace tercio::data

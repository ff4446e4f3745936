#include "data/blend.h"

#include <cmath>
#include <limits>
#include <random>

#include "data/blended_dataset.h"
#include "data/sample_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> Choices(const Blend& blend, int64_t count) {
  std::vector<int> choices;
  for (int64_t i = 0; i < count; ++i) choices.push_back(blend.At(i).dataset);
  return choices;
}

// The rule as it is said, from the first sample on: the largest lag w * (i + 1) - count, ties to
// the first. In whole numbers, so that ties are ties.
std::vector<int> ChoicesFromTheStart(const std::vector<int64_t>& weights, int64_t count) {
  int64_t sum = 0;
  for (const int64_t weight : weights) sum += weight;
  std::vector<int64_t> taken(weights.size(), 0);
  std::vector<int> choices;
  for (int64_t i = 0; i < count; ++i) {
    size_t best = 0;
    for (size_t d = 0; d < weights.size(); ++d) {
      if (weights[d] * (i + 1) - sum * taken[d] > weights[best] * (i + 1) - sum * taken[best]) {
        best = d;
      }
    }
    ++taken[best];
    choices.push_back(static_cast<int>(best));
  }
  return choices;
}

TEST(Blend, TheDocumentsExample) {
  const auto blend = Blend::Create({0.7, 0.3});
  ASSERT_TRUE(blend.ok());
  EXPECT_EQ(blend->period(), 10);
  EXPECT_THAT(blend->units(), ElementsAre(7, 3));
  EXPECT_THAT(Choices(*blend, 10), ElementsAre(0, 1, 0, 0, 0, 1, 0, 0, 1, 0));
  EXPECT_EQ(blend->At(1234).dataset, 0);
  EXPECT_EQ(blend->At(1234).draw, 123 * 7 + 3);
}

TEST(Blend, IsTheRuleAtEveryIndex) {
  for (const std::vector<int64_t>& weights : std::vector<std::vector<int64_t>>{
           {1}, {1, 1}, {1, 1, 1}, {7, 3}, {3, 7}, {1, 2, 3, 4}, {97, 2, 1}, {5, 5, 1, 5}}) {
    const auto blend = Blend::Create(std::vector<double>(weights.begin(), weights.end()));
    ASSERT_TRUE(blend.ok());
    EXPECT_EQ(Choices(*blend, 500), ChoicesFromTheStart(weights, 500));
    std::vector<int64_t> taken(weights.size(), 0);
    for (int64_t i = 0; i < 500; ++i) {
      const Blend::Choice choice = blend->At(i);
      EXPECT_EQ(choice.draw, taken[static_cast<size_t>(choice.dataset)]++);
    }
  }
}

TEST(Blend, NoDataSetIsMoreThanOneSampleAhead) {
  const uint64_t seed = 20240607;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 5; ++round) {
    std::vector<double> weights;
    double sum = 0;
    for (int d = 0; d < 3 + round; ++d) {
      weights.push_back(1 + static_cast<double>(random() % 1000000));
      sum += weights.back();
    }
    const auto blend = Blend::Create(weights);
    ASSERT_TRUE(blend.ok()) << "seed " << seed;
    std::vector<int64_t> taken(weights.size(), 0);
    for (int64_t i = 0; i < 20000; ++i) {
      const auto d = static_cast<size_t>(blend->At(i).dataset);
      ++taken[d];
      // The shares are rounded to whole parts of the period, which adds less than 0.02 here.
      ASSERT_LT(static_cast<double>(taken[d]), weights[d] / sum * static_cast<double>(i + 1) + 1.02)
          << "seed " << seed;
    }
  }
}

TEST(Blend, SharesThatHaveNoSmallPeriod) {
  const auto blend = Blend::Create({std::sqrt(2.0), 1});
  ASSERT_TRUE(blend.ok());
  EXPECT_EQ(blend->period(), Blend::kLongestPeriod);
  EXPECT_EQ(blend->units()[0] + blend->units()[1], Blend::kLongestPeriod);
  EXPECT_NEAR(static_cast<double>(blend->units()[0]) / Blend::kLongestPeriod,
              std::sqrt(2.0) / (1 + std::sqrt(2.0)), 1e-6);
}

TEST(Blend, SamplesBeforeRepeat) {
  const auto blend = Blend::Create({0.7, 0.3});
  for (int64_t a = 0; a < 30; ++a) {
    for (int64_t b = 0; b < 30; ++b) {
      int64_t expected = 0;
      while (blend->At(expected).draw < (blend->At(expected).dataset == 0 ? a : b)) ++expected;
      ASSERT_EQ(blend->SamplesBeforeRepeat({a, b}), expected) << a << " " << b;
    }
  }
  EXPECT_EQ(Blend().SamplesBeforeRepeat({int64_t{1} << 40}), int64_t{1} << 40);
}

TEST(Blend, BadWeights) {
  const auto fault = [](const std::vector<double>& weights) {
    return std::string(Blend::Create(weights).status().message());
  };
  EXPECT_THAT(fault({}), HasSubstr("1 to 256 data sets"));
  EXPECT_THAT(fault(std::vector<double>(257, 1.0)), HasSubstr("1 to 256 data sets"));
  EXPECT_THAT(fault({1, 0}), HasSubstr("weight 1 is 0"));
  EXPECT_THAT(fault({-2, 1}), HasSubstr("weight 0 is -2"));
  EXPECT_THAT(fault({1, std::numeric_limits<double>::quiet_NaN()}), HasSubstr("weight 1 is nan"));
  EXPECT_THAT(fault({1e308, 1e308}), HasSubstr("not finite"));
  EXPECT_THAT(fault({1, 1e-9}), HasSubstr("less than one sample in 1048576"));
}

TokenDataset Counting(int32_t first, int32_t count) {
  auto owner = std::make_shared<std::vector<int32_t>>();
  for (int32_t i = 0; i < count; ++i) owner->push_back(first + i);
  return TokenDataset(owner, owner->data(), TokenType::kInt32, count);
}

TEST(BlendedDataset, OneDataSetKeepsTheOrderOfItsEpochs) {
  const BlendedDataset one({Counting(0, 41)}, Blend());
  for (int64_t position = 0; position < 100; ++position) {
    int32_t sample[5];
    one.ReadShuffled(1337, position, 4, sample);
    EXPECT_EQ(sample[0], 4 * SampleAt(1337, 10, position));
  }
  EXPECT_EQ(one.Samples(4), 10);
}

TEST(BlendedDataset, EveryDataSetHasEpochsOfItsOwn) {
  const BlendedDataset blend({Counting(0, 41), Counting(1000, 13)}, *Blend::Create({0.7, 0.3}));
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  for (int64_t position = 0; position < 100; ++position) {
    int32_t sample[5];
    blend.ReadShuffled(7, position, 4, sample);
    EXPECT_EQ(sample[4], sample[0] + 4);
    (sample[0] < 1000 ? first : second).push_back(sample[0] % 1000 / 4);
  }
  ASSERT_EQ(first.size(), 70u);
  for (size_t n = 0; n < first.size(); ++n) {
    EXPECT_EQ(first[n], SampleAt(7, 10, static_cast<int64_t>(n)));
  }
  for (size_t n = 0; n < second.size(); ++n) {
    EXPECT_EQ(second[n], SampleAt(SeedOfDataset(7, 1), 3, static_cast<int64_t>(n)));
  }
  EXPECT_NE(SeedOfDataset(7, 1), SeedOfDataset(7, 2));
}

}  // namespace
}  // namespace tercio::data

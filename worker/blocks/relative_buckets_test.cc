// The buckets of relative positions are those of transformers (T5Attention's
// _relative_position_bucket), which is where each of the runs below begins.
#include "worker/blocks/relative_buckets.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tercio::blocks {
namespace {

constexpr int64_t kFarthest = 200;

// The first distance, from the smallest on, and the bucket of it and of those behind it.
using Runs = std::vector<std::pair<int64_t, int32_t>>;

std::vector<int32_t> Written(const Runs& runs, int64_t last) {
  std::vector<int32_t> buckets;
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t end = i + 1 < runs.size() ? runs[i + 1].first : last + 1;
    for (int64_t distance = runs[i].first; distance < end; ++distance) {
      buckets.push_back(runs[i].second);
    }
  }
  return buckets;
}

void ExpectBuckets(const model::RelativeBiasOptions& options, bool causal, const Runs& runs) {
  std::vector<int32_t> ours = RelativeBuckets(options, causal, kFarthest + 1);
  ASSERT_EQ(ours.size(), static_cast<size_t>(2 * kFarthest + 1));
  // What lies behind a causal query is never read.
  if (causal) ours.resize(static_cast<size_t>(kFarthest + 1));
  EXPECT_EQ(ours, Written(runs, causal ? 0 : kFarthest));
}

TEST(RelativeBuckets, PublishedOnesOfAnEncoder) {
  ExpectBuckets(
      {.buckets = 32, .distance = 128}, /*causal=*/false,
      {{-200, 15}, {-90, 14}, {-63, 13}, {-45, 12}, {-31, 11}, {-22, 10}, {-15, 9}, {-11, 8},
       {-7, 7},    {-6, 6},   {-5, 5},   {-4, 4},   {-3, 3},   {-2, 2},   {-1, 1},  {0, 0},
       {1, 17},    {2, 18},   {3, 19},   {4, 20},   {5, 21},   {6, 22},   {7, 23},  {8, 24},
       {12, 25},   {16, 26},  {23, 27},  {32, 28},  {46, 29},  {64, 30},  {91, 31}});
}

TEST(RelativeBuckets, PublishedOnesOfADecoder) {
  ExpectBuckets(
      {.buckets = 32, .distance = 128}, /*causal=*/true,
      {{-200, 31}, {-112, 30}, {-98, 29}, {-86, 28}, {-76, 27}, {-66, 26}, {-58, 25}, {-51, 24},
       {-45, 23},  {-39, 22},  {-34, 21}, {-30, 20}, {-26, 19}, {-23, 18}, {-20, 17}, {-18, 16},
       {-15, 15},  {-14, 14},  {-13, 13}, {-12, 12}, {-11, 11}, {-10, 10}, {-9, 9},   {-8, 8},
       {-7, 7},    {-6, 6},    {-5, 5},   {-4, 4},   {-3, 3},   {-2, 2},   {-1, 1},   {0, 0}});
}

TEST(RelativeBuckets, FewBucketsOfShortDistances) {
  const model::RelativeBiasOptions few = {.buckets = 8, .distance = 16};
  ExpectBuckets(few, /*causal=*/false,
                {{-200, 3}, {-5, 2}, {-1, 1}, {0, 0}, {1, 5}, {2, 6}, {6, 7}});
  ExpectBuckets(few, /*causal=*/true,
                {{-200, 7}, {-11, 6}, {-7, 5}, {-5, 4}, {-3, 3}, {-2, 2}, {-1, 1}, {0, 0}});
}

}  // namespace
}  // namespace tercio::blocks

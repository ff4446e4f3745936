// The buckets of distances between positions, by which attention adds a bias to its scores (Raffel
// et al. 2020, section 2.1).
#pragma once

#include <cstdint>
#include <vector>

#include "model/architecture.h"
#include "plan/stage_units.h"

namespace tercio::blocks {

// The bucket of distance j - i at place j - i + tokens - 1, each from the smallest. Of the buckets
// of one direction (all of them where attention is causal, else half), the first half has one
// distance each; the others grow by equal factors up to the largest distance. Their borders are
// rounded to float as in PyTorch, so that imported models see the same buckets.
std::vector<int32_t> RelativeBuckets(const model::RelativeBiasOptions& options, bool causal,
                                     int64_t tokens);

// Those of all streams, one after the other; empty for a model without such biases. REQUIRES: the
// layers of a stream have the same.
std::vector<int32_t> RelativeBucketsOf(const model::Architecture& architecture);
// Where a stream's begin.
int64_t FirstBucketOf(const plan::StageShape& shape, int stream);

}  // namespace tercio::blocks

// Gradient buckets: the parts of a stage's gradients that are reduced over data ranks together, in
// the order in which the backward pass completes them. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// One bucket for the head and the final norm, one per layer, one for the embedding, each only where
// the stage has it; together they tile the stage's gradients. Layers that come earlier in the
// backward pass come first.
std::vector<v1::BucketRange> BucketsOfStage(const v1::ModelSpec& model, const v1::Layout& layout,
                                            int stage);

// Elements from the first to the last gradient of the bucket that has most.
int64_t LargestBucket(const v1::ModelSpec& model, const v1::Layout& layout, int stage);

}  // namespace tercio::plan

// Gradient buckets: the parts of a stage's gradients that are reduced over data ranks together, in
// the order in which the backward pass completes them. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan/model_tensors.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Whether the gradients of a tied embedding's lookup and head become one before they are summed
// over data ranks, which then exchange it once (for GPT-2 124M a quarter less). Their sum has
// another order then, which jobs with one order for all layouts must not have.
bool JoinsTiedGradientsFirst(const v1::JobSpec& job, const v1::Layout& layout);

// One bucket for the head and the final norm, one per layer, one for the embedding, each only where
// the stage has it, and something to train in it. They tile the stage's gradients, but for the
// head's of a tied embedding where that is joined with the lookup's first. Layers that come earlier
// in the backward pass come first.
std::vector<v1::BucketRange> BucketsOfStage(const v1::JobSpec& job, const v1::Layout& layout,
                                            int stage);
// The same for a stage whose tensors are known.
std::vector<v1::BucketRange> BucketsOfTensors(const v1::JobSpec& job, const v1::Layout& layout,
                                              const StageTensors& tensors);

// Elements from the first to the last gradient of each bucket, in the order of BucketsOfTensors
// where tied gradients are not joined first.
std::vector<int64_t> ElementsOfBuckets(const StageTensors& tensors);
// The most of them.
int64_t LargestBucket(const StageTensors& tensors);

// Elements of the two buffers that buckets are written into in turns, one while the other is summed
// (worker/blocks/gradient_lanes.h). A stage with one bucket has one buffer.
std::array<int64_t, 2> ElementsOfTurns(const v1::Layout& layout, const StageTensors& tensors);

}  // namespace tercio::plan

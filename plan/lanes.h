// Lanes: the layout-independent blocks of the global batch whose gradients are summed separately
// and then combined in a balanced binary tree, so that data parallel degrees that divide the number
// of lanes give equal bits (docs/numerics.md). Pure.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace tercio::plan {

// The largest power of two that divides global_batch, at most 8.
int LaneCount(int64_t global_batch);

// Lanes of one data rank: lanes / data where data divides lanes, else 1 (equivalence only).
int LanesPerDataRank(int lanes, int data);

// Gradient buffers of the binary counter: log2(lanes_per_rank) + 1.
int GradientBuffers(int lanes_per_rank);

// Lane k of a rank accumulates in this buffer: popcount(k).
int AccumulationBuffer(int lane);

// How many times the top two buffers are added (lower += upper) after lane k: trailing one-bits of
// k.
int MergesAfterLane(int lane);

// A run of consecutive sequences of one micro-batch inside one lane.
struct LaneSegment {
  int lane = 0;            // within the rank
  int first_sequence = 0;  // within the micro-batch
  int sequences = 0;
  bool starts_lane = false;
  bool completes_lane = false;
};

// The segments of micro-batch `index` of a rank. sequences_per_rank = micro_batch * micro_batches.
using LaneSegments = absl::InlinedVector<LaneSegment, 8>;  // there are at most 8 lanes
LaneSegments SegmentsOfMicroBatch(int index, int micro_batch, int64_t sequences_per_rank,
                                  int lanes_per_rank);

}  // namespace tercio::plan

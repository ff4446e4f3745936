// Lanes: the layout-independent blocks of the global batch whose gradients are summed separately
// and then combined in a balanced binary tree, so that data parallel degrees that divide the number
// of lanes give equal bits (docs/numerics.md). Pure.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace tercio::plan {

// How the global batch is dealt out: each data rank has `micro_batches` of `micro_batch` sequences.
// In each round the data ranks of a group have one run of the group's share of the batch after the
// other, and sum their gradients at its end.
struct BatchShape {
  int micro_batch;
  int micro_batches;
  int data = 1;
  int rounds = 1;  // divides micro_batch * micro_batches
  int groups = 1;  // divides data
};

// The sequence of the global batch with which a micro-batch of a data rank begins; its others
// follow. Every sequence is in one micro-batch of one data rank.
int64_t FirstSequenceOf(const BatchShape& shape, int data_index, int micro_batch_index);
// The data rank that has the sequence.
int DataRankOf(const BatchShape& shape, int64_t sequence);

// The lanes of a job that does not choose them: the largest power of two that divides global_batch,
// at most 8.
int LaneCount(int64_t global_batch);
inline constexpr int kMostLanes = 4096;
// Whether a global batch can be cut into as many lanes: a power of two that divides it, at most
// kMostLanes.
bool CanHaveLanes(int64_t global_batch, int64_t lanes);

// Lanes of one data rank: lanes / data where data divides lanes, else 1 (equivalence only).
int LanesPerDataRank(int lanes, int data);

// Where lanes are summed: a binary counter, whose levels are sums of 1, 2, 4 ... lanes. A level
// that lives from one micro-batch to the next has a buffer for all gradients. Where micro-batches
// hold whole lanes, the levels within one of them are merged before the next tensor's gradients are
// written: all buckets share their buffers, which are as large as the largest of these
// (plan/buckets.h).
struct LaneBuffers {
  int lanes_per_pass = 1;  // lanes that a micro-batch holds whole; a power of two
  int whole = 1;           // buffers of all gradients
  int shared = 0;
};
LaneBuffers LaneBuffersOf(int micro_batch, int64_t sequences_per_rank, int lanes_per_rank);

// The level of the counter at which a lane is summed, from 0: the first levels have the whole
// buffers that the lane's pass needs, those after them shared ones.
struct LaneLevel {
  int whole;  // index of a whole buffer, where shared is -1
  int shared;
};
LaneLevel LevelOf(const LaneBuffers& buffers, int lane);
// The level at which a lane is summed where there are no shared ones.
int LevelOfLane(int lane);
// Levels of a counter of `lanes` lanes.
int LevelsOfLanes(int lanes);
// The level below, into which the level is merged.
LaneLevel LevelBelow(LaneLevel level);

// How many times a level is merged into the one below it after lane k: trailing one-bits of k.
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
// Without an allocation for the lanes of a job that does not choose them.
using LaneSegments = absl::InlinedVector<LaneSegment, 8>;
LaneSegments SegmentsOfMicroBatch(int index, int micro_batch, int64_t sequences_per_rank,
                                  int lanes_per_rank);

}  // namespace tercio::plan

#include "plan/lanes.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace tercio::plan {

int64_t FirstSequenceOf(const BatchShape& shape, int data_index, int micro_batch_index) {
  // The sequences of a data rank in a round are one run, as those of a lane are, so that lanes are
  // whole on it.
  const int64_t of_round = int64_t{shape.micro_batches} * shape.micro_batch / shape.rounds;
  const int64_t at = int64_t{micro_batch_index} * shape.micro_batch;
  const int members = shape.data / shape.groups;
  const int64_t of_group = int64_t{shape.micro_batches} * shape.micro_batch * members;
  return data_index / members * of_group +
         (at / of_round * members + data_index % members) * of_round + at % of_round;
}

int DataRankOf(const BatchShape& shape, int64_t sequence) {
  const int64_t of_round = int64_t{shape.micro_batches} * shape.micro_batch / shape.rounds;
  const int members = shape.data / shape.groups;
  const int64_t of_group = int64_t{shape.micro_batches} * shape.micro_batch * members;
  return static_cast<int>(sequence / of_group * members + sequence / of_round % members);
}

int LaneCount(int64_t global_batch) {
  TERCIO_CHECK_GE(global_batch, 1);
  int lanes = 1;
  // Eight lanes serve data degrees up to eight; more cost memory and time, and are chosen by a job
  // that needs them.
  while (lanes < 8 && global_batch % (2 * lanes) == 0) lanes *= 2;
  return lanes;
}

bool CanHaveLanes(int64_t global_batch, int64_t lanes) {
  return lanes >= 1 && lanes <= kMostLanes && std::has_single_bit(static_cast<uint64_t>(lanes)) &&
         global_batch % lanes == 0;
}

// A degree that does not divide the lanes gets one, and bits of its own.
int LanesPerDataRank(int lanes, int data) { return lanes % data == 0 ? lanes / data : 1; }

LaneBuffers LaneBuffersOf(int micro_batch, int64_t sequences_per_rank, int lanes_per_rank) {
  const int64_t per_lane = sequences_per_rank / lanes_per_rank;
  LaneBuffers buffers;
  // Both counts of lanes are powers of two, as the lanes of a rank are and one divides the other.
  if (micro_batch % per_lane == 0)
    buffers.lanes_per_pass = static_cast<int>(micro_batch / per_lane);
  // A binary counter of n lanes has as many sums alive as n has bits.
  buffers.whole = LevelsOfLanes(lanes_per_rank / buffers.lanes_per_pass);
  buffers.shared = LevelsOfLanes(buffers.lanes_per_pass) - 1;
  return buffers;
}

LaneLevel LevelOf(const LaneBuffers& buffers, int lane) {
  return {.whole = LevelOfLane(lane / buffers.lanes_per_pass),
          .shared = LevelOfLane(lane % buffers.lanes_per_pass) - 1};
}

int LevelOfLane(int lane) { return std::popcount(static_cast<unsigned>(lane)); }
int LevelsOfLanes(int lanes) { return std::bit_width(static_cast<unsigned>(lanes)); }

LaneLevel LevelBelow(LaneLevel level) {
  if (level.shared >= 0) return {level.whole, level.shared - 1};
  return {level.whole - 1, -1};
}

int MergesAfterLane(int lane) { return std::countr_one(static_cast<unsigned>(lane)); }

LaneSegments SegmentsOfMicroBatch(int index, int micro_batch, int64_t sequences_per_rank,
                                  int lanes_per_rank) {
  TERCIO_CHECK_EQ(sequences_per_rank % lanes_per_rank, 0);
  // Lanes end at whole sequences, since a sequence is the unit that ranks are given.
  const int64_t per_lane = sequences_per_rank / lanes_per_rank;
  LaneSegments segments;
  const int64_t begin = int64_t{index} * micro_batch;
  for (int64_t at = begin; at < begin + micro_batch;) {
    const int64_t lane = at / per_lane;
    // A segment ends with its micro-batch or with its lane, whichever comes first.
    const int64_t end = std::min(begin + micro_batch, (lane + 1) * per_lane);
    LaneSegment segment;
    segment.lane = static_cast<int>(lane);
    segment.first_sequence = static_cast<int>(at - begin);
    segment.sequences = static_cast<int>(end - at);
    segment.starts_lane = at == lane * per_lane;
    segment.completes_lane = end == (lane + 1) * per_lane;
    segments.push_back(segment);
    at = end;
  }
  return segments;
}

}  // namespace tercio::plan

// Seconds of a pipeline: the action lists that the trainer executes (plan/schedule.h), played
// against each other with the time of each pass and message. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "plan/schedule.h"

namespace tercio::plan::cost {

// Times of one micro-batch.
struct PassSeconds {
  double forward = 0;
  double backward = 0;
};

// Devices that the ranks of a node take turns on: each of the ranks that compute gets an equal
// part, and none more than one device.
struct Sharing {
  double devices = 0;  // of a node; 0: every rank has its own
  int ranks_of_stage = 1;
  int ranks_of_node = 1;
};

struct PipelineCost {
  std::vector<PassSeconds> places;  // by chunk * stages + stage, the order of the model
  double transfer = 0;              // of a message between stages, either way
  // Where that differs: between each stage and the next one, the last and the first.
  std::vector<double> transfers = {};
  // Whether messages travel while stages compute; else a sender waits until its message is there.
  bool overlaps_transfers = true;
  Sharing sharing = {};
};

struct PipelineTime {
  double seconds = 0;              // until the last stage has finished
  std::vector<double> stage_ends;  // when each stage has done its last backward pass
};

// One pass of a walk: when its stage was free, when what it reads was there, and when it ran.
struct PassSpan {
  int stage = 0;
  int chunk = 0;
  int micro_batch = 0;
  bool forward = true;
  double free = 0;
  double ready = 0;
  double begin = 0;  // the later of both
  double seconds = 0;
  double sending = 0;  // behind the pass, where its stage waits for its message
};

// All stages' passes, taken from their action lists once and played as often as needed.
class PipelineWalk {
 public:
  explicit PipelineWalk(const ScheduleShape& shape);

  PipelineTime Play(const PipelineCost& cost) const;
  // The same, and each pass: in the order of its stage, with the stages' passes in any order.
  PipelineTime Play(const PipelineCost& cost, std::vector<PassSpan>* spans) const;
  // Each pass takes its time in `cost` times what `factor` gives for its stage, asked once a pass.
  PipelineTime Play(const PipelineCost& cost, absl::FunctionRef<double(int stage)> factor) const;

  const ScheduleShape& shape() const { return shape_; }

 private:
  struct Pass {
    int32_t place = 0;
    int32_t micro_batch = 0;
    bool forward = true;
  };
  class Shared;

  PipelineTime PlayShared(const PipelineCost& cost) const;

  // `factor`: of a stage's pass; `see`: told each pass, by values that cost nothing where it
  // ignores them.
  template <typename Factor, typename See>
  PipelineTime PlayWith(const PipelineCost& cost, const Factor& factor, const See& see) const;

  ScheduleShape shape_;
  std::vector<std::vector<Pass>> stages_;
};

// Walks by shape, made when they are first asked for, and what was played: layouts of a search
// share both.
class PipelineWalks {
 public:
  // With many micro-batches only the first ones are played, until one group of them takes as long
  // as the one before; the rest follows from that.
  PipelineTime Play(const ScheduleShape& shape, const PipelineCost& cost);
  // How many walks were played so far.
  int64_t played() const { return played_; }

 private:
  using Shape = std::tuple<int, int, int, int>;  // kind, stages, chunks, micro-batches
  // Those that are played are of one shape each; of a pipeline's cost all numbers.
  using Key = std::pair<Shape, std::vector<double>>;

  const PipelineTime& Played(ScheduleShape shape, int micro_batches, const PipelineCost& cost);

  std::map<Shape, std::unique_ptr<PipelineWalk>> walks_;
  absl::flat_hash_map<Key, PipelineTime> times_;
  int64_t played_ = 0;
};

}  // namespace tercio::plan::cost

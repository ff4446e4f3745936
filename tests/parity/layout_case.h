// Layouts as rows of tables, and jobs that run in them.
#pragma once

#include <string>
#include <vector>

#include "proto/tercio/v1/job.pb.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {

struct Case {
  int tensor, pipeline, data, micro_batch, threads;
  v1::PipelineSchedule schedule;
  v1::Recompute recompute = kNone;
  int virtual_pipeline = 1;
  bool sequence_parallel = false;
  int zero_stage = 0;
  int shard = 0;
  int reshard_after_forward = 0;
  int prefetch = 1;
  std::vector<int> stage_layers = {};
};
std::string NameOf(const Case& c);

// Trains in the layout, and evaluates. A failure is the test's, and the result empty.
RunResult Train(v1::JobSpec spec, const Case& c, RunOptions options = {});

// Losses, norms, the validation loss, and all state.
void ExpectSameBits(const RunResult& expected, const RunResult& actual);

// Every layout has the bits of the first one.
void ExpectSameGrid(const v1::JobSpec& spec, const std::vector<Case>& cases);

}  // namespace tercio::testing

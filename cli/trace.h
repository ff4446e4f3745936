// The trace of a step as a file, and the idle share of the pipeline in it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/client.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::cli {

// Chrome's trace event format (JSON), which Perfetto reads, too: a process for each rank, its
// compute and its communication as two threads, times from the first event in microseconds.
std::string TraceJson(const std::vector<v1::RankTrace>& traces, const v1::Plan& plan);

// Idle time / ideal time, as tercio plan's bubble_ratio: from the first forward to the last
// backward of any rank, over the forwards and backwards of the busiest rank, less 1. -1 without
// either.
double MeasuredBubble(const std::vector<v1::RankTrace>& traces);

// The same of a pipeline of `layers` layers in which each takes as long as any other, backward
// twice as long as forward, and nothing else takes any time: (p - 1) / (v m) for p stages of v
// chunks with equally many layers and m micro-batches (Narayanan et al. 2021), else by playing the
// passes of all stages (plan/planner/cost/pipeline_time.h).
double BubbleOfLayers(int layers, const v1::Layout& layout);

// Writes the trace of a job that has ended to `path`, and prints the bubble to stderr. NOT_FOUND:
// the traced step was not reached.
absl::Status WriteTrace(Client& client, const v1::JobStatus& job, const std::string& path);

}  // namespace tercio::cli

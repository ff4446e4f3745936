// The messages between the stages of a pipeline, as directed edges, and rounds in which they can be
// set up so that no stage is in two edges of a round. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace tercio::collective {

// Tags of the messages of a pipeline group (worker/engine/pipeline_links.h).
inline constexpr uint32_t kActivationTag = 0;
inline constexpr uint32_t kGradientTag = 1;
inline constexpr uint32_t kTiedTag = 2;

struct PipelineEdge {
  int from;
  int to;
  uint32_t tag;
};
using EdgeRound = std::vector<PipelineEdge>;

// Activations go from each stage to the next, and, where stages have several chunks, from the last
// to the first; gradients the other way; gradients of a tied embedding between first and last.
// REQUIRES: stages >= 2.
std::vector<EdgeRound> RoundsOfEdges(int stages);

}  // namespace tercio::collective

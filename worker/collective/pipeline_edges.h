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

// Which edges there are beside those between neighbours.
struct PipelineEdges {
  bool closes_ring = true;  // from the last stage to the first, since stages have several chunks
  bool is_tied = true;      // both ways between first and last, for a tied embedding's gradients
};

// Activations go from each stage to the next, gradients the other way. REQUIRES: stages >= 2.
std::vector<EdgeRound> RoundsOfEdges(int stages, const PipelineEdges& edges);

}  // namespace tercio::collective

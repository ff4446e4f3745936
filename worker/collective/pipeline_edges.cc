#include "worker/collective/pipeline_edges.h"

#include "common/check.h"

namespace tercio::collective {

std::vector<EdgeRound> RoundsOfEdges(int stages, const PipelineEdges& edges) {
  TERCIO_CHECK_GE(stages, 2);
  std::vector<EdgeRound> rounds;
  for (const uint32_t tag : {kActivationTag, kGradientTag}) {
    const auto edge = [&](int stage) {
      const int next = (stage + 1) % stages;
      return tag == kActivationTag ? PipelineEdge{stage, next, tag}
                                   : PipelineEdge{next, stage, tag};
    };
    EdgeRound even;
    EdgeRound odd;
    for (int stage = 0; stage + 1 < stages; ++stage) {
      // Neighbouring edges share a stage, but every second one can be made at the same time.
      (stage % 2 == 0 ? even : odd).push_back(edge(stage));
    }
    rounds.push_back(even);
    // Two stages have only one edge in a row.
    if (!odd.empty()) rounds.push_back(odd);
    // The edge that closes the ring shares a stage with the first edge and with the last.
    if (edges.closes_ring) rounds.push_back({edge(stages - 1)});
  }
  if (edges.is_tied) {
    rounds.push_back({{0, stages - 1, kTiedTag}});
    rounds.push_back({{stages - 1, 0, kTiedTag}});
  }
  return rounds;
}

}  // namespace tercio::collective

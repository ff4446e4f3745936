#include "worker/collective/pipeline_edges.h"

#include <set>
#include <tuple>

#include "gtest/gtest.h"

namespace tercio::collective {
namespace {

using Edge = std::tuple<int, int, uint32_t>;

TEST(PipelineEdges, EachStageIsInOneEdgeOfARoundAndEveryEdgeIsThereOnce) {
  for (int i = 0; i < 8 * 4; ++i) {
    const int stages = 2 + i / 4;
    const PipelineEdges edges = {.closes_ring = i % 2 != 0, .is_tied = i / 2 % 2 != 0};
    SCOPED_TRACE(i);
    std::multiset<Edge> found;
    for (const EdgeRound& round : RoundsOfEdges(stages, edges)) {
      EXPECT_FALSE(round.empty());
      std::set<int> busy;
      for (const PipelineEdge& edge : round) {
        EXPECT_TRUE(busy.insert(edge.from).second) << edge.from;
        EXPECT_TRUE(busy.insert(edge.to).second) << edge.to;
        found.emplace(edge.from, edge.to, edge.tag);
      }
    }
    std::multiset<Edge> expected;
    for (int stage = 0; stage + (edges.closes_ring ? 0 : 1) < stages; ++stage) {
      const int next = (stage + 1) % stages;
      expected.emplace(stage, next, kActivationTag);
      expected.emplace(next, stage, kGradientTag);
    }
    if (edges.is_tied) {
      expected.emplace(0, stages - 1, kTiedTag);
      expected.emplace(stages - 1, 0, kTiedTag);
    }
    EXPECT_EQ(found, expected);
  }
}

}  // namespace
}  // namespace tercio::collective

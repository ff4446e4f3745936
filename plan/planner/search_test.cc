// The lazy search finds what a search that computes everything finds.
#include "plan/planner/search.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/planner/cost/recipe.h"
#include "plan/rank_layout.h"

namespace tercio::plan {
namespace {

using ::testing::HasSubstr;

v1::JobSpec Gpt(int layers, int hidden, int heads, int global_batch) {
  v1::JobSpec job;
  v1::ModelSpec& model = *job.mutable_model();
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_layers(layers);
  model.set_hidden(hidden);
  model.set_heads(heads);
  model.set_kv_heads(heads);
  model.set_ffn_hidden(4 * hidden);
  model.set_context(2048);
  model.set_bias(true);
  model.set_vocab_size(51200);
  job.mutable_training()->set_global_batch(global_batch);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  job.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_LAYOUT);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  job.mutable_parallelism()->set_automatic(true);
  job.mutable_parallelism()->set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  job.mutable_parallelism()->set_recompute(v1::RECOMPUTE_NONE);
  return job;
}

cost::ClusterModel Nodes(const char* accelerator, int nodes, int per_node) {
  return cost::MakeCluster(*cost::AcceleratorOf(accelerator), per_node, nodes, per_node, 25e9);
}

const cost::Recipe& Own() { return *cost::FindRecipe("tercio"); }

// Time and memory of every layout that breaks no rule.
std::vector<RankedLayout> All(const v1::JobSpec& job, const cost::ClusterModel& cluster) {
  std::vector<RankedLayout> all;
  cost::PipelineWalks walks;
  for (const v1::Layout& layout : SpaceOf(job, cluster)) {
    if (!CheckLayout(WithLayout(job, layout), layout, cluster.devices()).ok()) continue;
    all.push_back(Assess(job, layout, cluster, Own(), &walks));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.cost.seconds < b.cost.seconds; });
  return all;
}

TEST(Search, FindsWhatASearchOfEverythingFinds) {
  struct Space {
    v1::JobSpec job;
    cost::ClusterModel cluster;
  };
  for (const Space& space : {Space{Gpt(8, 2048, 16, 32), Nodes("A100-80", 1, 8)},
                             Space{Gpt(8, 4096, 32, 16), Nodes("V100-16", 1, 4)},
                             Space{Gpt(4, 1024, 16, 8), Nodes("H100", 2, 2)}}) {
    const std::vector<RankedLayout> all = All(space.job, space.cluster);
    std::vector<RankedLayout> fitting;
    for (const RankedLayout& ranked : all) {
      if (ranked.rejected.empty()) fitting.push_back(ranked);
    }
    ASSERT_GT(fitting.size(), 5u);
    const SearchResult found =
        SearchLayouts(space.job, space.cluster, Own(), {.most_fitting = 5, .most_too_large = 3});
    ASSERT_EQ(found.fitting.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(found.fitting[i].cost.seconds, fitting[i].cost.seconds) << i;
      EXPECT_TRUE(found.fitting[i].rejected.empty());
      EXPECT_LE(found.fitting[i].memory_bytes, found.fitting[i].available_bytes);
    }
    for (const RankedLayout& ranked : found.too_large) {
      EXPECT_GT(ranked.memory_bytes, ranked.available_bytes);
    }
  }
}

TEST(Search, TheBoundIsNoMoreThanTheTime) {
  const v1::JobSpec job = Gpt(8, 2048, 16, 32);
  const cost::ClusterModel cluster = Nodes("A100-80", 2, 4);
  cost::PipelineWalks walks;
  for (const v1::Layout& layout : SpaceOf(job, cluster)) {
    if (!CheckLayout(WithLayout(job, layout), layout, cluster.devices()).ok()) continue;
    const double least = cost::LeastSecondsOfStep({job, layout, cluster, Own()});
    const double seconds = cost::CostOfStep({job, layout, cluster, Own()}, &walks).seconds;
    EXPECT_LE(least, seconds * (1 + 1e-9)) << layout.ShortDebugString();
  }
}

TEST(Search, SaysWhyLayoutsAreNone) {
  const SearchResult found = SearchLayouts(Gpt(6, 1536, 12, 8), Nodes("A100-80", 1, 8), Own());
  EXPECT_FALSE(found.fitting.empty());
  std::string rules;
  for (const BrokenRule& broken : found.broken) {
    EXPECT_GT(broken.layouts, 0);
    rules += broken.rule + "\n";
  }
  EXPECT_THAT(rules, HasSubstr("tensor 8 does not divide model.heads 12"));
}

TEST(Search, ALayoutThatIsNamedIsTheOnlyOne) {
  v1::JobSpec job = Gpt(8, 2048, 16, 32);
  v1::ParallelismSpec& named = *job.mutable_parallelism();
  named.set_automatic(false);
  named.set_tensor(2);
  named.set_pipeline(2);
  named.set_data(2);
  const SearchResult found = SearchLayouts(job, Nodes("A100-80", 1, 8), Own());
  EXPECT_EQ(found.considered, 1);
  ASSERT_EQ(found.fitting.size(), 1u);
  EXPECT_EQ(found.fitting[0].layout.pipeline(), 2);
}

TEST(Search, WhatFitsNowhereIsNamedWithItsNeed) {
  const SearchResult found = SearchLayouts(Gpt(96, 12288, 96, 64), Nodes("V100-16", 1, 8), Own());
  EXPECT_TRUE(found.fitting.empty());
  ASSERT_FALSE(found.too_large.empty());
  EXPECT_THAT(found.too_large[0].rejected, HasSubstr("does not fit in memory: needs"));
}

}  // namespace
}  // namespace tercio::plan

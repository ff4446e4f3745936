// The lazy search finds what a search that computes everything finds.
#include "plan/planner/search.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/combinations.h"
#include "plan/offload.h"
#include "plan/planner/cost/node_groups.h"
#include "plan/planner/cost/recipe.h"
#include "plan/rank_layout.h"
#include "plan/stage_layers.h"

namespace tercio::plan {
namespace {

using ::testing::ElementsAre;
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

// A layout that does not fit, with as little of its optimizer's state on the host as lets it fit.
std::optional<RankedLayout> Offloaded(const v1::JobSpec& job, v1::Layout layout,
                                      const cost::ClusterModel& cluster) {
  const auto at = [&](int parts) {
    layout.set_offload_share(static_cast<double>(parts) / kOffloadParts);
    const v1::JobSpec with = WithLayout(job, layout);
    EXPECT_EQ(with.offload().optimizer(), v1::OFFLOAD_TIER_HOST);
    RankedLayout ranked = Assess(with, layout, cluster, Own());
    if (!BrokenBy(with).empty()) ranked.rejected = "breaks a rule";
    return ranked;
  };
  // Where all of it is not enough of the device's memory, less is not either
  // (plan/offload_test.cc).
  const RankedLayout all = at(kOffloadParts);
  if (all.memory_bytes > all.available_bytes) return std::nullopt;
  for (int parts = 1; parts <= kOffloadParts; ++parts) {
    RankedLayout ranked = at(parts);
    if (ranked.rejected.empty()) return ranked;
  }
  return std::nullopt;
}

// Time and memory of every layout that breaks no rule, each computed alone, and of those that do
// not fit what offloading makes of them where the job leaves it open.
std::vector<RankedLayout> All(const v1::JobSpec& job, const cost::ClusterModel& in_any_order) {
  std::vector<RankedLayout> all;
  const bool is_open = job.offload().optimizer() == v1::OFFLOAD_TIER_UNSPECIFIED ||
                       (job.offload().has_share() && job.offload().share() == kLeastShare);
  for (const std::vector<int>& order : cost::OrdersOf(in_any_order)) {
    const cost::ClusterModel cluster = cost::InOrder(in_any_order, order);
    const auto add = [&](RankedLayout ranked) {
      if (!cluster.groups.empty()) ranked.order = order;
      all.push_back(std::move(ranked));
    };
    for (const v1::Layout& layout : SpaceOf(job, cluster, Own())) {
      const v1::JobSpec with = WithLayout(job, layout);
      if (!CheckLayout(with, layout, cluster.devices()).ok()) continue;
      add(Assess(with, layout, cluster, Own()));
      if (all.back().rejected.empty() || !is_open) continue;
      if (auto offloaded = Offloaded(job, layout, cluster)) add(*std::move(offloaded));
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.cost.seconds < b.cost.seconds; });
  return all;
}

// The first ones of `all` that fit or do not, up to a number of them, and no slower than `seconds`.
std::vector<const RankedLayout*> FirstOf(const std::vector<RankedLayout>& all, bool fits,
                                         size_t most, double seconds) {
  std::vector<const RankedLayout*> first;
  for (const RankedLayout& ranked : all) {
    if (first.size() == most || ranked.cost.seconds > seconds) break;
    if (ranked.rejected.empty() == fits) first.push_back(&ranked);
  }
  return first;
}

void ExpectSame(const std::vector<RankedLayout>& found,
                const std::vector<const RankedLayout*>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].layout.ShortDebugString(), wanted[i]->layout.ShortDebugString()) << i;
    EXPECT_EQ(found[i].order, wanted[i]->order) << i;
    EXPECT_EQ(found[i].cost.seconds, wanted[i]->cost.seconds) << i;
    EXPECT_EQ(found[i].memory_bytes, wanted[i]->memory_bytes) << i;
    EXPECT_EQ(found[i].available_bytes, wanted[i]->available_bytes) << i;
    EXPECT_EQ(found[i].host_bytes, wanted[i]->host_bytes) << i;
    EXPECT_EQ(found[i].host_available_bytes, wanted[i]->host_available_bytes) << i;
    EXPECT_EQ(found[i].rejected, wanted[i]->rejected) << i;
  }
}

// Returns how many layouts were compared.
size_t ExpectFindsWhatASearchOfEverythingFinds(const v1::JobSpec& job,
                                               const cost::ClusterModel& cluster,
                                               const SearchOptions& options) {
  const std::vector<RankedLayout> all = All(job, cluster);
  const SearchResult found = SearchLayouts(job, cluster, Own(), options);
  constexpr double kAny = std::numeric_limits<double>::infinity();
  const auto fitting = FirstOf(all, true, options.most_fitting, kAny);
  ExpectSame(found.fitting, fitting);
  const bool is_full = fitting.size() == options.most_fitting;
  ExpectSame(found.too_large, FirstOf(all, false, options.most_too_large,
                                      is_full ? fitting.back()->cost.seconds : kAny));
  return found.fitting.size() + found.too_large.size();
}

TEST(Search, AStageBetweenMayNeedMostMemory) {
  v1::JobSpec job = Gpt(32, 2048, 16, 64);
  job.mutable_parallelism()->set_automatic(false);
  job.mutable_parallelism()->set_pipeline(8);
  job.mutable_training()->set_micro_batch(1);
  job.mutable_resources()->set_ranks(8);
  const cost::ClusterModel cluster = Nodes("A100-80", 1, 8);
  const auto found = [&] {
    const SearchResult result = SearchLayouts(job, cluster, Own(), {});
    EXPECT_EQ(result.fitting.size(), 1u);
    return result.fitting.empty() ? RankedLayout{} : result.fitting.front();
  };
  const RankedLayout equal = found();
  for (const int layers : {1, 1, 1, 25, 1, 1, 1, 1}) {
    job.mutable_parallelism()->add_stage_layers(layers);
  }
  const RankedLayout unequal = found();
  EXPECT_EQ(unequal.layout.stage_layers_size(), 8);
  EXPECT_EQ(WithLayout(job, unequal.layout).parallelism().stage_layers_size(), 8);
  EXPECT_GT(unequal.memory_bytes, 2 * equal.memory_bytes);
  EXPECT_GT(unequal.cost.seconds, 3 * equal.cost.seconds);
}

TEST(Search, FindsWhatASearchOfEverythingFinds) {
  struct Space {
    v1::JobSpec job;
    cost::ClusterModel cluster;
  };
  for (const Space& space : {Space{Gpt(8, 2048, 16, 32), Nodes("A100-80", 1, 8)},
                             Space{Gpt(8, 4096, 32, 16), Nodes("V100-16", 1, 4)},
                             Space{Gpt(4, 1024, 16, 8), Nodes("H100", 2, 2)},
                             // Most fit with state on the host only.
                             Space{Gpt(24, 2048, 16, 8), Nodes("V100-16", 1, 1)},
                             // Stages with unequally many layers.
                             Space{Gpt(10, 2048, 16, 32), Nodes("A100-80", 1, 8)},
                             Space{Gpt(7, 4096, 32, 16), Nodes("V100-16", 1, 4)}}) {
    const size_t compared = ExpectFindsWhatASearchOfEverythingFinds(
        space.job, space.cluster, {.most_fitting = 5, .most_too_large = 3});
    EXPECT_GE(compared, 5u);
  }
}

TEST(Search, FindsTheSameForDrawnJobsAndClusters) {
  constexpr uint64_t kSeed = 20261128;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  const auto one_of = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  int with_too_large = 0;
  int offloaded = 0;
  for (int i = 0; i < 24; ++i) {
    const int heads = one_of({8, 12, 32});
    v1::JobSpec job =
        Gpt(one_of({4, 6, 8}), heads * one_of({64, 128, 256}), heads, one_of({4, 8, 12, 16}));
    job.mutable_model()->set_architecture(one_of({0, 1, 2}) == 0 ? v1::ARCHITECTURE_LLAMA
                                                                 : v1::ARCHITECTURE_GPT2);
    job.mutable_model()->set_untied_head(one_of({0, 1}) == 0);
    if (one_of({0, 1, 2, 3}) == 0) {
      job.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
    }
    const int offload = one_of({0, 1, 2, 3, 4, 5, 6, 7});
    if (offload < 2) job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
    if (offload == 1) job.mutable_offload()->set_share(kLeastShare);
    if (offload == 2) job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NONE);
    cost::ClusterModel cluster =
        Nodes(i % 2 == 0 ? "A100-40" : "H100", one_of({1, 2, 4}), one_of({1, 2, 4}));
    // Some of the layouts fit, and others do not.
    cluster.accelerator.memory_bytes = one_of({2, 3, 4, 6, 8, 16}) * 1e9;
    cluster.host.link_bytes_per_second = one_of({1, 25, 450}) * 1e9;
    cluster.host.memory_bytes = cluster.devices_per_node * one_of({1, 4, 128, 128}) * 1e9;
    const SearchOptions options = {.most_fitting = static_cast<size_t>(one_of({1, 5, 20})),
                                   .most_too_large = static_cast<size_t>(one_of({0, 1, 10}))};
    SCOPED_TRACE(job.ShortDebugString());
    ExpectFindsWhatASearchOfEverythingFinds(job, cluster, options);
    const SearchResult found = SearchLayouts(job, cluster, Own(), options);
    if (!found.too_large.empty()) ++with_too_large;
    for (const RankedLayout& ranked : found.fitting) {
      if (ranked.layout.offload_share() == 0) continue;
      ++offloaded;
      EXPECT_GT(ranked.cost.offload, 0);
      EXPECT_TRUE(
          CheckLayout(WithLayout(job, ranked.layout), ranked.layout, cluster.devices()).ok());
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(with_too_large, 5);
  EXPECT_GT(offloaded, 3);
}

// A job of one GPU whose moments alone are larger than its memory.
TEST(Search, OffloadsWhatDoesNotFitOtherwise) {
  v1::JobSpec job = Gpt(24, 2048, 16, 8);
  cost::ClusterModel cluster = Nodes("A100-40", 1, 1);
  EXPECT_EQ(SearchLayouts(job, cluster, Own()).fitting.front().layout.offload_share(), 0);
  cluster.accelerator.memory_bytes = 19e9;
  const SearchResult found = SearchLayouts(job, cluster, Own());
  ASSERT_FALSE(found.fitting.empty());
  for (const RankedLayout& ranked : found.fitting) {
    EXPECT_GT(ranked.layout.offload_share(), 0);
    EXPECT_GT(ranked.cost.offload, 0);
    EXPECT_LE(ranked.memory_bytes, ranked.available_bytes);
    EXPECT_LE(ranked.host_bytes, ranked.host_available_bytes);
  }
  // One that names a tier, if only `none`, has chosen.
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NONE);
  EXPECT_TRUE(SearchLayouts(job, cluster, Own()).fitting.empty());
  job.mutable_offload()->clear_optimizer();
  job.mutable_parallelism()->set_automatic(false);
  job.mutable_training()->set_micro_batch(1);
  EXPECT_TRUE(SearchLayouts(job, cluster, Own()).fitting.empty());
  // Nor does a layout fit whose snapshot and state the host has no room for.
  job.mutable_parallelism()->set_automatic(true);
  cluster.host.memory_bytes = 10e9;
  EXPECT_TRUE(SearchLayouts(job, cluster, Own()).fitting.empty());
  cluster.accelerator.memory_bytes = 40e9;
  const SearchResult on_host = SearchLayouts(job, cluster, Own());
  ASSERT_FALSE(on_host.too_large.empty());
  EXPECT_THAT(on_host.too_large[0].rejected,
              HasSubstr("does not fit in memory of the host: needs"));
}

// What a named share moves is counted on the host, not on the GPU.
TEST(Search, CountsWhatAJobOffloads) {
  v1::JobSpec job = Gpt(24, 2048, 16, 64);
  job.mutable_parallelism()->set_automatic(false);
  job.mutable_parallelism()->set_data(8);
  job.mutable_parallelism()->set_zero_stage(1);
  job.mutable_training()->set_micro_batch(1);
  job.mutable_resources()->set_ranks(8);
  const auto found = [&] {
    const SearchResult result = SearchLayouts(job, Nodes("A100-80", 1, 8), Own());
    return result.fitting.empty() ? RankedLayout{} : result.fitting.front();
  };
  const RankedLayout inside = found();
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
  const RankedLayout elsewhere = found();
  const int64_t moved = inside.memory_bytes - elsewhere.memory_bytes;
  EXPECT_GT(moved, int64_t{1} << 30);
  EXPECT_NEAR(static_cast<double>(elsewhere.host_bytes - inside.host_bytes),
              static_cast<double>(moved), 1 << 20);
  EXPECT_NEAR(elsewhere.cost.seconds, inside.cost.seconds + elsewhere.cost.offload, 1e-12);
  EXPECT_GT(elsewhere.cost.offload, 0);
}

TEST(Search, FindsTheSameOnNodesOfSeveralKinds) {
  const auto joined = [](std::vector<cost::ClusterModel> groups) {
    return cost::JoinGroups(std::move(groups), {.bytes_per_second = 3e9, .seconds = 3e-5}, 1);
  };
  for (const cost::ClusterModel& cluster :
       {joined({Nodes("A100-80", 1, 4), Nodes("V100-16", 1, 4)}),
        joined({Nodes("H100", 2, 2), Nodes("A100-40", 1, 4)}),
        joined({Nodes("V100-16", 1, 2), Nodes("H100", 1, 2), Nodes("A100-80", 1, 2)})}) {
    ExpectFindsWhatASearchOfEverythingFinds(Gpt(8, 2048, 16, 12), cluster,
                                            {.most_fitting = 5, .most_too_large = 3});
  }
  ExpectFindsWhatASearchOfEverythingFinds(Gpt(7, 4096, 32, 12),
                                          joined({Nodes("V100-16", 1, 2), Nodes("A100-40", 1, 2)}),
                                          {.most_fitting = 20, .most_too_large = 10});
}

// Stages do not straddle a slow network where they need not, and those on faster GPUs have more
// layers.
TEST(Search, PlacesStagesOnKindsOfNodes) {
  const cost::ClusterModel slow_between =
      cost::JoinGroups({Nodes("A100-80", 4, 8), Nodes("A100-80", 4, 8)},
                       {.bytes_per_second = 3e9, .seconds = 3e-5}, 1);
  const SearchResult halves = SearchLayouts(Gpt(24, 4096, 32, 256), slow_between, Own());
  ASSERT_FALSE(halves.fitting.empty());
  const v1::Layout& best = halves.fitting.front().layout;
  const int ranks = best.tensor() * best.data();
  for (int stage = 0; stage < best.pipeline(); ++stage) {
    const cost::GroupRange groups = cost::GroupsOfRanks(slow_between, stage * ranks, ranks);
    EXPECT_EQ(groups.first, groups.last) << best.ShortDebugString();
  }

  const cost::ClusterModel unequal =
      cost::JoinGroups({Nodes("V100-32", 4, 8), Nodes("A100-80", 4, 8)},
                       {.bytes_per_second = 25e9, .seconds = 1e-5}, 8);
  const SearchResult mixed = SearchLayouts(Gpt(24, 4096, 32, 256), unequal, Own());
  ASSERT_FALSE(mixed.fitting.empty());
  const RankedLayout& fastest = mixed.fitting.front();
  const cost::ClusterModel cluster = cost::InOrder(unequal, fastest.order);
  std::map<std::string_view, int> layers;
  const std::vector<int> places = LayersOfPlaces(24, fastest.layout);
  const int stages = fastest.layout.pipeline();
  for (size_t place = 0; place < places.size(); ++place) {
    const int of_stage = 64 / stages;
    const auto group =
        cost::GroupsOfRanks(cluster, static_cast<int>(place) % stages * of_stage, of_stage);
    layers[cluster.groups[static_cast<size_t>(group.first)].accelerator.name] += places[place];
  }
  EXPECT_GT(layers["A100-80"], 1.5 * layers["V100-32"]) << fastest.layout.ShortDebugString();
}

// Each stage has the memory of its own nodes.
TEST(Search, StagesOnSmallGpusNeedNotHaveTheMemoryOfLargeOnes) {
  v1::JobSpec job = Gpt(8, 4096, 32, 16);
  v1::ParallelismSpec& named = *job.mutable_parallelism();
  named.set_automatic(false);
  named.set_tensor(1);
  named.set_pipeline(2);
  named.set_data(4);
  for (const int layers : {7, 1}) named.add_stage_layers(layers);
  const cost::ClusterModel cluster =
      cost::JoinGroups({Nodes("V100-16", 1, 4), Nodes("A100-80", 1, 4)},
                       {.bytes_per_second = 25e9, .seconds = 1e-5}, 4);
  const SearchResult found = SearchLayouts(job, cluster, Own());
  // 7 layers of 200 million parameters need more than 16 GB, and 80 GB are enough.
  ASSERT_EQ(found.fitting.size(), 1u);
  EXPECT_THAT(found.fitting[0].order, ElementsAre(1, 0));
  for (const RankedLayout& ranked : found.too_large) EXPECT_THAT(ranked.order, ElementsAre(0, 1));
  const std::vector<RankMemory> available = AvailableTo(job, cluster, found.fitting[0].layout);
  ASSERT_EQ(available.size(), 2u);
  EXPECT_LT(available[0].device, 16e9);
  EXPECT_GT(available[1].device, 70e9);
}

// The state is divided over all data ranks, or over those of some nodes.
TEST(Search, DividesTheStateInGroupsOfNodes) {
  std::map<std::tuple<int, int>, std::set<int>> shards;  // by tensor degree and data ranks
  for (const v1::Layout& layout : SpaceOf(Gpt(8, 2048, 16, 64), Nodes("A100-80", 8, 8), Own())) {
    if (layout.zero_stage() == 0) {
      EXPECT_EQ(layout.shard(), 0);
    } else {
      shards[{layout.tensor(), layout.data()}].insert(layout.shard());
    }
  }
  // A node has eight, four or one data ranks; of one alone there is nothing to divide.
  EXPECT_THAT((shards[{1, 64}]), ElementsAre(0, 8, 16));
  EXPECT_THAT((shards[{2, 32}]), ElementsAre(0, 4, 8));
  EXPECT_THAT((shards[{8, 8}]), ElementsAre(0, 2, 4));
  EXPECT_THAT((shards[{1, 8}]), ElementsAre(0));
  v1::JobSpec job = Gpt(8, 2048, 16, 64);
  job.mutable_parallelism()->set_shard(16);
  for (const v1::Layout& layout : SpaceOf(job, Nodes("A100-80", 8, 8), Own())) {
    EXPECT_EQ(layout.shard(), 16);
  }
}

// Seconds differ from machine to machine, the work does not: a trillion parameters on 12,288 GPUs
// have tens of thousands of layouts, of which next to none need a walk or a table.
TEST(Search, OfATrillionParametersComputesFewTimesAndTables) {
  for (const char* accelerator : {"A100-80", "H100"}) {
    for (const int global_batch : {3072, 12288}) {
      const SearchResult found =
          SearchLayouts(Gpt(128, 25600, 160, global_batch), Nodes(accelerator, 1536, 8), Own());
      std::printf(
          "%s, batch %d: %lld layouts, %lld bounds, %lld steps, %lld walks, %lld tables\n",
          accelerator, global_batch, static_cast<long long>(found.considered),
          static_cast<long long>(found.work.bounds), static_cast<long long>(found.work.steps),
          static_cast<long long>(found.work.walks), static_cast<long long>(found.work.tables));
      EXPECT_EQ(found.fitting.size(), 20u);
      EXPECT_EQ(found.too_large.size(), 10u);
      EXPECT_GT(found.considered, 20000);
      EXPECT_LE(found.work.bounds, found.considered);
      EXPECT_GE(found.work.steps, 30);
      EXPECT_LE(found.work.steps, 200);
      EXPECT_GE(found.work.walks, 30);
      EXPECT_LE(found.work.walks, 250);
      EXPECT_GE(found.work.tables, 30);
      EXPECT_LE(found.work.tables, 250);
    }
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

#include "plan/planner/cost/node_groups.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/planner/cost/recipe.h"
#include "plan/planner/cost/step_cost.h"

namespace tercio::plan::cost {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr double kFast = 25e9;  // bytes a second of an interface
constexpr double kSlow = 3e9;

ClusterModel Nodes(const char* gpu, int nodes, int per_node = 8) {
  ClusterModel cluster = MakeCluster(*AcceleratorOf(gpu), per_node, nodes, per_node, kFast);
  cluster.name = gpu;
  return cluster;
}

v1::JobSpec Gpt() {
  v1::JobSpec job;
  v1::ModelSpec& model = *job.mutable_model();
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_layers(24);
  model.set_hidden(4096);
  model.set_heads(32);
  model.set_kv_heads(32);
  model.set_ffn_hidden(16384);
  model.set_context(2048);
  model.set_bias(true);
  model.set_vocab_size(51200);
  // A tied table is summed between the first and the last stage, over the slowest network.
  model.set_untied_head(true);
  job.mutable_training()->set_global_batch(256);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  return job;
}

v1::Layout LayoutOf(int tensor, int pipeline, int data) {
  v1::Layout layout;
  layout.set_tensor(tensor);
  layout.set_pipeline(pipeline);
  layout.set_data(data);
  layout.set_micro_batch(1);
  layout.set_micro_batches(256 / data);
  layout.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  return layout;
}

double Seconds(const v1::Layout& layout, const ClusterModel& cluster) {
  return CostOfStep(Gpt(), layout, cluster, *FindRecipe("tercio")).seconds;
}

std::vector<int> Balanced(const v1::Layout& layout, const ClusterModel& cluster) {
  const v1::JobSpec job = Gpt();
  return BalancedLayers(
      {.job = job, .layout = layout, .cluster = cluster, .recipe = *FindRecipe("tercio")});
}

TEST(NodeGroups, RanksAreNumberedThroughThem) {
  const ClusterModel cluster =
      JoinGroups({Nodes("A100-80", 3), Nodes("V100-32", 1, 4), Nodes("H100", 2)}, {kSlow, 3e-5}, 2);
  EXPECT_EQ(cluster.devices(), 24 + 4 + 16);
  EXPECT_EQ(cluster.nodes, 6);
  EXPECT_EQ(CountGroups(cluster), 3);
  EXPECT_EQ(GroupsOfRanks(cluster, 0, 24), (GroupRange{0, 0}));
  EXPECT_EQ(GroupsOfRanks(cluster, 16, 12), (GroupRange{0, 1}));
  EXPECT_EQ(GroupsOfRanks(cluster, 24, 4), (GroupRange{1, 1}));
  EXPECT_EQ(GroupsOfRanks(cluster, 28, 16), (GroupRange{2, 2}));
  EXPECT_EQ(GroupsOfRanks(cluster, 0, 44), (GroupRange{0, 2}));
  EXPECT_EQ(CountGroups(Nodes("H100", 2)), 1);
  EXPECT_EQ(GroupsOfRanks(Nodes("H100", 2), 3, 5), (GroupRange{0, 0}));
}

TEST(NodeGroups, RanksOnAllHaveTheLeastOfEach) {
  const ClusterModel cluster =
      JoinGroups({Nodes("A100-40", 3), Nodes("V100-32", 1, 4)}, {kSlow, 3e-5}, 2);
  EXPECT_EQ(cluster.accelerator.name, "V100-32");
  EXPECT_EQ(cluster.accelerator.memory_bytes, 32e9);
  EXPECT_EQ(cluster.devices_per_node, 4);
  EXPECT_EQ(cluster.inside.bytes_per_second, Nodes("V100-32", 1).inside.bytes_per_second);
  EXPECT_EQ(cluster.between.bytes_per_second, kSlow);
  EXPECT_EQ(cluster.interfaces_per_node, 2);
  // A part has the network of its own nodes.
  EXPECT_EQ(PartOf(cluster, {0, 0}).between.bytes_per_second, kFast);
  EXPECT_EQ(PartOf(cluster, {0, 1}).between.bytes_per_second, kSlow);
}

TEST(NodeGroups, HaveOrders) {
  const ClusterModel cluster =
      JoinGroups({Nodes("A100-40", 3), Nodes("V100-32", 1), Nodes("H100", 2)}, {kSlow, 3e-5}, 1);
  const std::vector<std::vector<int>> orders = OrdersOf(cluster);
  EXPECT_EQ(orders.size(), 6u);
  EXPECT_THAT(orders.front(), ElementsAre(0, 1, 2));
  const ClusterModel other = InOrder(cluster, {2, 0, 1});
  EXPECT_EQ(other.groups[0].name, "H100");
  EXPECT_EQ(other.groups[1].name, "A100-40");
  EXPECT_EQ(other.devices(), cluster.devices());
  EXPECT_EQ(OrdersOf(Nodes("H100", 2)).size(), 1u);
}

// Two halves that are alike, joined by their own network, are one cluster.
TEST(NodeGroups, ThatAreAlikeTakeAsLongAsOneCluster) {
  const ClusterModel whole = Nodes("A100-80", 8);
  const ClusterModel halves = JoinGroups({Nodes("A100-80", 4), Nodes("A100-80", 4)}, whole.between,
                                         whole.interfaces_per_node);
  v1::Layout interleaved = LayoutOf(8, 4, 2);
  interleaved.set_virtual_pipeline(3);
  interleaved.set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
  v1::Layout divided = LayoutOf(4, 2, 8);
  divided.set_zero_stage(3);
  for (const v1::Layout& layout :
       {LayoutOf(8, 2, 4), LayoutOf(8, 1, 8), LayoutOf(2, 4, 8), interleaved, divided}) {
    SCOPED_TRACE(layout.ShortDebugString());
    EXPECT_NEAR(Seconds(layout, halves) / Seconds(layout, whole), 1, 1e-9);
    EXPECT_EQ(Balanced(layout, halves), Balanced(layout, whole));
  }
}

// The Holmes case: two kinds of fast networks, and a slow one between them. Data ranks across it
// exchange all gradients over the slow one, a pipeline only activations.
TEST(NodeGroups, APipelineCrossesASlowNetworkMoreCheaplyThanDataRanks) {
  const ClusterModel whole = Nodes("A100-80", 8);
  const ClusterModel groups =
      JoinGroups({Nodes("A100-80", 4), Nodes("A100-80", 4)}, {kSlow, 3e-5}, 1);
  const double pipeline = Seconds(LayoutOf(8, 2, 4), groups) / Seconds(LayoutOf(8, 2, 4), whole);
  const double data = Seconds(LayoutOf(8, 1, 8), groups) / Seconds(LayoutOf(8, 1, 8), whole);
  EXPECT_GT(pipeline, 1);
  EXPECT_GT(data, 1.2);
  EXPECT_LT(pipeline - 1, 0.5 * (data - 1));
}

TEST(NodeGroups, FasterOnesGetMoreLayers) {
  const ClusterModel cluster =
      JoinGroups({Nodes("A100-80", 4), Nodes("V100-32", 4)}, {kFast, 1e-5}, 8);
  v1::Layout layout = LayoutOf(8, 4, 2);
  const std::vector<int> layers = Balanced(layout, cluster);
  ASSERT_EQ(layers.size(), 4u);
  EXPECT_GT(layers[0], layers[2]);
  EXPECT_GT(layers[1], layers[3]);
  EXPECT_EQ(layers[0] + layers[1] + layers[2] + layers[3], 24);
  const double equal = Seconds(layout, cluster);
  *layout.mutable_stage_layers() = {layers.begin(), layers.end()};
  const double balanced = Seconds(layout, cluster);
  EXPECT_LT(balanced, 0.8 * equal);
  // No other division of the layers between both kinds is faster by more than a layer is worth.
  for (int fast = 1; fast < 12; ++fast) {
    v1::Layout other = layout;
    other.clear_stage_layers();
    for (const int each : {fast, fast, 12 - fast, 12 - fast}) other.add_stage_layers(each);
    EXPECT_GT(Seconds(other, cluster), 0.95 * balanced) << fast;
  }
  // In the other order the last stages are the faster ones.
  const std::vector<int> reversed = Balanced(LayoutOf(8, 4, 2), InOrder(cluster, {1, 0}));
  EXPECT_LT(reversed[0], reversed[3]);
}

TEST(NodeGroups, FewerLayersThanStagesAreNotDivided) {
  EXPECT_THAT(Balanced(LayoutOf(1, 24, 1), Nodes("A100-80", 3)), Each(1));
}

}  // namespace
}  // namespace tercio::plan::cost

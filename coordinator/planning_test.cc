// Plans on nodes that were measured: the core's placement and the planner together.
#include "coordinator/planning.h"

#include <string>
#include <vector>

#include "coordinator/core/testing/test_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/planner/cost/measured.h"
#include "plan/planner/cost/testing/slower_cores.h"

namespace tercio::coordinator {
namespace {

using ::testing::IsEmpty;

// The machine that is assumed where none was measured, but so many times slower.
v1::MachineFigures Slower(double times) {
  return plan::cost::SlowerCores(plan::cost::AssumedCpuFigures(), times);
}

v1::JobSpec PipelineOf12Layers() {
  v1::JobSpec spec = SmallSpec(2);
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_layers(12);
  model.set_hidden(512);
  model.set_heads(8);
  model.set_kv_heads(8);
  model.set_ffn_hidden(2048);
  model.set_context(256);
  spec.mutable_training()->set_global_batch(8);
  spec.mutable_training()->set_micro_batch(1);
  v1::ParallelismSpec& parallelism = *spec.mutable_parallelism();
  parallelism.set_tensor(1);
  parallelism.set_pipeline(4);
  parallelism.set_data(1);
  spec.mutable_resources()->set_ranks(4);
  return spec;
}

// Layers of the stages of a job on nodes a and b of two devices each, with these figures; empty:
// equally many.
std::vector<int> LayersOfStages(const std::vector<v1::MachineFigures>& figures) {
  Cluster cluster;
  UsePlanner(&cluster.settings_);
  cluster.Attach("a");
  cluster.Attach("b");
  for (size_t i = 0; i < figures.size(); ++i) {
    EXPECT_TRUE(cluster.Do(FiguresRecorded{i == 0 ? "a" : "b", figures[i]}).answer.ok());
  }
  cluster.Do(Submitted{kJob, PipelineOf12Layers()});
  cluster.StartAll();
  const v1::Plan& plan = *cluster.state_.jobs.at(kJob).plan;
  EXPECT_EQ(plan.stages_size(), 4);
  EXPECT_GT(plan.predicted().step_seconds(), 0);
  return {plan.layout().stage_layers().begin(), plan.layout().stage_layers().end()};
}

TEST(Planning, AStageOnASlowerNodeHasFewerLayers) {
  const std::vector<int> layers = LayersOfStages({Slower(1), Slower(3)});
  ASSERT_EQ(layers.size(), 4u);
  EXPECT_GT(layers[0], layers[2]);
  EXPECT_GT(layers[1], layers[3]);
  EXPECT_EQ(layers[0] + layers[1] + layers[2] + layers[3], 12);
  const std::vector<int> reversed = LayersOfStages({Slower(3), Slower(1)});
  ASSERT_EQ(reversed.size(), 4u);
  EXPECT_LT(reversed[0], reversed[3]);
}

TEST(Planning, NodesThatAreAlikeOrUnknownHaveEquallyMany) {
  EXPECT_THAT(LayersOfStages({}), IsEmpty());
  EXPECT_THAT(LayersOfStages({Slower(3)}), IsEmpty()) << "the other one may be as slow";
  // Figures of one machine differ as much from one measurement to the next.
  EXPECT_THAT(LayersOfStages({Slower(1), Slower(1.2)}), IsEmpty());
}

}  // namespace
}  // namespace tercio::coordinator

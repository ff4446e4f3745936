#include "plan/stage_layers.h"

#include <numeric>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/architecture.h"
#include "plan/buckets.h"
#include "plan/fp8.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/plan_builder.h"
#include "plan/program.h"
#include "plan/rank_layout.h"

namespace tercio::plan {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

v1::JobSpec Job(int layers, int pipeline, int chunks, const std::vector<int>& of_stages) {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_layers(layers);
  model->set_hidden(16);
  model->set_heads(2);
  model->set_ffn_hidden(32);
  model->set_context(8);
  model->set_vocab_size(65);
  job.mutable_training()->set_global_batch(24);
  job.mutable_training()->set_micro_batch(1);
  v1::ParallelismSpec* parallelism = job.mutable_parallelism();
  parallelism->set_pipeline(pipeline);
  parallelism->set_virtual_pipeline(chunks);
  if (chunks > 1) parallelism->set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
  parallelism->mutable_stage_layers()->Add(of_stages.begin(), of_stages.end());
  return job;
}

v1::Layout Degrees(int pipeline, int chunks = 1) {
  v1::Layout layout;
  layout.set_pipeline(pipeline);
  layout.set_virtual_pipeline(chunks);
  return layout;
}

std::vector<int> RecordedIn(const absl::StatusOr<v1::Layout>& layout) {
  EXPECT_TRUE(layout.ok()) << layout.status();
  if (!layout.ok()) return {};
  return {layout->stage_layers().begin(), layout->stage_layers().end()};
}

TEST(StageLayers, LayersThatDoNotDivideLeaveRoomForEmbeddingAndHead) {
  EXPECT_THAT(LayersOfPlaces(8, Degrees(4)), ElementsAre(2, 2, 2, 2));
  // Qi et al. 2023: the first and the last stage have one layer fewer.
  EXPECT_THAT(LayersOfPlaces(22, Degrees(8)), ElementsAre(2, 3, 3, 3, 3, 3, 3, 2));
  for (const int layers : {5, 78, 106, 126}) {
    const std::vector<int> places = LayersOfPlaces(layers, Degrees(12));
    EXPECT_EQ(std::accumulate(places.begin(), places.end(), 0), layers);
    EXPECT_THAT(places, Each(Ge(0)));
  }
}

TEST(StageLayers, AJobsLayoutRecordsWhatIsNotEqual) {
  EXPECT_THAT(RecordedIn(LayoutOfJob(Job(8, 4, 1, {}))), IsEmpty());
  EXPECT_THAT(RecordedIn(LayoutOfJob(Job(8, 2, 2, {2, 2, 2, 2}))), IsEmpty());
  EXPECT_THAT(RecordedIn(LayoutOfJob(Job(8, 4, 1, {3, 2, 2, 1}))), ElementsAre(3, 2, 2, 1));
  EXPECT_THAT(RecordedIn(LayoutOfJob(Job(22, 8, 1, {}))), ElementsAre(2, 3, 3, 3, 3, 3, 3, 2));
  EXPECT_THAT(RecordedIn(LayoutOfJob(Job(6, 2, 2, {}))), ElementsAre(1, 2, 2, 1));
  // Chunks go round the stages.
  const v1::Layout layout = *LayoutOfJob(Job(10, 2, 2, {4, 3, 2, 1}));
  EXPECT_THAT(LayersOfStage(10, layout, 0), ElementsAre(0, 1, 2, 3, 7, 8));
  EXPECT_THAT(LayersOfStage(10, layout, 1), ElementsAre(4, 5, 6, 9));
}

TEST(StageLayers, WhatCannotBeSaysWhy) {
  const auto fault = [](int layers, int pipeline, int chunks, const std::vector<int>& stages) {
    return std::string(LayoutOfJob(Job(layers, pipeline, chunks, stages)).status().message());
  };
  EXPECT_THAT(fault(8, 4, 1, {3, 3, 2}),
              AllOf(HasSubstr("parallelism.stage_layers has 3 numbers, but pipeline 4 needs 4"),
                    Not(HasSubstr("nearest"))));
  EXPECT_THAT(fault(8, 2, 2, {4, 4}),
              HasSubstr("has 2 numbers, but pipeline 2 x virtual_pipeline 2 needs 4"));
  EXPECT_THAT(fault(8, 4, 1, {4, 0, 2, 2}), HasSubstr("gives stage 1 0 layers"));
  EXPECT_THAT(fault(8, 4, 1, {4, 2, 4, -2}), HasSubstr("gives stage 3 -2 layers"));
  EXPECT_THAT(fault(8, 4, 1, {2, 2, 2, 1}),
              HasSubstr("adds up to 7 layers, but needs model.layers 8"));
  EXPECT_THAT(fault(8, 4, 1, {1, 1, 1, 1}), HasSubstr("adds up to 4 layers"));
  // The first stage would have the embedding only.
  EXPECT_THAT(fault(5, 4, 1, {}),
              HasSubstr("pipeline 4 does not divide model.layers 5; parallelism.stage_layers can"));
  EXPECT_TRUE(LayoutOfJob(Job(5, 4, 1, {1, 1, 2, 1})).ok());
  EXPECT_THAT(fault(3, 4, 1, {}), AllOf(HasSubstr("pipeline 4 does not divide model.layers 3"),
                                        Not(HasSubstr("stage_layers"))));
}

TEST(StageLayers, AnEncoderWithADecoderNamesItsOwn) {
  v1::JobSpec job = Job(3, 4, 1, {});
  job.mutable_model()->set_architecture(v1::ARCHITECTURE_T5);
  job.mutable_model()->set_decoder_layers(4);
  job.mutable_model()->set_decoder_context(8);
  EXPECT_THAT(std::string(LayoutOfJob(job).status().message()),
              HasSubstr("does not divide model.layers and model.decoder_layers together, 7; "
                        "parallelism.stage_layers can"));
  for (const int layers : {2, 2, 2, 1}) job.mutable_parallelism()->add_stage_layers(layers);
  EXPECT_THAT(RecordedIn(LayoutOfJob(job)), ElementsAre(2, 2, 2, 1));
  job.mutable_parallelism()->add_stage_layers(1);
  job.mutable_parallelism()->set_pipeline(5);
  EXPECT_THAT(std::string(LayoutOfJob(job).status().message()),
              HasSubstr("needs model.layers and model.decoder_layers together, 7"));
}

TEST(StageLayers, EachLayerIsOnOneStage) {
  for (const auto& [pipeline, chunks, layers] :
       std::vector<std::tuple<int, int, std::vector<int>>>{{3, 1, {1, 2, 1}},
                                                           {2, 2, {1, 3, 2, 1}},
                                                           {4, 1, {7, 9, 9, 7}},
                                                           {2, 3, {2, 1, 1, 1, 3, 1}}}) {
    const int all = std::accumulate(layers.begin(), layers.end(), 0);
    const v1::JobSpec job = Job(all, pipeline, chunks, layers);
    const v1::Layout layout = *LayoutOfJob(job);
    const std::vector<DeviceSlot> slots(static_cast<size_t>(pipeline), {"n", 0});
    const auto plan = BuildPlan(job, layout, slots, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::set<int> seen;
    std::set<std::string> tensors;
    for (int stage = 0; stage < pipeline; ++stage) {
      const StageRuns runs = RunsOfStage(all, layout, stage);
      EXPECT_EQ(runs.layers(), plan->stages(stage).layers_size());
      for (const int layer : plan->stages(stage).layers()) EXPECT_TRUE(seen.insert(layer).second);
      for (const StageTensor& entry : TensorsOfStage(job.model(), layout, stage).tensors) {
        EXPECT_TRUE(tensors.insert(entry.use).second) << entry.use;
      }
      // A bucket for each layer, and one for embedding or head.
      const int ends = (stage == 0 ? 1 : 0) + (stage + 1 == pipeline ? 1 : 0);
      EXPECT_EQ(plan->stages(stage).buckets_size(), runs.layers() + ends);
      const ProgramShape shape = ShapeOfProgram(job, layout, stage);
      const std::vector<v1::Action> actions(plan->stages(stage).actions().begin(),
                                            plan->stages(stage).actions().end());
      EXPECT_TRUE(CheckProgram(shape, TrainingProgram(shape, actions)).ok());
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(all));
    // The head reads the table of the first stage.
    EXPECT_EQ(tensors.size(), ModelTensors(job.model()).size() + (IsTied(job.model()) ? 1 : 0));
  }
}

TEST(StageLayers, MemoryIsThatOfAStagesOwnLayers) {
  v1::JobSpec job = Job(8, 4, 1, {1, 3, 3, 1});
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  job.mutable_training()->set_fp8(true);
  const v1::Layout layout = *LayoutOfJob(job);
  const auto bytes = [&](int stage, const char* buffer) {
    return FindBuffer(MemoryOfStage(job, layout, stage, 1), buffer).size_bytes();
  };
  // Stages between have nothing but layers; the last one keeps one micro-batch, its head apart.
  v1::JobSpec twelve = job;
  twelve.mutable_model()->set_layers(12);
  twelve.mutable_parallelism()->clear_stage_layers();
  const v1::Layout equal = *LayoutOfJob(twelve);
  for (const char* buffer : {"parameters.compute", "activations.0", "fp8.scales", "adamw.m"}) {
    EXPECT_EQ(bytes(1, buffer), FindBuffer(MemoryOfStage(twelve, equal, 1, 1), buffer).size_bytes())
        << buffer;
  }
  EXPECT_EQ(bytes(1, "fp8.scales"), 3 * bytes(0, "fp8.scales"));
  // Stages between save no guard, and every rank the scales of its own layers.
  EXPECT_EQ(bytes(1, "parameters.fp8"), 3 * bytes(3, "parameters.fp8"));
}

TEST(StageLayers, TheSlotOfActivationsHoldsTheLargestChunk) {
  const v1::JobSpec job = Job(8, 2, 2, {1, 1, 5, 1});
  const v1::Layout layout = *LayoutOfJob(job);
  const v1::JobSpec one_run = Job(10, 2, 1, {});  // five layers on the first stage
  const auto slot = [](const v1::JobSpec& each, const v1::Layout& in) {
    return FindBuffer(MemoryOfStage(each, in, 0, 1), "activations.0").size_bytes();
  };
  EXPECT_EQ(slot(job, layout), slot(one_run, *LayoutOfJob(one_run)));
}

TEST(StageLayers, AreTextForPeople) {
  const auto text = [](const std::vector<int>& layers) {
    v1::Layout layout;
    layout.mutable_stage_layers()->Add(layers.begin(), layers.end());
    return StageLayersText(layout);
  };
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text({7, 9, 9, 7}), "7, 9, 9, 7");
  EXPECT_EQ(text({2, 3, 3, 3, 3, 3, 3, 2}), "2, 6 x 3, 2");
}

TEST(StageRuns, ChunksOfAStage) {
  const StageRuns runs({2, 1, 3});
  EXPECT_EQ(runs.chunks(), 3);
  EXPECT_EQ(runs.layers(), 6);
  EXPECT_EQ(runs.first(2), 3);
  EXPECT_EQ(runs.end(2), 6);
  std::vector<int> chunks;
  std::vector<bool> first;
  std::vector<bool> last;
  for (int layer = 0; layer < 6; ++layer) {
    chunks.push_back(runs.ChunkOf(layer));
    first.push_back(runs.IsFirstOfChunk(layer));
    last.push_back(runs.IsLastOfChunk(layer));
  }
  EXPECT_THAT(chunks, ElementsAre(0, 0, 1, 2, 2, 2));
  EXPECT_THAT(first, ElementsAre(true, false, true, true, false, false));
  EXPECT_THAT(last, ElementsAre(false, true, true, false, false, true));
}

}  // namespace
}  // namespace tercio::plan

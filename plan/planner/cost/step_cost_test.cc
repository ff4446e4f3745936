#include "plan/planner/cost/step_cost.h"

#include <cstdio>
#include <initializer_list>
#include <numeric>
#include <random>

#include "gtest/gtest.h"
#include "plan/model_tensors.h"

namespace tercio::plan::cost {
namespace {

v1::JobSpec Gpt(int layers, int hidden, int heads) {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(layers);
  model->set_hidden(hidden);
  model->set_heads(heads);
  model->set_kv_heads(heads);
  model->set_ffn_hidden(4 * hidden);
  model->set_context(2048);
  model->set_vocab_size(51200);
  model->set_bias(true);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  return job;
}

v1::Layout Layout(int tensor, int pipeline, int data, int micro_batches) {
  v1::Layout layout;
  layout.set_tensor(tensor);
  layout.set_pipeline(pipeline);
  layout.set_virtual_pipeline(1);
  layout.set_context_parallel(1);
  layout.set_data(data);
  layout.set_micro_batch(1);
  layout.set_micro_batches(micro_batches);
  layout.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  return layout;
}

ClusterModel Selene(int devices) {
  return MakeCluster(*AcceleratorOf("A100-80"), 8, std::max(1, devices / 8), 8, 25e9);
}

StepCost Cost(const v1::JobSpec& job, const v1::Layout& layout,
              std::string_view recipe = "tercio") {
  const int devices = layout.tensor() * layout.pipeline() * layout.data();
  return CostOfStep(job, layout, Selene(devices), *FindRecipe(recipe));
}

TEST(StepCost, PartsAddUp) {
  v1::Layout layout = Layout(8, 4, 4, 16);
  layout.set_zero_stage(1);
  layout.set_recompute(v1::RECOMPUTE_FULL);
  const StepCost cost = Cost(Gpt(48, 8192, 64), layout);
  EXPECT_NEAR(cost.compute + cost.tensor_communication + cost.recompute + cost.pipeline_bubble +
                  cost.pipeline_transfers + cost.data_exposed + cost.optimizer + cost.other,
              cost.seconds, 1e-9 * cost.seconds);
  EXPECT_GT(cost.recompute, 0.2 * cost.compute);
  EXPECT_GT(cost.pipeline_bubble, 0);
  EXPECT_GT(cost.pipeline_transfers, 0);
  EXPECT_GT(cost.data_exposed, 0);
}

// Narayanan et al. 2021, equation 3: a full recomputation is a third more.
TEST(StepCost, RatesCountWhatTheyShould) {
  const v1::JobSpec job = Gpt(24, 4096, 32);
  v1::Layout layout = Layout(1, 1, 8, 4);
  const StepCost kept = Cost(job, layout);
  EXPECT_DOUBLE_EQ(kept.model_flops, kept.hardware_flops);
  layout.set_recompute(v1::RECOMPUTE_FULL);
  const StepCost again = Cost(job, layout);
  EXPECT_NEAR(again.hardware_flops / again.model_flops, 4.0 / 3, 0.03);
  const double tokens = 8 * 4 * 2048;
  EXPECT_NEAR(again.tokens_per_second, tokens / again.seconds, 1e-6 * again.tokens_per_second);
  EXPECT_NEAR(again.model_flops * 8 * again.seconds,
              tokens * FlopsPerToken(job.model(), AttentionCount::kWhole),
              1e-6 * tokens * FlopsPerToken(job.model(), AttentionCount::kWhole));
}

TEST(StepCost, InterleavingShrinksTheBubble) {
  const v1::JobSpec job = Gpt(48, 8192, 64);
  v1::Layout layout = Layout(8, 8, 1, 16);
  const StepCost plain = Cost(job, layout, "megatron2021");
  layout.set_virtual_pipeline(3);
  layout.set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
  const StepCost interleaved = Cost(job, layout, "megatron2021");
  EXPECT_LT(interleaved.pipeline_bubble, 0.5 * plain.pipeline_bubble);
  EXPECT_GT(interleaved.pipeline_transfers, plain.pipeline_transfers);
  EXPECT_LT(interleaved.seconds, plain.seconds);
}

TEST(StepCost, SequenceParallelismDividesNorms) {
  const v1::JobSpec job = Gpt(8, 6144, 64);
  v1::Layout layout = Layout(8, 1, 1, 4);
  const StepCost whole = Cost(job, layout);
  layout.set_sequence_parallel(true);
  const StepCost divided = Cost(job, layout);
  EXPECT_LT(divided.compute, 0.97 * whole.compute);
  EXPECT_NEAR(divided.tensor_communication, whole.tensor_communication,
              0.1 * whole.tensor_communication);
}

TEST(StepCost, GatheredWeightsCostMoreWithLessToHideThem) {
  const v1::JobSpec job = Gpt(48, 8192, 64);
  v1::Layout layout = Layout(1, 1, 64, 4);
  layout.set_zero_stage(1);
  const StepCost kept = Cost(job, layout, "fsdp-compiled");
  layout.set_zero_stage(3);
  const StepCost gathered = Cost(job, layout, "fsdp-compiled");
  EXPECT_GT(gathered.data_exposed, kept.data_exposed);
  // Neighbours that keep them send inside the node.
  layout.set_reshard_after_forward(8);
  EXPECT_LT(Cost(job, layout, "fsdp-compiled").data_exposed, gathered.data_exposed);
  // One sequence of each rank hides less than four.
  layout.set_reshard_after_forward(0);
  layout.set_micro_batch(4);
  layout.set_micro_batches(1);
  EXPECT_LT(Cost(job, layout, "fsdp-compiled").data_exposed, gathered.data_exposed);
}

TEST(StepCost, PackedMessagesAreShorter) {
  v1::JobSpec job = Gpt(48, 8192, 64);
  v1::Layout layout = Layout(1, 1, 64, 1);
  layout.set_zero_stage(3);
  const StepCost plain = Cost(job, layout);
  job.mutable_training()->set_weight_format(v1::BLOCK_FORMAT_INT8);
  job.mutable_training()->set_gradient_format(v1::BLOCK_FORMAT_INT4);
  EXPECT_LT(Cost(job, layout).data_exposed, 0.8 * plain.data_exposed);
}

TEST(StepCost, AllArchitecturesHaveACost) {
  for (const v1::Architecture architecture :
       {v1::ARCHITECTURE_GPT2, v1::ARCHITECTURE_LLAMA, v1::ARCHITECTURE_BERT, v1::ARCHITECTURE_OPT,
        v1::ARCHITECTURE_GPT_J, v1::ARCHITECTURE_GPT_NEOX, v1::ARCHITECTURE_PHI,
        v1::ARCHITECTURE_PHI3, v1::ARCHITECTURE_QWEN2, v1::ARCHITECTURE_QWEN3,
        v1::ARCHITECTURE_MISTRAL, v1::ARCHITECTURE_GEMMA2, v1::ARCHITECTURE_T5}) {
    v1::JobSpec job = Gpt(8, 1024, 16);
    job.mutable_model()->set_architecture(architecture);
    job.mutable_model()->set_sliding_window(512);
    job.mutable_model()->set_token_types(2);
    job.mutable_model()->set_decoder_layers(8);
    job.mutable_model()->set_decoder_context(512);
    const StepCost cost = Cost(job, Layout(2, 2, 2, 4));
    EXPECT_GT(cost.seconds, 0) << v1::Architecture_Name(architecture);
    EXPECT_LT(cost.model_flops, 312e12) << v1::Architecture_Name(architecture);
  }
}

TEST(StepCost, TheLayoutsLayersAreTimed) {
  const v1::JobSpec job = Gpt(16, 2048, 16);
  v1::Layout layout = Layout(1, 4, 2, 16);
  const double equal = Cost(job, layout).seconds;
  for (const int layers : {1, 1, 1, 13}) layout.add_stage_layers(layers);
  EXPECT_GT(Cost(job, layout).seconds, 2 * equal);
}

// Many layouts, whose common parts are computed once, cost what each of them costs alone; and the
// bound is below the cost, also where walks leave out most micro-batches.
TEST(StepCosts, AreThoseOfEachLayoutAndNoLessThanTheirBound) {
  constexpr uint64_t kSeed = 20261128;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  const auto one_of = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  for (const char* recipe : {"tercio", "megatron2021", "fsdp-compiled"}) {
    v1::JobSpec job = Gpt(16, 4096, 32);
    job.mutable_model()->set_untied_head(one_of({0, 1}) == 0);
    const ClusterModel cluster = Selene(256);
    StepCosts costs(job, cluster, *FindRecipe(recipe));
    for (int i = 0; i < 300; ++i) {
      const int tensor = one_of({1, 2, 8});
      const int pipeline = one_of({1, 2, 4, 8});
      v1::Layout layout =
          Layout(tensor, pipeline, 256 / tensor / pipeline, pipeline * one_of({1, 2, 9, 64}));
      layout.set_micro_batch(one_of({1, 2, 4}));
      if (pipeline > 1 && one_of({0, 1}) == 0) {
        layout.set_virtual_pipeline(2);
        layout.set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
      }
      layout.set_sequence_parallel(one_of({0, 1}) == 0);
      layout.set_recompute(static_cast<v1::Recompute>(
          one_of({v1::RECOMPUTE_NONE, v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL})));
      layout.set_zero_stage(one_of({0, 1, 2, 3}));
      layout.set_shard(one_of({0, 2, 4}));
      const StepCost cost = costs.Of(layout);
      const StepCost alone = CostOfStep(job, layout, cluster, *FindRecipe(recipe));
      EXPECT_EQ(cost.seconds, alone.seconds) << layout.ShortDebugString();
      EXPECT_EQ(cost.compute, alone.compute) << layout.ShortDebugString();
      EXPECT_EQ(cost.data_exposed, alone.data_exposed) << layout.ShortDebugString();
      EXPECT_EQ(cost.hardware_flops, alone.hardware_flops) << layout.ShortDebugString();
      EXPECT_LE(costs.Least(layout), cost.seconds * (1 + 1e-12)) << layout.ShortDebugString();
    }
    EXPECT_GT(costs.played(), 0);
  }
}

TEST(StepCost, BalancedStagesAreNoSlower) {
  v1::JobSpec job = Gpt(16, 2048, 16);
  job.mutable_model()->set_vocab_size(131072);
  const v1::Layout layout = Layout(1, 4, 2, 16);
  const ClusterModel cluster = Selene(8);
  const Recipe& recipe = *FindRecipe("tercio");
  StepInput input{.job = job, .layout = layout, .cluster = cluster, .recipe = recipe};
  PipelineWalks walks;
  const StepCost equal = CostOfStep(input, &walks);
  input.layers = BalancedLayers(input);
  EXPECT_EQ(std::accumulate(input.layers.begin(), input.layers.end(), 0), 16);
  EXPECT_LT(input.layers.back(), 4);
  EXPECT_LT(CostOfStep(input, &walks).seconds, 0.9 * equal.seconds);
}

}  // namespace
}  // namespace tercio::plan::cost

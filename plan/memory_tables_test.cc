// Tables of many layouts that share what they have in common are those of each layout alone, and no
// bound is above what it bounds.
#include <cstdio>
#include <initializer_list>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "plan/memory_map.h"
#include "plan/rank_layout.h"

namespace tercio::plan {
namespace {

class Drawing {
 public:
  explicit Drawing(uint64_t seed) : random_(seed) {}

  int OneOf(std::initializer_list<int> values) {
    return *(values.begin() + random_() % values.size());
  }
  bool Chance() { return random_() % 2 == 0; }

  v1::JobSpec Job() {
    v1::JobSpec job;
    v1::ModelSpec& model = *job.mutable_model();
    model.set_architecture(
        static_cast<v1::Architecture>(OneOf({v1::ARCHITECTURE_GPT2, v1::ARCHITECTURE_LLAMA,
                                             v1::ARCHITECTURE_BERT, v1::ARCHITECTURE_T5})));
    const int heads = OneOf({4, 8});
    model.set_layers(OneOf({4, 8}));
    model.set_heads(heads);
    model.set_kv_heads(heads);
    model.set_hidden(heads * OneOf({8, 16, 32}));
    model.set_ffn_hidden(heads * OneOf({32, 48}));
    model.set_context(OneOf({16, 64}));
    model.set_bias(Chance());
    model.set_vocab_size(OneOf({65, 1009, 2048}));
    model.set_untied_head(Chance());
    if (model.architecture() == v1::ARCHITECTURE_T5) {
      model.set_decoder_layers(model.layers());
      model.set_decoder_context(32);
    }
    const bool decodes = model.architecture() == v1::ARCHITECTURE_GPT2 ||
                         model.architecture() == v1::ARCHITECTURE_LLAMA;
    if (decodes && Chance()) job.mutable_data()->mutable_chat()->set_template_("chatml");
    v1::TrainingSpec& training = *job.mutable_training();
    training.set_global_batch(64);
    training.set_precision(Chance() ? v1::PRECISION_BF16 : v1::PRECISION_FP32);
    training.set_reproducibility(Chance() ? v1::REPRODUCIBILITY_LAYOUT : v1::REPRODUCIBILITY_EXACT);
    if (OneOf({0, 1, 2}) == 0) training.set_weight_format(v1::BLOCK_FORMAT_INT8);
    if (OneOf({0, 1, 2}) == 0) training.set_gradient_format(v1::BLOCK_FORMAT_INT4);
    job.mutable_resources()->set_device(Chance() ? v1::DEVICE_KIND_CUDA : v1::DEVICE_KIND_CPU);
    if (OneOf({0, 1, 2}) == 0) job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
    if (OneOf({0, 1, 2, 3}) == 0) job.mutable_offload()->set_activations(v1::OFFLOAD_TIER_HOST);
    if (OneOf({0, 1, 2, 3}) == 0) job.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_HOST);
    if (Chance()) job.mutable_checkpoint()->set_peer_copies(1);
    return job;
  }

  v1::Layout Layout() {
    v1::Layout layout;
    layout.set_tensor(OneOf({1, 2, 4}));
    layout.set_pipeline(OneOf({1, 2, 4}));
    layout.set_virtual_pipeline(layout.pipeline() > 1 ? OneOf({1, 2}) : 1);
    layout.set_schedule(layout.virtual_pipeline() > 1 ? v1::PIPELINE_SCHEDULE_INTERLEAVED
                        : Chance()                    ? v1::PIPELINE_SCHEDULE_1F1B
                                                      : v1::PIPELINE_SCHEDULE_GPIPE);
    layout.set_context_parallel(1);
    layout.set_data(OneOf({1, 2, 4, 8}));
    layout.set_micro_batch(OneOf({1, 2}));
    layout.set_micro_batches(64 / layout.data() / layout.micro_batch());
    layout.set_sequence_parallel(Chance());
    layout.set_tensor_overlap(1);
    layout.set_recompute(static_cast<v1::Recompute>(
        OneOf({v1::RECOMPUTE_NONE, v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL})));
    layout.set_zero_stage(OneOf({0, 1, 2, 3}));
    if (Chance()) layout.set_shard(OneOf({2, 4}));
    if (OneOf({0, 1, 2}) == 0) layout.set_reshard_after_forward(OneOf({1, 2}));
    if (Chance()) layout.set_offload_share(OneOf({0, 1, 2, 4}) / 4.0);
    return layout;
  }

 private:
  std::mt19937_64 random_;
};

TEST(MemoryTables, AreThoseOfEachLayoutAndNoLessThanTheirBound) {
  constexpr uint64_t kSeed = 20261128;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  Drawing drawing(kSeed);
  int compared = 0;
  for (int i = 0; i < 60; ++i) {
    const v1::JobSpec job = drawing.Job();
    MemoryTables tables(job);
    for (int j = 0; j < 30; ++j) {
      const v1::Layout layout = drawing.Layout();
      if (!CheckLayout(job, layout, WorldSize(layout)).ok()) continue;
      for (int stage = 0; stage < layout.pipeline(); ++stage) {
        SCOPED_TRACE(
            absl::StrCat(job.ShortDebugString(), " ", layout.ShortDebugString(), " stage ", stage));
        const v1::MemoryTable table = tables.OfStage(layout, stage, 2);
        ASSERT_EQ(table.SerializeAsString(),
                  MemoryOfStage(job, layout, stage, 2).SerializeAsString());
        const int64_t least = tables.LeastOfStage(layout, stage);
        ASSERT_LE(least, table.total_bytes());
        ASSERT_GE(least, 0);
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 500);
}

// The bound is of use: it has most of what a large model needs.
TEST(MemoryTables, TheBoundOfALargeModelIsNearItsMemory) {
  v1::JobSpec job = Drawing(1).Job();
  v1::ModelSpec& model = *job.mutable_model();
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.clear_decoder_layers();
  model.set_layers(16);
  model.set_heads(64);
  model.set_kv_heads(64);
  model.set_hidden(8192);
  model.set_ffn_hidden(4 * 8192);
  model.set_context(2048);
  model.set_vocab_size(51200);
  job.clear_offload();
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  job.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_LAYOUT);
  job.mutable_training()->clear_weight_format();
  job.mutable_training()->clear_gradient_format();
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  v1::Layout layout;
  layout.set_tensor(8);
  layout.set_pipeline(4);
  layout.set_virtual_pipeline(1);
  layout.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  layout.set_context_parallel(1);
  layout.set_data(8);
  layout.set_micro_batch(1);
  layout.set_micro_batches(8);
  layout.set_zero_stage(1);
  MemoryTables tables(job);
  for (const int stage : {0, 1, 3}) {
    const auto total = static_cast<double>(tables.OfStage(layout, stage, 1).total_bytes());
    EXPECT_GT(static_cast<double>(tables.LeastOfStage(layout, stage)), 0.8 * total) << stage;
  }
}

}  // namespace
}  // namespace tercio::plan

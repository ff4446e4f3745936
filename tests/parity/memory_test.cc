// The memory plan against what the engine writes: with an arena that begins as a pattern, every
// buffer of every rank is written to its last word, and the results have the bits of a run without
// the pattern, so nothing is read that was not written.
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/model_tensors.h"
#include "plan/names.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

using ::testing::HasSubstr;

const Case kOneRank = {1, 1, 1, 2, 1, k1f1b};

// What a batch may need at most: some sequences of full length in which every token is predicted.
class WorstCaseSource : public data::SampleSource {
 public:
  explicit WorstCaseSource(const v1::ModelSpec& model) : source_(model) {}
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    source_.TrainingSample(step, sequence, out);
    if (sequence % 2 == 0) return;
    out->length = static_cast<int32_t>(out->inputs.size());
    for (size_t i = 0; i < out->inputs.size(); ++i) {
      out->targets[i] = static_cast<int32_t>(5 + (i + static_cast<size_t>(step)) % 40);
    }
  }
  int64_t held_out_samples(data::HeldOut set) const override {
    return source_.held_out_samples(set);
  }
  void HeldOutSample(data::HeldOut set, int64_t index, data::Sample* out) override {
    source_.HeldOutSample(set, index, out);
  }

 private:
  SyntheticEncoderSource source_;
};

// All that is planned is written, and nothing is read before. `ignored`: a buffer whose size is a
// bound.
void ExpectUsed(const v1::JobSpec& spec, const Case& c, const std::string& ignored = "") {
  SCOPED_TRACE(plan::TextOf(spec.model().architecture()) + " " +
               plan::TextOf(spec.training().precision()) + " " + NameOf(c));
  RunOptions options;
  WorstCaseSource worst(spec.model());
  if (spec.model().architecture() == v1::ARCHITECTURE_BERT) options.source = &worst;
  // What compares replicas tensor by tensor is used where they differ.
  options.flip_bit_in_all_groups = c.data > 1;
  const RunResult plain = Train(spec, c, options);
  options.fill_pattern = true;
  const RunResult filled = Train(spec, c, options);
  ASSERT_EQ(filled.memory.size(), static_cast<size_t>(c.tensor * c.pipeline * c.data));
  const auto stages = UseOfStages(filled);
  EXPECT_EQ(stages.size(), static_cast<size_t>(c.pipeline));
  for (auto [stage, buffers] : stages) {
    std::erase_if(buffers, [&](const engine::BufferUse& use) { return use.name == ignored; });
    EXPECT_EQ(engine::UnusedText(buffers), "") << "stage " << stage;
  }
  ASSERT_EQ(plain.steps.size(), filled.steps.size());
  for (size_t i = 0; i < plain.steps.size(); ++i) {
    EXPECT_EQ(plain.steps[i].loss, filled.steps[i].loss) << "step " << i + 1;
    EXPECT_EQ(std::bit_cast<uint64_t>(plain.steps[i].grad_norm),
              std::bit_cast<uint64_t>(filled.steps[i].grad_norm))
        << "step " << i + 1;
  }
  EXPECT_EQ(plain.validation_loss, filled.validation_loss);
  ASSERT_EQ(plain.state.size(), filled.state.size());
  for (const auto& [name, values] : plain.state) {
    const std::vector<float>& other = filled.state.at(name);
    ASSERT_EQ(values.size(), other.size()) << name;
    // Codes are no numbers; of these 0 and -0, as moments begin here, are one.
    const bool same =
        name.rfind(plan::kBasePrefix, 0) == 0
            ? std::memcmp(values.data(), other.data(), values.size() * sizeof(float)) == 0
            : values == other;
    EXPECT_TRUE(same) << name;
  }
}

v1::JobSpec With(v1::JobSpec spec, v1::Precision precision) {
  spec.mutable_training()->set_precision(precision);
  return spec;
}

TEST(MemoryPlan, EveryArchitectureUsesAllOfIt) {
  for (const v1::JobSpec& spec : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallBert(kPre),
                                  SmallClassifier(), SmallT5()}) {
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16})
      ExpectUsed(With(spec, precision), kOneRank);
  }
}

TEST(MemoryPlan, ChosenTargetsUseAllOfIt) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama()}) {
    spec.mutable_data()->mutable_chat()->set_template_("chatml");
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      ExpectUsed(With(spec, precision), kOneRank);
      ExpectUsed(With(spec, precision), {2, 2, 1, 2, 1, k1f1b});
    }
  }
}

TEST(MemoryPlan, AdaptersUseAllOfIt) {
  for (const v1::AdapterKind kind : {v1::ADAPTER_KIND_LORA, v1::ADAPTER_KIND_IA3}) {
    for (v1::JobSpec spec : {SmallJob(), SmallLlama(), SmallT5()}) {
      v1::AdapterSpec* adapter = spec.mutable_model()->mutable_adapter();
      adapter->set_kind(kind);
      adapter->set_rank(4);
      adapter->set_alpha(4);
      if (kind == v1::ADAPTER_KIND_LORA) adapter->set_dropout(0.1);
      adapter->add_targets("all-linear");
      for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
        ExpectUsed(With(spec, precision), kOneRank);
        Case c = {2, 2, 2, 1, 1, k1f1b, kSelective, 1, true};
        if (spec.model().decoder_layers() > 0) c.sequence_parallel = false;
        c.zero_stage = 3;
        ExpectUsed(With(spec, precision), c);
      }
    }
  }
}

TEST(MemoryPlan, PackedSequencesUseAllOfIt) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama()}) {
    spec.mutable_data()->mutable_chat()->set_packing(true);
    ExpectUsed(spec, kOneRank);
    // A stage in the middle has no tokens, but needs to know whose they are.
    ExpectUsed(spec, {2, 4, 1, 2, 1, k1f1b});
    ExpectUsed(spec, {2, 2, 1, 2, 1, k1f1b, kFull, 1, true});
  }
}

TEST(MemoryPlan, ADividedStateUsesAllOfIt) {
  for (const v1::JobSpec& spec : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallT5()}) {
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      for (Case c : {Case{1, 1, 4, 2, 1, k1f1b}, Case{2, 2, 2, 2, 1, k1f1b}}) {
        c.zero_stage = 1;
        ExpectUsed(With(spec, precision), c);
        // Lanes of two sequences: a micro-batch is a round, or half of one.
        v1::JobSpec in_rounds = With(spec, precision);
        in_rounds.mutable_training()->set_lanes(4);
        for (const int micro_batch : {1, 2}) {
          c.zero_stage = 1 + micro_batch;
          c.micro_batch = micro_batch;
          ExpectUsed(in_rounds, c);
        }
      }
    }
  }
}

TEST(MemoryPlan, GroupsKeptLayersAndStateOnDiskUseAllOfIt) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec spec = With(SmallJob(), precision);
    spec.mutable_training()->set_lanes(4);
    Case c = {1, 1, 4, 1, 1, k1f1b};
    c.zero_stage = 3;
    c.shard = 2;
    ExpectUsed(spec, c);
    c.shard = 0;
    c.reshard_after_forward = 2;
    c.prefetch = 0;
    ExpectUsed(spec, c);
    for (const auto set : {&v1::OffloadSpec::set_optimizer, &v1::OffloadSpec::set_parameters,
                           &v1::OffloadSpec::set_activations}) {
      (spec.mutable_offload()->*set)(v1::OFFLOAD_TIER_NVME);
      ExpectUsed(spec, c);
    }
  }
}

// What is frozen takes no room but that of its weights, and the pass that ends early none for its
// gradients.
TEST(MemoryPlan, FrozenTensorsUseAllOfIt) {
  // A stage without a backward pass needs less of it.
  constexpr char kAttention[] = "workspace.attention";
  const std::vector<std::vector<std::string>> patterns = {
      {"embedding.*", "layers.0.*", "layers.1.*"},
      {"layers.*.attention.query.*", "layers.2.mlp.*", "embedding.position.weight"}};
  for (const std::vector<std::string>& frozen : patterns) {
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      v1::JobSpec spec = With(SmallJob(), precision);
      spec.mutable_training()->mutable_frozen()->Assign(frozen.begin(), frozen.end());
      spec.mutable_training()->set_lanes(4);
      ExpectUsed(spec, kOneRank, kAttention);
      ExpectUsed(spec, {1, 2, 2, 2, 1, k1f1b}, kAttention);
      for (const int stage : {1, 2, 3}) {
        Case c = {1, 1, 4, 1, 1, k1f1b};
        c.zero_stage = stage;
        ExpectUsed(spec, c, kAttention);
      }
      Case c = {2, 2, 2, 1, 1, k1f1b};
      c.zero_stage = 3;
      ExpectUsed(spec, c, kAttention);
      spec.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
      spec.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_NVME);
      ExpectUsed(spec, c, kAttention);
    }
  }
}

// Codes take the place of weights, and the largest product's weights are there once.
TEST(MemoryPlan, QuantizedWeightsUseAllOfIt) {
  // A stage without a backward pass needs less of it.
  constexpr char kAttention[] = "workspace.attention";
  for (const v1::BaseFormat format : {v1::BASE_FORMAT_NF4, v1::BASE_FORMAT_INT8}) {
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      v1::JobSpec spec = With(SmallLlama(), precision);
      spec.mutable_model()->set_hidden(128);
      spec.mutable_model()->set_ffn_hidden(256);
      spec.mutable_model()->set_base_format(format);
      spec.mutable_training()->add_frozen("layers.*.weight");
      spec.mutable_training()->set_lanes(4);
      ExpectUsed(spec, kOneRank, kAttention);
      for (Case c : {Case{1, 2, 2, 2, 1, k1f1b}, Case{2, 2, 2, 1, 1, k1f1b}}) {
        for (const int stage : {0, 2}) {
          c.zero_stage = stage;
          ExpectUsed(spec, c, kAttention);
        }
      }
    }
  }
}

TEST(MemoryPlan, PartsOfTheStateOnDiskUseAllOfIt) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec spec = With(SmallJob(), precision);
    spec.mutable_training()->set_lanes(4);
    spec.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
    for (const double share : {0.25, 0.5, 0.75}) {
      SCOPED_TRACE(share);
      spec.mutable_offload()->set_share(share);
      ExpectUsed(spec, kOneRank);
      for (Case c : {Case{1, 1, 4, 1, 1, k1f1b}, Case{1, 2, 2, 1, 1, k1f1b}}) {
        for (const int stage : {1, 3}) {
          c.zero_stage = stage;
          ExpectUsed(spec, c);
        }
        c.shard = 2;
        ExpectUsed(spec, c);
      }
    }
  }
}

TEST(MemoryPlan, BlockFormatsUseAllOfIt) {
  for (const v1::JobSpec& model : {SmallJob(), SmallBert(kPost), SmallT5()}) {
    v1::JobSpec spec = With(model, v1::PRECISION_BF16);
    spec.mutable_training()->set_lanes(4);
    spec.mutable_training()->set_weight_format(v1::BLOCK_FORMAT_INT8);
    spec.mutable_training()->set_gradient_format(v1::BLOCK_FORMAT_INT4);
    for (Case c : {Case{1, 1, 2, 1, 1, k1f1b}, Case{1, 1, 4, 1, 1, k1f1b}}) {
      for (const int stage : {0, 1, 2, 3}) {
        c.zero_stage = stage;
        ExpectUsed(spec, c);
      }
      if (c.data < 4) continue;
      c.shard = 2;
      ExpectUsed(spec, c);
    }
  }
}

TEST(MemoryPlan, EveryLayoutUsesAllOfIt) {
  for (const v1::JobSpec& spec : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallT5()}) {
    for (const Case& c :
         {Case{2, 1, 1, 2, 1, k1f1b}, Case{1, 2, 1, 2, 1, k1f1b}, Case{1, 2, 1, 2, 1, kGpipe},
          Case{1, 1, 2, 2, 1, k1f1b}, Case{1, 4, 2, 1, 1, k1f1b}, Case{2, 2, 2, 1, 1, kGpipe}}) {
      ExpectUsed(spec, c);
    }
  }
}

TEST(MemoryPlan, UnequalStagesUseAllOfIt) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallT5()}) {
    spec.mutable_training()->set_lanes(8);
    for (Case c : {Case{1, 3, 1, 1, 1, k1f1b}, Case{1, 3, 2, 1, 1, kGpipe}}) {
      for (const std::vector<int>& layers : {std::vector<int>{1, 2, 1}, {2, 1, 1}}) {
        c.stage_layers = layers;
        ExpectUsed(spec, c);
      }
    }
    // A stage of one layer has two gradient buffers that differ: one for the layer, one for the
    // embedding or the head.
    const bool decodes = spec.model().decoder_layers() > 0;
    spec.mutable_model()->set_layers(decodes ? 4 : 6);
    for (const std::vector<int>& layers : {std::vector<int>{2, 4}, {4, 2}, {1, 5}, {5, 1}}) {
      Case c = {1, 2, 2, 1, 1, k1f1b};
      c.stage_layers = layers;
      for (const int stage : {2, 3}) {
        c.zero_stage = stage;
        ExpectUsed(spec, c);
      }
    }
  }
  for (v1::JobSpec spec : {SmallJob(), SmallLlama()}) {
    spec.mutable_model()->set_layers(6);
    Case c = {1, 2, 1, 1, 1, kInterleaved, kNone, 2};
    for (const std::vector<int>& layers : {std::vector<int>{1, 2, 2, 1}, {2, 1, 1, 2}}) {
      c.stage_layers = layers;
      ExpectUsed(spec, c);
    }
  }
}

// Data ranks compare what each of them has whole, and those with the same shard their shards: of
// all layers of a stage, where these are gathered and forgotten.
TEST(MemoryPlan, WhatComparesReplicasInStagesIsUsed) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama()}) {
    spec.mutable_training()->set_lanes(8);
    for (Case c :
         {Case{1, 2, 4, 1, 1, k1f1b}, Case{1, 2, 2, 1, 1, k1f1b}, Case{4, 1, 2, 1, 1, k1f1b}}) {
      // Tensor ranks divide heads of keys.
      if (spec.model().kv_heads() % c.tensor != 0) continue;
      for (const int stage : {0, 1, 3}) {
        c.zero_stage = stage;
        c.shard = 0;
        ExpectUsed(spec, c);
        if (stage == 0 || c.data < 4) continue;
        c.shard = 2;
        ExpectUsed(spec, c);
      }
    }
  }
}

TEST(MemoryPlan, RecomputationAndInterleavingUseAllOfIt) {
  for (const v1::JobSpec& spec : {SmallJob(), SmallLlama()}) {
    for (const Case& c :
         {Case{1, 1, 1, 2, 1, k1f1b, kSelective}, Case{1, 1, 1, 2, 1, k1f1b, kFull},
          Case{1, 2, 1, 1, 1, kInterleaved, kNone, 2}, Case{1, 2, 2, 1, 1, kInterleaved, kFull, 2},
          Case{2, 1, 1, 2, 1, k1f1b, kNone, 1, true}, Case{2, 2, 1, 2, 1, k1f1b, kFull, 1, true}}) {
      ExpectUsed(spec, c);
    }
  }
}

TEST(MemoryPlan, WithoutDropoutUsesAllOfIt) {
  for (v1::JobSpec spec :
       {SmallJob(), SmallLlama(), SmallBert(kPost), SmallClassifier(), SmallT5()}) {
    spec.mutable_model()->set_dropout(0);
    for (const Case& c : {Case{1, 1, 1, 2, 1, k1f1b}, Case{2, 2, 1, 2, 1, k1f1b}})
      ExpectUsed(spec, c);
  }
}

TEST(MemoryPlan, CopiesOfSnapshotsUseAllOfIt) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_checkpoint()->set_peer_copies(1);
  for (const Case& c : {Case{1, 1, 1, 2, 1, k1f1b}, Case{1, 2, 2, 2, 1, k1f1b}})
    ExpectUsed(spec, c);
}

TEST(MemoryPlan, ABufferThatIsNeverTouchedIsFound) {
  RunOptions options;
  options.fill_pattern = true;
  options.change_plan = [](v1::Plan& plan) {
    v1::MemoryTable* table = plan.mutable_stages(0)->mutable_memory();
    v1::Buffer* bogus = table->add_buffers();
    bogus->set_name("bogus");
    bogus->set_kind(v1::BUFFER_KIND_WORKSPACE);
    bogus->set_offset_bytes(table->total_bytes());
    bogus->set_size_bytes(4096);
    table->set_total_bytes(table->total_bytes() + 4096);
  };
  const RunResult result = Train(SmallJob(), kOneRank, options);
  EXPECT_EQ(engine::UnusedText(result.memory.at(0)),
            "bogus: 4096 bytes are planned, none is touched\n");
}

TEST(MemoryPlan, ABufferThatIsTooLargeIsFound) {
  RunOptions options;
  options.fill_pattern = true;
  options.change_plan = [](v1::Plan& plan) {
    v1::MemoryTable* table = plan.mutable_stages(0)->mutable_memory();
    for (v1::Buffer& buffer : *table->mutable_buffers()) {
      if (buffer.name() != "snapshot") continue;  // the last one
      buffer.set_size_bytes(buffer.size_bytes() + 4096);
      table->set_total_bytes(buffer.offset_bytes() + buffer.size_bytes());
    }
  };
  const RunResult result = Train(SmallJob(), kOneRank, options);
  EXPECT_THAT(engine::UnusedText(result.memory.at(0)), HasSubstr("snapshot: "));
}

}  // namespace
}  // namespace tercio::testing

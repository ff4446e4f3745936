// Jobs that train adapters beside a frozen model: equal bits over pipeline and data degrees, equal
// losses over tensor degrees, and a model that stays as it was.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

v1::JobSpec Adapted(v1::JobSpec spec, double dropout = 0,
                    const std::vector<std::string>& targets = {"all-linear"}) {
  v1::AdapterSpec* adapter = spec.mutable_model()->mutable_adapter();
  adapter->set_kind(v1::ADAPTER_KIND_LORA);
  adapter->set_rank(4);
  adapter->set_alpha(8);
  adapter->set_dropout(dropout);
  adapter->mutable_targets()->Assign(targets.begin(), targets.end());
  // Small jobs begin with large steps, so that B soon differs from zero.
  spec.mutable_training()->mutable_optimizer()->set_learning_rate(0.01);
  return spec;
}

v1::JobSpec Of(v1::Architecture architecture) {
  v1::JobSpec spec = SmallLlama();
  spec.mutable_model()->set_architecture(architecture);
  if (architecture == v1::ARCHITECTURE_GPT_NEOX) {
    spec.mutable_model()->set_kv_heads(spec.model().heads());
    spec.mutable_model()->set_bias(true);
  }
  return spec;
}

v1::JobSpec Scaled(v1::JobSpec spec, const std::vector<std::string>& targets) {
  v1::AdapterSpec* adapter = spec.mutable_model()->mutable_adapter();
  adapter->set_kind(v1::ADAPTER_KIND_IA3);
  adapter->mutable_targets()->Assign(targets.begin(), targets.end());
  return spec;
}

Case Divided(Case c, int zero_stage) {
  c.zero_stage = zero_stage;
  if (zero_stage > 1 && c.data > 1) c.micro_batch = 1;  // a lane has one sequence
  return c;
}

const Case kOneRank = {1, 1, 1, 8, 1, k1f1b};
const Case kStages = {1, 2, 2, 2, 1, k1f1b};
const Case kChunks = {1, 2, 1, 2, 2, kInterleaved, kSelective, 2};
const Case kShards = {1, 1, 4, 1, 1, k1f1b, kFull};
const Case kTensors = {2, 1, 1, 4, 1, k1f1b};
const Case kEverything = {2, 2, 2, 1, 1, k1f1b};
const Case kRows = {2, 1, 2, 4, 1, k1f1b, kSelective, 1, true};

bool IsOfAdapter(const std::string& name) { return absl::StrContains(name, ".lora_"); }

TEST(Adapters, PipelineAndDataDegreesHaveTheSameBits) {
  const std::vector<Case> layouts = {kOneRank,
                                     kStages,
                                     kChunks,
                                     Divided(kShards, 1),
                                     Divided(kStages, 2),
                                     Divided(kStages, 3),
                                     Divided(kShards, 3)};
  ExpectSameGrid(Adapted(SmallJob(), 0.1), layouts);
  ExpectSameGrid(Adapted(SmallLlama(), 0.1), layouts);
  ExpectSameGrid(Scaled(SmallJob(), {"attention.query_key_value", "mlp.down"}), layouts);
  ExpectSameGrid(Adapted(SmallT5(), 0.1), {kOneRank, kStages, Divided(kStages, 3)});
}

TEST(Adapters, TensorRanksHaveTheSameBitsInEveryDivision) {
  const std::vector<Case> layouts = {kTensors, kEverything, Divided(kEverything, 2),
                                     Divided(kEverything, 3)};
  ExpectSameGrid(Adapted(SmallJob(), 0.1), layouts);
  ExpectSameGrid(Adapted(SmallLlama()), layouts);
}

// Sums over tensor ranks have another order: the losses are those of one rank, to rounding.
TEST(Adapters, TensorRanksHaveTheLossesOfOne) {
  for (const v1::JobSpec& spec :
       {Adapted(SmallJob(), 0.1), Adapted(SmallLlama(), 0.1),
        Adapted(Of(v1::ARCHITECTURE_GPT_NEOX)), Adapted(Of(v1::ARCHITECTURE_PHI3)),
        Adapted(SmallBert(kPre)), Adapted(SmallT5(), 0.1), Scaled(SmallLlama(), {"all-linear"}),
        Adapted(SmallJob(), 0, {"mlp.down", "attention.output"})}) {
    const RunResult one = Train(spec, kOneRank);
    for (const Case& c : {kTensors, kEverything, kRows, Divided(kEverything, 3)}) {
      SCOPED_TRACE(NameOf(c));
      const RunResult several = Train(spec, c);
      ASSERT_EQ(several.steps.size(), one.steps.size());
      for (size_t i = 0; i < one.steps.size(); ++i) {
        EXPECT_NEAR(several.steps[i].loss, one.steps[i].loss, 2e-5 * one.steps[i].loss);
        EXPECT_NEAR(several.steps[i].grad_norm, one.steps[i].grad_norm,
                    2e-4 * one.steps[i].grad_norm);
      }
    }
  }
}

TEST(Adapters, TheModelStaysAndAdaptersLearn) {
  for (const v1::JobSpec& spec : {Adapted(SmallJob()), Adapted(SmallLlama(), 0.1)}) {
    v1::JobSpec plain = spec;
    plain.mutable_model()->clear_adapter();
    RunOptions none;
    none.steps = 0;
    const RunResult before = Train(plain, kOneRank, none);
    const RunResult after = Train(spec, Divided(kStages, 3));
    size_t compared = 0;
    for (const auto& [name, values] : after.state) {
      if (IsOfAdapter(name)) {
        float sum = 0;
        for (const float value : values) sum += std::abs(value);
        EXPECT_GT(sum, 0) << name;
        continue;
      }
      ASSERT_TRUE(before.state.contains(name)) << name;
      EXPECT_EQ(before.state.at(name), values) << name;
      ++compared;
    }
    EXPECT_GT(compared, 10);
  }
}

// Beside a base of four bits (QLoRA): the same bits in every layout, with and without tensor ranks.
TEST(Adapters, QuantisedBasesHaveTheSameBits) {
  v1::JobSpec spec = Adapted(SmallLlama(), 0.1);
  spec.mutable_model()->set_hidden(128);
  spec.mutable_model()->set_ffn_hidden(128);
  spec.mutable_model()->set_base_format(v1::BASE_FORMAT_NF4);
  ExpectSameGrid(spec, {kOneRank, kStages, kChunks, Divided(kStages, 1), Divided(kShards, 2)});
  ExpectSameGrid(spec, {kTensors, kEverything, Divided(kEverything, 2)});
  spec.mutable_training()->set_precision(v1::PRECISION_BF16);
  ExpectSameGrid(spec, {kOneRank, kStages, Divided(kShards, 2)});
}

// B is zero at first: the first loss is that of the model without adapters.
TEST(Adapters, TheFirstLossIsTheModels) {
  const v1::JobSpec spec = Adapted(SmallLlama(), 0.3);
  v1::JobSpec plain = spec;
  plain.mutable_model()->clear_adapter();
  EXPECT_EQ(Train(spec, kOneRank).steps.front().loss, Train(plain, kOneRank).steps.front().loss);
}

}  // namespace
}  // namespace tercio::testing

// The bytes that ranks send in a step are those of the formulas that textbooks and planners give
// (Narayanan et al. 2021, sections 2.2 and 3.2), here of sums by all-to-all between two ranks.
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/exact_sum.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/plan_builder.h"
#include "plan/state_volume.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

constexpr int64_t kSteps = 3;
constexpr int64_t kFloat = 4;
constexpr int64_t kDouble = 8;

struct Trained {
  v1::JobSpec spec;
  v1::Layout layout;
  RunResult result;

  int64_t rows() const {  // tokens of a rank's sequences
    return spec.training().global_batch() / layout.data() * spec.model().context();
  }
  int64_t flow() const { return rows() * spec.model().hidden(); }
  // Sums of sequences, limbs of the norm, a count for each tensor, and the signal of rank 0: all
  // others send theirs to rank 0, which sends them the result.
  int64_t exchange(int rank, int ranks) const {
    const auto tensors = static_cast<int64_t>(plan::ModelTensors(spec.model()).size());
    const int64_t numbers = plan::SumsPerSequence(spec) * spec.training().global_batch() +
                            kernels::kSumLimbs + tensors + 1;
    return kSteps * numbers * kDouble * (rank == 0 ? ranks - 1 : 1);
  }
};

Trained Train(v1::JobSpec spec, int tensor, int pipeline, int data, int micro_batch,
              int64_t steps = kSteps) {
  spec.mutable_parallelism()->set_tensor(tensor);
  spec.mutable_parallelism()->set_pipeline(pipeline);
  spec.mutable_parallelism()->set_data(data);
  spec.mutable_parallelism()->set_virtual_pipeline(1);
  spec.mutable_parallelism()->set_schedule(k1f1b);
  spec.mutable_parallelism()->set_recompute(kNone);
  spec.mutable_resources()->set_ranks(tensor * pipeline * data);
  spec.mutable_training()->set_micro_batch(micro_batch);
  RunOptions options;
  options.steps = steps;
  absl::StatusOr<RunResult> result = TrainWithThreads(spec, options);
  EXPECT_TRUE(result.ok()) << result.status();
  const absl::StatusOr<v1::Layout> layout = plan::LayoutOfJob(spec);
  EXPECT_TRUE(layout.ok()) << layout.status();
  if (!result.ok() || !layout.ok()) return {};
  return {spec, *layout, *std::move(result)};
}

TEST(Communication, OneRankSendsNothing) {
  for (const v1::JobSpec& spec : {SmallJob(), SmallLlama(), SmallClassifier(), SmallT5()}) {
    const Trained trained = Train(spec, 1, 1, 1, 4);
    const v1::CommunicationBytes& sent = trained.result.sent.at(0);
    EXPECT_EQ(sent.tensor() + sent.pipeline() + sent.data() + sent.world(), 0);
  }
}

TEST(Communication, DataRanksSumEveryGradientOnce) {
  const Trained trained = Train(SmallJob(), 1, 1, 2, 2);
  const int64_t gradients =
      plan::TensorsOfStage(trained.spec.model(), trained.layout, 0).gradient_elements;
  for (const auto& [rank, sent] : trained.result.sent) {
    EXPECT_EQ(sent.data(), kSteps * gradients * kFloat);
    EXPECT_EQ(sent.tensor() + sent.pipeline(), 0);
    EXPECT_EQ(sent.world(), trained.exchange(rank, 2));
  }
}

// Nothing of what is frozen is summed, nor sent where it has no backward pass.
TEST(Communication, FrozenTensorsAreNotSent) {
  v1::JobSpec spec = SmallLlama();
  for (const char* pattern : {"embedding.*", "layers.0.*", "layers.1.*"}) {
    spec.mutable_training()->add_frozen(pattern);
  }
  const Trained stages = Train(spec, 1, 2, 2, 2);
  const int64_t gradients = plan::TensorsOfStage(stages.spec, stages.layout, 1).gradient_elements;
  EXPECT_GT(gradients, 0);
  for (const auto& [rank, sent] : stages.result.sent) {
    const bool is_first = stages.result.stages.at(rank) == 0;
    EXPECT_EQ(sent.data(), is_first ? 0 : kSteps * gradients * kFloat);
    EXPECT_EQ(sent.pipeline(), is_first ? kSteps * stages.flow() * kFloat : 0);
  }
}

// With our own collectives the plan's figure is what ranks have sent, to the byte.
struct Division {
  int data, zero_stage, shard, reshard_after_forward, prefetch, micro_batch;
};

// The first step begins with weights of the seed, which are gathered as well: the figure is that of
// further steps.
void ExpectPlannedVolume(v1::JobSpec spec, const Division& division) {
  v1::ParallelismSpec* parallelism = spec.mutable_parallelism();
  parallelism->set_zero_stage(division.zero_stage);
  parallelism->set_shard(division.shard);
  parallelism->set_reshard_after_forward(division.reshard_after_forward);
  parallelism->set_prefetch(division.prefetch);
  SCOPED_TRACE(parallelism->ShortDebugString());
  plan::StateVolume volume;
  const auto sent_in = [&](int64_t steps) {
    const Trained trained = Train(spec, 1, 1, division.data, division.micro_batch, steps);
    volume = plan::VolumeOfStage(trained.spec, trained.layout, 0);
    v1::CommunicationBytes sum;
    for (const auto& [rank, bytes] : trained.result.sent) {
      sum.set_data(sum.data() + bytes.data() - bytes.gathered());
      sum.set_gathered(sum.gathered() + bytes.gathered());
    }
    return sum;
  };
  const v1::CommunicationBytes before = sent_in(1);
  const v1::CommunicationBytes after = sent_in(2);
  EXPECT_EQ(after.data() - before.data(), std::llround(volume.reduced * division.data));
  EXPECT_EQ(after.gathered() - before.gathered(), std::llround(volume.gathered * division.data));
}

TEST(Communication, DividedStatesSendWhatThePlanSays) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama(), SmallT5()}) {
    spec.mutable_training()->set_lanes(8);
    for (const auto& [precision, format] : {std::pair(v1::PRECISION_FP32, v1::BLOCK_FORMAT_NONE),
                                            std::pair(v1::PRECISION_FP32, v1::BLOCK_FORMAT_INT8),
                                            std::pair(v1::PRECISION_BF16, v1::BLOCK_FORMAT_NONE),
                                            std::pair(v1::PRECISION_BF16, v1::BLOCK_FORMAT_INT4)}) {
      spec.mutable_training()->set_precision(precision);
      const bool packs = format != v1::BLOCK_FORMAT_NONE;
      spec.mutable_training()->set_weight_format(packs ? v1::BLOCK_FORMAT_INT8 : format);
      spec.mutable_training()->set_gradient_format(format);
      for (const Division& division : std::vector<Division>{{4, 0, 0, 0, 1, 2},
                                                            {4, 1, 0, 0, 1, 2},
                                                            {4, 2, 0, 0, 1, 1},
                                                            {2, 3, 0, 0, 1, 1},
                                                            {4, 1, 2, 0, 1, 2},
                                                            {4, 2, 2, 0, 1, 1},
                                                            {4, 3, 2, 0, 2, 1},
                                                            {4, 3, 0, 2, 0, 1},
                                                            {4, 3, 0, 2, 1, 1},
                                                            {4, 3, 0, 1, 1, 1}}) {
        ExpectPlannedVolume(spec, division);
      }
    }
  }
}

TEST(Communication, DividedStatesOfWhichPartsAreFrozenSendWhatThePlanSays) {
  v1::JobSpec spec = SmallLlama();
  spec.mutable_training()->set_lanes(8);
  spec.mutable_training()->set_precision(v1::PRECISION_BF16);
  spec.mutable_training()->add_frozen("embedding.*");
  spec.mutable_training()->add_frozen("layers.*.mlp.*");
  for (const Division& division : std::vector<Division>{
           {4, 0, 0, 0, 1, 2}, {4, 1, 0, 0, 1, 2}, {4, 2, 2, 0, 1, 1}, {4, 3, 0, 2, 1, 1}}) {
    ExpectPlannedVolume(spec, division);
  }
}

TEST(Communication, StagesSendOneFlowEachWay) {
  // A llama's head is a matrix of its own: nothing but activations and their gradients is sent.
  const Trained llama = Train(SmallLlama(), 1, 2, 1, 2);
  for (const auto& [rank, sent] : llama.result.sent) {
    EXPECT_EQ(sent.pipeline(), kSteps * llama.flow() * kFloat);
    EXPECT_EQ(sent.tensor() + sent.data(), 0);
    EXPECT_EQ(sent.world(), llama.exchange(rank, 2));
  }
  // Both stages of a gpt hold the token table, and exchange their parts of its gradient.
  const Trained gpt = Train(SmallJob(), 1, 2, 1, 4);
  const int64_t table =
      plan::PaddedVocabulary(gpt.spec.model().vocab_size(), 1) * gpt.spec.model().hidden();
  for (const auto& [rank, sent] : gpt.result.sent) {
    EXPECT_EQ(sent.pipeline(), kSteps * (gpt.flow() + table) * kFloat);
  }
}

TEST(Communication, TensorRanksSumFourTimesInALayer) {
  const Trained trained = Train(SmallJob(), 2, 1, 1, 8);
  // Beside those: the lookup, the gradient behind the head, and four numbers of each token's loss.
  const int64_t sums = 4 * trained.spec.model().layers() + 2;
  for (const auto& [rank, sent] : trained.result.sent) {
    EXPECT_EQ(sent.tensor(), kSteps * (sums * trained.flow() + 4 * trained.rows()) * kFloat);
    EXPECT_EQ(sent.data() + sent.pipeline(), 0);
    EXPECT_EQ(sent.world(), trained.exchange(rank, 2));
  }
}

}  // namespace
}  // namespace tercio::testing

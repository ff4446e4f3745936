// Silent faults in whole runs: a bit that turns over in one replica, and data that makes a spike.
// That healthy replicas are equal is checked in every run of tests/parity (thread_ranks.cc).
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<RunResult> Train(v1::JobSpec spec, int tensor, int pipeline, int data,
                                const RunOptions& options) {
  v1::ParallelismSpec* parallelism = spec.mutable_parallelism();
  parallelism->set_tensor(tensor);
  parallelism->set_pipeline(pipeline);
  parallelism->set_data(data);
  parallelism->set_virtual_pipeline(1);
  parallelism->set_schedule(k1f1b);
  parallelism->set_recompute(kNone);
  spec.mutable_resources()->set_ranks(tensor * pipeline * data);
  spec.mutable_training()->set_micro_batch(1);
  return TrainWithThreads(spec, options);
}

TEST(Replicas, TheOddOneIsNamed) {
  struct Case {
    int tensor, pipeline, data, rank;
  };
  for (const Case& c : {Case{1, 1, 4, 2}, Case{1, 2, 4, 5}, Case{2, 1, 4, 7}, Case{1, 1, 8, 0}}) {
    RunOptions options;
    options.flip_bit_rank = c.rank;
    const auto result = Train(SmallJob(), c.tensor, c.pipeline, c.data, options);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->replicas.odd_rank, c.rank) << result->replicas.text;
    EXPECT_THAT(result->replicas.text, HasSubstr(absl::StrCat("rank ", c.rank, " differ")));
    EXPECT_THAT(result->replicas.text, HasSubstr("("));  // the tensor
  }
}

TEST(Replicas, OfTwoNobodyKnowsWhich) {
  RunOptions options;
  options.flip_bit_rank = 3;
  const auto result = Train(SmallLlama(), 1, 2, 2, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->replicas.odd_rank, -1);
  EXPECT_THAT(result->replicas.text, HasSubstr("one of ranks"));
  EXPECT_THAT(result->replicas.text, HasSubstr("3"));
}

// Tokens that count up, which is soon learned; of the steps in `bad` they count down.
class PoisonedSource : public data::CausalSource {
 public:
  PoisonedSource(const v1::JobSpec& spec, std::vector<int64_t> bad)
      : vocabulary_(spec.model().vocab_size()),
        context_(spec.model().context()),
        bad_(std::move(bad)) {}
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    const bool bad = std::find(bad_.begin(), bad_.end(), step) != bad_.end();
    const int64_t start = step * 7 + sequence * 11;
    for (int64_t i = 0; i <= context_; ++i) {
      const int64_t token = bad ? start - i : start + i;
      out[i] = static_cast<int32_t>((token % vocabulary_ + vocabulary_) % vocabulary_);
    }
  }
  int64_t held_out_samples(data::HeldOut) const override { return 1; }
  void ReadHeldOut(data::HeldOut, int64_t index, int32_t* out) override {
    ReadTraining(1, index, out);
  }

 private:
  const int64_t vocabulary_;
  const int64_t context_;
  const std::vector<int64_t> bad_;
};

v1::JobSpec PoisonedJob(v1::OnSpike on_spike) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_model()->set_dropout(0);
  spec.mutable_model()->set_layers(2);
  spec.mutable_model()->set_hidden(16);
  spec.mutable_model()->set_ffn_hidden(32);
  spec.mutable_model()->set_context(12);
  spec.mutable_training()->set_steps(160);
  spec.mutable_training()->mutable_schedule()->set_decay_steps(80);
  spec.mutable_fault_tolerance()->set_spike_threshold(4);
  spec.mutable_fault_tolerance()->set_on_spike(on_spike);
  return spec;
}

std::string SpikesOf(const RunResult& run) {
  std::string text;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    if (!run.steps[i].spike.empty()) absl::StrAppend(&text, i + 1, " ");
  }
  return text;
}

TEST(SpikesInARun, AreSeenAlikeInEveryLayout) {
  for (const v1::OnSpike policy :
       {v1::ON_SPIKE_OFF, v1::ON_SPIKE_REPORT, v1::ON_SPIKE_SKIP, v1::ON_SPIKE_ROLLBACK}) {
    PoisonedSource source(PoisonedJob(policy), {150, 156});
    RunOptions options;
    options.steps = 160;
    options.source = &source;
    const auto one = Train(PoisonedJob(policy), 1, 1, 1, options);
    const auto four = Train(PoisonedJob(policy), 1, 2, 2, options);
    ASSERT_TRUE(one.ok() && four.ok()) << one.status() << four.status();
    const bool off = policy == v1::ON_SPIKE_OFF;
    EXPECT_THAT(SpikesOf(*one), HasSubstr(off ? "" : "150 ")) << policy;
    EXPECT_EQ(SpikesOf(*one).empty(), off);
    EXPECT_EQ(SpikesOf(*one), SpikesOf(*four));
    EXPECT_EQ(one->steps[149].skipped, policy == v1::ON_SPIKE_SKIP || one->steps[149].rolls_back);
    EXPECT_EQ(one->steps[149].rolls_back, policy == v1::ON_SPIKE_ROLLBACK);
    EXPECT_EQ(one->steps.back().loss, four->steps.back().loss);
    EXPECT_EQ(one->state.contains(engine::kSpikeTensor), plan::ActsOnSpikes(PoisonedJob(policy)));
    EXPECT_EQ(one->state.contains(engine::kGuardTensor), policy == v1::ON_SPIKE_SKIP);
  }
}

TEST(SpikesInARun, AResumedRunHasTheSameBits) {
  const v1::JobSpec spec = PoisonedJob(v1::ON_SPIKE_SKIP);
  PoisonedSource source(spec, {150, 156});
  RunOptions options;
  options.source = &source;
  options.steps = 160;
  const auto whole = Train(spec, 1, 1, 2, options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_THAT(SpikesOf(*whole), HasSubstr("150 "));
  for (const int64_t half : {20, 149, 150, 153}) {
    options.state = nullptr;
    options.first_step = 1;
    options.steps = half;
    const auto first = Train(spec, 1, 1, 2, options);
    ASSERT_TRUE(first.ok()) << first.status();
    options.state = &first->state;
    options.first_step = half + 1;
    options.steps = 160 - half;
    const auto second = Train(spec, 1, 2, 1, options);
    ASSERT_TRUE(second.ok()) << second.status();
    ASSERT_EQ(second->state.size(), whole->state.size());
    for (const auto& [name, values] : whole->state) {
      const std::vector<float>& other = second->state.at(name);
      EXPECT_EQ(std::memcmp(values.data(), other.data(), values.size() * sizeof(float)), 0) << name;
    }
  }
}

}  // namespace
}  // namespace tercio::testing

// Every layout trains the same model: equal bits for equal tensor degree, a stated bound across
// tensor degrees (docs/numerics.md). Ranks are threads here; tests/e2e does the same with
// processes.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/names.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

TEST(Parity, TensorDegree1HasTheSameBitsInEveryLayout) {
  ExpectSameGrid(SmallJob(), {{1, 1, 1, 8, 1, k1f1b},
                              {1, 1, 1, 1, 1, k1f1b},
                              {1, 1, 1, 2, 2, kGpipe},
                              {1, 1, 1, 4, 3, k1f1b},
                              {1, 2, 1, 2, 1, kGpipe},
                              {1, 2, 1, 1, 1, k1f1b},
                              {1, 4, 1, 2, 1, k1f1b},
                              {1, 4, 2, 1, 1, k1f1b},
                              {1, 4, 2, 2, 2, kGpipe},
                              {1, 1, 2, 2, 1, k1f1b},
                              {1, 1, 4, 1, 1, k1f1b},
                              {1, 1, 8, 1, 1, k1f1b},
                              {1, 2, 2, 2, 1, k1f1b}});
}

TEST(Parity, TensorDegree2HasTheSameBitsInEveryLayout) {
  ExpectSameGrid(SmallJob(), {{2, 1, 1, 8, 1, k1f1b},
                              {2, 1, 1, 2, 2, k1f1b},
                              {2, 2, 1, 2, 1, kGpipe},
                              {2, 2, 2, 2, 1, k1f1b},
                              {2, 2, 2, 1, 1, k1f1b},
                              {2, 1, 4, 2, 1, k1f1b}});
}

TEST(Parity, LlamaHasTheSameBitsInEveryLayout) {
  ExpectSameGrid(SmallLlama(), {{1, 1, 1, 8, 1, k1f1b},
                                {1, 1, 1, 2, 2, kGpipe},
                                {1, 2, 1, 2, 1, k1f1b},
                                {1, 4, 2, 1, 1, k1f1b},
                                {1, 1, 8, 1, 1, k1f1b},
                                {1, 2, 2, 2, 1, kGpipe}});
  ExpectSameGrid(SmallLlama(),
                 {{2, 1, 1, 8, 1, k1f1b}, {2, 2, 2, 2, 1, k1f1b}, {2, 4, 1, 1, 2, kGpipe}});
}

TEST(Parity, RecomputationAndInterleavingHaveTheSameBits) {
  for (const v1::JobSpec& spec : {SmallJob(), SmallLlama()}) {
    ExpectSameGrid(spec, {{1, 1, 1, 8, 1, k1f1b},
                          {1, 1, 1, 2, 1, k1f1b, kSelective},
                          {1, 1, 1, 4, 2, k1f1b, kFull},
                          {1, 2, 1, 1, 1, k1f1b, kFull},
                          {1, 2, 2, 2, 1, kGpipe, kSelective},
                          {1, 2, 1, 1, 1, kInterleaved, kNone, 2},
                          {1, 2, 1, 4, 1, kInterleaved, kNone, 2},
                          {1, 2, 2, 1, 1, kInterleaved, kFull, 2}});
    ExpectSameGrid(spec, {{2, 1, 1, 8, 1, k1f1b},
                          {2, 2, 1, 2, 1, kInterleaved, kSelective, 2},
                          {2, 2, 2, 1, 1, kInterleaved, kFull, 2}});
  }
}

TEST(Parity, BertAndT5HaveTheSameBitsInEveryLayout) {
  for (const v1::JobSpec& spec :
       {SmallBert(kPost), SmallBert(kPre), SmallClassifier(), SmallT5()}) {
    ExpectSameGrid(spec, {{1, 1, 1, 8, 1, k1f1b},
                          {1, 1, 1, 1, 1, k1f1b},
                          {1, 1, 1, 2, 3, kGpipe, kSelective},
                          {1, 2, 1, 2, 1, k1f1b, kFull},
                          {1, 4, 2, 1, 1, k1f1b},
                          {1, 1, 8, 1, 1, k1f1b},
                          {1, 2, 2, 1, 1, kInterleaved, kNone, 2}});
    ExpectSameGrid(
        spec, {{2, 1, 1, 8, 1, k1f1b}, {2, 2, 2, 2, 1, k1f1b}, {2, 4, 1, 1, 2, kGpipe, kFull}});
  }
}

// Sequences of a context of 64 tokens that end early, but for the first of each global batch where
// `one_is_whole`.
class PaddedSource : public data::SampleSource {
 public:
  PaddedSource(const v1::ModelSpec& model, bool one_is_whole)
      : source_(model), one_is_whole_(one_is_whole) {}
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    source_.TrainingSample(step, sequence, out);
    Cut(sequence, out);
  }
  int64_t held_out_samples(data::HeldOut set) const override {
    return source_.held_out_samples(set);
  }
  void HeldOutSample(data::HeldOut set, int64_t index, data::Sample* out) override {
    source_.HeldOutSample(set, index, out);
    Cut(index, out);
  }

 private:
  void Cut(int64_t sequence, data::Sample* out) const {
    const auto context = static_cast<int32_t>(out->inputs.size());
    out->length = one_is_whole_ && sequence == 0 ? context : 5 + static_cast<int>(sequence % 8);
    for (auto i = static_cast<size_t>(out->length); i < out->inputs.size(); ++i) {
      out->inputs[i] = 0;
      out->types[i] = 0;
      out->targets[i] = data::kNoTarget;
    }
  }

  SyntheticEncoderSource source_;
  const bool one_is_whole_;
};

TEST(Parity, PaddingIsLeftOutWithoutAnEffect) {
  for (v1::JobSpec spec : {SmallBert(kPost), SmallBert(kPre), SmallClassifier()}) {
    spec.mutable_model()->set_context(64);
    PaddedSource one_whole(spec.model(), true);
    RunOptions options;
    options.source = &one_whole;
    // The whole sequence keeps the padding of those that share its micro-batch.
    const RunResult padded = Train(spec, {1, 1, 1, 8, 1, k1f1b}, options);
    ExpectSameBits(padded, Train(spec, {1, 1, 1, 1, 2, k1f1b, kSelective}, options));
    ExpectSameBits(padded, Train(spec, {1, 2, 2, 2, 1, k1f1b, kFull}, options));
    const RunResult halves = Train(spec, {2, 1, 1, 8, 1, k1f1b}, options);
    ExpectSameBits(halves, Train(spec, {2, 2, 1, 1, 1, k1f1b}, options));
  }
}

TEST(Parity, PaddingIsNotSentOn) {
  v1::JobSpec spec = SmallClassifier();  // its stages exchange nothing but activations
  spec.mutable_model()->set_context(64);
  PaddedSource source(spec.model(), false);
  RunOptions options;
  options.source = &source;
  const RunResult result = Train(spec, {1, 2, 1, 2, 1, k1f1b}, options);
  // The first 16 of 64 positions hold all tokens.
  EXPECT_EQ(result.sent.at(0).pipeline(), options.steps * spec.training().global_batch() * 16 *
                                              spec.model().hidden() * int64_t{sizeof(float)});
}

TEST(Parity, SmoothedLabelsAndFrozenTensors) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_training()->set_label_smoothing(0.1);
  spec.mutable_training()->add_frozen("layers.1.*");
  spec.mutable_training()->mutable_optimizer()->add_no_decay("embedding.*");
  const std::vector<Case> cases = {{1, 1, 1, 8, 1, k1f1b}, {1, 2, 2, 2, 1, k1f1b}};
  ExpectSameGrid(spec, cases);
  const RunResult trained = Train(spec, cases[0]);
  RunOptions none;
  none.steps = 1;
  v1::JobSpec still = spec;
  still.mutable_training()->mutable_optimizer()->set_learning_rate(0);
  const RunResult initial = Train(still, cases[0], none);
  for (const auto& [name, values] : trained.state) {
    const bool frozen = name.rfind("layers.1.", 0) == 0;
    if (name.rfind("adamw", 0) == 0) continue;
    EXPECT_EQ(values == initial.state.at(name), frozen) << name;
  }
  EXPECT_GT(initial.steps[0].loss, initial.validation_loss - 1);  // both near log of the vocabulary
  v1::JobSpec sharp = still;
  sharp.mutable_training()->set_label_smoothing(0);
  EXPECT_NE(Train(sharp, cases[0], none).steps[0].loss, initial.steps[0].loss);
}

TEST(Parity, ThreeStagesInterleaved) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_model()->set_layers(6);
  spec.mutable_training()->set_global_batch(12);
  ExpectSameGrid(spec, {{1, 1, 1, 4, 1, k1f1b},
                        {1, 3, 1, 1, 1, kInterleaved, kNone, 2},
                        {1, 3, 2, 2, 1, kInterleaved, kNone, 2}});
}

TEST(Parity, LlamaWithATiedHead) {
  v1::JobSpec spec = SmallLlama();
  spec.mutable_model()->set_untied_head(false);
  ExpectSameGrid(spec, {{1, 1, 1, 8, 1, k1f1b}, {1, 2, 2, 2, 1, k1f1b}});
}

TEST(Parity, LanesThatMicroBatchesStraddle) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_training()->set_global_batch(12);  // 4 lanes of 3 sequences
  spec.mutable_model()->set_bias(false);
  ExpectSameGrid(spec, {{1, 1, 1, 12, 1, k1f1b},
                        {1, 1, 1, 2, 1, k1f1b},
                        {1, 1, 1, 1, 2, k1f1b},
                        {1, 2, 1, 4, 1, k1f1b},
                        {1, 2, 2, 2, 1, kGpipe},
                        {1, 1, 4, 3, 1, k1f1b}});
}

TEST(Parity, ChosenLanesHaveTheSameBitsInEveryLayout) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_training()->set_global_batch(32);
  const RunResult eight = Train(spec, {1, 1, 1, 8, 1, k1f1b});
  for (const int lanes : {16, 32}) {
    SCOPED_TRACE(lanes);
    spec.mutable_training()->set_lanes(lanes);
    ExpectSameGrid(spec, {{1, 1, 1, 32, 1, k1f1b},
                          {1, 1, 1, 1, 2, k1f1b},
                          {1, 1, 2, 4, 1, kGpipe},
                          {1, 2, 2, 2, 1, k1f1b},
                          {1, 1, 4, 2, 1, k1f1b},
                          {1, 1, 4, 8, 1, k1f1b}});
    // It is another sum, or the lanes were not those of the job.
    EXPECT_NE(eight.state, Train(spec, {1, 1, 1, 8, 1, k1f1b}).state);
  }
}

TEST(Parity, SequencesLongerThanAPiece) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_model()->set_context(300);
  spec.mutable_model()->set_layers(2);
  spec.mutable_training()->set_global_batch(4);
  ExpectSameGrid(spec, {{1, 1, 1, 4, 1, k1f1b}, {1, 2, 2, 1, 2, k1f1b}, {1, 1, 1, 2, 2, k1f1b}});
}

void ExpectTensorDegreesAgree(const v1::JobSpec& spec, const std::vector<int>& degrees) {
  RunOptions options;
  options.steps = 10;
  const RunResult one = Train(spec, {1, 1, 1, 4, 1, k1f1b}, options);
  for (const int tensor : degrees) {
    const RunResult other = Train(spec, {tensor, 1, 1, 4, 1, k1f1b}, options);
    ASSERT_EQ(other.steps.size(), one.steps.size());
    for (size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_NEAR(other.steps[i].loss / one.steps[i].loss, 1, 1e-4) << "step " << i + 1;
      EXPECT_NEAR(other.steps[i].grad_norm / one.steps[i].grad_norm, 1, 1e-4) << "step " << i + 1;
    }
  }
}

// The sums over rows of norms and biases are cut by rank: equal bits among themselves, the bound
// against one rank.
TEST(Parity, SequenceParallel) {
  for (const v1::JobSpec& spec : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallBert(kPre),
                                  SmallClassifier(), SmallT5()}) {
    RunOptions options;
    options.steps = 10;
    const RunResult one = Train(spec, {1, 1, 1, 4, 1, k1f1b}, options);
    const std::vector<Case> cases = {{2, 1, 1, 8, 1, k1f1b, kNone, 1, true},
                                     {2, 1, 1, 1, 2, k1f1b, kFull, 1, true},
                                     {2, 2, 2, 2, 1, k1f1b, kSelective, 1, true},
                                     {2, 2, 1, 1, 1, kInterleaved, kNone, 2, true}};
    for (const Case& c : cases) {
      SCOPED_TRACE(NameOf(c));
      const RunResult other = Train(spec, c, options);
      ASSERT_EQ(other.steps.size(), one.steps.size());
      for (size_t i = 0; i < one.steps.size(); ++i) {
        EXPECT_NEAR(other.steps[i].loss / one.steps[i].loss, 1, 1e-4) << "step " << i + 1;
        EXPECT_NEAR(other.steps[i].grad_norm / one.steps[i].grad_norm, 1, 1e-4);
      }
      EXPECT_NEAR(other.validation_loss / one.validation_loss, 1, 1e-4);
    }
    // Layouts that cut the rows alike.
    ExpectSameBits(Train(spec, {2, 1, 1, 2, 1, k1f1b, kNone, 1, true}),
                   Train(spec, {2, 2, 2, 2, 2, kGpipe, kFull, 1, true}));
  }
}

TEST(Parity, SumsBesideProductsHaveTheSameBits) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallT5()}) {
    const Case c{2, 1, 2, 2, 1, k1f1b};
    const RunResult reference = Train(spec, c);
    for (const int parts : {2, 3, 64}) {
      spec.mutable_parallelism()->set_tensor_overlap(parts);
      ExpectSameBits(reference, Train(spec, c));
    }
  }
}

TEST(Parity, TensorDegreesAgreeWithinTheBound) {
  ExpectTensorDegreesAgree(SmallJob(), {2, 4});
  ExpectTensorDegreesAgree(SmallLlama(), {2});
  ExpectTensorDegreesAgree(SmallBert(kPost), {2, 4});
  ExpectTensorDegreesAgree(SmallBert(kPre), {2});
  ExpectTensorDegreesAgree(SmallClassifier(), {2});
}

TEST(Parity, ADataDegreeThatDoesNotDivideTheLanesIsEquivalent) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_training()->set_global_batch(12);
  const RunResult one = Train(spec, {1, 1, 1, 4, 1, k1f1b});
  const RunResult three = Train(spec, {1, 1, 3, 4, 1, k1f1b});
  for (size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_NEAR(three.steps[i].loss / one.steps[i].loss, 1, 1e-5);
  }
}

TEST(Parity, ResumeInAnotherLayoutHasTheSameBits) {
  RunOptions whole;
  whole.steps = 6;
  const RunResult undisturbed = Train(SmallJob(), {1, 1, 1, 4, 1, k1f1b}, whole);
  RunOptions first;
  first.steps = 3;
  const RunResult half = Train(SmallJob(), {1, 2, 2, 2, 1, k1f1b}, first);
  RunOptions second = first;
  second.first_step = 4;
  second.state = &half.state;
  const RunResult rest = Train(SmallJob(), {1, 4, 1, 1, 1, kGpipe}, second);
  ASSERT_EQ(rest.steps.size(), 3u);
  EXPECT_EQ(rest.steps.back().loss, undisturbed.steps.back().loss);
  EXPECT_EQ(rest.state, undisturbed.state);
}

Case Unequal(Case c, const std::vector<int>& stage_layers, int zero_stage = 0) {
  c.stage_layers = stage_layers;
  c.zero_stage = zero_stage;
  return c;
}

TEST(Parity, UnequalStagesHaveTheSameBits) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama()}) {
    spec.mutable_model()->set_layers(6);
    ExpectSameGrid(spec, {{1, 1, 1, 8, 1, k1f1b},
                          Unequal({1, 3, 1, 2, 1, k1f1b}, {1, 4, 1}),
                          Unequal({1, 3, 1, 2, 2, kGpipe}, {3, 1, 2}),
                          Unequal({1, 2, 2, 1, 1, k1f1b, kFull}, {1, 5}, 3),
                          Unequal({1, 2, 2, 1, 1, kGpipe}, {4, 2}, 3),
                          Unequal({1, 2, 1, 1, 1, kInterleaved, kNone, 2}, {1, 2, 2, 1}),
                          Unequal({1, 2, 2, 1, 1, kInterleaved, kSelective, 2}, {2, 1, 1, 2}, 3),
                          {1, 4, 1, 2, 1, k1f1b}});  // one, two, two and one
    ExpectSameGrid(spec, {{2, 1, 1, 8, 1, k1f1b},
                          Unequal({2, 3, 1, 2, 1, k1f1b}, {1, 2, 3}),
                          Unequal({2, 2, 2, 1, 1, kGpipe}, {5, 1}, 3),
                          Unequal({2, 2, 2, 1, 1, kInterleaved, kFull, 2}, {1, 1, 3, 1}, 3)});
  }
  for (const v1::JobSpec& spec : {SmallBert(kPost), SmallT5()}) {
    ExpectSameGrid(spec, {{1, 1, 1, 8, 1, k1f1b},
                          Unequal({1, 3, 1, 2, 1, k1f1b}, {1, 1, 2}),
                          Unequal({1, 2, 2, 1, 1, kGpipe}, {3, 1}, 3)});
  }
}

TEST(Parity, UnequalAndEqualStagesResumeEachOther) {
  RunOptions whole;
  whole.steps = 6;
  const RunResult undisturbed = Train(SmallJob(), {1, 1, 1, 4, 1, k1f1b}, whole);
  const Case cases[] = {Unequal({1, 3, 1, 2, 1, k1f1b}, {1, 2, 1}),
                        {1, 2, 1, 1, 1, kInterleaved, kNone, 2},
                        Unequal({1, 2, 2, 1, 1, kGpipe}, {3, 1}, 3),
                        {1, 4, 1, 2, 1, k1f1b}};
  RunOptions part;
  part.steps = 3;
  for (const Case& before : cases) {
    const RunResult half = Train(SmallJob(), before, part);
    for (const Case& after : cases) {
      SCOPED_TRACE(NameOf(before) + ", then " + NameOf(after));
      RunOptions rest = part;
      rest.first_step = 4;
      rest.state = &half.state;
      const RunResult result = Train(SmallJob(), after, rest);
      ASSERT_EQ(result.steps.size(), 3u);
      EXPECT_EQ(result.steps.back().loss, undisturbed.steps.back().loss);
      EXPECT_EQ(result.state, undisturbed.state);
      EXPECT_EQ(result.state_digest, undisturbed.state_digest);
    }
  }
}

// One copy of each rank's own state is all that a restart in the same layout needs.
void CheckCopies(v1::Precision precision) {
  SCOPED_TRACE(plan::TextOf(precision));
  v1::JobSpec spec = SmallJob();
  spec.mutable_training()->set_precision(precision);
  v1::JobSpec keeps = spec;
  keeps.mutable_checkpoint()->set_peer_copies(1);
  RunOptions whole;
  whole.steps = 6;
  RunOptions first;
  first.steps = 3;
  for (const Case& layout : {Case{1, 1, 1, 4, 1, k1f1b}, Case{2, 2, 2, 2, 1, k1f1b},
                             Unequal({1, 2, 1, 2, 1, k1f1b}, {3, 1})}) {
    SCOPED_TRACE(NameOf(layout));
    const RunResult undisturbed = Train(spec, layout, whole);
    EXPECT_TRUE(undisturbed.copies.empty());
    const RunResult half = Train(keeps, layout, first);
    ExpectSameBits(Train(spec, layout, first), half);
    EXPECT_EQ(half.copies.size(),
              static_cast<size_t>(layout.tensor * layout.pipeline * layout.data));
    RunOptions second = first;
    second.first_step = 4;
    second.copies = &half.copies;
    const RunResult rest = Train(keeps, layout, second);
    ASSERT_EQ(rest.steps.size(), 3u);
    EXPECT_EQ(rest.steps.back().loss, undisturbed.steps.back().loss);
    EXPECT_EQ(rest.state, undisturbed.state);
  }
}

TEST(Parity, CopiesOfSnapshotsHaveTheSameBits) {
  CheckCopies(v1::PRECISION_FP32);
  CheckCopies(v1::PRECISION_FP16);  // a loss scale is state, too
}

// A source whose tokens for the second data rank take their time.
class SlowSource : public SyntheticSource {
 public:
  explicit SlowSource(const v1::JobSpec& job)
      : SyntheticSource(job.model().vocab_size(), job.model().context()),
        first_(job.training().global_batch() / 2) {}
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    if (sequence == first_) std::this_thread::sleep_for(std::chrono::seconds(1));
    SyntheticSource::ReadTraining(step, sequence, out);
  }

 private:
  const int64_t first_;
};

// Or it would be taken for a slow one itself.
TEST(Parity, WaitingForAReplicaIsWaiting) {
  SlowSource source(SmallJob());
  RunOptions options;
  options.steps = 1;
  options.source = &source;
  const RunResult result = Train(SmallJob(), {1, 1, 2, 4, 1, k1f1b}, options);
  EXPECT_GT(result.steps.at(0).communication_seconds, 0.05);
}

TEST(Parity, TrainingLearns) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_model()->set_dropout(0);
  spec.mutable_training()->mutable_schedule()->set_decay_steps(150);
  RunOptions options;
  options.steps = 150;
  const RunResult result = Train(spec, {1, 1, 1, 8, 1, k1f1b}, options);
  ASSERT_EQ(result.steps.size(), 150u);
  EXPECT_NEAR(result.steps.front().loss, std::log(61.0), 0.1);
  // The source's entropy is about 2.7 nats a token; knowing nothing costs 4.1.
  EXPECT_LT(result.steps.back().loss, 3.3);
}

TEST(Parity, DropoutMatters) {
  v1::JobSpec without = SmallJob();
  without.mutable_model()->set_dropout(0);
  EXPECT_NE(Train(without, {1, 1, 1, 8, 1, k1f1b}).steps.front().loss,
            Train(SmallJob(), {1, 1, 1, 8, 1, k1f1b}).steps.front().loss);
}

}  // namespace
}  // namespace tercio::testing

// Sequences of several documents, as packed conversations are: losses and gradients are those of
// the same documents in sequences of their own, and have the same bits in every layout.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parity/document_source.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

constexpr Case kOneRank = {1, 1, 1, 8, 1, k1f1b};

RunResult TrainDocuments(v1::JobSpec spec, Places places, const Case& c = kOneRank) {
  if (places == Places::kAlone) {
    spec.mutable_training()->set_global_batch(8 * DocumentSource::kDocuments);
    spec.mutable_data()->mutable_chat()->set_packing(false);
  }
  DocumentSource source(spec.model(), places);
  RunOptions options;
  options.source = &source;
  return Train(spec, c, options);
}

void ExpectNear(const RunResult& expected, const RunResult& actual, double tolerance) {
  ASSERT_EQ(expected.steps.size(), actual.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_NEAR(actual.steps[i].loss / expected.steps[i].loss, 1, tolerance) << i;
    EXPECT_NEAR(actual.steps[i].grad_norm / expected.steps[i].grad_norm, 1, tolerance) << i;
  }
  EXPECT_NEAR(actual.validation_loss / expected.validation_loss, 1, tolerance);
}

// Rotary positions, and learned ones; windows, which reach into the document before.
std::vector<v1::JobSpec> SmallModels() {
  v1::JobSpec gpt2 = SmallJob();
  v1::JobSpec llama = SmallLlama();
  v1::JobSpec windows = SmallLlama();
  windows.mutable_model()->set_sliding_window(5);
  return {gpt2, llama, windows};
}

// Positions whose table begins with rows of other uses, pairs of neighbouring channels of some of a
// head's, and soft caps with windows in every second layer.
std::vector<v1::JobSpec> FurtherModels() {
  v1::JobSpec opt = SmallJob();
  opt.mutable_model()->set_architecture(v1::ARCHITECTURE_OPT);
  v1::JobSpec gptj = SmallJob();
  gptj.mutable_model()->set_architecture(v1::ARCHITECTURE_GPT_J);
  gptj.mutable_model()->set_untied_head(true);
  gptj.mutable_model()->set_rotary_dim(4);
  v1::JobSpec gemma = SmallLlama();
  gemma.mutable_model()->set_architecture(v1::ARCHITECTURE_GEMMA2);
  gemma.mutable_model()->set_untied_head(false);
  gemma.mutable_model()->set_head_dim(8);
  gemma.mutable_model()->set_sliding_window(5);
  gemma.mutable_model()->set_attention_softcap(5);
  gemma.mutable_model()->set_logit_softcap(4);
  return {opt, gptj, gemma};
}

TEST(Packing, LossesAndGradientsAreThoseOfDocumentsAlone) {
  std::vector<v1::JobSpec> specs = SmallModels();
  for (const v1::JobSpec& spec : FurtherModels()) specs.push_back(spec);
  for (v1::JobSpec spec : specs) {
    SCOPED_TRACE(spec.model().ShortDebugString());
    // Masks of dropout belong to positions of sequences.
    spec.mutable_model()->set_dropout(0);
    const RunResult alone = TrainDocuments(Packed(spec), Places::kAlone);
    const RunResult packed = TrainDocuments(Packed(spec), Places::kPacked);
    ExpectNear(alone, packed, 1e-5);
    // The same documents without borders have another loss.
    const RunResult blurred = TrainDocuments(Packed(spec), Places::kBlurred);
    EXPECT_GT(std::abs(blurred.steps[0].loss - alone.steps[0].loss), 1e-4);
    EXPECT_GT(std::abs(blurred.steps[0].grad_norm / alone.steps[0].grad_norm - 1), 1e-3);
  }
}

// Two documents of half a sequence, in one, or alone with padding behind them.
class HalvesSource : public data::SampleSource {
 public:
  HalvesSource(const v1::ModelSpec& model, Places places)
      : source_(model.vocab_size(), model.context()), places_(places) {}
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    const size_t half = out->inputs.size() / 2;
    const bool alone = places_ == Places::kAlone;
    out->targets.assign(out->targets.size(), data::kNoTarget);
    out->inputs.assign(out->inputs.size(), 0);
    out->document_starts.assign(out->inputs.size(), static_cast<int32_t>(half));
    std::fill_n(out->document_starts.begin(), half, 0);
    std::vector<int32_t> ids(out->inputs.size() + 1);
    for (size_t i = 0; i < (alone ? 1 : 2); ++i) {
      source_.ReadTraining(step, alone ? sequence : 2 * sequence + static_cast<int64_t>(i),
                           ids.data());
      std::copy_n(ids.begin(), half, out->inputs.begin() + static_cast<int64_t>(i * half));
      std::copy_n(ids.begin() + 1, half, out->targets.begin() + static_cast<int64_t>(i * half));
    }
  }
  int64_t held_out_samples(data::HeldOut set) const override { return SyntheticSamples(set); }
  void HeldOutSample(data::HeldOut set, int64_t index, data::Sample* out) override {
    TrainingSample(StepOf(set), index, out);
  }

 private:
  SyntheticSource source_;
  const Places places_;
};

// Rotary angles of the same distances differ by rounding alone. Where documents begin with blocks
// of attention, all losses have the bits that they have alone, so that only sums in double may
// differ.
TEST(Packing, PositionsStartAgainWithEachDocument) {
  for (v1::JobSpec spec : SmallModels()) {
    spec.mutable_model()->set_dropout(0);
    spec.mutable_model()->set_context(128);
    RunOptions options;
    options.steps = 1;
    HalvesSource packed(spec.model(), Places::kPacked);
    options.source = &packed;
    const RunResult together = Train(Packed(spec), kOneRank, options);
    spec.mutable_training()->set_global_batch(16);
    HalvesSource halves(spec.model(), Places::kAlone);
    options.source = &halves;
    const RunResult alone = Train(Packed(spec), kOneRank, options);
    EXPECT_NEAR(together.steps[0].loss, alone.steps[0].loss, 1e-13);
  }
}

TEST(Packing, EveryLayoutHasTheSameBits) {
  for (const v1::JobSpec& model : SmallModels()) {
    const v1::JobSpec spec = Packed(model);
    const auto train = [&](const Case& c) { return TrainDocuments(spec, Places::kPacked, c); };
    const auto expect_same = [&](const RunResult& expected, const std::vector<Case>& cases) {
      for (const Case& c : cases) {
        SCOPED_TRACE(NameOf(c));
        ExpectSameBits(expected, train(c));
      }
    };
    const RunResult reference = train(kOneRank);
    expect_same(reference, {{1, 1, 1, 1, 1, k1f1b},
                            {1, 1, 1, 2, 3, kGpipe, kSelective},
                            {1, 2, 1, 2, 1, k1f1b, kFull},
                            {1, 4, 2, 1, 1, k1f1b},
                            {1, 1, 8, 1, 1, k1f1b},
                            {1, 2, 2, 1, 1, kInterleaved, kNone, 2}});
    const RunResult cut = train({2, 1, 1, 8, 1, k1f1b});
    ExpectNear(reference, cut, 1e-5);
    expect_same(cut, {{2, 2, 2, 2, 1, k1f1b}, {2, 2, 2, 1, 1, k1f1b, kFull}});
    // Ranks that divide rows sum their parts in another way, which the micro-batch decides.
    const RunResult divided = train({2, 1, 1, 2, 1, k1f1b, kNone, 1, true});
    ExpectNear(reference, divided, 1e-5);
    expect_same(divided, {{2, 2, 2, 2, 1, k1f1b, kNone, 1, true},
                          {2, 2, 1, 2, 1, kInterleaved, kFull, 2, true}});
  }
}

TEST(Packing, ADividedStateHasTheSameBits) {
  const v1::JobSpec spec = Packed(SmallJob());
  const RunResult reference = TrainDocuments(spec, Places::kPacked);
  for (const int stage : {1, 2, 3}) {
    Case c = {1, 1, 4, 1, 1, k1f1b};
    c.zero_stage = stage;
    SCOPED_TRACE(NameOf(c));
    ExpectSameBits(reference, TrainDocuments(spec, Places::kPacked, c));
  }
}

}  // namespace
}  // namespace tercio::testing

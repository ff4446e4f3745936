// Causal models whose samples say which tokens are predicted, as conversations do: their losses and
// gradients are those of the same targets without a choice, in every layout.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

constexpr Case kOneRank = {1, 1, 1, 8, 1, k1f1b};
// Sums of fp32 in another order.
constexpr double kTolerance = 2e-6;

// Synthetic tokens, of which a part counts.
class ChosenSource : public data::SampleSource {
 public:
  using Counts = bool (*)(int64_t sequence, size_t position);

  // Tokens from `length` on are another one's: padding.
  ChosenSource(const v1::ModelSpec& model, Counts counts, int32_t length = 1 << 30,
               int32_t padding = 0)
      : source_(model.vocab_size(), model.context()),
        counts_(counts),
        length_(length),
        padding_(padding) {}
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    source_.TrainingSample(step, sequence, out);
    Choose(sequence, out);
  }
  int64_t held_out_samples(data::HeldOut set) const override {
    return source_.held_out_samples(set);
  }
  void HeldOutSample(data::HeldOut set, int64_t index, data::Sample* out) override {
    source_.HeldOutSample(set, index, out);
    Choose(index, out);
  }

 private:
  void Choose(int64_t sequence, data::Sample* out) const {
    const auto length = std::min(out->inputs.size(), static_cast<size_t>(length_));
    for (size_t i = 0; i < out->inputs.size(); ++i) {
      if (i >= length) out->inputs[i] = padding_;
      if (i >= length || !counts_(sequence, i)) out->targets[i] = data::kNoTarget;
    }
  }

  SyntheticSource source_;
  const Counts counts_;
  const int32_t length_;
  const int32_t padding_;
};

bool All(int64_t, size_t) { return true; }
// Every fourth sequence has no target.
bool Some(int64_t sequence, size_t position) {
  return sequence % 4 != 2 && (position * 7 + static_cast<size_t>(sequence)) % 3 == 0;
}
bool FirstTwelve(int64_t, size_t position) { return position < 12; }

v1::JobSpec Chat(v1::JobSpec spec) {
  spec.mutable_data()->mutable_chat()->set_template_("chatml");
  return spec;
}

v1::JobSpec WithoutDropout(v1::JobSpec spec) {
  spec.mutable_model()->set_dropout(0);
  return spec;
}

RunResult TrainOn(const v1::JobSpec& spec, data::SampleSource& source, const Case& c = kOneRank) {
  RunOptions options;
  options.source = &source;
  return Train(spec, c, options);
}

void ExpectNear(const RunResult& expected, const RunResult& actual) {
  ASSERT_EQ(expected.steps.size(), actual.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_NEAR(expected.steps[i].loss, actual.steps[i].loss, kTolerance) << i;
    EXPECT_NEAR(expected.steps[i].grad_norm / actual.steps[i].grad_norm, 1, 1e-5) << i;
  }
  EXPECT_NEAR(expected.validation_loss, actual.validation_loss, kTolerance);
}

TEST(ChosenTargets, AllOfThemAreWhatEveryTokenIs) {
  for (const v1::JobSpec& spec : {SmallJob(), SmallLlama()}) {
    ChosenSource all(spec.model(), All);
    ExpectNear(Train(spec, kOneRank), TrainOn(Chat(spec), all));
  }
}

// Twelve tokens of a longer context are a context of twelve: rotary positions do not depend on it.
TEST(ChosenTargets, OthersHaveNoEffect) {
  v1::JobSpec plain = WithoutDropout(SmallLlama());
  plain.mutable_model()->set_context(12);
  v1::JobSpec chat = Chat(WithoutDropout(SmallLlama()));
  chat.mutable_model()->set_context(24);
  ChosenSource first(chat.model(), FirstTwelve);
  const RunResult chosen = TrainOn(chat, first);
  ExpectNear(Train(plain, kOneRank), chosen);
  // What padding is does not matter at all.
  ChosenSource zeros(chat.model(), FirstTwelve, /*length=*/13, /*padding=*/0);
  ChosenSource ones(chat.model(), FirstTwelve, /*length=*/13, /*padding=*/1);
  const RunResult with_zeros = TrainOn(chat, zeros);
  const RunResult with_ones = TrainOn(chat, ones);
  ASSERT_EQ(with_zeros.steps.size(), with_ones.steps.size());
  for (size_t i = 0; i < with_zeros.steps.size(); ++i) {
    EXPECT_EQ(with_zeros.steps[i].loss, with_ones.steps[i].loss);
  }
}

TEST(ChosenTargets, EveryLayoutHasTheSameBits) {
  for (const v1::JobSpec& spec : {Chat(SmallJob()), Chat(SmallLlama())}) {
    ChosenSource some(spec.model(), Some);
    const RunResult reference = TrainOn(spec, some);
    for (const Case& c :
         {Case{1, 1, 1, 1, 1, k1f1b}, Case{1, 1, 1, 2, 3, kGpipe, kSelective},
          Case{1, 2, 1, 2, 1, k1f1b, kFull}, Case{1, 4, 2, 1, 1, k1f1b}, Case{1, 1, 8, 1, 1, k1f1b},
          Case{1, 2, 2, 1, 1, kInterleaved, kNone, 2}}) {
      SCOPED_TRACE(NameOf(c));
      ExpectSameBits(reference, TrainOn(spec, some, c));
    }
    const RunResult cut = TrainOn(spec, some, {2, 1, 1, 8, 1, k1f1b});
    ExpectNear(reference, cut);
    ExpectSameBits(cut, TrainOn(spec, some, {2, 2, 2, 2, 1, k1f1b}));
    // Ranks that divide rows sum their parts in another way.
    ExpectNear(reference, TrainOn(spec, some, {2, 1, 1, 8, 1, k1f1b, kNone, 1, true}));
  }
}

TEST(ChosenTargets, ADividedStateHasTheSameBits) {
  const v1::JobSpec spec = Chat(SmallLlama());
  ChosenSource some(spec.model(), Some);
  for (const int stage : {1, 2, 3}) {
    Case c = {1, 1, 4, 1, 1, k1f1b};
    const RunResult whole = TrainOn(spec, some, c);
    c.zero_stage = stage;
    SCOPED_TRACE(NameOf(c));
    ExpectSameBits(whole, TrainOn(spec, some, c));
  }
}

}  // namespace
}  // namespace tercio::testing

// The example deploy/examples/dpo from its files to its curve, with ranks as threads: objectives
// dpo, orpo and kto in many layouts, their first losses, and what a resumed job takes for its
// reference.
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/preference_example.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

struct Example : PreferenceExample {
  explicit Example(const std::vector<std::string>& changes) : PreferenceExample(changes) {}

  RunResult Train(const Case& c, RunOptions options) const {
    options.source = source.get();
    return testing::Train(spec, c, options);
  }
};

constexpr Case kOneRank = {1, 1, 1, 8, 1, k1f1b};

void ExpectSameFigures(const RunResult& expected, const RunResult& actual) {
  ASSERT_EQ(expected.steps.size(), actual.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(expected.steps[i].figures->SerializeAsString(),
              actual.steps[i].figures->SerializeAsString());
  }
  EXPECT_EQ(expected.validation.figures().SerializeAsString(),
            actual.validation.figures().SerializeAsString());
}

TEST(PreferenceTraining, DpoBeginsAtLogTwoAndLearns) {
  const Example example({});
  EXPECT_EQ(example.samples, 2 * 32);
  EXPECT_EQ(example.spec.training().steps(), 40);
  const RunResult result = example.Train(kOneRank, {.steps = 40, .evaluate = true});
  ASSERT_EQ(result.steps.size(), 40);
  EXPECT_NEAR(result.steps.front().loss, std::log(2.0), 1e-9);
  EXPECT_NEAR(result.steps.front().figures->margin(), 0, 1e-9);
  EXPECT_LT(result.steps.back().loss, 0.5);
  EXPECT_GT(result.steps.back().figures->margin(), 0.5);
  EXPECT_GT(result.steps.back().figures->accuracy(), 0.9);
  EXPECT_LT(result.validation_loss, 0.69);
  EXPECT_GT(result.validation.figures().margin(), 0);
}

TEST(PreferenceTraining, OrpoAndKtoLearn) {
  for (const char* objective : {"orpo", "kto"}) {
    SCOPED_TRACE(objective);
    const Example example({std::string("training.objective=") + objective});
    const RunResult result = example.Train(kOneRank, {.steps = 12, .evaluate = true});
    ASSERT_EQ(result.steps.size(), 12);
    if (std::string(objective) == "kto") {
      EXPECT_NEAR(result.steps.front().loss, 0.5, 1e-9);
      EXPECT_EQ(result.steps.front().figures->divergence(), 0);
      EXPECT_FALSE(result.steps.front().figures->has_accuracy());
    }
    EXPECT_LT(result.steps.back().loss, result.steps.front().loss);
    EXPECT_GT(result.validation.figures().margin(), 0);
  }
}

// Sums over a tensor group, and over divided sequences, have orders of their own: the layouts of a
// table are compared with each other.
std::vector<std::vector<Case>> TablesFor(const v1::JobSpec& spec) {
  // Where gradients are divided, a micro-batch is part of a lane.
  const auto of_lane = static_cast<int>(spec.training().global_batch() / spec.training().lanes());
  return {{kOneRank,
           {1, 1, 1, 2, 1, k1f1b},
           {1, 2, 1, 2, 1, k1f1b},
           {1, 1, 2, 4, 1, kGpipe},
           {1, 2, 2, 2, 1, k1f1b, kFull},
           {1, 1, 4, 2, 1, k1f1b, kSelective},
           {1, 1, 2, of_lane, 1, k1f1b, kNone, 1, false, 1},
           {1, 1, 2, of_lane, 1, k1f1b, kNone, 1, false, 3}},
          {{2, 1, 1, 8, 1, k1f1b}, {2, 2, 2, 2, 1, k1f1b}, {2, 1, 2, 2, 2, kGpipe, kFull}},
          // These cut the rows alike.
          {{2, 1, 1, 2, 1, k1f1b, kNone, 1, true},
           {2, 1, 2, 2, 1, k1f1b, kFull, 1, true},
           {2, 2, 2, 2, 1, k1f1b, kNone, 1, true}}};
}

TEST(PreferenceTraining, LayoutsHaveTheSameBits) {
  for (const char* objective : {"dpo", "orpo", "kto"}) {
    const Example example({std::string("training.objective=") + objective});
    std::vector<double> losses;
    for (const std::vector<Case>& table : TablesFor(example.spec)) {
      const RunOptions options = {.steps = 3, .evaluate = true};
      const RunResult first = example.Train(table.front(), options);
      ASSERT_EQ(first.steps.size(), 3);
      losses.push_back(first.steps.back().loss);
      EXPECT_NEAR(losses.back(), losses.front(), 1e-4);
      for (size_t i = 1; i < table.size(); ++i) {
        SCOPED_TRACE(std::string(objective) + " " + NameOf(table[i]));
        const RunResult other = example.Train(table[i], options);
        ExpectSameBits(first, other);
        ExpectSameFigures(first, other);
      }
    }
  }
}

TEST(PreferenceTraining, AResumedJobHasTheReferenceThatItBeganWith) {
  for (const char* objective : {"dpo", "kto"}) {
    SCOPED_TRACE(objective);
    const Example example({std::string("training.objective=") + objective});
    const RunResult whole = example.Train(kOneRank, {.steps = 4, .evaluate = true});
    const RunResult half = example.Train(kOneRank, {.steps = 2});
    ASSERT_EQ(half.steps.size(), 2);
    RunResult resumed =
        example.Train({1, 2, 2, 2, 1, k1f1b},
                      {.steps = 2, .evaluate = true, .state = &half.state, .first_step = 3});
    ASSERT_EQ(resumed.steps.size(), 2);
    resumed.steps.insert(resumed.steps.begin(), half.steps.begin(), half.steps.end());
    ExpectSameBits(whole, resumed);
    ExpectSameFigures(whole, resumed);
  }
}

}  // namespace
}  // namespace tercio::testing

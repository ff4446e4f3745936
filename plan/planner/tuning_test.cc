#include "plan/planner/tuning.h"

#include <random>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

Trial Predicted(double compute, double wait, double optimizer = 0) {
  Trial trial;
  trial.predicted.set_compute(compute);
  trial.predicted.set_data_exposed(wait);
  trial.predicted.set_optimizer(optimizer);
  return trial;
}

TEST(Tuning, PartsAreCorrectedByWhatWasMeasured) {
  std::vector<Trial> trials = {Predicted(1, 0.1, 0.2), Predicted(2, 0.4, 0.1), Predicted(1, 2)};
  trials[0].measured = MeasuredStep{.seconds = 2.5, .compute = 2, .wait = 0.1, .optimizer = 0.4};
  trials[1].measured = MeasuredStep{.seconds = 4.6, .compute = 4, .wait = 0.4, .optimizer = 0.2};
  const Correction correction = CorrectionOf(trials);
  EXPECT_DOUBLE_EQ(correction.compute, 2);
  EXPECT_DOUBLE_EQ(correction.wait, 1);
  EXPECT_DOUBLE_EQ(correction.optimizer, 2);
  EXPECT_DOUBLE_EQ(CorrectedSeconds(trials[2].predicted, correction), 4);
}

// As on GPUs, whose ranks do not know their parts.
TEST(Tuning, WholeStepsCorrectWhereThereAreNoParts) {
  std::vector<Trial> trials = {Predicted(1, 1), Predicted(2, 2)};
  trials[0].measured = MeasuredStep{.seconds = 3};
  EXPECT_DOUBLE_EQ(CorrectedSeconds(trials[1].predicted, CorrectionOf(trials)), 6);
}

TEST(Tuning, TheFastestPredictionIsNext) {
  std::vector<Trial> trials = {Predicted(3, 0), Predicted(1, 0), Predicted(2, 0)};
  EXPECT_EQ(NextTrial(trials), 1U);
  EXPECT_EQ(BestTrial(trials), std::nullopt);
  trials[1].failed = true;
  EXPECT_EQ(NextTrial(trials), 2U);
  // As predicted; but one trial says little about others.
  trials[2].measured = MeasuredStep{.seconds = 2, .compute = 2};
  EXPECT_EQ(NextTrial(trials), 0U);
  trials[0].measured = MeasuredStep{.seconds = 3, .compute = 3};
  EXPECT_EQ(BestTrial(trials), 2U);
  EXPECT_EQ(NextTrial(trials), std::nullopt) << "none is left";
  trials.push_back(Predicted(4, 0));
  EXPECT_EQ(NextTrial(trials), 3U);
  trials[3].measured = MeasuredStep{.seconds = 4, .compute = 4};
  // Nothing much slower than the best is worth a run; what is nearly as fast is.
  trials.push_back(Predicted(2.5, 0));
  EXPECT_EQ(NextTrial(trials), std::nullopt);
  trials.push_back(Predicted(2.1, 0));
  EXPECT_EQ(NextTrial(trials), 5U);
}

// Whatever the devices do, the search ends with the fastest trial, as long as predictions are off
// by no more than what has been seen.
TEST(Tuning, TheBestIsFoundWithoutTryingAll) {
  constexpr int kSeed = 20261128;
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<double> part(0.1, 1);
  std::uniform_real_distribution<double> error(0.95, 1.05);
  size_t run = 0;
  size_t all = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<Trial> trials;
    std::vector<MeasuredStep> truth;
    for (int i = 0; i < 30; ++i) {
      trials.push_back(Predicted(part(random), part(random), 0.1 * part(random)));
      MeasuredStep step;
      // Computing takes three times as long as predicted, waiting half as long.
      step.compute = 3 * trials.back().predicted.compute() * error(random);
      step.wait = 0.5 * trials.back().predicted.data_exposed() * error(random);
      step.optimizer = trials.back().predicted.optimizer();
      step.seconds = step.compute + step.wait + step.optimizer;
      truth.push_back(step);
    }
    size_t fastest = 0;
    for (size_t i = 0; i < truth.size(); ++i) {
      if (truth[i].seconds < truth[fastest].seconds) fastest = i;
    }
    while (const std::optional<size_t> next = NextTrial(trials)) {
      trials[*next].measured = truth[*next];
      ++run;
    }
    all += trials.size();
    EXPECT_EQ(BestTrial(trials), fastest) << "seed " << kSeed << ", round " << round;
  }
  EXPECT_LT(run, all / 3);
}

TEST(Tuning, TrialsFitAndDiffer) {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(8);
  model->set_hidden(256);
  model->set_heads(8);
  model->set_kv_heads(8);
  model->set_ffn_hidden(1024);
  model->set_context(128);
  model->set_vocab_size(1024);
  job.mutable_training()->set_steps(1);
  job.mutable_training()->set_global_batch(16);
  job.mutable_training()->set_precision(v1::PRECISION_FP32);
  job.mutable_parallelism()->set_automatic(true);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  job.mutable_resources()->set_ranks(4);
  const Cluster cluster = LocalCluster(4, 4, int64_t{8} << 30, 0);
  const std::vector<Trial> trials = TrialsOf(job, cluster);
  std::set<std::string> layouts;
  double before = 0;
  for (const Trial& trial : trials) {
    EXPECT_EQ(trial.layout.tensor() * trial.layout.pipeline() * trial.layout.data(), 4);
    const double seconds = CorrectedSeconds(trial.predicted, Correction());
    EXPECT_GE(seconds, before - 1e-12);
    before = seconds;
    layouts.insert(trial.layout.SerializeAsString());
  }
  EXPECT_EQ(layouts.size(), trials.size());
  EXPECT_GT(trials.size(), 10U);
}

}  // namespace
}  // namespace tercio::plan

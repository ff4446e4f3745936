// Losses, gradients and figures of preferences against TRL's (tests/preference/), and against
// finite differences.
#include "plan/preference.h"

#include <cmath>
#include <string>
#include <vector>

#include "common/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/names.h"
#include "plan/objective_figures.h"

namespace tercio::plan {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// What the issue asks for.
constexpr double kClose = 1e-5;

std::vector<Answer> AnswersOf(const Json& list) {
  std::vector<Answer> answers;
  for (const Json& each : list) {
    answers.push_back({.log_probability = each["log_probability"],
                       .reference = each["reference"],
                       .tokens = each["tokens"],
                       .desirable = each["desirable"]});
  }
  return answers;
}

v1::TrainingSpec TrainingOf(const Json& one) {
  v1::TrainingSpec training;
  training.set_objective(*Named<v1::TrainingObjective>(one["objective"].get<std::string>()));
  training.set_global_batch(static_cast<int64_t>(one["answers"].size()));
  v1::PreferenceSpec* spec = training.mutable_preference();
  spec->set_beta(one["beta"]);
  if (one.contains("loss")) {
    spec->set_loss(*Named<v1::PreferenceLoss>(one["loss"].get<std::string>()));
  }
  spec->set_desirable_weight(one.value("desirable_weight", 1.0));
  spec->set_undesirable_weight(one.value("undesirable_weight", 1.0));
  return training;
}

double LossOf(const v1::TrainingSpec& training, const std::vector<Answer>& answers,
              double divergence) {
  PreferenceTotals totals;
  totals.Add(training, answers, divergence);
  return totals.MeanLoss();
}

std::vector<double> GradientsOf(const v1::TrainingSpec& training,
                                const std::vector<Answer>& answers, double divergence) {
  std::vector<double> gradients(answers.size());
  PreferenceGradients(training, answers, divergence, absl::MakeSpan(gradients));
  return gradients;
}

// TRL's "rewards/margins" is "rewards_margin" here.
double FigureOf(const v1::ObjectiveFigures& figures, std::string name) {
  if (name == "rewards/margins") name = "rewards_margin";
  if (name == "rewards/accuracies") name = "rewards_accuracy";
  for (char& c : name) c = c == '/' ? '_' : c;
  for (const ObjectiveFigure& figure : ObjectiveFigureList()) {
    if (figure.name == name) return figure.value(figures).value_or(std::nan(""));
  }
  ADD_FAILURE() << name;
  return 0;
}

Json Fixture() {
  const auto text = ReadFile("tests/preference/fixtures/losses.json");
  EXPECT_TRUE(text.ok()) << text.status();
  return Json::parse(*text);
}

TEST(Preference, IsTrlsInValueGradientAndFigures) {
  int figures_compared = 0;
  for (const Json& one : Fixture()) {
    SCOPED_TRACE(one.dump().substr(0, 120));
    const v1::TrainingSpec training = TrainingOf(one);
    const std::vector<Answer> answers = AnswersOf(one["answers"]);
    const double divergence =
        one.contains("mismatched") ? DivergenceOf(AnswersOf(one["mismatched"])) : 0;
    EXPECT_NEAR(LossOf(training, answers, divergence), one["loss_value"].get<double>(), kClose);
    const std::vector<double> gradients = GradientsOf(training, answers, divergence);
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_NEAR(gradients[i], one["gradients"][i].get<double>(), kClose) << i;
    }
    PreferenceTotals totals;
    totals.Add(training, answers, divergence);
    for (const auto& [name, value] : one["figures"].items()) {
      EXPECT_NEAR(FigureOf(totals.Figures(), name), value.get<double>(), kClose) << name;
      ++figures_compared;
    }
  }
  EXPECT_EQ(figures_compared, 6 * 6 + 2 * 4 + 6 * 6);
}

TEST(Preference, GradientsAreThoseOfTheLoss) {
  std::vector<Json> cases;
  for (const Json& one : Fixture()) cases.push_back(one);
  cases.push_back(cases.front());
  for (size_t c = 0; c < cases.size(); ++c) {
    v1::TrainingSpec training = TrainingOf(cases[c]);
    // TRL's loss "sigmoid" has no smoothing.
    if (c + 1 == cases.size()) training.mutable_preference()->set_label_smoothing(0.2);
    std::vector<Answer> answers = AnswersOf(cases[c]["answers"]);
    const std::vector<double> gradients = GradientsOf(training, answers, 0.5);
    constexpr double kStep = 1e-5;
    for (size_t i = 0; i < answers.size(); ++i) {
      const double at = answers[i].log_probability;
      answers[i].log_probability = at + kStep;
      const double above = LossOf(training, answers, 0.5);
      answers[i].log_probability = at - kStep;
      const double below = LossOf(training, answers, 0.5);
      answers[i].log_probability = at;
      EXPECT_NEAR(gradients[i], (above - below) / (2 * kStep), 1e-8) << c << " " << i;
    }
  }
}

TEST(Preference, BeginsAtTheLogarithmOfTwo) {
  v1::TrainingSpec training;
  training.set_objective(v1::TRAINING_OBJECTIVE_DPO);
  training.set_global_batch(2);
  training.mutable_preference()->set_beta(0.1);
  const std::vector<Answer> answers = {{-3, -3, 2}, {-40, -40, 9}};
  EXPECT_DOUBLE_EQ(LossOf(training, answers, 0), std::log(2.0));
  const std::vector<double> gradients = GradientsOf(training, answers, 0);
  EXPECT_DOUBLE_EQ(gradients[0], -0.05);
  EXPECT_DOUBLE_EQ(gradients[1], 0.05);
}

TEST(Preference, IsFiniteFarFromTheReferenceAndAtCertainty) {
  for (const v1::TrainingObjective objective :
       {v1::TRAINING_OBJECTIVE_DPO, v1::TRAINING_OBJECTIVE_ORPO, v1::TRAINING_OBJECTIVE_KTO}) {
    v1::TrainingSpec training;
    training.set_objective(objective);
    training.set_global_batch(4);
    training.mutable_preference()->set_beta(1);
    training.mutable_preference()->set_desirable_weight(1);
    training.mutable_preference()->set_undesirable_weight(1);
    const std::vector<Answer> answers = {
        {-1e5, 0, 2}, {0, -1e5, 9, false}, {0, -1e5, 2}, {-1e5, 0, 9, false}};
    EXPECT_TRUE(std::isfinite(LossOf(training, answers, 0)));
    for (const double gradient : GradientsOf(training, answers, 0)) {
      EXPECT_TRUE(std::isfinite(gradient));
    }
  }
}

TEST(Preference, FiguresThatNoAnswerHasAreAbsent) {
  v1::TrainingSpec training;
  training.set_objective(v1::TRAINING_OBJECTIVE_KTO);
  training.set_global_batch(1);
  training.mutable_preference()->set_beta(0.1);
  PreferenceTotals totals;
  totals.Add(training, std::vector<Answer>{{-3, -4, 2, true}}, 0.25);
  const v1::ObjectiveFigures figures = totals.Figures();
  EXPECT_TRUE(figures.has_chosen_reward());
  EXPECT_FALSE(figures.has_rejected_reward());
  EXPECT_FALSE(figures.has_margin());
  EXPECT_FALSE(figures.has_accuracy());
  EXPECT_EQ(figures.divergence(), 0.25);
}

v1::JobSpec PairJob() {
  v1::JobSpec job;
  job.mutable_training()->set_objective(v1::TRAINING_OBJECTIVE_DPO);
  job.mutable_training()->set_global_batch(8);
  job.mutable_training()->set_lanes(4);
  job.mutable_training()->mutable_preference()->set_beta(0.1);
  job.mutable_data()->mutable_chat()->set_answers(v1::ANSWER_FORM_PAIR);
  return job;
}

TEST(Preference, NothingCutsAPair) {
  EXPECT_TRUE(CheckPreferences(PairJob(), 2).ok());
  EXPECT_THAT(CheckPreferences(PairJob(), 1).ToString(),
              HasSubstr("training.micro_batch 1 is odd"));
  v1::JobSpec job = PairJob();
  job.mutable_training()->set_global_batch(7);
  EXPECT_THAT(CheckPreferences(job, 2).ToString(), HasSubstr("training.global_batch 7 is odd"));
  job = PairJob();
  job.mutable_training()->set_lanes(8);
  EXPECT_THAT(CheckPreferences(job, 2).ToString(), HasSubstr("use at most 4"));
  job = PairJob();
  job.mutable_data()->mutable_chat()->clear_answers();
  EXPECT_THAT(CheckPreferences(job, 2).ToString(), HasSubstr("does not learn from the answers"));
  job = PairJob();
  job.mutable_training()->set_label_smoothing(0.1);
  EXPECT_THAT(CheckPreferences(job, 2).ToString(), HasSubstr("training.label_smoothing"));
  job = PairJob();
  job.mutable_training()->mutable_preference()->set_beta(std::nan(""));
  EXPECT_THAT(CheckPreferences(job, 2).ToString(), HasSubstr("beta is not above 0"));
  // Single answers may be dealt out in any way.
  job = PairJob();
  job.mutable_training()->set_objective(v1::TRAINING_OBJECTIVE_KTO);
  job.mutable_data()->mutable_chat()->set_answers(v1::ANSWER_FORM_LABELLED);
  EXPECT_TRUE(CheckPreferences(job, 1).ok());
}

}  // namespace
}  // namespace tercio::plan

#include "cli/evaluation_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/quality.h"

namespace tercio::cli {
namespace {

using ::testing::HasSubstr;

TEST(EvaluationText, NamesTheScoresOfClassifiers) {
  v1::Evaluation evaluation;
  evaluation.set_step(15);
  evaluation.set_loss(0.31);
  EXPECT_EQ(EvaluationText(evaluation), "step 15: loss 0.3100");
  EXPECT_EQ(ClassTable(evaluation, {}), "");
  *evaluation.mutable_confusion() = plan::EmptyConfusion(2);
  plan::Count(0, 0, evaluation.mutable_confusion());
  plan::Count(1, 1, evaluation.mutable_confusion());
  plan::Count(1, 0, evaluation.mutable_confusion());
  EXPECT_EQ(EvaluationText(evaluation), "step 15: loss 0.3100, accuracy 0.6667, f1 0.6667");
  v1::ModelSpec model;
  model.add_label_names("no");
  model.add_label_names("yes\x1b[2J");
  const std::string table = ClassTable(evaluation, model);
  EXPECT_THAT(table, HasSubstr("no"));
  EXPECT_THAT(table, HasSubstr("(weighted average)"));
  // A name must not steer the terminal.
  EXPECT_EQ(table.find('\x1b'), std::string::npos);
}

TEST(EvaluationText, StepsOfEpochsAreKnownOnceTheDataIs) {
  v1::JobStatus job;
  job.mutable_spec()->mutable_training()->set_epochs(3);
  EXPECT_FALSE(KnowsSteps(job));
  EXPECT_EQ(StepsText(job), "0, 3 epochs");
  job.set_step(12);
  job.set_steps(30);
  EXPECT_TRUE(KnowsSteps(job));
  EXPECT_EQ(StepsText(job), "12 of 30");
  // A job that only evaluates.
  EXPECT_EQ(StepsText(v1::JobStatus()), "0 of 0");
}

}  // namespace
}  // namespace tercio::cli

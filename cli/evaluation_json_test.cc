#include "cli/evaluation_json.h"

#include <limits>

#include "gtest/gtest.h"
#include "plan/quality.h"

namespace tercio::cli {
namespace {

v1::Evaluation Classified() {
  v1::Evaluation evaluation;
  evaluation.set_step(30);
  evaluation.set_loss(0.25);
  *evaluation.mutable_confusion() = plan::EmptyConfusion(2);
  for (int i = 0; i < 3; ++i) plan::Count(0, 0, evaluation.mutable_confusion());
  plan::Count(0, 1, evaluation.mutable_confusion());
  plan::Count(1, 1, evaluation.mutable_confusion());
  return evaluation;
}

TEST(EvaluationJson, HasTheScoresOfEachClass) {
  v1::ModelSpec model;
  model.add_label_names("negative");
  model.add_label_names("positive");
  EXPECT_EQ(EvaluationToJson(Classified(), model).dump(),
            R"({"step":30,"loss":0.25,"accuracy":0.8,)"
            R"("per_class":{"negative":{"precision":1.0,"recall":0.75,"f1":0.8571428571428571,)"
            R"("support":4},"positive":{"precision":0.5,"recall":1.0,"f1":0.6666666666666666,)"
            R"("support":1}},)"
            R"("macro":{"precision":0.75,"recall":0.875,"f1":0.7619047619047619},)"
            R"("weighted":{"precision":0.9,"recall":0.8,"f1":0.819047619047619},)"
            R"("confusion":[[3,1],[0,1]]})");
  // Without names classes are numbers.
  EXPECT_TRUE(EvaluationToJson(Classified(), {})["per_class"].contains("1"));
}

TEST(EvaluationJson, IsNullWhereThereAreNoClasses) {
  v1::Evaluation evaluation;
  evaluation.set_step(7);
  evaluation.set_loss(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(EvaluationToJson(evaluation, {}).dump(),
            R"({"step":7,"loss":null,"accuracy":null,"per_class":null,"macro":null,)"
            R"("weighted":null,"confusion":null})");
}

}  // namespace
}  // namespace tercio::cli

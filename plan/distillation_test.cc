// What a distilled job may be, and how its teacher is planned.
#include "plan/distillation.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/memory_map.h"
#include "plan/plan_builder.h"
#include "plan/teacher_memory.h"

namespace tercio::plan {
namespace {

using ::testing::HasSubstr;

v1::ModelSpec Gpt(int layers, int hidden) {
  v1::ModelSpec model;
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_layers(layers);
  model.set_hidden(hidden);
  model.set_heads(4);
  model.set_ffn_hidden(4 * hidden);
  model.set_context(32);
  model.set_vocab_size(101);
  return model;
}

v1::JobSpec DistilledJob() {
  v1::JobSpec job;
  *job.mutable_model() = Gpt(4, 32);
  v1::TrainingSpec& training = *job.mutable_training();
  training.set_global_batch(8);
  training.set_micro_batch(2);
  training.set_objective(v1::TRAINING_OBJECTIVE_DISTILL);
  v1::DistillationSpec& distillation = *training.mutable_distillation();
  distillation.set_teacher("/models/teacher");
  *distillation.mutable_model() = Gpt(10, 64);
  distillation.mutable_model()->set_context(64);
  distillation.set_temperature(2);
  distillation.set_weight(0.5);
  job.mutable_parallelism()->set_tensor(1);
  job.mutable_parallelism()->set_pipeline(2);
  job.mutable_resources()->set_ranks(4);
  return job;
}

std::string FaultOf(const v1::JobSpec& job) {
  return std::string(CheckDistillation(job).message());
}

TEST(DistillationTest, LossIsTheSumOfBothParts) {
  DistillationMeans means;
  means.cross_entropy = 3;
  means.divergence = 0.25;
  v1::DistillationSpec spec = DistilledJob().training().distillation();
  EXPECT_DOUBLE_EQ(DistillationLoss(spec, means), 0.5 * 3 + 0.5 * 4 * 0.25);
  spec.set_weight(1);
  spec.set_temperature(1);
  EXPECT_DOUBLE_EQ(DistillationLoss(spec, means), 0.25);
}

TEST(DistillationTest, ImpossibleNumbersAreRefused) {
  EXPECT_TRUE(CheckDistillation(DistilledJob()).ok());
  v1::JobSpec job = DistilledJob();
  job.mutable_training()->mutable_distillation()->set_temperature(0);
  EXPECT_THAT(FaultOf(job), HasSubstr("temperature is not above 0"));
  job = DistilledJob();
  job.mutable_training()->mutable_distillation()->set_weight(1.5);
  EXPECT_THAT(FaultOf(job), HasSubstr("weight is not in (0, 1]"));
  job = DistilledJob();
  job.mutable_training()->mutable_distillation()->set_logits("/logits");
  EXPECT_THAT(FaultOf(job), HasSubstr("either a teacher or logits"));
  job.mutable_training()->mutable_distillation()->clear_teacher();
  EXPECT_TRUE(CheckDistillation(job).ok());
  job.mutable_training()->mutable_distillation()->set_direction(v1::DISTILLATION_DIRECTION_REVERSE);
  EXPECT_THAT(FaultOf(job), HasSubstr("reverse needs all logits"));
  job = DistilledJob();
  job.mutable_training()->set_label_smoothing(0.1);
  EXPECT_THAT(FaultOf(job), HasSubstr("training.label_smoothing"));
  job = DistilledJob();
  job.mutable_training()->set_objective(v1::TRAINING_OBJECTIVE_PRETRAIN);
  EXPECT_TRUE(CheckDistillation(job).ok());
}

TEST(DistillationTest, ModelsThatCannotBeComparedAreRefused) {
  v1::JobSpec job = DistilledJob();
  v1::ModelSpec& teacher = *job.mutable_training()->mutable_distillation()->mutable_model();
  teacher.set_vocab_size(104);
  EXPECT_THAT(FaultOf(job), HasSubstr("teacher /models/teacher has another vocabulary, of 104 "
                                      "tokens, than the model, of 101"));
  // The data may still tell the student's.
  job.mutable_model()->set_vocab_size(0);
  EXPECT_TRUE(CheckDistillation(job).ok());
  job = DistilledJob();
  job.mutable_model()->set_context(128);
  EXPECT_THAT(FaultOf(job), HasSubstr("reads at most 64 tokens, and model.context is 128"));
  job = DistilledJob();
  job.mutable_training()->mutable_distillation()->mutable_model()->mutable_adapter()->set_rank(4);
  EXPECT_THAT(FaultOf(job), HasSubstr("has an adapter; merge it first"));
}

TEST(DistillationTest, TheTeacherIsCutByItsOwnLayers) {
  const v1::JobSpec job = DistilledJob();
  const auto layout = LayoutOfJob(job);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto plan =
      BuildPlan(job, *layout, {{"here", 0}, {"here", 1}, {"here", 2}, {"here", 3}}, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (int rank = 0; rank < 4; ++rank) {
    const v1::RankPlan of_rank = SliceForRank(*plan, rank);
    const v1::RankPlan teacher = TeacherPlan(job, of_rank);
    EXPECT_EQ(of_rank.stage().layers_size(), 2);
    EXPECT_EQ(teacher.stage().layers_size(), 5);
    // The same memory by shorter names.
    const v1::Buffer& named = FindBuffer(teacher.stage().memory(), "parameters");
    const v1::Buffer& whole = FindBuffer(of_rank.stage().memory(), "teacher.parameters");
    EXPECT_GT(named.size_bytes(), 0);
    EXPECT_EQ(named.offset_bytes(), whole.offset_bytes());
    // Only the forward pass runs, and only the last stage keeps what it makes.
    EXPECT_EQ(FindBuffer(teacher.stage().memory(), "gradients.0").size_bytes(), 0);
    const bool last = of_rank.placement().pipeline_index() == 1;
    EXPECT_EQ(FindBuffer(teacher.stage().memory(), kTeacherOutputs).size_bytes(),
              last ? 2 * 2 * 32 * 64 * 4 : 0);
  }
  v1::JobSpec cut = job;
  cut.mutable_training()->mutable_distillation()->add_stage_layers(3);
  cut.mutable_training()->mutable_distillation()->add_stage_layers(7);
  EXPECT_EQ(TeacherLayout(cut, *layout).stage_layers(0), 3);
  cut.mutable_training()->mutable_distillation()->set_stage_layers(1, 8);
  EXPECT_THAT(LayoutOfJob(cut).status().ToString(),
              HasSubstr("the teacher of training.distillation: "));
}

}  // namespace
}  // namespace tercio::plan

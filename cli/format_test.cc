#include "cli/format.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "plan/quality.h"

namespace tercio::cli {
namespace {

// Keys are always present, and unknown values are null: also for a job that has never started, and
// for one that failed before its first step.
TEST(JobToJson, NothingIsKnownYet) {
  v1::JobStatus job;
  job.set_id("job-1");
  job.set_name("small");
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_steps(10);
  job.set_queue_position(2);
  const Json json = JobToJson(job);
  for (const char* key :
       {"owner", "loss", "validation_loss", "tokens_per_second", "mfu", "plan", "predicted",
        "ranks", "checkpoint", "loading", "error", "submitted_at", "started_at", "finished_at"}) {
    ASSERT_TRUE(json.contains(key)) << key;
    EXPECT_TRUE(json[key].is_null()) << key;
  }
  EXPECT_EQ(json["state"], "queued");
  EXPECT_EQ(json["step"], 0);
  EXPECT_EQ(json["attempt"], 0);
  EXPECT_EQ(json["restarts"], 0);
  EXPECT_EQ(json["queue_position"], 2);
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_error("no such file");
  job.set_loss(std::numeric_limits<double>::quiet_NaN());
  job.set_queue_position(0);
  EXPECT_EQ(JobToJson(job)["error"], "no such file");
  EXPECT_TRUE(JobToJson(job)["loss"].is_null());
  EXPECT_TRUE(JobToJson(job)["queue_position"].is_null());
}

TEST(JobToJson, EvaluationsAndStepsThatAreNotKnown) {
  v1::JobStatus job;
  job.mutable_spec()->mutable_training()->set_epochs(3);
  job.mutable_spec()->mutable_training()->set_global_batch(10);
  job.set_state(v1::JOB_STATE_RUNNING);
  Json json = JobToJson(job);
  EXPECT_TRUE(json["steps"].is_null());
  EXPECT_EQ(json["evaluation"].dump(),
            R"({"validation":null,"test":null,"best_step":null,"problem":null})");
  EXPECT_NE(ProgressLine(job, 0).find("step 0/?  0.0%  epoch 1/3"), std::string::npos);
  job.set_steps(15);
  job.set_step(6);
  job.set_train_samples(50);
  job.set_best_step(5);
  job.mutable_validation()->set_step(5);
  *job.mutable_validation()->mutable_confusion() = plan::EmptyConfusion(2);
  plan::Count(1, 1, job.mutable_validation()->mutable_confusion());
  json = JobToJson(job);
  EXPECT_EQ(json["steps"], 15);
  EXPECT_EQ(json["evaluation"]["best_step"], 5);
  EXPECT_EQ(json["evaluation"]["validation"]["accuracy"], 1);
  const std::string line = ProgressLine(job, 0);
  EXPECT_NE(line.find("step 6/15  40.0%  epoch 2/3"), std::string::npos) << line;
  EXPECT_NE(line.find("accuracy 1.0000  f1 1.0000"), std::string::npos) << line;
  job.set_step(15);
  job.mutable_test()->set_problem("the best checkpoint cannot be loaded");
  EXPECT_EQ(JobToJson(job)["evaluation"]["problem"], "the best checkpoint cannot be loaded");
  EXPECT_NE(ProgressLine(job, 0).find("epoch 3/3"), std::string::npos);
}

TEST(StepToJson, ScoresAreNullWhereThereAreNone) {
  v1::StepRecord step;
  step.set_validation_f1(0.5);
  const Json json = StepToJson(step);
  EXPECT_EQ(json["validation_f1"], 0.5);
  for (const char* key :
       {"validation_loss", "validation_accuracy", "validation_precision", "validation_recall"}) {
    ASSERT_TRUE(json.contains(key)) << key;
    EXPECT_TRUE(json[key].is_null()) << key;
  }
}

TEST(JobToJson, AndTheLineOfProgressSayHowFarLoadingIs) {
  v1::JobStatus job;
  job.set_state(v1::JOB_STATE_STARTING);
  job.mutable_loading()->set_bytes(3'100'000'000);
  job.mutable_loading()->set_total_bytes(84'000'000'000);
  const Json loading = JobToJson(job)["loading"];
  EXPECT_EQ(loading["bytes"], 3'100'000'000);
  EXPECT_EQ(loading["total_bytes"], 84'000'000'000);
  EXPECT_NE(ProgressLine(job, 0).find("starting  loading 3.1 of 84.0 GB"), std::string::npos);
  job.mutable_loading()->set_bytes(999);
  job.mutable_loading()->set_total_bytes(999);
  EXPECT_EQ(LoadingText(job.loading()), "loading 999 of 999 B");
}

TEST(JobToJson, FiguresOfRanks) {
  v1::JobStatus job;
  job.add_ranks();
  v1::RankFigures* figures = job.add_ranks()->mutable_figures();
  EXPECT_TRUE(JobToJson(job)["ranks"][0]["memory"].is_null());
  EXPECT_TRUE(JobToJson(job)["ranks"][1]["communication"].is_null());
  figures->mutable_communication()->set_data(123);
  const Json json = JobToJson(job);
  EXPECT_TRUE(json["ranks"][0]["communication"].is_null());
  EXPECT_EQ(json["ranks"][1]["communication"]["data"], 123);
  EXPECT_EQ(json["ranks"][1]["communication"]["tensor"], 0);
}

TEST(JobToJson, NumbersComeBackToTheBit) {
  v1::JobStatus job;
  for (const double loss : {0.1 + 0.2, 1e-320, 3.0, std::nextafter(2.5, 3)}) {
    job.set_loss(loss);
    EXPECT_EQ(Json::parse(JobToJson(job).dump())["loss"].get<double>(), loss);
  }
}

// A node that has not come back, and whose name alone is known.
TEST(NodeToJson, WhatIsNotKnownIsNull) {
  v1::Node node;
  node.set_name("a");
  node.set_state("drained");
  const Json json = NodeToJson(node);
  for (const char* key : {"address", "version", "metrics_address", "reason"}) {
    ASSERT_TRUE(json.contains(key)) << key;
    EXPECT_TRUE(json[key].is_null()) << key;
  }
  EXPECT_EQ(json["devices"], 0);
  EXPECT_EQ(json["free"], 0);
}

TEST(PlanReportToJson, WhereNothingFits) {
  v1::PlanReport report;
  report.set_chosen(-1);
  report.add_layouts()->set_rejected("too large");
  const Json json = PlanReportToJson(report);
  EXPECT_TRUE(json["chosen"].is_null());
  EXPECT_EQ(json["layouts"][0]["rejected"], "too large");
  EXPECT_TRUE(json["layouts"][0]["predicted"].is_null());
  EXPECT_EQ(json["layouts"][0]["recompute"], "none");
  EXPECT_EQ(json["layouts"][0]["virtual_pipeline"], 1);
  EXPECT_TRUE(json["layouts"][0]["stage_layers"].is_null());
}

TEST(LayoutToJson, LayersOfStages) {
  v1::Layout layout;
  layout.set_pipeline(3);
  EXPECT_EQ(PipelineText(layout), "3");
  for (const int layers : {1, 2, 1}) layout.add_stage_layers(layers);
  EXPECT_EQ(LayoutToJson(layout)["stage_layers"], Json({1, 2, 1}));
  EXPECT_EQ(PipelineText(layout), "3 (1, 2, 1)");
  EXPECT_EQ(SettingsText(layout), "");
  layout.set_virtual_pipeline(2);
  layout.set_sequence_parallel(true);
  layout.set_zero_stage(1);
  layout.set_recompute(v1::RECOMPUTE_FULL);
  EXPECT_EQ(SettingsText(layout),
            "virtual_pipeline 2, sequence_parallel, zero_stage 1, recompute full");
}

}  // namespace
}  // namespace tercio::cli

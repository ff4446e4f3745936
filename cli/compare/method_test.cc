// Methods from jobs, and their JSON.
#include "cli/compare/method.h"

#include <cmath>

#include "cli/compare/method_json.h"
#include "cli/compare/testing/test_methods.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::compare {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kBaselineFile[] = R"({
  "format": "tercio-results-1",
  "methods": [{
    "name": "one process", "kind": "baseline", "software": "transformers 4.5, torch 2.1",
    "state": "succeeded", "error": null, "job_id": null,
    "layout": {"tensor": 1, "pipeline": 1, "data": 2, "ranks": 2},
    "device": "cpu", "parameters": 1000, "global_batch": 4, "epochs": 2, "steps": 20,
    "samples_per_epoch": 40, "seconds": 12.5, "epoch_seconds": [6, 6.5],
    "step_seconds": {"median": 0.5, "p10": 0.4, "p90": 0.6}, "micro_batch_seconds": null,
    "samples_per_second": 8, "tokens_per_second": 64, "cores_used": 1.5,
    "device_utilization": null,
    "memory": {"planned_bytes": null, "used_bytes": null, "resident_bytes": 4096},
    "communication_bytes": null, "wait_share": null,
    "history": [{"step": 1, "loss": 2.5, "grad_norm": null, "step_seconds": 0.5},
                {"step": 20, "loss": 1.5, "step_seconds": 0.5, "validation_loss": 1.75}],
    "evaluation": {
      "validation": null,
      "test": {"step": 20, "loss": 0.5, "accuracy": 0.75,
               "per_class": {"bad": {"precision": 0.5, "recall": 1, "f1": 0.6, "support": 1},
                             "good": {"precision": 1, "recall": 0.6, "f1": 0.8, "support": 3}},
               "macro": {"precision": 0.75, "recall": 0.8, "f1": 0.7},
               "weighted": {"precision": 0.9, "recall": 0.7, "f1": 0.75},
               "confusion": [[1, 0], [1, 2]]},
      "best_step": null},
    "cost": null, "largest_model": null}]
})";

std::string With(const std::string& from, const std::string& to) {
  std::string text = kBaselineFile;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string FaultOf(const std::string& text) {
  const auto methods = ParseMethods(text, "base.json");
  EXPECT_EQ(methods.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(methods.status().message());
}

TEST(MethodOfJob, TakesTheNumbersOfARun) {
  const Method method = MethodOfJob("data 2", TestJob("a", 100, 2));
  EXPECT_EQ(method.name, "data 2");
  EXPECT_EQ(method.state, MethodState::kSucceeded);
  EXPECT_EQ(method.job_id, "job-a");
  EXPECT_EQ(method.software, "tercio 1.2.3");
  EXPECT_EQ(method.layout->data, 2);
  EXPECT_EQ(method.layout->ranks, 2);
  EXPECT_EQ(method.device, "cpu");
  EXPECT_EQ(method.precision, "fp32");
  EXPECT_DOUBLE_EQ(*method.steps, 100);
  EXPECT_DOUBLE_EQ(*method.step_median, 0.1);
  EXPECT_DOUBLE_EQ(*method.samples_per_second, 40);
  EXPECT_NEAR(*method.tokens_per_second, 320, 1e-9);
  EXPECT_DOUBLE_EQ(*method.seconds, 12);
  EXPECT_DOUBLE_EQ(*method.resident_bytes, 2 << 20);
  EXPECT_DOUBLE_EQ(*method.planned_bytes, 2 << 19);
  EXPECT_DOUBLE_EQ(*method.sent_data, 2000);
  EXPECT_DOUBLE_EQ(*method.sent_tensor, 0);
  EXPECT_DOUBLE_EQ(*method.sent_per_step, 20);
  EXPECT_DOUBLE_EQ(*method.wait_share, 0.25);
  EXPECT_DOUBLE_EQ(*method.cores_used, 1);
  EXPECT_DOUBLE_EQ(*method.final_loss, 0.05);
  EXPECT_FALSE(method.epochs.has_value());
  EXPECT_TRUE(method.epoch_seconds.empty());
  EXPECT_TRUE(method.validation.is_null());
  // The planner had a GiB for each rank.
  ASSERT_TRUE(method.largest_bytes.has_value());
  EXPECT_LE(*method.largest_bytes, 1 << 30);
  EXPECT_GT(*method.largest_parameters, *method.parameters);
}

TEST(MethodOfJob, EpochsEndWithTheirLastSample) {
  report::JobData job = TestJob("a", 10, 1);
  job.status.set_train_samples(12);
  job.status.mutable_spec()->mutable_training()->set_epochs(3);
  // Batches of four: an epoch is three steps.
  const Method method = MethodOfJob("a", job);
  EXPECT_DOUBLE_EQ(*method.epochs, 3);
  EXPECT_DOUBLE_EQ(*method.samples_per_epoch, 12);
  ASSERT_EQ(method.epoch_seconds.size(), 3u);
  for (const double seconds : method.epoch_seconds) EXPECT_NEAR(seconds, 0.3, 1e-12);
  // A batch may end several.
  job.status.set_train_samples(2);
  EXPECT_EQ(MethodOfJob("a", job).epoch_seconds.size(), 20u);
  EXPECT_NEAR(MethodOfJob("a", job).epoch_seconds[0], 0.05, 1e-12);
}

TEST(MethodOfJob, OneThatFailed) {
  report::JobData job = TestJob("a", 0, 1);
  job.status.set_state(v1::JOB_STATE_FAILED);
  job.status.set_error("the loss is not finite");
  job.status.clear_ranks();
  const Method method = MethodOfJob("a", job);
  EXPECT_EQ(method.state, MethodState::kFailed);
  EXPECT_EQ(method.error, "the loss is not finite");
  EXPECT_FALSE(method.seconds.has_value());
  EXPECT_FALSE(method.sent_data.has_value());
  const Json json = MethodToJson(method);
  EXPECT_TRUE(json["step_seconds"]["median"].is_null());
  EXPECT_TRUE(json["communication_bytes"].is_null());
}

TEST(MethodOfJob, ScoresOfAClassifier) {
  report::JobData job = TestJob("a", 10, 1);
  v1::Evaluation* test = job.status.mutable_test();
  test->set_step(10);
  test->set_loss(0.25);
  test->mutable_confusion()->set_classes(2);
  for (const int count : {3, 1, 0, 4}) test->mutable_confusion()->add_counts(count);
  job.status.mutable_spec()->mutable_model()->add_label_names("bad");
  job.status.mutable_spec()->mutable_model()->add_label_names("good");
  const auto evaluated = EvaluatedOf(MethodOfJob("a", job).test);
  ASSERT_TRUE(evaluated.has_value());
  EXPECT_DOUBLE_EQ(*evaluated->accuracy, 7.0 / 8);
  ASSERT_EQ(evaluated->classes.size(), 2u);
  EXPECT_EQ(evaluated->classes[1].label, "good");
  EXPECT_DOUBLE_EQ(*evaluated->classes[1].precision, 0.8);
  EXPECT_THAT(evaluated->confusion, ElementsAre(ElementsAre(3, 1), ElementsAre(0, 4)));
}

TEST(Together, TakesMediansOfRunsThatSucceeded) {
  std::vector<Method> runs;
  for (const double seconds : {0.3, 0.1, 0.2}) {
    report::JobData job = TestJob("a", 10, 1);
    for (v1::StepRecord& step : job.steps) step.set_step_seconds(seconds);
    runs.push_back(MethodOfJob("a", job));
  }
  const Method method = Together(runs);
  EXPECT_DOUBLE_EQ(*method.step_median, 0.2);
  EXPECT_DOUBLE_EQ(*method.samples_per_second, 20);
  EXPECT_EQ(method.runs.size(), 3u);
  EXPECT_EQ(method.state, MethodState::kSucceeded);
  runs.push_back(MethodWithoutJob("a", MethodState::kFailed, "no memory"));
  const Method worse = Together(runs);
  EXPECT_EQ(worse.state, MethodState::kFailed);
  EXPECT_EQ(worse.error, "no memory");
  EXPECT_DOUBLE_EQ(*worse.step_median, 0.2);
  EXPECT_EQ(worse.runs.size(), 4u);
  EXPECT_FALSE(Together({runs.back()}).step_median.has_value());
}

TEST(CompareSpeeds, WithTheFirstVariantOfOneRank) {
  std::vector<Method> methods = {TestMethod("data 4", 4, 30), TestMethod("one", 1, 10),
                                 TestMethod("other", 1, 20), TestMethod("failed", 2, 0)};
  methods[3].samples_per_second = std::nullopt;
  Method baseline = TestMethod("b", 1, 5);
  baseline.kind = MethodKind::kBaseline;
  methods.insert(methods.begin(), baseline);
  CompareSpeeds(&methods);
  EXPECT_EQ(BaseOf(methods)->name, "one");
  EXPECT_DOUBLE_EQ(*methods[0].speed_up, 0.5);
  EXPECT_DOUBLE_EQ(*methods[1].speed_up, 3);
  EXPECT_DOUBLE_EQ(*methods[1].efficiency, 0.75);
  EXPECT_DOUBLE_EQ(*methods[2].efficiency, 1);
  EXPECT_FALSE(methods[4].speed_up.has_value());
  // Without one, the first variant counts, rank by rank.
  std::vector<Method> many = {TestMethod("data 2", 2, 20), TestMethod("data 4", 4, 30)};
  CompareSpeeds(&many);
  EXPECT_DOUBLE_EQ(*many[1].speed_up, 1.5);
  EXPECT_DOUBLE_EQ(*many[1].efficiency, 0.75);
  EXPECT_EQ(BaseOf({}), nullptr);
}

TEST(AddCosts, OfDevicesAndHours) {
  std::vector<Method> methods = {TestMethod("data 4", 4, 30)};
  methods[0].seconds = 1800;
  AddCosts(2.5, &methods);
  EXPECT_DOUBLE_EQ(*methods[0].cost, 5);
}

TEST(ParseMethods, ReadsWhatIsWritten) {
  const auto methods = ParseMethods(kBaselineFile, "base.json");
  ASSERT_TRUE(methods.ok()) << methods.status();
  ASSERT_EQ(methods->size(), 1u);
  const Method& method = (*methods)[0];
  EXPECT_EQ(method.kind, MethodKind::kBaseline);
  EXPECT_EQ(method.software, "transformers 4.5, torch 2.1");
  EXPECT_EQ(method.layout->data, 2);
  EXPECT_DOUBLE_EQ(*method.step_p90, 0.6);
  EXPECT_DOUBLE_EQ(*method.resident_bytes, 4096);
  EXPECT_FALSE(method.planned_bytes.has_value());
  EXPECT_FALSE(method.sent_data.has_value());
  EXPECT_THAT(method.epoch_seconds, ElementsAre(6, 6.5));
  ASSERT_EQ(method.history.size(), 2u);
  EXPECT_TRUE(std::isnan(method.history[0].grad_norm()));
  EXPECT_DOUBLE_EQ(method.history[1].validation_loss(), 1.75);
  EXPECT_DOUBLE_EQ(*method.final_loss, 1.5);
  EXPECT_DOUBLE_EQ(*method.validation_loss, 1.75);
  EXPECT_DOUBLE_EQ(*EvaluatedOf(method.test)->macro.f1, 0.7);
  // Written and read again it is the same.
  const Json json = MethodToJson(method);
  const Json file = {{"format", "tercio-results-1"}, {"methods", {json}}};
  const auto again = ParseMethods(file.dump(), "again.json");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(MethodToJson((*again)[0]), json);
}

TEST(ParseMethods, WritesTheMethodsOfJobsInTheSameForm) {
  const Json json = MethodToJson(MethodOfJob("data 2", TestJob("a", 3, 2)));
  const Json file = {{"format", "tercio-results-1"}, {"methods", {json}}};
  const auto read = ParseMethods(file.dump(), "results.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_DOUBLE_EQ(*(*read)[0].sent_data, 2000);
  EXPECT_EQ((*read)[0].history.size(), 3u);
  for (const char* key : {"name",
                          "kind",
                          "software",
                          "state",
                          "error",
                          "job_id",
                          "layout",
                          "device",
                          "parameters",
                          "global_batch",
                          "epochs",
                          "steps",
                          "samples_per_epoch",
                          "seconds",
                          "epoch_seconds",
                          "step_seconds",
                          "micro_batch_seconds",
                          "samples_per_second",
                          "tokens_per_second",
                          "cores_used",
                          "device_utilization",
                          "memory",
                          "communication_bytes",
                          "wait_share",
                          "history",
                          "evaluation",
                          "cost",
                          "largest_model"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
}

TEST(ParseMethods, FaultsNameFileAndKey) {
  EXPECT_THAT(FaultOf("{\"loss\": NaN}"), HasSubstr("base.json: not a JSON object"));
  EXPECT_THAT(FaultOf("[]"), HasSubstr("base.json: not a JSON object"));
  EXPECT_THAT(FaultOf(With("tercio-results-1", "tercio-results-9")),
              HasSubstr("base.json: format: expected \"tercio-results-1\""));
  EXPECT_THAT(FaultOf(R"({"format": "tercio-results-1", "methods": []})"),
              HasSubstr("base.json: methods: expected a list of 1 to 64"));
  EXPECT_EQ(FaultOf(With("12.5", "\"12.5\"")),
            "base.json: methods[0].seconds: expected a number or null");
  EXPECT_EQ(FaultOf(With("\"succeeded\"", "\"done\"")),
            "base.json: methods[0].state: expected \"succeeded\", \"failed\", \"cancelled\" or "
            "\"not run\"");
  EXPECT_EQ(FaultOf(With("\"ranks\": 2", "\"ranks\": 0")),
            "base.json: methods[0].layout.ranks: expected a whole number of at least 1");
  EXPECT_EQ(FaultOf(With(R"({"median": 0.5, "p10": 0.4, "p90": 0.6})", "0.5")),
            "base.json: methods[0].step_seconds: expected an object or null");
  EXPECT_EQ(FaultOf(With("\"step\": 20, \"loss\": 1.5", "\"step\": 1, \"loss\": 1.5")),
            "base.json: methods[0].history[1]: expected an object with a step above 0, and above "
            "that of the one before");
  EXPECT_EQ(FaultOf(With("[[1, 0], [1, 2]]", "[[1, 0], [1]]")),
            "base.json: methods[0].evaluation.test.confusion: expected a row of counts for each "
            "class of per_class");
  EXPECT_EQ(FaultOf(With("\"recall\": 0.8", "\"recall\": []")),
            "base.json: methods[0].evaluation.test.macro.recall: expected a number or null");
  // All of them together.
  EXPECT_THAT(FaultOf(With("12.5, \"epoch_seconds\": [6", "[], \"epoch_seconds\": [\"6\"")),
              HasSubstr("seconds: expected a number or null\n"
                        "base.json: methods[0].epoch_seconds: expected a list of numbers"));
}

}  // namespace
}  // namespace tercio::compare

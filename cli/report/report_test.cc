#include "cli/report/report.h"

#include <cmath>
#include <limits>

#include "cli/report/configuration.h"
#include "cli/report/curves.h"
#include "cli/report/diff.h"
#include "cli/report/html.h"
#include "cli/report/texts.h"
#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/quality.h"

namespace tercio::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kJob[] =
    "model: {layers: 2, hidden: 16, heads: 2, context: 8}\n"
    "data: {train: corpus.txt}\n"
    "training: {steps: 100, global_batch: 4, optimizer: {learning_rate: 1e-3}}\n";

v1::JobSpec Spec(const std::vector<std::string>& changes = {}) {
  const auto spec = config::ParseJobText(kJob, "job.yaml", "/where", changes);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

v1::StepRecord Step(int64_t number, int attempt, double loss, double seconds) {
  v1::StepRecord step;
  step.set_step(number);
  step.set_attempt(attempt);
  step.set_loss(loss);
  step.set_tokens(32 * number);
  step.set_step_seconds(seconds);
  return step;
}

// `count` steps of 0.1 s on `ranks` ranks.
JobData Job(const std::string& name, int count, int ranks) {
  JobData job;
  job.status.set_id("job-" + name);
  job.status.set_name(name);
  job.status.set_state(v1::JOB_STATE_SUCCEEDED);
  job.status.set_steps(count);
  *job.status.mutable_spec() = Spec({"name=" + name});
  for (int i = 0; i < ranks; ++i) {
    v1::RankPlacement* place = job.status.mutable_plan()->add_ranks();
    place->set_rank(i);
    place->set_node("node-1");
    v1::RankView* rank = job.status.add_ranks();
    rank->set_rank(i);
    rank->set_data(i);
    v1::RankFigures* figures = rank->mutable_figures();
    figures->set_used_bytes(3 << 18);
    figures->set_peak_bytes(1 << 20);
    figures->set_planned_bytes(1 << 20);
    figures->set_cpu_seconds(3);
    figures->set_elapsed_seconds(6);
    figures->mutable_phases()->set_forward(1);
    figures->mutable_phases()->set_backward(2);
    figures->mutable_phases()->set_wait(1);
  }
  job.status.mutable_plan()->mutable_layout()->set_micro_batches(2);
  job.status.mutable_goodput()->set_total(20);
  job.status.mutable_goodput()->set_productive(15);
  job.status.mutable_goodput()->set_starting(5);
  for (int i = 1; i <= count; ++i) job.steps.push_back(Step(i, 1, 5.0 / i, 0.1));
  job.label = name;
  return job;
}

std::string PageOf(const std::vector<JobData>& jobs) { return ReportPage(jobs, "1.2.3", 1e9); }

v1::JobEvent Event(const std::string& kind, int attempt, int64_t at,
                   const std::string& message = "") {
  v1::JobEvent event;
  event.set_kind(kind);
  event.set_attempt(attempt);
  event.set_message(message);
  event.mutable_time()->set_seconds(at);
  return event;
}

TEST(Numbers, OfAJob) {
  const Numbers numbers = NumbersOf(Job("a", 100, 4));
  EXPECT_EQ(numbers.steps, 100);
  EXPECT_EQ(numbers.tokens, 3200);
  EXPECT_DOUBLE_EQ(*numbers.final_loss, 0.05);
  EXPECT_DOUBLE_EQ(numbers.step_seconds->median, 0.1);
  EXPECT_DOUBLE_EQ(*numbers.micro_batch_seconds, 0.05);
  EXPECT_NEAR(*numbers.tokens_per_second, 320, 1e-9);
  EXPECT_DOUBLE_EQ(*numbers.cores_used, 2);
  EXPECT_DOUBLE_EQ(*numbers.wait_share, 0.25);
  EXPECT_NEAR(*numbers.wait_per_compute, 1.0 / 3, 1e-12);
  EXPECT_EQ(*numbers.used_bytes_most, 3 << 18);
  EXPECT_EQ(*numbers.outside_bytes_most, 1 << 18);
  EXPECT_EQ(*numbers.peak_bytes_most, 1 << 20);
  EXPECT_EQ(*numbers.peak_bytes_total, 4 << 20);
  EXPECT_DOUBLE_EQ(*numbers.goodput, 0.75);
  EXPECT_FALSE(numbers.mfu.has_value());
  EXPECT_FALSE(numbers.validation_loss.has_value());
  EXPECT_FALSE(numbers.resident_bytes_most.has_value());
}

TEST(Numbers, BytesThatRanksSend) {
  JobData job = Job("a", 100, 2);
  EXPECT_FALSE(NumbersOf(job).communication.has_value());
  EXPECT_TRUE(NumbersToJson(NumbersOf(job))["communication_bytes"].is_null());
  for (v1::RankView& rank : *job.status.mutable_ranks()) {
    rank.mutable_figures()->set_steps(50);
    rank.mutable_figures()->mutable_communication()->set_data(1000);
    rank.mutable_figures()->mutable_communication()->set_world(24 * rank.rank());
  }
  const Numbers numbers = NumbersOf(job);
  EXPECT_EQ(*numbers.communication_bytes, 2024);
  EXPECT_DOUBLE_EQ(*numbers.communication_bytes_per_step, 2024.0 / 50);
  EXPECT_EQ(NumbersToJson(numbers)["communication_bytes"],
            Json::parse(R"({"tensor": 0, "pipeline": 0, "data": 2000, "world": 24})"));
  const std::string page = PageOf({job});
  EXPECT_THAT(page, HasSubstr("sent in data groups since the start"));
  EXPECT_THAT(page, Not(HasSubstr("sent in tensor groups")));
  // One rank that has not told makes the sum unknown.
  job.status.mutable_ranks(1)->mutable_figures()->clear_communication();
  EXPECT_FALSE(NumbersOf(job).communication.has_value());
}

TEST(Numbers, TheFirstStepOfAnAttemptDoesNotCount) {
  JobData job = Job("a", 10, 1);
  job.steps[0].set_step_seconds(9);
  job.steps[5].set_attempt(2);
  job.steps[5].set_step_seconds(9);
  for (int i = 6; i < 10; ++i) job.steps[i].set_attempt(2);
  EXPECT_DOUBLE_EQ(NumbersOf(job).step_seconds->greatest, 0.1);
  job.steps.resize(1);
  EXPECT_DOUBLE_EQ(NumbersOf(job).step_seconds->greatest, 9);
}

TEST(Numbers, OfNothing) {
  const Json json = NumbersToJson(NumbersOf(JobData()));
  EXPECT_TRUE(json["final_loss"].is_null());
  EXPECT_TRUE(json["step_seconds"].is_null());
  EXPECT_EQ(json["steps"], 0);
}

TEST(CompareLosses, BitsAndDifferences) {
  const JobData a = Job("a", 10, 1);
  JobData b = Job("b", 10, 2);
  EXPECT_EQ(CompareLosses(a, b).equal_steps, 10);
  EXPECT_EQ(CompareLosses(a, b).largest_difference, 0);
  b.steps[6].set_loss(b.steps[6].loss() + 0.25);
  b.steps.erase(b.steps.begin());
  EXPECT_EQ(CompareLosses(a, b).states, 0);
  b.steps[2].set_state_digest(7);
  const LossComparison compared = CompareLosses(a, b);
  EXPECT_EQ(compared.steps, 9);
  // Only one of them has a digest there.
  EXPECT_EQ(compared.states, 0);
  EXPECT_EQ(compared.equal_steps, 8);
  EXPECT_DOUBLE_EQ(compared.largest_difference, 0.25);
  EXPECT_EQ(compared.largest_at, 7);
}

TEST(CompareLosses, DigestsOfTheState) {
  JobData a = Job("a", 10, 1);
  JobData b = Job("b", 10, 2);
  for (const size_t i : {4, 9}) {
    a.steps[i].set_state_digest(i);
    b.steps[i].set_state_digest(4);
  }
  EXPECT_EQ(CompareLosses(a, b).states, 2);
  EXPECT_EQ(CompareLosses(a, b).equal_states, 1);
  const Json comparison = ReportData({a, b})["comparisons"][0];
  EXPECT_EQ(comparison["states_in_common"], 2);
  EXPECT_EQ(comparison["equal_states"], 1);
}

TEST(CompareLosses, WhatIsNotFiniteHasNoDifference) {
  const JobData a = Job("a", 10, 1);
  JobData b = Job("b", 10, 1);
  b.steps[3].set_loss(std::numeric_limits<double>::quiet_NaN());
  b.steps[4].set_loss(std::numeric_limits<double>::infinity());
  const LossComparison compared = CompareLosses(a, b);
  EXPECT_EQ(compared.equal_steps, 8);
  EXPECT_EQ(compared.not_finite_steps, 2);
  EXPECT_EQ(compared.largest_difference, 0);
  EXPECT_EQ(ReportData({a, b})["comparisons"][0]["steps_not_finite"], 2);
  EXPECT_THAT(PageOf({a, b}), HasSubstr("; at 2 of these, one loss is not finite."));
  EXPECT_THAT(PageOf({a, b}), HasSubstr(">The loss of 2 steps is not finite.</text>"));
}

TEST(CompareLosses, WhenALossIsReached) {
  const JobData a = Job("a", 50, 1);
  JobData b = Job("b", 100, 1);
  for (v1::StepRecord& step : b.steps) step.set_loss(2 * step.loss());  // half as fast
  const LossComparison compared = CompareLosses(a, b);
  ASSERT_TRUE(compared.base_reaches.has_value());
  ASSERT_TRUE(compared.other_reaches.has_value());
  EXPECT_NEAR(static_cast<double>(compared.other_reaches->step), 100, 4);
  EXPECT_NEAR(compared.other_reaches->seconds,
              0.1 * static_cast<double>(compared.other_reaches->step), 1e-9);
  EXPECT_NEAR(compared.base_reaches->seconds, 5, 1e-9);
  EXPECT_FALSE(CompareLosses(b, JobData()).other_reaches.has_value());
}

TEST(Faults, CauseAndRecovery) {
  JobData job = Job("a", 30, 2);
  for (int i = 20; i < 30; ++i) job.steps[i].set_attempt(2);
  for (int i = 21; i <= 25; ++i) job.lost_steps.push_back(Step(i, 1, 1, 0.1));
  job.events = {Event("running", 1, 100), Event("attempt_broken", 1, 200, "rank 1 was killed"),
                Event("restarting", 1, 201), Event("running", 2, 212)};
  const std::vector<Fault> faults = FaultsOf(job);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].cause, "rank 1 was killed");
  EXPECT_DOUBLE_EQ(*faults[0].training_again_seconds, 12);
  EXPECT_EQ(*faults[0].steps_lost, 5);
  const std::string page = PageOf({job});
  EXPECT_THAT(page, HasSubstr("rank 1 was killed"));
  EXPECT_THAT(page, HasSubstr(">restart</text>"));
}

TEST(Faults, OfOneThatNobodyMended) {
  JobData job = Job("a", 10, 1);
  v1::LogLine* line = job.status.add_last_lines();
  line->set_rank(3);
  line->set_attempt(1);
  line->set_line("cannot <allocate>");
  job.events = {Event("attempt_broken", 1, 200, "out of memory")};
  const std::vector<Fault> faults = FaultsOf(job);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_FALSE(faults[0].training_again_seconds.has_value());
  EXPECT_FALSE(faults[0].steps_lost.has_value());
  EXPECT_THAT(PageOf({job}), HasSubstr("Last output of rank 3 of a, whose fault ended attempt 1"));
  EXPECT_THAT(PageOf({job}), HasSubstr("cannot &lt;allocate&gt;"));
}

TEST(Report, AJobWithoutAStep) {
  JobData job;
  job.status.set_id("job-1");
  job.status.set_state(v1::JOB_STATE_QUEUED);
  job.status.set_error("waits for 8 devices");
  *job.status.mutable_spec() = Spec();
  job.label = "job-1";
  const std::string page = PageOf({job});
  EXPECT_THAT(page, HasSubstr("is queued: waits for 8 devices; it has not completed a step"));
  EXPECT_THAT(page, HasSubstr("No steps yet."));
  EXPECT_THAT(page, Not(HasSubstr(">nan")));
  EXPECT_THAT(page, Not(HasSubstr("\"nan")));
}

TEST(Report, AJobThatNeverHadALoss) {
  JobData job = Job("a", 3, 1);
  for (v1::StepRecord& step : job.steps) {
    step.set_loss(std::numeric_limits<double>::quiet_NaN());
  }
  EXPECT_THAT(PageOf({job}), HasSubstr(". Loss not known, 320 tokens/s"));
}

TEST(Report, NothingIsSaidTwice) {
  JobData job = Job("a", 10, 1);
  job.label = "a (job-a)";
  job.status.set_state(v1::JOB_STATE_CANCELLED);
  job.status.set_error("cancelled");
  EXPECT_THAT(PageOf({job}), HasSubstr(">a (job-a) was cancelled at step 10 of 10 on 1 rank ("));
  EXPECT_THAT(PageOf({job}), HasSubstr("). Loss 0.5"));
  job.steps.clear();
  EXPECT_THAT(PageOf({job}), HasSubstr(">a (job-a) was cancelled; it has not completed a step."));
}

TEST(Report, ManyStepsAreSmoothed) {
  EXPECT_THAT(PageOf({Job("a", 400, 1)}), Not(HasSubstr("Bold: means over")));
  EXPECT_THAT(PageOf({Job("a", 1000, 1)}), HasSubstr("Bold: means over 11 steps."));
}

TEST(Numbers, TimeThatAJobWasStoppedIsNotHeldAgainstIt) {
  JobData job = Job("a", 10, 1);
  job.status.mutable_goodput()->set_total(1020);
  job.status.mutable_goodput()->set_stopped(1000);
  EXPECT_DOUBLE_EQ(*NumbersOf(job).goodput, 0.75);
  EXPECT_DOUBLE_EQ(*NumbersOf(job).total_seconds, 1020);
}

TEST(Report, SeveralJobsAreComparedWithTheFirst) {
  JobData b = Job("b", 100, 4);
  for (v1::StepRecord& step : b.steps) step.set_step_seconds(0.05);
  const std::string page = PageOf({Job("a", 100, 1), b});
  EXPECT_THAT(page,
              HasSubstr("b trains 2.00× as fast as a on 4 ranks instead of 1: 50.0 % efficiency"));
  EXPECT_THAT(page, HasSubstr("bit-identical in all 100 steps"));
  EXPECT_THAT(page, HasSubstr("scope=\"col\">key</th>"));
  const Json data = ReportData({Job("a", 100, 1), b});
  EXPECT_DOUBLE_EQ(data["comparisons"][0]["speed_up"], 2);
  EXPECT_DOUBLE_EQ(data["comparisons"][0]["efficiency"], 0.5);
}

// The name of a job, a node or a fault cannot inject anything into the page.
TEST(Report, HostileNames) {
  const std::string bad = "</script><script>alert(1)</script>\"'&\x01\xff<!--";
  JobData job = Job("a", 10, 1);
  job.label = bad;
  job.status.set_name(bad);
  job.status.set_error(bad);
  job.status.mutable_plan()->mutable_ranks(0)->set_node(bad);
  job.status.mutable_spec()->set_name("</pre><script>alert(2)</script>");
  job.events = {Event("attempt_broken", 1, 5, bad)};
  v1::CheckpointInfo checkpoint;
  checkpoint.set_path(bad);
  job.checkpoints = {checkpoint};
  job.version = bad;
  for (const std::vector<JobData>& jobs : {std::vector<JobData>{job}, {job, job}}) {
    const std::string page = PageOf(jobs);
    EXPECT_THAT(page, Not(HasSubstr("<script>")));
    EXPECT_THAT(page, Not(HasSubstr("<!--")));
    size_t scripts = 0;
    for (size_t at = page.find("<script"); at != std::string::npos;
         at = page.find("<script", at + 1))
      ++scripts;
    EXPECT_EQ(scripts, 1u);  // the data, which does not run
    const size_t begin = page.find('>', page.find("<script type=\"application/json\"")) + 1;
    const Json data = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
    EXPECT_THAT(data["jobs"][0]["name"].get<std::string>(), HasSubstr("</script><script>alert(1)"));
    EXPECT_EQ(page.find('\x01'), std::string::npos);
  }
  EXPECT_THAT(DiffToJson(job, job).dump(2, ' ', false, Json::error_handler_t::replace),
              HasSubstr("alert"));
}

TEST(Report, AHundredThousandStepsAndAThousandRanks) {
  JobData job = Job("large", 150'000, 1024);
  for (int i = 0; i < 1024; ++i) {
    job.status.mutable_ranks(i)->set_pipeline(i / 128);
    job.status.mutable_ranks(i)->set_data(i % 128);
  }
  for (size_t i = 0; i < job.steps.size(); ++i)
    job.steps[i].set_grad_norm(static_cast<double>(i * 7919 % 1000));
  for (int i = 0; i < 500; ++i)
    job.events.push_back(Event("attempt_broken", i + 1, 100 + i, "cause"));
  const std::string page = PageOf({job, job});
  EXPECT_LT(page.size(), 2'000'000u);
  EXPECT_THAT(page, HasSubstr("stage 7 (128 ranks)"));
  EXPECT_THAT(page, HasSubstr("The last 50 of 1,000."));
}

TEST(Report, NeedsNothingFromOutside) {
  const std::string page = PageOf({Job("a", 10, 1)});
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
}

TEST(Configuration, KeysAndDifferences) {
  const std::vector<Difference> differences = DifferencesOf(
      {ConfigurationOf(Spec()), ConfigurationOf(Spec({"training.steps=7", "tensorboard=events"}))});
  ASSERT_EQ(differences.size(), 3u);
  EXPECT_EQ(differences[0].key, "training.steps");
  EXPECT_EQ(differences[0].values, (std::vector<std::string>{"100", "7"}));
  EXPECT_EQ(differences[1].key, "training.schedule.decay_steps");
  EXPECT_EQ(differences[2].values, (std::vector<std::string>{"", "/where/events"}));
  EXPECT_TRUE(DifferencesOf({ConfigurationOf(Spec()), ConfigurationOf(Spec())}).empty());
}

TEST(Diff, RatiosAndBits) {
  JobData b = Job("b", 100, 4);
  for (v1::StepRecord& step : b.steps) step.set_step_seconds(0.2);
  const Json json = DiffToJson(Job("a", 100, 2), b);
  EXPECT_NEAR(json["results"]["step_seconds"]["ratio"].get<double>(), 2, 1e-9);
  EXPECT_TRUE(json["results"]["mfu"]["ratio"].is_null());
  EXPECT_EQ(json["plan"]["ranks"]["a"], "2");
  EXPECT_EQ(json["configuration"]["name"]["b"], "b");
  EXPECT_EQ(json["comparison"]["steps_with_equal_losses"], 100);
  EXPECT_TRUE(json["results"]["steps"]["a"].is_number_integer());
}

TEST(Curves, UnknownOnesAreNamed) {
  CurveOptions options;
  options.metrics = {"lost"};
  EXPECT_THAT(std::string(CurvesOf({}, options).status().message()),
              HasSubstr("--metric lost: unknown metric; use one of loss"));
  options.metrics = {"loss"};
  options.x = "day";
  EXPECT_FALSE(CurvesOf({}, options).ok());
}

TEST(Curves, ScoresAreThoseOfEvaluations) {
  JobData job = Job("a", 10, 1);
  job.steps[4].set_validation_f1(0.5);
  job.steps[9].set_validation_f1(0.75);
  CurveOptions options;
  options.metrics = {"validation_f1"};
  const auto figure = CurvesOf({job}, options);
  ASSERT_TRUE(figure.ok());
  EXPECT_EQ(figure->panels[0].series[0].x, (std::vector<double>{5, 10}));
  EXPECT_EQ(figure->panels[0].series[0].y, (std::vector<double>{0.5, 0.75}));
}

TEST(Report, ClassesOfTheTestData) {
  JobData job = Job("a", 10, 1);
  EXPECT_THAT(PageOf({job}), Not(HasSubstr("Classification")));
  job.status.set_best_step(5);
  v1::ModelSpec& model = *job.status.mutable_spec()->mutable_model();
  model.add_label_names("ham");
  model.add_label_names("<b>spam");
  job.steps[9].set_validation_accuracy(0.5);
  v1::Evaluation& test = *job.status.mutable_test();
  test.set_step(5);
  test.set_loss(0.25);
  *test.mutable_confusion() = plan::EmptyConfusion(2);
  for (int i = 0; i < 3; ++i) plan::Count(0, 0, test.mutable_confusion());
  plan::Count(1, 0, test.mutable_confusion());
  const std::string page = PageOf({job});
  EXPECT_THAT(page, HasSubstr("a: test data, with the weights of step 5, the best one. Accuracy "
                              "0.7500 over 4 examples."));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;spam"));
  EXPECT_THAT(page, Not(HasSubstr("<b>spam")));
  EXPECT_THAT(page, HasSubstr("test accuracy"));
  EXPECT_EQ(NumbersToJson(NumbersOf(job))["test_accuracy"], 0.75);
  // Many classes are not drawn, a table that is none is not believed.
  *test.mutable_confusion() = plan::EmptyConfusion(30);
  EXPECT_THAT(PageOf({job}), HasSubstr("The confusion of 30 classes is in"));
  test.mutable_confusion()->add_counts(1);
  EXPECT_THAT(PageOf({job}), Not(HasSubstr("Classification")));
}

TEST(Curves, ByTokensAndTimeWithValidation) {
  JobData job = Job("a", 10, 1);
  job.steps[4].set_validation_loss(1.5);
  job.steps[9].set_validation_loss(1.25);
  CurveOptions options;
  options.x = "tokens";
  options.smooth = 3;
  auto figure = CurvesOf({job}, options);
  ASSERT_TRUE(figure.ok());
  ASSERT_EQ(figure->panels.size(), 2u);
  ASSERT_EQ(figure->panels[0].series.size(), 3u);  // faint, smooth, validation
  EXPECT_EQ(figure->panels[0].series[2].y, (std::vector<double>{1.5, 1.25}));
  EXPECT_EQ(figure->panels[0].series[0].x[9], 320);
  options.x = "time";
  figure = CurvesOf({job}, options);
  EXPECT_NEAR(figure->panels[1].series[0].x[9], 1.0, 1e-9);
  EXPECT_NEAR(figure->panels[1].series[0].y[0], 320, 1e-9);
}

TEST(Texts, AsPeopleReadThem) {
  EXPECT_EQ(CountText(1234567), "1,234,567");
  EXPECT_EQ(CountText(-1234), "-1,234");
  EXPECT_EQ(CountText(12), "12");
  EXPECT_EQ(SecondsText(0.0123), "12.3 ms");
  EXPECT_EQ(SecondsText(7500), "2 h 5 min");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(RatioText(3, 2), "1.50×");
  EXPECT_EQ(RatioText(3, 0), "");
  EXPECT_EQ(TimeText(0), "not known");
  EXPECT_EQ(TimeText(1e9), "2001-09-09 01:46:40 UTC");
}

TEST(Labels, TellJobsApart) {
  std::vector<JobData> jobs = {Job("a", 1, 1), Job("a", 1, 1), Job("b", 1, 1)};
  jobs[1].status.set_id("job-2");
  LabelJobs(&jobs);
  EXPECT_EQ(jobs[0].label, "a (job-a)");
  EXPECT_EQ(jobs[1].label, "a (job-2)");
  EXPECT_EQ(jobs[2].label, "b");
  // Long names with the same beginning.
  jobs = {Job("a", 1, 1), Job("b", 1, 1)};
  jobs[0].status.set_name(std::string(200, 'n') + "1");
  jobs[1].status.set_name(std::string(200, 'n') + "2");
  LabelJobs(&jobs);
  EXPECT_LT(jobs[0].label.size(), 70u);
  EXPECT_NE(jobs[0].label, jobs[1].label);
}

}  // namespace
}  // namespace tercio::report

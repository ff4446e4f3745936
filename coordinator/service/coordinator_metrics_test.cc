// The pages of a real coordinator, to whom nodes and ranks say what they would.
#include "coordinator/service/coordinator_metrics.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/metrics/metric_table.h"
#include "common/temp_dir.h"
#include "coordinator/core/testing/test_job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/quality.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CoordinatorMetricsTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(); }
  void Start() {
    options_.state_dir = directory_.path();
    auto store = Store::Open(directory_.path() + "/state.sqlite", OpenFor::kWriting);
    ASSERT_TRUE(store.ok()) << store.status();
    Settings settings = PlanningSettings();
    settings.make_plan = [make = settings.make_plan](const v1::JobSpec& spec,
                                                     const std::vector<plan::DeviceSlot>& slots,
                                                     const RankShare& share) {
      absl::StatusOr<v1::Plan> plan = make(spec, slots, share);
      if (plan.ok()) plan->mutable_predicted()->set_step_seconds(0.5);
      return plan;
    };
    auto made = Coordinator::Create(
        std::move(settings), *std::move(store), &checkpoints_, OpenFor::kWriting,
        LeaseClock([this] { return wall_ + now_; }, [this] { return now_.load(); }));
    ASSERT_TRUE(made.ok()) << made.status();
    coordinator_ = *std::move(made);
    streams_ =
        std::make_unique<StreamHub>(StreamLimits{}, [this] { return coordinator_->version(); });
  }

  std::string Page() const {
    return CoordinatorPage(*coordinator_, *streams_, calls_, options_, MetricsServer::Figures());
  }

  void Submit(const std::string& id, const std::string& name) {
    v1::JobSpec spec = SmallSpec(2);
    spec.set_name(name);
    spec.mutable_training()->mutable_evaluate()->set_keep_best(v1::QUALITY_METRIC_LOSS);
    ASSERT_TRUE(coordinator_->Ask(Submitted{id, spec}).ok());
  }
  void Attach(const std::string& node, const std::string& metrics_address) {
    v1::AgentHello hello;
    hello.set_node(node);
    hello.set_devices(2);
    hello.set_cores(2);
    hello.set_device_kind(v1::DEVICE_KIND_CPU);
    hello.set_data_address("10.0.0.7");
    hello.set_metrics_address(metrics_address);
    ASSERT_TRUE(coordinator_->Attach(hello, {[](v1::CoordinatorMessage) {}, [] {}}).ok());
  }
  // Waits until it is decided upon and durable.
  template <typename Fill>
  void Say(const std::string& node, const Fill& fill) {
    v1::AgentMessage message;
    fill(message);
    ASSERT_TRUE(coordinator_->Ask(NodeSaid{node, message}).ok());
  }

  // Step 8 of that job is evaluated, and its checkpoint is the best; so is the test data.
  void EvaluateClasses() {
    v1::Evaluation evaluation;
    evaluation.set_step(8);
    evaluation.set_loss(0.5);
    *evaluation.mutable_confusion() = plan::EmptyConfusion(2);
    plan::Count(0, 0, evaluation.mutable_confusion());
    plan::Count(0, 1, evaluation.mutable_confusion());
    plan::Count(1, 1, evaluation.mutable_confusion());
    plan::Count(1, 1, evaluation.mutable_confusion());
    v1::StepRecord step;
    step.set_step(8);
    step.set_attempt(1);
    step.set_validation_loss(0.5);
    step.set_loss_scale(1024);
    Say("a", [&](v1::AgentMessage& m) {
      *m.mutable_step_report()->mutable_run() = RunWith(1);
      *m.mutable_step_report()->mutable_record() = step;
      *m.mutable_step_report()->mutable_validation() = evaluation;
    });
    ASSERT_TRUE(coordinator_->Ask(StepsDone{RunWith(1), {step}}).ok());
    ASSERT_TRUE(coordinator_->Ask(CheckpointCommitted{RunWith(1), 8, "path", 4096, 0.25}).ok());
    Say("a", [&](v1::AgentMessage& m) {
      *m.mutable_test_evaluated()->mutable_run() = RunWith(1);
      *m.mutable_test_evaluated()->mutable_evaluation() = evaluation;
    });
  }

  // A job that runs on node a, with a step, a checkpoint, and one that failed.
  void Train() {
    Submit(kJob, "shakespeare");
    Attach("a", "127.0.0.1:9465");
    while (coordinator_->View(kJob)->record.attempt() == 0) coordinator_->Ask(Tick{}).IgnoreError();
    coordinator_->Ask(CheckpointFound{RunWith(1), 0, "", 0, {}}).IgnoreError();
    Say("a", [](v1::AgentMessage& m) {
      *m.mutable_data_prepared()->mutable_run() = RunWith(1);
      m.mutable_data_prepared()->set_vocab_size(20);
      m.mutable_data_prepared()->set_train_samples(100);
      m.mutable_data_prepared()->set_digest("d");
    });
    for (const int rank : {0, 1}) {
      Say("a", [rank](v1::AgentMessage& m) {
        *m.mutable_rank_phase()->mutable_run() = RunWith(1);
        m.mutable_rank_phase()->set_rank(rank);
        m.mutable_rank_phase()->set_phase(v1::TRAINER_PHASE_RUNNING);
      });
    }
    Say("a", [](v1::AgentMessage& m) {
      v1::StepReport* report = m.mutable_step_report();
      *report->mutable_run() = RunWith(1);
      report->set_tokens_per_second(640);
      report->set_mfu(0.5);
      v1::StepRecord* step = report->mutable_record();
      step->set_attempt(1);
      step->set_step(7);
      step->set_loss(2.5);
      step->set_validation_loss(2.75);
      step->mutable_figures()->set_margin(1.25);
      step->mutable_figures()->set_accuracy(0.75);
      step->set_loss_scale(1024);
      step->set_learning_rate(0.001);
      step->set_grad_norm(1.5);
      step->set_step_seconds(0.2);
      step->set_tokens(448);
    });
    coordinator_->Ask(CheckpointCommitted{RunWith(1), 5, "path", 4096, 0.25}).IgnoreError();
    coordinator_->Ask(CheckpointFailed{RunWith(1), 6, "full", SaveFailure::kDiskFull})
        .IgnoreError();
    ASSERT_EQ(coordinator_->View(kJob)->record.step(), 7);
  }

  TempDir directory_;
  checkpoint::Store checkpoints_{directory_.path() + "/checkpoints"};
  std::atomic<double> now_{0};      // time of the monotonic clock
  std::atomic<double> wall_{1000};  // before it
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<StreamHub> streams_;
  RpcMetrics calls_{{"tercio.v1.JobService"}};
  CoordinatorMetricsOptions options_;
};

TEST_F(CoordinatorMetricsTest, RefusalsAndLostAuditLines) {
  EXPECT_THAT(Page(), HasSubstr("\ntercio_access_refused_total{reason=\"revoked\"} 0\n"));
  AuditLog audit("/dev/full", AuditLog::Options());
  options_.audit = &audit;
  EXPECT_THAT(Page(), HasSubstr("\ntercio_audit_lines_lost_total 0\n"));
  audit.Write({});
  audit.Count(Refusal::kRevoked);
  audit.Count(Refusal::kRevoked);
  const std::string page = Page();
  EXPECT_THAT(page, HasSubstr("\ntercio_audit_lines_lost_total 1\n"));
  EXPECT_THAT(page, HasSubstr("\ntercio_access_refused_total{reason=\"revoked\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("\ntercio_access_refused_total{reason=\"handshake\"} 0\n"));
}

TEST_F(CoordinatorMetricsTest, ShowsAJob) {
  Train();
  const std::string page = Page();
  const std::string job = "job_id=\"job-1\",job_name=\"shakespeare\"";
  for (const char* line : {"tercio_job_step 7",
                           "tercio_job_target_steps 100",
                           "tercio_job_tokens 448",
                           "tercio_job_tokens_per_second 640",
                           "tercio_job_mfu_ratio 0.5",
                           "tercio_job_loss 2.5",
                           "tercio_job_validation_loss 2.75",
                           "tercio_job_reward_margin 1.25",
                           "tercio_job_reward_accuracy_ratio 0.75",
                           "tercio_job_learning_rate 0.001",
                           "tercio_job_gradient_norm 1.5",
                           "tercio_job_loss_scale 1024",
                           "tercio_job_step_duration_seconds_count 1",
                           "tercio_job_skipped_steps_total 0",
                           "tercio_job_predicted_step_seconds 0.5",
                           "tercio_job_attempt 1",
                           "tercio_job_restarts_left 10",
                           "tercio_checkpoint_step 5",
                           "tercio_checkpoint_bytes 4096",
                           "tercio_checkpoint_last_success_timestamp_seconds 1000",
                           "tercio_checkpoint_duration_seconds_count 1"}) {
    const std::string text = line;
    const size_t space = text.find(' ');
    EXPECT_THAT(page,
                HasSubstr(text.substr(0, space) + "{" + job + "}" + text.substr(space) + "\n"));
  }
  EXPECT_THAT(page, HasSubstr("tercio_job_state{" + job + ",state=\"running\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("tercio_job_state{" + job + ",state=\"failed\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("tercio_jobs{state=\"running\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("tercio_job_ranks{" + job + ",kind=\"present\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("failures_total{" + job + ",reason=\"disk_full\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("restarts_total{cause=\"hang\"," + job + "} 0\n"));
  EXPECT_THAT(page, HasSubstr("tercio_agent_connected{node=\"a\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("heartbeat_timestamp_seconds{node=\"a\"} 1000\n"));
  EXPECT_THAT(page, HasSubstr("tercio_node_state{node=\"a\",state=\"ready\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("tercio_events_total{kind=\"checkpoint_committed\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("tercio_events_total{kind=\"hang\"} 0\n"));
}

TEST_F(CoordinatorMetricsTest, ScoresOfAClassifier) {
  Train();
  EXPECT_THAT(Page(), Not(HasSubstr("\ntercio_job_validation_score{")));
  EXPECT_THAT(Page(), Not(HasSubstr("\ntercio_job_test_loss{")));
  EvaluateClasses();
  const std::string page = Page();
  const std::string job = "job_id=\"job-1\",job_name=\"shakespeare\"";
  for (const char* part : {"validation", "test"}) {
    const std::string metric = absl::StrCat("tercio_job_", part, "_score{", job, ",metric=\"");
    EXPECT_THAT(page, HasSubstr(metric + "accuracy\"} 0.75\n"));
    EXPECT_THAT(page, HasSubstr(metric + "recall\"} 1\n"));
    EXPECT_THAT(page, HasSubstr(metric + "f1\"} 0.8\n"));
  }
  EXPECT_THAT(page, HasSubstr("tercio_job_test_loss{" + job + "} 0.5\n"));
  EXPECT_THAT(page, HasSubstr("tercio_job_best_step{" + job + "} 8\n"));
}

TEST_F(CoordinatorMetricsTest, StepsOfEpochsAreNoneUntilTheyAreKnown) {
  v1::JobSpec spec = SmallSpec(2);
  spec.mutable_training()->set_steps(0);
  spec.mutable_training()->set_epochs(3);
  ASSERT_TRUE(coordinator_->Ask(Submitted{kJob, spec}).ok());
  EXPECT_THAT(Page(), Not(HasSubstr("\ntercio_job_target_steps{")));
}

// Whoever asks for time() - metric wants the age.
TEST_F(CoordinatorMetricsTest, AgesAreRightWhenTheWallClockIsSet) {
  Train();
  wall_ = 5000;
  now_ = 7;
  const std::string page = Page();
  for (const char* metric :
       {"tercio_job_submitted_timestamp_seconds", "tercio_job_last_progress_timestamp_seconds",
        "tercio_checkpoint_last_success_timestamp_seconds"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat(
                          metric, "{job_id=\"job-1\",job_name=\"shakespeare\"} 5000\n")));
  }
  EXPECT_THAT(page, HasSubstr("heartbeat_timestamp_seconds{node=\"a\"} 5000\n"));
}

// An evaluation, or a first step, takes its time without being a standstill.
TEST_F(CoordinatorMetricsTest, ProgressIsWhatRanksSayOfTheirActions) {
  Train();
  const std::string line =
      "tercio_job_last_progress_timestamp_seconds{job_id=\"job-1\",job_name=\"shakespeare\"} ";
  const auto beat = [&](double stalled) {
    Say("a", [&](v1::AgentMessage& m) {
      v1::RunHealth* health = m.mutable_heartbeat()->add_health();
      *health->mutable_run() = RunWith(1);
      health->set_stalled_seconds(stalled);
    });
  };
  now_ = 6;
  beat(2);
  EXPECT_THAT(Page(), HasSubstr(line + "1004\n"));
  now_ = 12;
  beat(8);
  EXPECT_THAT(Page(), HasSubstr(line + "1004\n"));
}

TEST_F(CoordinatorMetricsTest, NobodyWaitsForTheStragglersOfAnAttemptThatHasEnded) {
  Train();
  const std::string line = "tercio_job_stragglers{job_id=\"job-1\",job_name=\"shakespeare\"} ";
  // A rank that computes longer than its own past and the other rank, for some windows.
  for (int window = 0; window < 12; ++window) {
    Say("a", [&](v1::AgentMessage& m) {
      v1::RunHealth* health = m.mutable_heartbeat()->add_health();
      *health->mutable_run() = RunWith(1);
      for (const int rank : {0, 1}) {
        v1::RankTiming* timing = health->add_timings();
        timing->set_rank(rank);
        timing->set_step(8 + 20 * window);
        timing->set_compute_seconds(rank == 1 && window >= 5 ? 3 : 1);
      }
    });
  }
  EXPECT_THAT(Page(), HasSubstr(line + "1\n"));
  Say("a", [](v1::AgentMessage& m) {
    *m.mutable_rank_exited()->mutable_run() = RunWith(1);
    m.mutable_rank_exited()->mutable_exit()->set_signal(9);
  });
  EXPECT_THAT(Page(), HasSubstr(line + "0\n"));
}

// An operator who switches off what was drained wants no alert.
TEST_F(CoordinatorMetricsTest, WhoWasSentAwayIsNotLost) {
  for (const char* node : {"a", "b", "c"}) Attach(node, absl::StrCat("10.0.0.7:", node));
  ASSERT_TRUE(coordinator_->Ask(NodeChangeRequested{"a", NodeChange::kDrain}).ok());
  Say("b", [](v1::AgentMessage& m) { m.mutable_leaving()->set_grace_seconds(1); });
  now_ = 100;
  ASSERT_TRUE(coordinator_->Ask(Tick{}).ok());
  const std::string page = Page();
  EXPECT_THAT(page, HasSubstr("tercio_node_state{node=\"a\",state=\"drained\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("tercio_node_state{node=\"b\",state=\"left\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("tercio_node_state{node=\"c\",state=\"lost\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("tercio_nodes_by_state{state=\"lost\"} 1\n"));
  const std::string targets = TargetsPage(*coordinator_, absl::ZeroDuration()).value();
  EXPECT_THAT(targets, HasSubstr("\"10.0.0.7:c\""));
  EXPECT_THAT(targets, Not(HasSubstr("\"10.0.0.7:a\"")));
  EXPECT_THAT(targets, Not(HasSubstr("\"10.0.0.7:b\"")));
  // A coordinator that is restarted knows it still.
  streams_.reset();
  coordinator_.reset();
  Start();
  now_ = 200;
  ASSERT_TRUE(coordinator_->Ask(Tick{}).ok());
  EXPECT_THAT(Page(), HasSubstr("tercio_node_state{node=\"b\",state=\"left\"} 1\n"));
}

// What is in the table is exported by somebody: here, or by the agent.
TEST_F(CoordinatorMetricsTest, EveryMetricOfTheTableIsOnThePage) {
  options_.certificate = "common/metrics/testdata/certificate.pem";
  Train();
  EvaluateClasses();
  const std::string page = Page();
  for (const MetricSpec& spec : metric_table::kAll) {
    const std::string type = "# TYPE " + std::string(spec.name) + " ";
    if (spec.exporter != MetricExporter::kBoth && spec.exporter != MetricExporter::kCoordinator) {
      EXPECT_THAT(page, Not(HasSubstr(type)));
    } else {
      EXPECT_THAT(page, HasSubstr(type));
    }
  }
}

TEST_F(CoordinatorMetricsTest, AJobThatHasEndedVanishesAfterAWhile) {
  options_.linger_seconds = 60;
  Submit("job-9", "short");
  ASSERT_TRUE(coordinator_->Ask(CancelRequested{"job-9", false, "enough"}).ok());
  now_ = 59;
  EXPECT_THAT(Page(), HasSubstr("tercio_job_state{job_id=\"job-9\",job_name=\"short\","
                                "state=\"cancelled\"} 1\n"));
  now_ = 61;
  EXPECT_THAT(Page(), Not(HasSubstr("job-9")));
  EXPECT_THAT(Page(), HasSubstr("tercio_jobs{state=\"cancelled\"} 1\n"));
}

// What is of the store is there again; what was only counted begins at 0, which rates allow for,
// and its series are there at once.
TEST_F(CoordinatorMetricsTest, ARestartKeepsGaugesAndBeginsCountersAtZero) {
  Train();
  const std::string job = "{job_id=\"job-1\",job_name=\"shakespeare\"";
  const auto has = [&](const std::string& page, const std::string& name, const std::string& rest) {
    EXPECT_THAT(page, HasSubstr("\n" + name + job + rest + "\n"));
  };
  const auto check = [&](const std::string& counted) {
    const std::string page = Page();
    has(page, "tercio_job_step", "} 7");
    has(page, "tercio_job_loss", "} 2.5");
    has(page, "tercio_job_attempt", "} 1");
    has(page, "tercio_job_restarts_left", "} 10");
    has(page, "tercio_job_submitted_timestamp_seconds", "} 1000");
    has(page, "tercio_checkpoint_step", "} 5");
    has(page, "tercio_checkpoint_bytes", "} 4096");
    has(page, "tercio_checkpoint_last_success_timestamp_seconds", "} 1000");
    has(page, "tercio_checkpoint_failures_total", ",reason=\"disk_full\"} " + counted);
    has(page, "tercio_job_step_duration_seconds_count", "} " + counted);
    has(page, "tercio_checkpoint_duration_seconds_count", "} " + counted);
    EXPECT_THAT(page, HasSubstr("tercio_events_total{kind=\"checkpoint_committed\"} " + counted));
    EXPECT_THAT(page, HasSubstr("tercio_jobs{state=\"running\"} 1\n"));
  };
  check("1");
  streams_.reset();
  coordinator_.reset();
  now_ = 5;
  Start();
  check("0");
}

TEST_F(CoordinatorMetricsTest, OfManyJobsTheNewestHaveSeries) {
  for (int i = 0; i < 130; ++i) Submit(absl::StrCat("job-", 1000 + i), "many");
  const std::string page = Page();
  EXPECT_THAT(page, HasSubstr("tercio_jobs{state=\"queued\"} 130\n"));
  EXPECT_THAT(page, HasSubstr("tercio_jobs_waiting 130\n"));
  EXPECT_THAT(page, HasSubstr("tercio_jobs_not_shown 30\n"));
  EXPECT_THAT(page, HasSubstr("job-1129"));
  EXPECT_THAT(page, HasSubstr("job-1030"));
  EXPECT_THAT(page, Not(HasSubstr("job-1029")));
}

// 500 jobs and 1,000 nodes, all with long names.
TEST_F(CoordinatorMetricsTest, ThePageOfALargeClusterIsBounded) {
  const std::string name(60, 'x');
  for (int i = 0; i < 1000; ++i) Attach(absl::StrCat(name, i), "10.0.0.7:9465");
  for (int i = 0; i < 500; ++i) Submit(absl::StrCat("job-", 1000 + i), name);
  const auto began = std::chrono::steady_clock::now();
  const std::string page = Page();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("%zu lines, %zu bytes, made in %.3f s\n",
              static_cast<size_t>(std::count(page.begin(), page.end(), '\n')), page.size(),
              took.count());
  EXPECT_LT(page.size(), size_t{4} << 20);
}

TEST_F(CoordinatorMetricsTest, AJobThatRunsIsShownHoweverManyWait) {
  Train();
  for (int i = 0; i < 130; ++i) Submit(absl::StrCat("job-", 1000 + i), "many");
  Submit("job-9", "short");
  ASSERT_TRUE(coordinator_->Ask(CancelRequested{"job-9", false, "enough"}).ok());
  const std::string page = Page();
  EXPECT_THAT(page, HasSubstr("tercio_job_loss{job_id=\"job-1\""));
  EXPECT_THAT(page, Not(HasSubstr("\"job-9\""))) << "it has ended, and others wait";
  EXPECT_THAT(page, HasSubstr("tercio_jobs_not_shown 31\n"));
}

TEST_F(CoordinatorMetricsTest, NamesOfJobsMayBeAnything) {
  Submit("job-1", std::string("a\"b\\c\nd\xff") + std::string(10'000, 'x'));
  const std::string page = Page();
  EXPECT_THAT(page, HasSubstr("job_name=\"a\\\"b\\\\c?d?xxx"));
  EXPECT_THAT(page, Not(HasSubstr(std::string(kMostLabelBytes + 1, 'x'))));
}

TEST_F(CoordinatorMetricsTest, TellsPrometheusWhereAgentsAre) {
  EXPECT_EQ(TargetsPage(*coordinator_, absl::ZeroDuration()), "[]\n");
  Attach("a", "10.0.0.7:9465");
  Attach("b", "[fd00::7]:9465");
  coordinator_->Ask(Tick{}).IgnoreError();
  const std::string page = TargetsPage(*coordinator_, absl::ZeroDuration()).value();
  EXPECT_THAT(page, HasSubstr("\"node\": \"a\""));
  EXPECT_THAT(page, HasSubstr("\"node\": \"b\""));
  EXPECT_THAT(page, HasSubstr("\"10.0.0.7:9465\""));
  EXPECT_THAT(page, HasSubstr("\"[fd00::7]:9465\""));
}

TEST_F(CoordinatorMetricsTest, ARestartTellsNoListBeforeAgentsAreBack) {
  Attach("a", "10.0.0.7:9465");
  coordinator_->Ask(Tick{}).IgnoreError();
  streams_.reset();
  coordinator_.reset();
  Start();
  EXPECT_EQ(TargetsPage(*coordinator_, absl::Seconds(59)), std::nullopt);
  // It does not come.
  EXPECT_EQ(TargetsPage(*coordinator_, absl::Seconds(61)), "[]\n");
  Attach("a", "10.0.0.7:9466");
  coordinator_->Ask(Tick{}).IgnoreError();
  EXPECT_THAT(TargetsPage(*coordinator_, absl::Seconds(1)).value(), HasSubstr("10.0.0.7:9466"));
}

}  // namespace
}  // namespace tercio::coordinator

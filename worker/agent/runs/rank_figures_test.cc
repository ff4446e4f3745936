#include "worker/agent/runs/rank_figures.h"

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRank = 3;
constexpr char kLabels[] = "{job_id=\"j\",job_name=\"shakespeare\",rank=\"3\"}";

class RankFiguresTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto metrics = AgentMetrics::Serve("127.0.0.1:0");
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    metrics_ = *std::move(metrics);
    figures_ = std::make_unique<RankFigures>(*metrics_);
    v1::JobSpec* spec = run_.start.mutable_spec();
    spec->set_name("shakespeare");
    spec->mutable_training()->set_global_batch(4);
    spec->mutable_model()->set_context(8);
    run_.ranks[kRank].life = RankState::Life::kLive;
    run_.ranks[kRank].last_step = 5;
  }

  void TakeStep(int64_t step) {
    v1::TrainerMessage message;
    message.mutable_step()->mutable_newest()->set_step(step);
    EXPECT_EQ(figures_->Take(key_, run_, kRank, message, 0), 0);
    run_.ranks[kRank].last_step = step;
  }

  int64_t TakeLostLines(int64_t all) {
    v1::TrainerMessage message;
    message.mutable_memory()->set_log_lines_lost(all);
    return figures_->Take(key_, run_, kRank, message, 0);
  }

  void TakePhase(v1::TrainerPhase phase, double now) {
    v1::TrainerMessage message;
    message.mutable_phase()->set_phase(phase);
    EXPECT_EQ(figures_->Take(key_, run_, kRank, message, now), 0);
  }

  // A line of the page, with the rank's labels.
  void ExpectLine(const std::string& name, const std::string& value) {
    EXPECT_THAT(metrics_->Page(), HasSubstr("\n" + name + kLabels + " " + value + "\n"));
  }

  const RunKey key_{"j", 1};
  RunState run_;
  std::unique_ptr<AgentMetrics> metrics_;
  std::unique_ptr<RankFigures> figures_;
};

TEST_F(RankFiguresTest, CountsStepsAndTokensSinceTheLastReport) {
  TakeStep(7);
  ExpectLine("tercio_steps_total", "2");
  ExpectLine("tercio_tokens_total", "64");
  TakeStep(6);
  ExpectLine("tercio_steps_total", "2");
}

TEST_F(RankFiguresTest, StepsBeforeAnAdoptionAreNotCounted) {
  figures_->Adopt(key_, kRank);
  TakeStep(9);
  ExpectLine("tercio_steps_total", "0");
  TakeStep(10);
  ExpectLine("tercio_steps_total", "1");
}

TEST_F(RankFiguresTest, LostLinesAreReportedOnce) {
  EXPECT_EQ(TakeLostLines(5), 5);
  EXPECT_EQ(TakeLostLines(5), 0);
  EXPECT_EQ(TakeLostLines(7), 2);
  ExpectLine("tercio_log_lines_lost_total", "7");
}

TEST_F(RankFiguresTest, MeasuresHowLongARankLoads) {
  TakePhase(v1::TRAINER_PHASE_LOADING, 100);
  TakePhase(v1::TRAINER_PHASE_RUNNING, 102.5);
  EXPECT_THAT(metrics_->Page(),
              HasSubstr("tercio_load_seconds{job_id=\"j\",job_name=\"shakespeare\","
                        "rank=\"3\",source=\"disk\"} 2.5"));
}

TEST_F(RankFiguresTest, AMessageAfterTheEndIsIgnored) {
  run_.ranks[kRank].life = RankState::Life::kEnded;
  EXPECT_EQ(TakeLostLines(5), 0);
  EXPECT_THAT(metrics_->Page(), Not(HasSubstr("rank=\"3\"")));
}

TEST_F(RankFiguresTest, AHeartbeatHoldsTheFiguresOfRanksThatMadeAStep) {
  v1::RunHealth before;
  figures_->AddTo(key_, run_, {{kRank, 0.5}}, &before);
  EXPECT_EQ(before.figures_size(), 0);
  EXPECT_FALSE(figures_->Utilization(key_, kRank).has_value());
  run_.ranks[kRank].figures.set_step(6);
  v1::RunHealth first;
  figures_->AddTo(key_, run_, {{kRank, 0.5}}, &first);
  ASSERT_EQ(first.figures_size(), 1);
  EXPECT_EQ(first.figures(0).step(), 6);
  v1::RunHealth same;
  figures_->AddTo(key_, run_, {{kRank, 1.0}}, &same);
  EXPECT_EQ(same.figures_size(), 0);
  run_.ranks[kRank].figures.set_step(7);
  v1::RunHealth second;
  figures_->AddTo(key_, run_, {{kRank, 1.0}}, &second);
  ASSERT_EQ(second.figures_size(), 1);
  EXPECT_EQ(second.figures(0).device_utilization(), 0.75);
  EXPECT_EQ(figures_->Utilization(key_, kRank), 0.75);
  figures_->Forget(key_);
  EXPECT_FALSE(figures_->Utilization(key_, kRank).has_value());
}

}  // namespace
}  // namespace tercio::agent

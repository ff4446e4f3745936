#include "coordinator/core/stragglers.h"

#include <functional>
#include <iostream>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;

// tensor fastest, pipeline slowest, as ranks are numbered.
v1::Plan MakePlan(int per_stage, int stages) {
  v1::Plan plan;
  for (int r = 0; r < per_stage * stages; ++r) {
    v1::RankPlacement* placement = plan.add_ranks();
    placement->set_rank(r);
    placement->set_pipeline_index(r / per_stage);
    placement->set_node(r < per_stage * stages / 2 ? "a" : "b");
  }
  return plan;
}

class Job {
 public:
  using Compute = std::function<double(int rank, int window)>;
  Job(int per_stage, int stages, int steps = 5)
      : ranks_(per_stage * stages), steps_(steps), detector_(MakePlan(per_stage, stages)) {}

  // What is said in so many windows. Each node reports on its own.
  std::vector<StragglerChange> Run(int windows, const Compute& compute) {
    std::vector<StragglerChange> all;
    for (int w = 0; w < windows; ++w, ++window_) {
      for (const int node : {0, 1}) {
        std::vector<v1::RankTiming> timings;
        for (int r = node * ranks_ / 2; r < (node + 1) * ranks_ / 2; ++r) {
          v1::RankTiming& timing = timings.emplace_back();
          timing.set_rank(r);
          timing.set_step(steps_ * (window_ + 1));
          timing.set_compute_seconds(compute(r, window_));
        }
        for (StragglerChange& change : detector_.Add(timings)) all.push_back(std::move(change));
      }
    }
    return all;
  }
  const StragglerDetector& detector() const { return detector_; }

 private:
  int ranks_;
  int steps_;  // steps of a window
  int window_ = 0;
  StragglerDetector detector_;
};

TEST(StragglersTest, NamesOneSlowRankOfEightOnce) {
  Job job(8, 1);
  const auto compute = [](int rank, int) { return rank == 5 ? 1.5 : 1.0; };
  EXPECT_TRUE(job.Run(2, compute).empty());
  const auto changes = job.Run(8, compute);
  ASSERT_EQ(changes.size(), 1);
  EXPECT_EQ(changes[0].rank, 5);
  EXPECT_TRUE(changes[0].slow);
  EXPECT_NEAR(changes[0].score, 0.667, 0.001);
  EXPECT_THAT(changes[0].text,
              HasSubstr("rank 5 (node b) computes for 1.5 s per step, the median of its "
                        "stage is 1 s: score 0.67 in 3 windows"));
  EXPECT_NEAR(job.detector().scores().at(5), 0.667, 0.001);
  EXPECT_EQ(job.detector().scores().at(4), 1);
}

// Slow from window 10 on. How many reports it takes to name it.
int ReportsUntilNamed(int steps, bool second_half) {
  Job job(4, 1, steps);
  const auto compute = [&](int rank, int window) {
    return rank == 2 && window >= (second_half ? 11 : 10) ? 1.5 : 1.0;
  };
  EXPECT_TRUE(job.Run(10, compute).empty());
  for (int reports = 1; reports < 10; ++reports) {
    if (!job.Run(1, compute).empty()) return reports;
  }
  return 10;
}

TEST(StragglersTest, IsNamedWithinThreeReportsOfManySteps) {
  for (const int steps : {6, 12, 100, 10'000}) {
    EXPECT_EQ(ReportsUntilNamed(steps, false), 2) << steps;
    EXPECT_EQ(ReportsUntilNamed(steps, true), 3) << steps;  // the median of the first is a good one
  }
}

TEST(StragglersTest, IsNamedWithinTwentyStepsOfShortReports) {
  EXPECT_EQ(ReportsUntilNamed(1, false), 3);
  for (int steps = 1; steps <= 8; ++steps) {
    EXPECT_LE(steps * ReportsUntilNamed(steps, false), 20) << steps;
  }
}

TEST(StragglersTest, OneWindowOfManyStepsIsNotEnough) {
  Job job(4, 1, 1000);
  EXPECT_TRUE(
      job.Run(20, [](int rank, int window) { return rank == 1 && window % 2 == 0 ? 3.0 : 1.0; })
          .empty());
}

TEST(StragglersTest, SaysWhenItHasRecovered) {
  Job job(4, 2);
  EXPECT_EQ(job.Run(5, [](int rank, int) { return rank == 2 ? 2.0 : 1.0; }).size(), 1);
  EXPECT_TRUE(job.Run(2, [](int, int) { return 1.0; }).empty());
  // One bad window begins the count again.
  EXPECT_TRUE(job.Run(1, [](int rank, int) { return rank == 2 ? 2.0 : 1.0; }).empty());
  EXPECT_TRUE(job.Run(2, [](int, int) { return 1.0; }).empty());
  const auto changes = job.Run(3, [](int, int) { return 1.0; });
  ASSERT_EQ(changes.size(), 1);
  EXPECT_EQ(changes[0].rank, 2);
  EXPECT_FALSE(changes[0].slow);
  EXPECT_THAT(changes[0].text, HasSubstr("no longer a straggler"));
}

TEST(StragglersTest, UnequalStagesAreNoAlarm) {
  for (const int per_stage : {1, 2, 4}) {
    Job job(per_stage, 2);
    // The last stage has the head.
    const auto changes = job.Run(20, [&](int rank, int) { return rank < per_stage ? 1.0 : 2.5; });
    EXPECT_TRUE(changes.empty()) << per_stage << ": " << changes[0].text;
  }
}

TEST(StragglersTest, ASlowRankOfSmallStagesIsNamed) {
  for (const int per_stage : {1, 2, 4}) {
    for (int slow = 0; slow < 2 * per_stage; ++slow) {
      Job job(per_stage, 2);
      const auto usual = [&](int rank, int) { return rank < per_stage ? 1.0 : 2.5; };
      EXPECT_TRUE(job.Run(6, usual).empty());
      const auto changes = job.Run(4, [&](int rank, int window) {
        return usual(rank, window) * (rank == slow ? 1.6 : 1.0);
      });
      ASSERT_EQ(changes.size(), 1) << per_stage << " " << slow;
      EXPECT_EQ(changes[0].rank, slow);
    }
  }
}

TEST(StragglersTest, AStageOfTwoThatIsSlowFromTheStart) {
  Job job(2, 2);
  const auto changes = job.Run(4, [](int rank, int) { return rank == 3 ? 1.6 : 1.0; });
  ASSERT_EQ(changes.size(), 1);
  EXPECT_EQ(changes[0].rank, 3);
}

TEST(StragglersTest, ALaterPhaseOfTheWholeJobIsNoAlarm) {
  for (const int per_stage : {1, 2, 4}) {
    Job job(per_stage, 4);
    const auto changes =
        job.Run(30, [](int, int window) { return window < 10 ? 1.0 : 2.0; });  // longer sequences
    EXPECT_TRUE(changes.empty()) << per_stage << ": " << changes[0].text;
  }
}

TEST(StragglersTest, NoiseIsNoAlarm) {
  const unsigned seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  std::lognormal_distribution<double> noise(0, 0.05);
  std::uniform_real_distribution<double> chance(0, 1);
  for (const int per_stage : {1, 2, 4, 8}) {
    Job job(per_stage, 2);
    // A hiccup of one rank now and then, but not in three windows in a row, is not persistent.
    const auto changes = job.Run(300, [&](int rank, int window) {
      const bool hiccup = window % 3 != rank % 3 && chance(random) < 0.05;
      return (rank < per_stage ? 1.0 : 1.7) * noise(random) * (hiccup ? 3 : 1);
    });
    EXPECT_TRUE(changes.empty()) << per_stage << ": " << changes[0].text;
  }
}

TEST(StragglersTest, WaitsUntilEveryRankHasReported) {
  StragglerDetector detector(MakePlan(4, 1));
  std::vector<v1::RankTiming> timings(1);
  timings[0].set_rank(3);
  timings[0].set_compute_seconds(9);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(detector.Add(timings).empty());
  EXPECT_TRUE(detector.scores().empty());
  timings[0].set_rank(77);  // a rank of another plan
  EXPECT_TRUE(detector.Add(timings).empty());
}

}  // namespace
}  // namespace tercio::coordinator

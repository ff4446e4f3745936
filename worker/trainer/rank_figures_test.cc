#include "worker/trainer/rank_figures.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace tercio::trainer {
namespace {

int64_t fake_now = 0;

TEST(FiguresKeeperTest, SaysNothingBeforeTheFirstStepHasEnded) {
  progress::PhaseClock phases([] { return fake_now; });
  FiguresKeeper keeper(3, phases);
  EXPECT_FALSE(keeper.Now().has_value());
  keeper.Start();
  EXPECT_FALSE(keeper.Now().has_value());
  keeper.StepEnded(11, 0.25);
  ASSERT_TRUE(keeper.Now().has_value());
  EXPECT_EQ(keeper.Now()->rank(), 3);
  EXPECT_EQ(keeper.Now()->step(), 11);
  EXPECT_EQ(keeper.Now()->steps(), 1);
  EXPECT_EQ(keeper.Now()->step_seconds(), 0.25);
}

TEST(FiguresKeeperTest, PhasesSumToTheElapsedTime) {
  progress::PhaseClock phases([] { return fake_now; });
  FiguresKeeper keeper(0, phases);
  keeper.Start();
  for (const progress::Phase phase :
       {progress::Phase::kData, progress::Phase::kForward, progress::Phase::kBackward,
        progress::Phase::kOptimizer, progress::Phase::kEvaluation, progress::Phase::kCheckpoint}) {
    phases.Enter(phase);
    fake_now += 1'000'000 * (1 + static_cast<int64_t>(phase));
  }
  phases.Waited(0.001);
  keeper.StepEnded(1, 0.1);
  const v1::RankFigures figures = *keeper.Now();
  const v1::PhaseSeconds& parts = figures.phases();
  EXPECT_DOUBLE_EQ(parts.forward(), 0.002);
  EXPECT_DOUBLE_EQ(parts.backward(), 0.003);
  EXPECT_DOUBLE_EQ(parts.wait(), 0.001);
  EXPECT_DOUBLE_EQ(parts.optimizer(), 0.005);
  EXPECT_DOUBLE_EQ(parts.data(), 0.006);
  EXPECT_DOUBLE_EQ(parts.checkpoint(), 0.006);
  EXPECT_DOUBLE_EQ(parts.evaluation(), 0.008);
  EXPECT_DOUBLE_EQ(parts.other(), 0);
  EXPECT_NEAR(figures.elapsed_seconds(), 0.031, 1e-12);
}

TEST(FiguresKeeperTest, KnowsTheProcess) {
  EXPECT_GT(ResidentBytes(), 1 << 20);
  progress::PhaseClock phases;
  FiguresKeeper keeper(0, phases);
  keeper.Start();
  const double before = ProcessorSeconds();
  while (ProcessorSeconds() - before < 0.02) {
  }
  keeper.StepEnded(1, 0.02);
  EXPECT_GE(keeper.Now()->cpu_seconds(), 0.02);
  EXPECT_GT(keeper.Now()->resident_bytes(), 1 << 20);
}

TEST(FiguresKeeperTest, KnowsWhatWasWrittenToDisks) {
  const int64_t before = BytesOfDisks().written;
  std::ofstream(::testing::TempDir() + "/written") << std::string(1 << 20, 'x') << std::flush;
  EXPECT_GE(BytesOfDisks().written - before, 1 << 20);
}

TEST(FiguresKeeperTest, AsksForTheBytesThatWereSent) {
  progress::PhaseClock phases;
  FiguresKeeper keeper(0, phases);
  keeper.Start();
  keeper.StepEnded(1, 0.01);
  EXPECT_FALSE(keeper.Now()->has_communication());
  v1::CommunicationBytes bytes;
  keeper.ReadCommunication([&bytes] { return bytes; });
  // A rank of its own has sent nothing, and that is known.
  EXPECT_TRUE(keeper.Now()->has_communication());
  bytes.set_pipeline(12);
  EXPECT_EQ(keeper.Now()->communication().pipeline(), 12);
  EXPECT_EQ(keeper.Now()->communication().tensor(), 0);
}

TEST(FiguresKeeperTest, KnowsHowLongTheStateTravels) {
  progress::PhaseClock phases;
  progress::ExchangeClock exchanges;
  FiguresKeeper keeper(0, phases);
  keeper.Start();
  keeper.ReadExchanges(exchanges);
  exchanges.AddTaken(progress::ExchangeClock::kGather, 2);
  exchanges.AddTaken(progress::ExchangeClock::kGather, 1);
  exchanges.AddWaited(progress::ExchangeClock::kReduce, 0.5);
  keeper.StepEnded(1, 0.1);
  const auto figures = keeper.Now();
  ASSERT_TRUE(figures.has_value());
  EXPECT_EQ(figures->state().gather(), 3);
  EXPECT_EQ(figures->state().gather_waited(), 0);
  EXPECT_EQ(figures->state().reduce(), 0);
  EXPECT_EQ(figures->state().reduce_waited(), 0.5);
}

TEST(FiguresKeeperTest, AsksForTheFallbacksOfAGpu) {
  progress::PhaseClock phases;
  FiguresKeeper keeper(0, phases);
  keeper.Start();
  keeper.StepEnded(1, 0.01);
  std::optional<v1::GpuFallbacks> fallbacks;
  keeper.ReadFallbacks([&fallbacks] { return fallbacks; });
  EXPECT_FALSE(keeper.Now()->has_gpu_fallbacks());
  fallbacks.emplace().set_attention(2);
  EXPECT_EQ(keeper.Now()->gpu_fallbacks().attention(), 2);
}

TEST(FiguresKeeperTest, NowAndThenIsNotAlways) {
  progress::PhaseClock phases;
  FiguresKeeper keeper(0, phases);
  keeper.Start();
  keeper.StepEnded(1, 0.01);
  EXPECT_TRUE(keeper.NowAndThen(absl::Hours(1)).has_value());
  EXPECT_FALSE(keeper.NowAndThen(absl::Hours(1)).has_value());
  EXPECT_TRUE(keeper.NowAndThen(absl::ZeroDuration()).has_value());
}

}  // namespace
}  // namespace tercio::trainer

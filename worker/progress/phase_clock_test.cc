#include "worker/progress/phase_clock.h"

#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace tercio::progress {
namespace {

int64_t fake_now = 0;
int64_t reads = 0;
int64_t FakeNow() {
  ++reads;
  return fake_now;
}

int64_t Of(PhaseClock& clock, Phase phase) { return clock.Read()[static_cast<size_t>(phase)]; }

class PhaseClockTest : public ::testing::Test {
 protected:
  PhaseClockTest() {
    fake_now = 1'000'000;
    reads = 0;
  }
  PhaseClock clock_{&FakeNow};
};

TEST_F(PhaseClockTest, TimeBelongsToThePhaseThatRuns) {
  clock_.Start();
  clock_.Enter(Phase::kForward);
  fake_now += 50;
  EXPECT_EQ(clock_.Enter(Phase::kBackward), Phase::kForward);
  fake_now += 100;
  clock_.Enter(Phase::kForward);
  fake_now += 7;
  EXPECT_EQ(Of(clock_, Phase::kForward), 57);
  EXPECT_EQ(Of(clock_, Phase::kBackward), 100);
  EXPECT_EQ(Of(clock_, Phase::kOther), 0);
}

TEST_F(PhaseClockTest, WaitingIsTakenFromThePhaseInWhichItHappens) {
  clock_.Start();
  clock_.Enter(Phase::kBackward);
  fake_now += 1'000;
  clock_.Waited(300e-9);
  clock_.Waited(100e-9);
  clock_.Enter(Phase::kOptimizer);
  fake_now += 10;
  EXPECT_EQ(Of(clock_, Phase::kBackward), 600);
  EXPECT_EQ(Of(clock_, Phase::kWait), 400);
  EXPECT_EQ(Of(clock_, Phase::kOptimizer), 10);
}

TEST_F(PhaseClockTest, NothingCountsBeforeTheStartAndASecondStartIsNone) {
  clock_.Enter(Phase::kData);
  clock_.Waited(5);
  fake_now += 1'000;
  clock_.Start();
  fake_now += 20;
  clock_.Start();
  EXPECT_EQ(Of(clock_, Phase::kData), 20);
  EXPECT_EQ(Of(clock_, Phase::kWait), 0);
}

TEST_F(PhaseClockTest, ASpanGoesBackToThePhaseBefore) {
  clock_.Start();
  clock_.Enter(Phase::kData);
  {
    const PhaseClock::Span span(clock_, Phase::kCheckpoint);
    fake_now += 30;
  }
  fake_now += 4;
  EXPECT_EQ(Of(clock_, Phase::kCheckpoint), 30);
  EXPECT_EQ(Of(clock_, Phase::kData), 4);
}

// Whatever happens: also waits that are said to be longer than the phase, and clocks that stand.
TEST_F(PhaseClockTest, ThePartsSumToTheElapsedTime) {
  std::mt19937_64 random(7);
  clock_.Start();
  const int64_t start = fake_now;
  for (int i = 0; i < 10'000; ++i) {
    fake_now += static_cast<int64_t>(random() % 1'000);
    if (random() % 3 == 0) clock_.Waited(static_cast<double>(random() % 2'000) * 1e-9);
    clock_.Enter(static_cast<Phase>(random() % kPhases));
    if (i % 100 != 0) continue;
    const auto& spent = clock_.Read();
    ASSERT_EQ(std::accumulate(spent.begin(), spent.end(), int64_t{0}), fake_now - start);
  }
}

TEST_F(PhaseClockTest, ASwitchReadsTheClockOnce) {
  clock_.Start();
  reads = 0;
  clock_.Enter(Phase::kForward);
  EXPECT_EQ(reads, 1);
}

}  // namespace
}  // namespace tercio::progress

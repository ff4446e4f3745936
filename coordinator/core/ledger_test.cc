#include "coordinator/core/ledger.h"

#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

int64_t Sum(const v1::TimeLedger& ledger, double now) {
  const auto totals = LedgerTotals(ledger, now);
  return std::accumulate(totals.begin(), totals.end(), int64_t{0});
}

TEST(Ledger, AnAttemptThatBreaksLosesWhatNoCheckpointHolds) {
  v1::TimeLedger ledger;
  OpenLedger(ledger, v1::TIME_KIND_QUEUED, 100);
  SwitchLedger(ledger, v1::TIME_KIND_STARTING, 101);
  SwitchLedger(ledger, v1::TIME_KIND_PRODUCTIVE, 103);
  CloseLedger(ledger, 113);
  ChargeStall(ledger, 0.5);
  CommitWork(ledger, 0.5);  // half of the 9.5 s
  CloseLedger(ledger, 115);
  LoseWork(ledger);
  SwitchLedger(ledger, v1::TIME_KIND_RESTARTING, 116);
  const auto totals = LedgerTotals(ledger, 120);
  EXPECT_EQ(totals[v1::TIME_KIND_QUEUED], 1'000'000);
  EXPECT_EQ(totals[v1::TIME_KIND_STARTING], 2'000'000);
  EXPECT_EQ(totals[v1::TIME_KIND_CHECKPOINT_STALL], 500'000);
  EXPECT_EQ(totals[v1::TIME_KIND_LOST_WORK], 6'750'000);
  EXPECT_EQ(totals[v1::TIME_KIND_PRODUCTIVE], 4'750'000 + 1'000'000);
  EXPECT_EQ(totals[v1::TIME_KIND_RESTARTING], 4'000'000);
  EXPECT_EQ(Sum(ledger, 120), 20'000'000);
}

TEST(Ledger, AClockThatGoesBackAddsNothing) {
  v1::TimeLedger ledger;
  OpenLedger(ledger, v1::TIME_KIND_QUEUED, 100);
  SwitchLedger(ledger, v1::TIME_KIND_STARTING, 90);
  CloseLedger(ledger, 105);
  EXPECT_EQ(Sum(ledger, 105), 5'000'000);
  EXPECT_EQ(LedgerTotals(ledger, 105)[v1::TIME_KIND_QUEUED], 0);
}

TEST(Ledger, ThePartsSumToTheWholeWhateverHappens) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  for (int round = 0; round < 200; ++round) {
    v1::TimeLedger ledger;
    const double start = 1.7e9 + uniform();
    double now = start;
    OpenLedger(ledger, v1::TIME_KIND_QUEUED, now);
    for (int i = 0; i < 50; ++i) {
      now += uniform() * 100;
      switch (random() % 5) {
        case 0:
          SwitchLedger(ledger, static_cast<v1::TimeKind>(random() % v1::TimeKind_ARRAYSIZE), now);
          break;
        case 1:
          CloseLedger(ledger, now);
          break;
        case 2:
          ChargeStall(ledger, uniform() * 50);
          break;
        case 3:
          CommitWork(ledger, uniform() * 2 - 0.5);
          break;
        default:
          LoseWork(ledger);
      }
      for (const int64_t part : LedgerTotals(ledger, now)) ASSERT_GE(part, 0);
    }
    EXPECT_EQ(Sum(ledger, now), std::llround(now * 1e6) - std::llround(start * 1e6));
  }
}

}  // namespace
}  // namespace tercio::coordinator

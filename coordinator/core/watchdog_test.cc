#include "coordinator/core/watchdog.h"

#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

TEST(WatchdogTest, LearnsItsDeadline) {
  RunWatchdog watchdog;
  EXPECT_EQ(watchdog.Deadline(), 300);
  watchdog.StepEnded(0.5);
  EXPECT_EQ(watchdog.Deadline(), 28);
  for (int i = 0; i < 64; ++i) watchdog.StepEnded(20);  // the first is forgotten
  EXPECT_EQ(watchdog.Deadline(), 100);
  for (int i = 0; i < 20; ++i) watchdog.StepEnded(500);  // an evaluation now and then
  EXPECT_EQ(watchdog.Deadline(), 100);
  for (int i = 0; i < 64; ++i) watchdog.StepEnded(500);
  EXPECT_EQ(watchdog.Deadline(), 1200);
}

TEST(WatchdogTest, TheJobMayGiveIt) {
  RunWatchdog watchdog(2);
  EXPECT_EQ(watchdog.Deadline(), 300);
  watchdog.StepEnded(100);
  EXPECT_EQ(watchdog.Deadline(), 2);
  RunWatchdog patient(3600);
  EXPECT_EQ(patient.Deadline(), 3600);
  patient.StepEnded(1);
  EXPECT_EQ(patient.Deadline(), 3600);
}

TEST(WatchdogTest, AnyProgressCounts) {
  RunWatchdog watchdog;
  watchdog.StepEnded(1);
  EXPECT_EQ(watchdog.StalledSeconds(1000), 0);
  EXPECT_FALSE(watchdog.ShouldInspect(1000));
  watchdog.OnHeartbeat("a", 1000, 25);
  EXPECT_EQ(watchdog.StalledSeconds(1000), 25);
  watchdog.OnHeartbeat("b", 1001, 3);
  EXPECT_EQ(watchdog.StalledSeconds(1002), 4);
  watchdog.OnHeartbeat("a", 1020, 45);
  watchdog.OnHeartbeat("b", 1020, 22);
  EXPECT_FALSE(watchdog.ShouldInspect(1025));
  EXPECT_TRUE(watchdog.ShouldInspect(1027));
  // A late heartbeat does not end the suspicion; news does.
  watchdog.OnHeartbeat("b", 1029, 100);
  EXPECT_EQ(watchdog.StalledSeconds(1029), 31);
  watchdog.OnHeartbeat("a", 1030, 0);
  EXPECT_FALSE(watchdog.ShouldInspect(1030));
}

}  // namespace
}  // namespace tercio::coordinator

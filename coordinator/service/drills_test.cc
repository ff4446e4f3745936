#include "coordinator/service/drills.h"

#include <gtest/gtest.h>

namespace tercio::coordinator {
namespace {

TEST(DrillDetection, ASaveThatAKilledRankEndsIsAConsequence) {
  EXPECT_TRUE(DrillDetectedBy("kill-trainer", "rank_exited"));
  EXPECT_FALSE(DrillDetectedBy("kill-trainer", "checkpoint_failed"));
  EXPECT_FALSE(DrillDetectedBy("freeze-trainer", "checkpoint_failed"));
}

TEST(DrillDetection, AFullDiskIsFoundByTheSaveOnly) {
  EXPECT_TRUE(DrillDetectedBy("full-disk", "checkpoint_failed"));
  EXPECT_FALSE(DrillDetectedBy("full-disk", "rank_exited"));
}

TEST(DrillDetection, TheKillBeforeADamagedCheckpointIsNotItsDetection) {
  EXPECT_TRUE(DrillDetectedBy("corrupt-checkpoint", "checkpoint_damaged"));
  EXPECT_FALSE(DrillDetectedBy("corrupt-checkpoint", "rank_exited"));
  EXPECT_FALSE(DrillDetectedBy("corrupt-checkpoint", "checkpoint_failed"));
}

TEST(DrillDetection, NoEventDetectsAnUnknownFault) {
  EXPECT_FALSE(DrillDetectedBy("flood", "rank_exited"));
}

}  // namespace
}  // namespace tercio::coordinator

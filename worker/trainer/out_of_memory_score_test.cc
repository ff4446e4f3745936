#include "worker/trainer/out_of_memory_score.h"

#include <sys/wait.h>
#include <unistd.h>

#include "common/file.h"
#include "gtest/gtest.h"

namespace tercio::trainer {
namespace {

// A child does it, since a score can be lowered again with privileges only.
TEST(OutOfMemoryScoreTest, TheKernelKnowsTheScore) {
  const pid_t child = fork();
  if (child == 0) {
    SetOutOfMemoryScore(kRankScore);
    const auto score = ReadFile("/proc/self/oom_score_adj");
    _exit(score.ok() && *score == "500\n" ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tercio::trainer

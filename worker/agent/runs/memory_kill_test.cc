#include "worker/agent/runs/memory_kill.h"

#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

MemoryKillEvidence Evidence(std::optional<int64_t> group_before, std::optional<int64_t> group_after,
                            std::optional<int64_t> machine_before,
                            std::optional<int64_t> machine_after,
                            std::optional<bool> named = std::nullopt) {
  return {{"/group", group_before, machine_before}, {"/group", group_after, machine_after}, named};
}

TEST(MemoryKill, TheCountOfTheGroupDecides) {
  EXPECT_TRUE(KilledForWantOfMemory(Evidence(0, 1, 0, 1)));
  EXPECT_TRUE(KilledForWantOfMemory(Evidence(3, 4, std::nullopt, std::nullopt, false)));
  // Somebody of another group was killed.
  EXPECT_FALSE(KilledForWantOfMemory(Evidence(3, 3, 0, 1, true)));
}

TEST(MemoryKill, ACountOfAnotherGroupSaysNothing) {
  MemoryKillEvidence moved = Evidence(0, 5, 7, 7);
  moved.before.cgroup = "/other";
  EXPECT_FALSE(KilledForWantOfMemory(moved));
  moved.after.of_machine = 8;
  EXPECT_TRUE(KilledForWantOfMemory(moved));
}

TEST(MemoryKill, ThenThatOfTheMachineAndTheLogThatSaysWhom) {
  EXPECT_FALSE(KilledForWantOfMemory(Evidence({}, {}, 2, 2, true)));
  EXPECT_TRUE(KilledForWantOfMemory(Evidence({}, {}, 2, 3, true)));
  EXPECT_FALSE(KilledForWantOfMemory(Evidence({}, {}, 2, 3, false)));
  EXPECT_TRUE(KilledForWantOfMemory(Evidence({}, {}, 2, 3)));
}

TEST(MemoryKill, ThenTheLogAlone) {
  EXPECT_TRUE(KilledForWantOfMemory(Evidence({}, {}, {}, {}, true)));
  EXPECT_FALSE(KilledForWantOfMemory(Evidence({}, {}, {}, {}, false)));
  EXPECT_FALSE(KilledForWantOfMemory(Evidence({}, {}, {}, {})));
}

TEST(MemoryKill, ReadsCounts) {
  const std::string events = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n";
  EXPECT_EQ(CountIn(events, "oom_kill"), 2);
  EXPECT_EQ(CountIn("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", "oom_kill"), 7);
  EXPECT_EQ(CountIn("oom_kill_disable 0\n", "oom_kill"), std::nullopt);
  EXPECT_EQ(CountIn("oom_kill x\n", "oom_kill"), std::nullopt);
}

TEST(MemoryKill, FindsTheGroupsFile) {
  const std::string version_2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(KillCountFile("0::/system.slice/a.service\n", version_2),
            "/sys/fs/cgroup/system.slice/a.service/memory.events");
  EXPECT_EQ(KillCountFile("0::/\n", version_2), "/sys/fs/cgroup/memory.events");
  const std::string both =
      "30 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
      "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
      "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
  EXPECT_EQ(KillCountFile("5:cpu:/x\n4:memory:/jobs/a\n0::/\n", both),
            "/sys/fs/cgroup/memory/jobs/a/memory.oom_control");
  // A container sees its own part of the hierarchy.
  EXPECT_EQ(KillCountFile("0::/pods/p1\n", "1 2 0:3 /pods /sys/fs/cgroup rw - cgroup2 c rw\n"),
            "/sys/fs/cgroup/p1/memory.events");
  EXPECT_EQ(KillCountFile("", version_2), "");
  EXPECT_EQ(KillCountFile("0::/a\n", "not a mount\n"), "");
}

TEST(MemoryKill, ReadsTheKernelsLog) {
  const std::string record =
      "3,951,7134,-;Memory cgroup out of memory: Killed process 812 (tercio-trainer) total-vm:1kB";
  EXPECT_TRUE(NamesKill(record, 812));
  EXPECT_FALSE(NamesKill(record, 81));
  EXPECT_TRUE(NamesKill("3,1,2,-;Out of memory: Killed process 7 (x)", 7));
  EXPECT_FALSE(NamesKill("6,1,2,-;something about process 7 (x)", 7));
}

}  // namespace
}  // namespace tercio::agent

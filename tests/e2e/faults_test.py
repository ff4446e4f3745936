"""Faults of one job on a real machine: memory that runs out, data that is changed, a rank that is slow."""

import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, layout, wait_for  # noqa: E402

MEMORY_LIMIT = 96 << 20


class MemoryGroup:
    """A control group of the test's own, of either version, with a limit of memory."""

    def __init__(self, limit):
        name = f"tercio-test-{os.getpid()}-{random.randrange(1 << 30)}"
        if os.path.isdir("/sys/fs/cgroup/memory"):
            self.path, file = f"/sys/fs/cgroup/memory/{name}", "memory.limit_in_bytes"
        else:
            self.path, file = f"/sys/fs/cgroup/{name}", "memory.max"
        os.mkdir(self.path)
        try:
            self.write(file, limit)
        except OSError:
            os.rmdir(self.path)
            raise

    def write(self, file, value):
        with open(os.path.join(self.path, file), "w", encoding="utf-8") as opened:
            opened.write(str(value))

    def is_empty(self):
        with open(os.path.join(self.path, "cgroup.procs"), encoding="utf-8") as file:
            return not file.read().strip()

    def remove(self):
        wait_for(self.is_empty, "the end of what ran in the group")
        os.rmdir(self.path)


class Cluster(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator("--heartbeat-interval", "0.5", "--allow-drills")
        self.address = ready["coordinator"]
        self.agent_, _ = self.agent(self.address, "one", 4)

class OutOfMemory(Cluster):

    def test_a_rank_that_the_kernel_kills_ends_the_job_with_the_reason(self):
        try:
            group = MemoryGroup(MEMORY_LIMIT)
        except OSError as error:
            self.skipTest(f"no control group for memory can be made here: {error}")
        self.addCleanup(group.remove)
        self.addCleanup(self.stop_daemons)
        group.write("cgroup.procs", self.agent_.pid)  # what it starts is in the group as well
        job = self.submit("--set", "training.steps=1000000", "--set",
                          "model={layers: 8, hidden: 512, heads: 8, context: 32}", *layout(1, 1, 1))
        status = self.json("wait", job, *self.reach(), code=1)
        self.assertEqual((status["state"], status["restarts"]), ("failed", 0), self.events(job))
        self.assertIn("killed by signal 9 for want of memory", status["error"])

    def test_another_kill_is_none_for_want_of_memory(self):
        job = self.submit("--set", "training.steps=1000000", *layout(1, 1, 2))
        self.after_step(job, 20)
        os.kill(self.trainers(job)[1], 9)
        wait_for(lambda: self.get(job)["attempt"] == 2 and self.get(job)["state"] == "running", "a restart")
        exits = [event["message"] for event in self.events(job) if event["kind"] == "rank_exited"]
        self.assertTrue(any("signal 9" in text for text in exits), exits)
        self.assertFalse(any("memory" in text for text in exits), exits)


class OtherData(Cluster):

    def change_data(self):
        with open(self.path("corpus.txt"), "r+", encoding="utf-8") as file:
            text = file.read()
            file.seek(0)
            file.write(text.replace("red", "der"))

    def test_data_that_changes_under_a_job(self):
        steps = "training.steps=1000000"
        job = self.submit("--set", steps, *layout(1, 1, 2))
        self.after_step(job, 40)
        wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
        self.change_data()
        os.kill(self.trainers(job)[0], 9)
        status = self.json("wait", job, *self.reach(), code=1)
        self.assertEqual((status["state"], status["restarts"]), ("failed", 1))
        for words in ("the data of the job has changed", "node one", "--accept-data-change"):
            self.assertIn(words, status["error"])
        self.assertIn("data_refused", [event["kind"] for event in self.events(job)])
        # Asked again, the answer is the same; accepted, the job goes on from its checkpoint.
        more = ["--set", f"training.steps={status['checkpoint']['step'] + 20}"]
        refused = self.json("resume", job, *more, *self.reach(), code=1)
        self.assertIn("the data of the job has changed", refused["error"])
        done = self.json("resume", job, *more, "--accept-data-change", *self.reach())
        self.assertEqual((done["state"], done["step"]), ("succeeded", status["checkpoint"]["step"] + 20))


class SlowRank(Cluster):

    def test_a_slow_rank_is_named_soon(self):
        job = self.submit("--set", "training.steps=1000000", "--set",
                          "model={layers: 4, hidden: 256, heads: 4, context: 64}", *layout(1, 1, 2))
        self.after_step(job, 60)
        start = len(self.events(job))
        done = self.json("drill", job, "--fault", "slow-rank", "--rank", "1", "--seconds", "10", *self.reach())
        named = [event for event in self.events(job)[start:] if event["kind"] == "straggler"]
        self.assertEqual({event["rank"] for event in named}, {1}, named)
        # Three reports, and what the machine's other work adds.
        self.assertLess(done["detected_seconds"], 5)
        self.assertEqual(done["steps_lost"], 0)
        self.assertEqual(self.get(job)["attempt"], 1)


if __name__ == "__main__":
    python_cases.main()

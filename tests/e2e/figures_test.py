"""Where the time of ranks goes, and what is said of them, while a job runs and after it."""

import glob
import json
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, layout, wait_for  # noqa: E402

PHASES = {"forward", "backward", "wait", "optimizer", "data", "checkpoint", "evaluation", "other"}


PAGE = os.sysconf("SC_PAGE_SIZE")
BESIDE_THE_ARENA = 257 << 20  # plan/memory_map.h: kHostReserveBytes, and a tensor


class Figures(ClusterTest):

    def check(self, rank):
        """What must hold of the figures of a rank that has stepped."""
        self.assertEqual(set(rank["phases"]), PHASES)
        self.assertTrue(all(seconds >= 0 for seconds in rank["phases"].values()), rank)
        elapsed = sum(rank["phases"].values())
        self.assertAlmostEqual(rank["wait_ratio"], rank["phases"]["wait"] / elapsed, places=6)
        for phase in ("forward", "backward", "optimizer"):
            self.assertGreater(rank["phases"][phase], 0, rank)
        self.assertGreater(rank["cpu_ratio"], 0)
        memory = rank["memory"]
        # Pages of the arena that are resident: all but what the first steps have not needed yet.
        self.assertLessEqual(memory["used"], memory["planned"])
        self.assertGreater(memory["used"], 0.5 * memory["planned"])
        # And what the process has taken beside it.
        self.assertGreaterEqual(memory["peak"], memory["used"])
        self.assertLess(memory["peak"] - memory["used"], BESIDE_THE_ARENA)
        self.assertGreater(memory["resident"], 1 << 20)
        self.assertIsNone(rank["device_utilization"])
        return elapsed

    @staticmethod
    def bytes_saved(checkpoint):
        """By rank: the values in its part of a checkpoint, without the header of the file (safetensors)."""
        saved = {}
        for path in glob.glob(os.path.join(checkpoint, "attempt-*", "rank-*.safetensors")):
            with open(path, "rb") as file:
                header = 8 + int.from_bytes(file.read(8), "little")
            saved[int(os.path.basename(path).split("-")[1])] = os.path.getsize(path) - header
        return saved

    def test_of_every_rank_after_the_end(self):
        job = self.run_job(self.state, *layout(2, 2, 2))
        steps = self.history(job["id"], self.state)
        saved = self.bytes_saved(job["checkpoint"]["path"])
        for status in (job, self.json("get", job["id"], "--state-dir", self.state)):
            self.assertEqual([rank["rank"] for rank in status["ranks"]], list(range(8)))
            grid = {(rank["tensor"], rank["pipeline"], rank["data"]) for rank in status["ranks"]}
            self.assertEqual(len(grid), 8)
            for rank in status["ranks"]:
                self.assertEqual((rank["step"], rank["node"]), (60, "local"))
                elapsed = self.check(rank)
                # The loop's time holds all of its steps, and evaluation and checkpoints besides.
                self.assertGreater(elapsed, 0.5 * sum(step["step_seconds"] for step in steps))
                self.assertGreater(rank["phases"]["evaluation"], 0)
                self.assertGreater(rank["phases"]["checkpoint"], 0)
                # It is in a group of two of each kind.
                self.assertEqual(list(rank["communication"]), ["tensor", "pipeline", "data", "world"])
                self.assertGreater(min(rank["communication"].values()), 0)
                # With the last snapshot every page has been touched, but for those that the table, which is the stage's,
                # has for the rank of it that saves most.
                most = max(saved[other["rank"]] for other in status["ranks"] if other["pipeline"] == rank["pipeline"])
                expected = rank["memory"]["planned"] - (most - saved[rank["rank"]])
                self.assertAlmostEqual(rank["memory"]["used"], expected, delta=2 * PAGE, msg=rank)
            predicted = status["predicted"]
            self.assertEqual(predicted["bubble_ratio"], 1 / status["plan"]["micro_batches"])
            self.assertEqual(predicted["memory_bytes_peak"],
                             max(rank["memory"]["planned"] for rank in status["ranks"]))
            # One model of the machine, whoever plans; `plan` does not know the vocabulary yet.
            planned = self.json("plan", self.path("job.yaml"), *layout(2, 2, 2))["layouts"][0]["predicted"]
            self.assertAlmostEqual(predicted["step_seconds"] / planned["step_seconds"], 1, delta=0.1)
            self.assertEqual(status["last_lines"], [])
            self.assertIsNone(status["owner"])
        self.assertTrue(all(step["resident_bytes"] > 1 << 20 for step in steps[1:]))
        used = [step["used_bytes"] for step in steps]
        self.assertEqual(used, sorted(used), "nothing that is in use is given back")
        self.assertGreater(used[0], 0)
        self.assertLessEqual(used[-1], job["ranks"][0]["memory"]["used"])
        text, _ = self.tercio("get", job["id"], "--state-dir", self.state)
        self.assertRegex(text, r"RANK +STAGE +TENSOR +DATA +NODE")
        self.assertEqual(len([line for line in text.splitlines() if " local " in line]), 8)
        listed = self.json("list", "--state-dir", self.state)[0]
        self.assertEqual((listed["ranks"], listed["predicted"]["bubble_ratio"]),
                         (None, job["predicted"]["bubble_ratio"]))

    def test_while_it_runs_and_of_a_rank_that_is_killed(self):
        _, ready = self.coordinator("--heartbeat-interval", "0.2")
        self.address = ready["coordinator"]
        self.agent(self.address)
        job = self.submit("--set", "training.steps=1000000", "--set", "fault_tolerance.max_restarts=0",
                          *layout(1, 2, 1))
        ranks = wait_for(lambda: (r := self.get(job)["ranks"]) and all(rank["step"] for rank in r) and r,
                         "figures of both ranks")
        for rank in ranks:
            self.check(rank)
        wait_for(lambda: all(now["step"] > then["step"] for now, then in zip(self.get(job)["ranks"], ranks)),
                 "newer figures")
        status = self.get(job)
        victim = [pid for pid in self.trainers(job) if rank_of(pid) == 1]
        self.assertEqual(len(victim), 1)
        os.kill(victim[0], signal.SIGKILL)
        ended = json.loads(self.tercio(*self.reach("wait", job, "-o", "json"), code=1)[0])
        for status in (ended, self.get(job)):
            self.assertGreaterEqual(status["ranks"][1]["step"], ranks[1]["step"], "what it said last")
            self.check(status["ranks"][1])
            self.assertIn("rank 1", status["error"])


def rank_of(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().decode().split("\0")
    return int(words[words.index("--rank") + 1])


if __name__ == "__main__":
    python_cases.main()

"""Ranks that stand still: frozen trainers, real processes."""

import glob
import json
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, TercioTest, layout, processes, wait_for  # noqa: E402

assert ROOT


def argument(pid, name):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().decode().split("\0")
    return words[words.index(name) + 1]


class Hangs(TercioTest):

    def test_a_frozen_trainer_costs_one_attempt(self):
        changes = [*layout(2, 1, 2), "--set", "training.steps=400", "--set", "training.evaluate.every_steps=0",
                   "--set", "fault_tolerance.hang_timeout=5s"]
        reference = self.run_job(self.path("reference"), *changes)
        child = self.start("run", self.path("job.yaml"), "--state-dir", self.state, *changes, "-o", "json")
        self.addCleanup(lambda: child.poll() is None and child.kill())
        wait_for(lambda: glob.glob(os.path.join(self.state, "checkpoints", "*", "step-*", "manifest.json")),
                 "a checkpoint")
        frozen = wait_for(lambda: [pid for pid in processes("tercio-trainer --progress")
                                   if self.descends(pid, child.pid)], "a trainer")[-1]
        page = argument(frozen, "--progress")
        rank = int(argument(frozen, "--rank"))
        self.assertTrue(os.path.exists(page))
        os.kill(frozen, signal.SIGSTOP)
        out, err = child.communicate(timeout=400)
        self.assertEqual(child.returncode, 0, err)
        job = json.loads(out)
        self.assertEqual((job["state"], job["restarts"]), ("succeeded", 1), err)
        out, _ = self.tercio("events", job["id"], "--state-dir", self.state, "-o", "jsonl")
        hang = [event for event in map(json.loads, out.splitlines()) if event["kind"] == "hang"]
        self.assertEqual(len(hang), 1)
        self.assertEqual(hang[0]["rank"], rank)
        self.assertIn(f"the trainer of rank {rank} is stopped (state T)", hang[0]["message"])
        # One other rank or several: that depends on where it was stopped.
        self.assertRegex(hang[0]["message"], "waits? in all-reduce")
        out, _ = self.tercio("logs", job["id"], "--state-dir", self.state)
        self.assertIn("stack: ", out)
        self.assertFalse(os.path.exists(f"/proc/{frozen}"), "the frozen trainer is left")
        self.assertFalse(os.path.exists(page), "its page is left")
        self.assertEqual(self.curve(job["id"], self.state),
                         self.curve(reference["id"], self.path("reference")))

    def descends(self, pid, ancestor):
        """Other tests may run beside this one."""
        while pid not in (0, 1, ancestor):
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rsplit(")", 1)[1].split()[1])
        return pid == ancestor


if __name__ == "__main__":
    python_cases.main()

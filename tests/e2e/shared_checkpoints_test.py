"""Checkpoints in a directory of the job's own (checkpoint.path), which ranks write and read themselves."""

import glob
import json
import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, FrozenDiskTest, layout, wait_for  # noqa: E402

STEPS = 1_000_000
EVERY = 50
LONG = ["--set", f"training.steps={STEPS}", "--set", f"training.schedule.decay_steps={STEPS}"]


class SharedCheckpoints(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator("--heartbeat-interval", "0.5")
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 8)

    def in_three_layouts(self, kill, *changes):
        """A job of 2x2x2 ranks, resumed as 1x2x4 and as 2x1x1: its id and curve."""
        steps = lambda count: ["--set", f"training.steps={count}"]
        job = self.submit(*steps(40), "--set", "training.schedule.decay_steps=80", *changes, *layout(2, 2, 2))
        if kill:
            wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
            os.kill(wait_for(lambda: self.trainers(job), "its ranks")[0], signal.SIGKILL)
        self.assertEqual(self.json(*self.reach("wait", job))["state"], "succeeded")
        for count, degrees in ((60, (1, 2, 4)), (80, (2, 1, 1))):
            done = self.json(*self.reach("resume", job, *steps(count), *layout(*degrees)))
            self.assertEqual((done["state"], done["step"]), ("succeeded", count))
        return job, self.curve_of(job)

    def test_other_layouts_have_the_bits_of_the_coordinators_own_store(self):
        job, curve = self.in_three_layouts(True, "--set", "checkpoint.path=shared")
        self.assertGreaterEqual(self.get(job)["restarts"], 1)
        where = self.get(job)["checkpoint"]["path"]
        self.assertTrue(where.startswith(self.path("shared", job) + "/step-"), where)
        self.assertEqual(glob.glob(os.path.join(self.state, "checkpoints", job)), [])
        self.tercio(*self.reach("checkpoint", "verify", job))
        _, expected = self.in_three_layouts(False)
        self.assertEqual(len(expected), 80)
        self.assertEqual(curve, expected)

    def test_bytes_read_at_a_resume_do_not_grow_with_the_data_parallel_degree(self):
        # The largest matrices are two pieces of a load, and three blocks of a file.
        model = ["--set", "model={layers: 1, hidden: 512, heads: 4, context: 8, ffn_hidden: 4160}",
                 "--set", "training.evaluate={batches: 1}"]
        for store, where in (("its own directory", ["--set", "checkpoint.path=shared"]), ("the coordinator's", [])):
            job = self.submit(*model, "--set", "training.steps=1", *where, *layout(1, 1, 1))
            self.assertEqual(self.json(*self.reach("wait", job))["state"], "succeeded")
            saved = self.json(*self.reach("checkpoint", "list", job))[0]["bytes"]
            read = {}
            for steps, data in ((2, 1), (3, 4)):
                done = self.json(*self.reach("resume", job, "--set", f"training.steps={steps}", *layout(1, 1, data)))
                self.assertEqual((done["state"], done["step"]), ("succeeded", steps))
                read[data] = self.bytes_loaded(job, done["attempt"], data)
            with self.subTest(store=store, saved=saved, read=read):
                self.assertGreater(saved, 50e6)
                self.assertLess(abs(read[1] - saved), 0.01 * saved)
                self.assertLessEqual(read[4], 1.1 * read[1])

    def bytes_loaded(self, job, attempt, ranks):
        """What all ranks of that attempt have read, by the line that each of them logs."""
        out, _ = self.tercio(*self.reach("logs", job, "-o", "jsonl"))
        lines = [line for line in map(json.loads, out.splitlines()) if line["attempt"] == attempt]
        read = {line["rank"]: int(found.group(1)) for line in lines
                if (found := re.search(r"this rank has read (\d+) bytes", line["line"]))}
        self.assertEqual(sorted(read), list(range(ranks)))
        return sum(read.values())

    def test_a_part_that_cannot_be_written_is_named_and_training_goes_on(self):
        job = self.submit(*LONG, "--set", "checkpoint.path=shared", "--set", f"checkpoint.every_steps={EVERY}",
                          *layout(1, 1, 2))
        wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
        away = self.path("away")
        os.rename(self.path("shared", job), away)
        # No directory, and none can be made there.
        with open(self.path("shared", job), "w", encoding="utf-8"):
            pass
        # The first may fail at its commit; those after it where ranks write.
        named = re.compile(r"the part of rank [01] on node one was not written: ")
        wait_for(lambda: [e for e in self.events(job) if e["kind"] == "checkpoint_failed" and named.search(e["message"])],
                 "a save that names its rank")
        self.assertIsNotNone(self.get(job)["checkpoint_trouble"])
        self.after_step(job, self.get(job)["step"] + EVERY)
        os.remove(self.path("shared", job))
        os.rename(away, self.path("shared", job))
        wait_for(lambda: self.get(job)["checkpoint_trouble"] is None, "a save that works")
        self.assertEqual(self.get(job)["attempt"], 1)
        self.tercio(*self.reach("cancel", job, "--no-save"))


class FrozenDirectory(FrozenDiskTest):
    """A job's own directory on a file system that stands still."""

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator("--heartbeat-interval", "0.5")
        self.address = ready["coordinator"]
        self.agent(self.address)

    def failures(self, job, text):
        return [event for event in self.events(job) if event["kind"] == "checkpoint_failed" and text in event["message"]]

    def test_ranks_train_while_their_writes_hang(self):
        job = self.submit(*LONG, "--set", f"checkpoint={{every_steps: {EVERY}, timeout: 8s, path: {self.disk}}}",
                          *layout(1, 1, 2))
        wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
        self.freeze()
        skipped = wait_for(lambda: self.failures(job, "skipped: "), "a save that is left out")[0]
        self.assertRegex(skipped["message"], r"step \d+: skipped: the one of step \d+ is still under way on 2 of 2 ranks")
        wait_for(lambda: self.failures(job, "not stored within"), "a save that is given up")
        # The buffers are still in use: nothing is saved, training goes on.
        at = self.get(job)["step"]
        self.after_step(job, at + 3 * EVERY)
        self.assertEqual(self.get(job)["attempt"], 1)
        before = self.get(job)["checkpoint"]["step"]
        self.thaw()
        wait_for(lambda: self.get(job)["checkpoint"]["step"] > before, "a checkpoint after the thaw")
        self.assertIsNone(self.get(job)["checkpoint_trouble"])
        self.assertEqual(self.get(job)["attempt"], 1)
        self.tercio(*self.reach("cancel", job, "--no-save"))


if __name__ == "__main__":
    python_cases.main()

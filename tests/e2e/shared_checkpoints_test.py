"""Checkpoints in a directory of the job's own (checkpoint.path), which ranks write and read themselves."""

import glob
import json
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, FailingFilesTest, FrozenDiskTest, lasting_port, layout, wait_for  # noqa: E402

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
                if (found := re.search(r"this rank read (\d+) bytes", line["line"]))}
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
        # One rank may have written its part before the freeze.
        self.assertRegex(skipped["message"], r"step \d+: skipped: the save of step \d+ is still in progress on [12] of 2 ranks")
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


class KilledCoordinator(FailingFilesTest):
    """The coordinator is killed in each phase of a save that ranks write themselves: one job lives through all of them."""

    EVERY = 100  # so seldom that all of them can be verified again and again

    def setUp(self):
        super().setUp()
        self.start_coordinator(f"127.0.0.1:{lasting_port()}")
        self.with_rules("agent", self.agent, self.address, "one", 2)
        self.job = self.submit(*LONG, "--set", f"checkpoint={{path: shared, every_steps: {self.EVERY}, keep_last: 1000}}", *layout(1, 1, 2))
        self.saved(0)

    def start_coordinator(self, listen):
        self.child, ready = self.with_rules(
            "coordinator", self.daemon, "tercio-coordinator", "--state-dir", self.state, "--listen", listen,
            "--metrics-listen", "127.0.0.1:0", "--first-backoff", "0.2")
        self.address = ready["coordinator"]

    def saved(self, after):
        """The step of a checkpoint after that one."""
        return wait_for(lambda: (c := self.get(self.job)["checkpoint"]) and c["step"] > after and c["step"], "a checkpoint")

    def files(self, step, pattern):
        return glob.glob(self.path("shared", self.job, f"step-{step:08}", pattern))

    def die_when(self, what, moment):
        """Kills the coordinator, and starts it again while nothing is held up: the next save commits, nothing is lost."""
        before = wait_for(moment, what)
        self.child.kill()
        self.child.wait()
        _, err = self.tercio(*self.reach("get", self.job), code=5)
        self.assertIn("cannot reach", err)
        self.rule("coordinator")
        self.start_coordinator(self.address)
        self.rule("agent")
        committed = self.get(self.job)["checkpoint"]["step"]
        self.assertGreaterEqual(committed, before)
        self.saved(max(committed, before))
        self.tercio(*self.reach("checkpoint", "verify", self.job))
        status = self.get(self.job)
        self.assertEqual((status["state"], status["attempt"], status["restarts"]), ("running", 1, 0), self.events(self.job)[-8:])

    def test_in_every_phase_of_a_save(self):
        # Parts are being written.
        self.rule("agent", "hold fsync /rank-")

        def being_written():
            saved = self.get(self.job)["checkpoint"]["step"]
            return not self.files(saved + self.EVERY, "manifest.json") and len(self.files(saved + self.EVERY, "attempt-1/rank-*")) == 2 and saved
        wait_for(being_written, "two parts that are not whole yet")
        time.sleep(0.3)  # what had passed before is committed
        self.die_when("two parts that are not whole yet", being_written)
        # All parts were reported.
        self.rule("coordinator", "hold fsync /manifest.json.tmp")

        def reported():
            saved = self.get(self.job)["checkpoint"]["step"]
            return self.files(saved + self.EVERY, "attempt-1/manifest.json.tmp.*") and saved
        self.die_when("a manifest without its name", reported)
        # It is visible, and not recorded.
        step = 0

        def visible():
            nonlocal step
            saved = self.get(self.job)["checkpoint"]["step"]
            if saved >= step:  # not held up yet, or left out
                step = saved + 2 * self.EVERY
                self.rule("coordinator", f"hold fsync /step-{step:08}$")
            return self.files(step, "manifest.json") and saved
        self.die_when("a manifest that nobody was told of", visible)
        # Right after the commit.
        last = self.get(self.job)["checkpoint"]["step"]
        self.die_when("the commit", lambda: self.saved(last))
        self.check_the_last()

    def check_the_last(self):
        """What starts from the last checkpoint has the bits of what went before, and every step once."""
        self.rule("agent", "hold fsync /rank-")
        status = wait_for(lambda: (s := self.get(self.job))["step"] > s["checkpoint"]["step"] + 2 * self.EVERY and s, "unsaved steps")
        saved = status["checkpoint"]["step"]
        os.kill(self.trainers(self.job)[0], signal.SIGKILL)
        self.rule("agent")
        started = wait_for(lambda: [e["message"] for e in self.events(self.job) if "attempt 2 starts after step" in e["message"]], "its start")
        self.assertIn(f"starts after step {saved} ", started[0])
        wait_for(lambda: max(s["step"] for s in self.steps(self.job) if s["attempt"] == 2 or s["step"] == 1) > status["step"],
                 "the steps once more")
        self.tercio(*self.reach("cancel", self.job, "--no-save"))
        self.json(*self.reach("wait", self.job), code=8)
        curve = self.curve_of(self.job)
        self.assertEqual([point[0] for point in curve], list(range(1, len(curve) + 1)))
        out, _ = self.tercio(*self.reach("history", self.job, "--all-attempts", "-o", "jsonl"))
        by_attempt = {1: {}, 2: {}}
        for line in map(json.loads, out.splitlines()):
            by_attempt[line["attempt"]][line["step"]] = tuple(line[key] for key in ("loss", "grad_norm", "tokens"))
        twice = set(by_attempt[1]) & set(by_attempt[2])
        self.assertGreaterEqual(len(twice), 2 * self.EVERY)
        self.assertEqual({step: by_attempt[1][step] for step in twice}, {step: by_attempt[2][step] for step in twice})


if __name__ == "__main__":
    python_cases.main()

"""Checkpoints in a directory of the job's own (checkpoint.path), which ranks write and read themselves."""

import glob
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, layout, wait_for  # noqa: E402

STEPS = 1_000_000
EVERY = 50
LONG = ["--set", f"training.steps={STEPS}", "--set", f"training.schedule.decay_steps={STEPS}"]


class SharedCheckpoints(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator("--heartbeat-interval", "0.5")
        self.address = ready["coordinator"]
        self.agent(self.address)

    def steps_in(self, job):
        return sorted(int(path[-8:]) for path in glob.glob(self.path("shared", job, "step-*"))
                      if os.path.exists(os.path.join(path, "manifest.json")))

    def test_a_run_is_resumed_from_them_in_another_layout(self):
        path = ["--set", "checkpoint.path=shared", "--set", f"checkpoint.every_steps={EVERY}"]
        job = self.submit(*LONG, *path, *layout(2, 1, 2))
        wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
        where = self.get(job)["checkpoint"]["path"]
        self.assertTrue(where.startswith(self.path("shared", job) + "/step-"), where)
        self.assertEqual(glob.glob(os.path.join(self.state, "checkpoints", "*")), [])
        parts = glob.glob(os.path.join(where, "attempt-1", "rank-*.safetensors"))
        self.assertEqual(len(parts), 4)
        # A rank is killed: its attempt is broken, the next one loads from the directory.
        os.kill(self.trainers(job)[0], signal.SIGKILL)
        wait_for(lambda: self.get(job)["attempt"] == 2 and self.get(job)["state"] == "running", "the next attempt")
        started = [event["message"] for event in self.events(job) if event["kind"] == "attempt_started"][-1]
        self.after_step(job, self.get(job)["step"] + EVERY)
        self.tercio(*self.reach("cancel", job))
        cancelled = self.json(*self.reach("wait", job), code=8)
        self.assertIn(cancelled["step"], self.steps_in(job))
        last = cancelled["step"]
        again = self.json(*self.reach("resume", job, "--set", f"training.steps={last + 20}", *layout(1, 2, 1)))
        self.assertEqual((again["state"], again["step"]), ("succeeded", last + 20), started)
        self.tercio(*self.reach("checkpoint", "verify", job))
        curve = self.curve_of(job)
        self.assertEqual([point[0] for point in curve], list(range(1, last + 21)))
        alone = self.run_job(self.path("alone"), *LONG[2:], "--set", f"training.steps={last + 20}", *layout(2, 1, 2))
        self.assertEqual(curve, self.curve(alone["id"], self.path("alone")))

    def test_a_part_that_cannot_be_written_is_named_and_training_goes_on(self):
        job = self.submit(*LONG, "--set", "checkpoint.path=shared", "--set", f"checkpoint.every_steps={EVERY}",
                          *layout(1, 1, 2))
        wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
        away = self.path("away")
        os.rename(self.path("shared", job), away)
        # No directory, and none can be made there.
        with open(self.path("shared", job), "w", encoding="utf-8"):
            pass
        failed = wait_for(lambda: [e for e in self.events(job) if e["kind"] == "checkpoint_failed"],
                          "a save that fails")[-1]
        self.assertRegex(failed["message"], r"the part of rank [01] on node one was not written: ")
        self.assertIn("not written", self.get(job)["checkpoint_trouble"]["error"])
        self.after_step(job, self.get(job)["step"] + EVERY)
        os.remove(self.path("shared", job))
        os.rename(away, self.path("shared", job))
        wait_for(lambda: self.get(job)["checkpoint_trouble"] is None, "a save that works")
        self.assertEqual(self.get(job)["attempt"], 1)
        self.tercio(*self.reach("cancel", job, "--no-save"))


class FrozenDirectory(ClusterTest):
    """A file system of the test's own that stands still, as a server that is gone does."""

    def setUp(self):
        super().setUp()
        image, self.disk, self.frozen = self.path("image"), self.path("disk"), False
        os.mkdir(self.disk)
        with open(image, "wb") as file:
            file.truncate(256 << 20)
        for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, self.disk]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self.skipTest(f"no file system of its own: {' '.join(command)}: {done.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk], check=True)
        self.addCleanup(self.thaw)
        _, ready = self.coordinator("--heartbeat-interval", "0.5")
        self.address = ready["coordinator"]
        self.agent(self.address)

    def thaw(self):
        if self.frozen:
            subprocess.run(["fsfreeze", "-u", self.disk], check=True)
        self.frozen = False

    def stop_daemons(self):
        self.thaw()
        super().stop_daemons()

    def failures(self, job, text):
        return [event for event in self.events(job) if event["kind"] == "checkpoint_failed" and text in event["message"]]

    def test_ranks_train_while_their_writes_hang(self):
        job = self.submit(*LONG, "--set", f"checkpoint={{every_steps: {EVERY}, timeout: 8s, path: {self.disk}}}",
                          *layout(1, 1, 2))
        wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
        subprocess.run(["fsfreeze", "-f", self.disk], check=True)
        self.frozen = True
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

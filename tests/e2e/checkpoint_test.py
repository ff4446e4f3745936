"""Checkpoints under faults of disks, files and people: nothing is lost, nothing starts over by itself, nothing waits for ever."""

import errno
import glob
import json
import os
import re
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import (ClusterTest, DiskTest, FailingFilesTest, FrozenDiskTest, TercioTest, layout, processes,
                     wait_for)  # noqa: E402


def flip(path):
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


class NoSilentBeginning(TercioTest):
    """A job that has a checkpoint never starts below it by itself."""

    def environment(self):
        return {**super().environment(), "TERCIO_CHECKPOINT_PATIENCE": "1"}

    def setUp(self):
        super().setUp()
        self.job = self.run_job(self.state)["id"]
        self.directory_of_job = os.path.join(self.state, "checkpoints", self.job)

    def resume(self, *more, steps=80, code=0):
        return self.json("resume", self.job, "--state-dir", self.state, "--set", f"training.steps={steps}", *more, code=code)

    def kinds(self):
        out, _ = self.tercio("events", self.job, "--state-dir", self.state, "-o", "jsonl")
        return [json.loads(line)["kind"] for line in out.splitlines()]

    def newest(self):
        return sorted(glob.glob(os.path.join(self.directory_of_job, "step-*")))[-1]

    def test_a_volume_that_is_not_mounted(self):
        away = self.path("away")
        os.rename(os.path.join(self.state, "checkpoints"), away)
        failed = self.resume(code=1)
        self.assertEqual(failed["state"], "failed")
        self.assertIn("is the volume mounted?", failed["error"])
        self.assertIn(f"tercio resume {self.job} --from-step N", failed["error"])
        self.assertIn("checkpoint_unreadable", self.kinds())
        shutil.rmtree(os.path.join(self.state, "checkpoints"), ignore_errors=True)
        os.rename(away, os.path.join(self.state, "checkpoints"))
        self.assertEqual(self.resume()["step"], 80)
        out, _ = self.tercio("events", self.job, "--state-dir", self.state)
        self.assertIn("starts after step 60", out)

    def test_all_of_them_damaged(self):
        for step in (40, 50, 60):
            flip(glob.glob(os.path.join(self.directory_of_job, f"step-{step:08}", "attempt-1", "*.safetensors"))[0])
        self.tercio("checkpoint", "verify", self.job, "--state-dir", self.state, code=7)
        before = os.listdir(self.directory_of_job)
        failed = self.resume(code=1)
        self.assertEqual(failed["state"], "failed")
        for step in (40, 50, 60):
            self.assertIn(f"step {step}: ", failed["error"])
        self.assertEqual(sorted(os.listdir(self.directory_of_job)), sorted(before))
        # On purpose it may.
        again = self.resume("--from-step", "0")
        self.assertEqual((again["state"], again["step"]), ("succeeded", 80))
        out, _ = self.tercio("events", self.job, "--state-dir", self.state)
        self.assertIn("starts after step 0", out)
        self.assertEqual(len(self.curve(self.job, self.state)), 80)

    def test_one_that_was_removed_by_hand(self):
        shutil.rmtree(self.newest())
        again = self.resume()
        self.assertEqual((again["state"], again["step"]), ("succeeded", 80))
        out, _ = self.tercio("events", self.job, "--state-dir", self.state)
        self.assertIn("starts after step 50", out)
        self.assertIn("checkpoint_damaged", self.kinds())

    def test_an_edited_manifest(self):
        path = os.path.join(self.newest(), "manifest.json")
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        manifest["training_state"]["seed"] = 1
        with open(path, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
        self.assertEqual(self.resume()["step"], 80)
        out, _ = self.tercio("events", self.job, "--state-dir", self.state)
        self.assertRegex(out, r"checkpoint_damaged.*changed after it was written")
        self.assertIn("starts after step 50", out)

    def test_from_a_step_that_was_chosen(self):
        reference = self.curve(self.job, self.state)
        again = self.resume("--from-step", "40", steps=61)
        self.assertEqual((again["state"], again["step"]), ("succeeded", 61))
        self.assertEqual([step[:3] for step in self.curve(self.job, self.state)[:60]], [step[:3] for step in reference])
        failed = self.resume("--from-step", "55", code=1)
        self.assertIn("no checkpoint of step 55", failed["error"])

    def test_another_model_or_seed_must_be_meant(self):
        _, err = self.tercio("resume", self.job, "--state-dir", self.state, "--set", "training.steps=80", "--set", "training.seed=7", code=7)
        self.assertIn("training.seed: 7, previously 1337", err)
        self.assertIn("--accept-change", err)
        _, err = self.tercio("resume", self.job, "--state-dir", self.state, "--set", "training.steps=80", "--set", "model.layers=2", code=7)
        self.assertIn("model.layers: 2, previously 4", err)
        self.assertEqual(self.resume("--accept-change", "--set", "training.seed=7")["step"], 80)

    def test_a_file_that_shrinks_while_it_is_read(self):
        part = max(glob.glob(os.path.join(self.newest(), "attempt-1", "*.safetensors")), key=os.path.getsize)
        with open(os.path.join(self.newest(), "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        _, ready = self.coordinator()
        large = 3 << 30  # sparse: read for seconds, written at once
        os.truncate(part, large)
        # A manifest of the version before has no digest of itself.
        manifest["version"] = 2
        del manifest["digest"]
        manifest["files"]["attempt-1/" + os.path.basename(part)]["bytes"] = large
        with open(os.path.join(self.newest(), "manifest.json"), "w", encoding="utf-8") as file:
            json.dump(manifest, file)
        verify = self.start("checkpoint", "verify", self.job, "--step", "60", "--coordinator", ready["coordinator"])
        wait_for(lambda: processes(f"--verify-checkpoint {self.state}"), "the verification")
        os.truncate(part, 1 << 20)
        out, err = verify.communicate(timeout=60)
        self.assertEqual(verify.returncode, 7, err)
        self.assertIn("DAMAGED", out)
        self.assertEqual(self.json("get", self.job, "--coordinator", ready["coordinator"])["state"], "succeeded")


class Waits(ClusterTest):
    """Every wait for a disk has an end."""

    def setUp(self):
        super().setUp()
        child, ready = self.coordinator("--checkpoint-patience", "3")
        self.child, self.address = child, ready["coordinator"]
        self.metrics = ready["metrics"]
        self.agent(self.address, "one", 4)

    def test_a_search_that_hangs_and_a_coordinator_that_is_stopped(self):
        job = self.submit("--set", "training.steps=20")
        self.json(*self.reach("wait", job))
        manifest = os.path.join(self.state, "checkpoints", job, "step-00000020", "manifest.json")
        os.remove(manifest)
        os.mkfifo(manifest)  # opening it blocks, as a disk that hangs does
        child = self.start("resume", job, "--coordinator", self.address, "--set", "training.steps=40", "-o", "json")
        # Others are served meanwhile, and the job fails in time.
        other = self.submit("--set", "training.steps=20")
        self.assertEqual(self.json(*self.reach("wait", other))["state"], "succeeded")
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 1, err)
        self.assertIn("does not answer", json.loads(out)["error"])
        begun = time.monotonic()
        self.child.send_signal(signal.SIGTERM)
        self.assertEqual(self.child.wait(60), 0)
        self.assertLess(time.monotonic() - begun, 40)

    def test_a_checkpoint_on_request(self):
        job = self.submit("--set", "training.steps=100000", "--set", "checkpoint.every_steps=0")
        before = self.after_step(job, 3)["step"]
        saved = self.json(*self.reach("checkpoint", "now", job))
        self.assertGreater(saved["step"], before)
        self.assertIsNotNone(saved["path"])
        self.assertTrue(os.path.exists(os.path.join(saved["path"], "manifest.json")))
        listed = self.json(*self.reach("checkpoint", "list", job))
        self.assertEqual([c["step"] for c in listed], [saved["step"]])
        self.assertIsNotNone(listed[0]["verified_at"])
        _, err = self.tercio(*self.reach("delete", job), code=7)
        self.assertIn("has not ended", err)
        self.tercio(*self.reach("cancel", job, "--no-save"))
        self.tercio(*self.reach("wait", job), code=8)
        self.tercio(*self.reach("checkpoint", "now", job), code=7)
        self.tercio(*self.reach("delete", job, "--checkpoints"))
        self.tercio(*self.reach("get", job), code=3)
        wait_for(lambda: not os.path.exists(os.path.join(self.state, "checkpoints", job)), "the end of its checkpoints")


class FrozenDisk(FrozenDiskTest):
    """The coordinator's own checkpoints on a file system that stands still."""

    def setUp(self):
        super().setUp()
        os.mkdir(os.path.join(self.disk, "checkpoints"))
        os.mkdir(self.state)
        os.symlink(os.path.join(self.disk, "checkpoints"), os.path.join(self.state, "checkpoints"))
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 4)

    def test_training_goes_on_and_the_save_is_named(self):
        reference = self.submit("--set", "training.steps=400", *layout(1, 1, 2))
        self.json(*self.reach("wait", reference))
        job = self.submit("--set", "training.steps=400", "--set", "checkpoint.timeout=2s", "--set",
                          "checkpoint.every_steps=100", *layout(1, 1, 2))
        self.after_step(job, 20)
        self.freeze()
        failed = wait_for(lambda: [e for e in self.events(job) if e["kind"] == "checkpoint_failed"], "a save that is given up")
        self.assertIn("checkpoint.timeout", failed[0]["message"])
        at = self.get(job)["step"]
        wait_for(lambda: self.get(job)["step"] > at or self.get(job)["state"] != "running", "progress")
        self.assertIsNotNone(self.get(job)["checkpoint_trouble"])
        self.thaw()
        done = self.json(*self.reach("wait", job))
        self.assertEqual((done["state"], done["step"], done["restarts"]), ("succeeded", 400, 0))
        self.assertEqual(done["checkpoint"]["step"], 400)
        self.tercio(*self.reach("checkpoint", "verify", job))
        self.assertEqual(self.curve_of(job), self.curve_of(reference))


    def test_an_update_waits_for_a_save_in_place(self):
        options = ("--set", "training.steps=300", *layout(1, 1, 2))
        reference = self.submit(*options, "--set", "checkpoint={every_steps: 100, keep_last: 9}")
        self.json(*self.reach("wait", reference))
        job = self.submit(*options, "--set", "checkpoint={every_steps: 100, keep_last: 9, snapshot: in_place}")
        self.after_step(job, 20)
        self.freeze()
        wait_for(lambda: self.get(job)["step"] >= 100, "the step of the save")
        time.sleep(2)
        # The step after it is computed; its update would change what the save reads.
        self.assertEqual((self.get(job)["state"], self.get(job)["step"]), ("running", 100))
        self.thaw()
        done = self.json(*self.reach("wait", job))
        self.assertEqual((done["state"], done["step"], done["restarts"]), ("succeeded", 300, 0))
        self.assertEqual(self.curve_of(job), self.curve_of(reference))
        mine, theirs = [self.tensors_of(which) for which in (job, reference)]
        self.assertEqual(list(mine), list(theirs))
        for part, content in mine.items():
            self.assertTrue(content == theirs[part], part)  # assertEqual would print megabytes

    def tensors_of(self, job):
        """The bytes of a job's checkpoints, by step and rank."""
        root = os.path.join(self.state, "checkpoints", job)
        files = sorted(glob.glob(os.path.join(root, "step-*", "*", "*.safetensors")))
        self.assertEqual(len({path.split("/step-")[1][:8] for path in files}), 3, files)
        contents = {}
        for path in files:
            # Each attempt at writing a part gives its file a name of its own behind the rank's.
            part = re.sub(r"-[0-9a-f]{8}\.safetensors$", "", os.path.relpath(path, root))
            self.assertNotIn(part, contents)
            with open(path, "rb") as file:
                contents[part] = file.read()
        return contents


class FewInodes(DiskTest):
    """Room for bytes, and none for files."""

    MKFS = ["mkfs.ext4", "-q", "-N", "512"]

    def test_saves_fail_and_training_continues(self):
        self.state = os.path.join(self.disk, "state")
        _, ready = self.coordinator("--heartbeat-interval", "0.5")
        self.address = ready["coordinator"]
        self.agent(self.address)
        long = ["--set", "training.steps=1000000", *layout(1, 1, 2)]
        # At the coordinator, and where ranks write themselves.
        jobs = [self.submit(*long, "--set", f"checkpoint={{{place}every_steps: 50}}")
                for place in ("", f"path: {self.disk}/shared, ")]
        for job in jobs:
            wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")  # noqa: B023
        fillers = []

        def fill():
            """Old checkpoints that go make room again."""
            try:
                while True:
                    name = os.path.join(self.disk, f"filler-{len(fillers)}")
                    with open(name, "w", encoding="utf-8"):
                        fillers.append(name)
            except OSError as error:
                self.assertEqual(error.errno, errno.ENOSPC)

        def all_fail():
            fill()
            return all(self.get(job)["checkpoint_trouble"] for job in jobs)
        wait_for(all_fail, "saves that fail")
        self.assertGreater(os.statvfs(self.disk).f_bavail, 1000, "blocks are free")
        before = {job: self.get(job) for job in jobs}
        for job in jobs:
            self.after_step(job, before[job]["step"] + 100)
            failed = [e["message"] for e in self.events(job) if e["kind"] == "checkpoint_failed"]
            self.assertIn("No space left on device", failed[0])
            self.tercio(*self.reach("checkpoint", "verify", job))
        for name in fillers:
            os.remove(name)
        for job in jobs:
            wait_for(lambda: self.get(job)["checkpoint"]["step"] > before[job]["checkpoint"]["step"]  # noqa: B023
                     and not self.get(job)["checkpoint_trouble"], "a save that works")  # noqa: B023
            self.assertEqual((self.get(job)["attempt"], self.get(job)["restarts"]), (1, 0))
            self.tercio(*self.reach("cancel", job, "--no-save"))


class DyingDisk(FailingFilesTest):
    """fsync and reads that fail with EIO, at the coordinator and at ranks that write themselves."""

    def setUp(self):
        super().setUp()
        _, ready = self.with_rules("coordinator", self.coordinator, "--heartbeat-interval", "0.5")
        self.address = ready["coordinator"]
        self.with_rules("agent", self.agent, self.address)

    def start_job(self, place):
        job = self.submit("--set", "training.steps=1000000", *layout(1, 1, 2), "--set",
                          f"checkpoint={{{place}every_steps: 50}}")
        wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
        return job

    def check(self, job, daemon, part):
        """What could not be made durable is no checkpoint; the one before stays, training continues."""
        known = len(self.events(job))
        self.rule(daemon, f"fail fsync {part}")
        wait_for(lambda: self.get(job)["checkpoint_trouble"], f"a save that fails at {part}")
        failed = self.get(job)
        told = lambda: [e for e in self.events(job)[known:] if e["kind"] == "checkpoint_failed"  # noqa: E731
                        and re.search(f"cannot sync .*{re.escape(part)}.*: Input/output error", e["message"])]
        wait_for(told, "its reason")
        now = self.after_step(job, failed["step"] + 100)
        self.assertEqual((now["checkpoint"]["step"], now["attempt"]), (failed["checkpoint"]["step"], 1))
        self.tercio(*self.reach("checkpoint", "verify", job))
        self.rule(daemon)
        wait_for(lambda: self.get(job)["checkpoint"]["step"] > now["checkpoint"]["step"], "a save that works")

    def test_an_fsync_that_fails_costs_the_save(self):
        own, shared = self.start_job(""), self.start_job("path: shared, ")
        for part in ("/rank-", "/manifest.json"):
            self.check(own, "coordinator", part)
        self.check(shared, "agent", "/rank-")
        self.check(shared, "coordinator", "/manifest.json")
        for job in (own, shared):
            self.assertEqual(self.get(job)["restarts"], 0)

    def test_a_read_that_fails_is_tried_again(self):
        job = self.start_job("")
        self.rule("coordinator", f"fail read /checkpoints/{job}/")
        os.kill(self.trainers(job)[0], signal.SIGKILL)
        wait_for(lambda: self.get(job)["checkpoint_unreadable"], "an attempt that waits")
        saved = self.get(job)["checkpoint"]["step"]
        self.assertGreater(saved, 0)
        self.rule("coordinator")
        wait_for(lambda: (s := self.get(job))["attempt"] == 2 and s["state"] == "running", "the next attempt")
        self.after_step(job, saved + 50)
        kinds = self.kinds(job)
        self.assertNotIn("checkpoint_damaged", kinds)
        # A save under way when reads began to fail may have been committed all the same: it is newer, and whole.
        starts = [int(step) for e in self.events(job) for step in re.findall(r"^attempt 2 starts after step (\d+)", e["message"])]
        self.assertTrue(starts and starts[0] >= saved, self.events(job))


if __name__ == "__main__":
    python_cases.main()

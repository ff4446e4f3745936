"""Data ranks that divide the training state, as processes: the bits of ranks that have all of it, through a kill and a resumption in
any other division; and what the state takes."""

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, TercioTest  # noqa: E402

STEPS = 60


def divided(tensor, pipeline, data, stage):
    return ["--set", f"parallelism={{tensor: {tensor}, pipeline: {pipeline}, data: {data}, zero_stage: {stage}}}",
            "--set", f"resources.ranks={tensor * pipeline * data}"]


class Sharding(TercioTest):

    def trained(self, name, *changes):
        job = self.run_job(self.path(name), *changes)
        self.assertEqual((job["state"], job["step"]), ("succeeded", STEPS), name)
        return job, self.curve(job["id"], self.path(name))

    def test_equal_bits_and_any_resumption(self):
        _, whole = self.trained("whole", *divided(1, 1, 1, 0))
        for name, degrees in (("two", (1, 1, 2)), ("stages", (1, 2, 2))):
            for precision in ("fp32", "bf16"):
                changes = ["--set", f"training.precision={precision}"]
                _, expected = self.trained(f"{name}-{precision}-whole", *divided(*degrees, 0), *changes)
                job, curve = self.trained(f"{name}-{precision}", *divided(*degrees, 1), *changes)
                self.assertEqual(curve, expected, (name, precision))
                if precision == "fp32":
                    self.assertEqual(curve, whole)
                self.assertEqual(job["plan"]["zero_stage"], 1)
        state = self.path("parts")
        changes = ("--set", "training.steps=20", "--set", f"training.schedule.decay_steps={STEPS}")
        first = self.run_job(state, *changes, *divided(1, 1, 4, 1))
        for steps, degrees in ((40, (1, 1, 1, 0)), (50, (1, 2, 2, 1)), (STEPS, (1, 4, 2, 0))):
            self.json("resume", first["id"], "--state-dir", state, "--set", f"training.steps={steps}", *divided(*degrees))
        curve = self.curve(first["id"], state)
        self.assertEqual(len(curve), STEPS)
        # An evaluation that a shorter job makes at its end is not compared.
        self.assertEqual([step[:5] for step in curve], [step[:5] for step in whole])

    def test_a_checkpoint_is_read_by_one_rank(self):
        job, _ = self.trained("state", *divided(2, 1, 2, 1))
        checkpoint = job["checkpoint"]["path"]
        answer = self.json("generate", "--checkpoint", checkpoint, "--prompt", "red ", "--tokens", "8", "--temperature", "0")
        exported = self.path("exported")
        self.tercio("checkpoint", "export", job["id"], "--state-dir", self.path("state"), "--format", "hf", "--output", exported)
        ids = ("--tokens", "8", "--temperature", "0", "--prompt", "red ")
        self.assertEqual(self.json("generate", "--checkpoint", exported, *ids)["text"], answer["text"])

    def test_memory(self):
        """The moments of four ranks are one whole."""
        sizes = {}
        for stage in (0, 1):
            report = self.json("plan", self.path("job.yaml"), *divided(1, 1, 4, stage), "--set", "model.hidden=256")
            sizes[stage] = report["layouts"][0]["predicted"]["memory_bytes_peak"]
            self.assertEqual(report["layouts"][0]["zero_stage"], stage)
        # 4 layers of 12 * 256 * 256 weights and more; each has 8 bytes of moments, of which three quarters are elsewhere.
        saved = sizes[0] - sizes[1]
        self.assertGreater(saved, 0.95 * 6 * 4 * 12 * 256 * 256)

    def test_later_stages_are_refused(self):
        _, err = self.tercio("plan", self.path("job.yaml"), *divided(1, 1, 2, 2), code=2)
        self.assertIn("parallelism.zero_stage: a stage above 1 is not supported by this version", err)


class ShardingInCluster(ClusterTest):

    def test_kill_and_restart(self):
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 4)
        changes = ("--set", "training.steps=200", "--set", "checkpoint.every_steps=20", *divided(1, 2, 2, 1))
        undisturbed = self.submit(*changes)
        self.tercio(*self.reach("wait", undisturbed))
        broken = self.submit(*changes)
        self.after_step(broken, 30)
        os.kill(self.trainers(broken)[1], signal.SIGKILL)
        self.tercio(*self.reach("wait", broken))
        self.assertGreaterEqual(self.get(broken)["restarts"], 1)
        self.assertEqual(self.curve_of(broken), self.curve_of(undisturbed))


if __name__ == "__main__":
    python_cases.main()

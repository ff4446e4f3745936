"""resources.device: cuda, on emulated GPUs: the trainer is linked with the emulation of CUDA, and NVML is the tests' own."""

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, ClusterTest, TercioTest, layout, wait_for  # noqa: E402

BUILT = os.path.join(ROOT, "bazel-bin")
SMALL = ("--set", "training.steps=6", "--set", "model.layers=2", "--set", "training.evaluate.every_steps=3",
         "--set", "checkpoint.every_steps=2")
CUDA = (*SMALL, "--set", "resources.device=cuda")


class Gpus:
    """A machine with two GPUs, as the driver says."""

    def environment(self):
        return {**super().environment(), "LD_LIBRARY_PATH": os.path.join(BUILT, "common", "fake_nvml"),
                "TERCIO_TRAINER": os.path.join(BUILT, "worker", "trainer", "tercio-trainer-emulated")}


class Cuda(Gpus, TercioTest):

    def test_a_job_on_gpus_follows_the_cpus_curve_in_every_layout(self):
        fp32 = ("--set", "training.precision=fp32")
        cpu = self.path("cpu")
        self.without_gpus = True
        reference = self.history(self.run_job(cpu, *SMALL, *fp32)["id"], cpu)
        self.without_gpus = False
        for degrees in ((1, 1, 1), (2, 2, 2)):
            state = self.path(f"gpu{degrees[0]}")
            job = self.run_job(state, *CUDA, *fp32, *layout(*degrees))
            self.assertEqual(job["state"], "succeeded")
            steps = self.history(job["id"], state)
            self.assertEqual(len(steps), len(reference))
            for ours, theirs in zip(steps, reference):
                self.assertLess(abs(ours["loss"] / theirs["loss"] - 1), 1e-4, ours)
                self.assertLess(abs(ours["grad_norm"] / theirs["grad_norm"] - 1), 1e-3, ours)

    def environment(self):
        environment = super().environment()
        if getattr(self, "without_gpus", False):
            for name in ("LD_LIBRARY_PATH", "TERCIO_TRAINER"):
                del environment[name]
        return environment

    def test_bf16_is_the_default_and_resumes_with_equal_bits(self):
        out, _ = self.tercio("plan", self.path("job.yaml"), *CUDA, "--effective")
        self.assertIn("precision: bf16", out)
        whole = self.run_job(self.path("whole"), *CUDA)
        half = self.run_job(self.state, *CUDA, "--set", "training.steps=4",
                            "--set", "training.schedule.decay_steps=6")
        self.json("resume", half["id"], "--state-dir", self.state, "--set", "training.steps=6")
        # Step 4 was a last step once, and evaluated.
        ours = [line[:-1] for line in self.curve(half["id"], self.state)]
        self.assertEqual(ours, [line[:-1] for line in self.curve(whole["id"], self.path("whole"))])

    def test_without_a_gpu_it_is_refused(self):
        self.without_gpus = True
        _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, *CUDA, code=2)
        self.assertIn("no NVIDIA driver with a GPU on this machine", err)
        for change in ("training.tf32=true", "resources.collectives=nccl"):
            self.without_gpus = False
            _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, *CUDA, "--set", change,
                                 code=2)
            self.assertIn("is not supported by this version", err)


class CudaCluster(Gpus, ClusterTest):

    def test_auto_takes_gpus_and_a_killed_trainer_comes_back(self):
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "gpus", 2, "--device", "cuda")
        node = wait_for(lambda: [n for n in self.json(*self.reach("nodes")) if n["state"] == "ready"], "the node")
        self.assertEqual(node[0]["devices"], 2)
        wanted = (*SMALL, "--set", "resources.device=auto", *layout(1, 1, 2))
        undisturbed = self.submit(*wanted)
        self.tercio(*self.reach("wait", undisturbed))
        job = self.submit(*wanted)
        self.after_step(job, 2)
        os.kill(self.trainers(job)[0], signal.SIGKILL)
        self.tercio(*self.reach("wait", job))
        self.assertGreaterEqual(self.get(job)["restarts"], 1)
        self.assertEqual(self.curve_of(job), self.curve_of(undisturbed))


if __name__ == "__main__":
    python_cases.main()

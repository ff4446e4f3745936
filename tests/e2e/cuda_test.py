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
        return {**super().environment(), "LD_LIBRARY_PATH": os.path.join(BUILT, "common", "gpus", "testing", "fake_nvml"),
                "TERCIO_TRAINER": os.path.join(BUILT, "worker", "trainer", "tercio-trainer-emulated")}


class Cuda(Gpus, TercioTest):

    def test_a_job_on_gpus_follows_the_cpus_curve_in_every_layout(self):
        fp32 = ("--set", "training.precision=fp32")
        cpu = self.path("cpu")
        self.without_gpus = True
        reference = self.history(self.run_job(cpu, *SMALL, *fp32)["id"], cpu)
        self.without_gpus = False
        tf32 = ("--set", "training.tf32=true")
        for name, change, tolerance in (("one", layout(1, 1, 1), 1e-4), ("all", layout(2, 2, 2), 1e-4),
                                        ("tf32", tf32, 1e-3)):
            job = self.run_job(self.path(name), *CUDA, *fp32, *change)
            self.assertEqual(job["state"], "succeeded")
            steps = self.history(job["id"], self.path(name))
            self.assertEqual(len(steps), len(reference))
            for ours, theirs in zip(steps, reference):
                self.assertLess(abs(ours["loss"] / theirs["loss"] - 1), tolerance, ours)
                self.assertLess(abs(ours["grad_norm"] / theirs["grad_norm"] - 1), 10 * tolerance, ours)
        self.assertNotEqual([step["loss"] for step in steps], [step["loss"] for step in reference])

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
        self.without_gpus = False
        _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, *CUDA, "--set",
                             "resources.collectives=nccl", "--set", "training.reproducibility=exact", code=2)
        self.assertIn("nccl sums in its own order", err)

    def test_plans_name_the_gpus_and_keep_within_their_memory(self):
        wide = ("--set", "model.hidden=65536", "--set", "model.heads=1024")
        _, err = self.tercio("plan", self.path("job.yaml"), *CUDA, "--ranks", "4")
        self.assertIn("notice: the plan is for the GPUs of this machine: 2 x Fake GPU with 80.0 GiB of memory each, "
                      "of which a rank may use 39.2 GiB", err)
        self.without_gpus = True
        _, err = self.tercio("plan", self.path("job.yaml"), *CUDA, "--ranks", "4")
        self.assertIn("notice: there is no GPU here; the plan assumes that each rank has an NVIDIA A100-SXM4-80GB "
                      "with 80.0 GiB of memory, and may use 78.5 GiB of it", err)
        report = self.json("plan", self.path("job.yaml"), *CUDA, *wide, code=2)
        self.assertIsNone(report["chosen"])
        self.assertRegex(report["layouts"][0]["rejected"], r"needs \d+\.\d MiB per rank, 80384\.0 MiB are available")

    def test_plans_tell_of_attention_that_is_not_cudnns(self):
        job = ("plan", self.path("job.yaml"), *CUDA, "--set", "model.dropout=0")
        _, err = self.tercio(*job)
        self.assertNotIn("attention", err)
        _, err = self.tercio(*job, "--set", "model.dropout=0.1")
        self.assertNotIn("attention", err)
        for change, reason in (("model.hidden=48", "takes heads of a multiple of 8"),
                               ("training.precision=fp32", "is for 16-bit values (training.precision)")):
            _, err = self.tercio(*job, "--set", change)
            self.assertIn("notice: attention is computed by our own kernels, which are much slower than cuDNN's, whose form of it " + reason, err)

    def test_ranks_that_share_a_gpu_talk_over_the_host(self):
        job = self.run_job(self.state, *CUDA, *layout(1, 1, 4))
        self.assertEqual(job["plan"]["collectives"], "host")
        _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.path("nccl"), *CUDA,
                             *layout(1, 1, 4), "--set", "resources.collectives=nccl", code=1)
        self.assertIn("ranks 0 and 2 share GPU 0", err)
        job = self.run_job(self.path("pair"), *CUDA, *layout(1, 2, 1))
        self.assertEqual(job["plan"]["collectives"], "nccl")


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


    def test_nccl_over_nodes_and_after_a_kill(self):
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        for node in range(4):
            self.agent(self.address, f"n{node}", 2, "--device", "cuda")
        wait_for(lambda: sum(n["state"] == "ready" for n in self.json(*self.reach("nodes"))) == 4, "the nodes")
        wanted = (*CUDA, *layout(2, 2, 2))
        over_host = self.submit(*wanted, "--set", "resources.collectives=host")
        self.tercio(*self.reach("wait", over_host))
        job = self.submit(*wanted)
        self.after_step(job, 2)
        os.kill(self.trainers(job)[3], signal.SIGKILL)
        self.tercio(*self.reach("wait", job))
        end = self.get(job)
        self.assertGreaterEqual(end["restarts"], 1)
        self.assertEqual(end["plan"]["collectives"], "nccl")
        again = self.submit(*wanted)
        self.tercio(*self.reach("wait", again))
        self.assertEqual(self.curve_of(job), self.curve_of(again))
        log = self.tercio(*self.reach("logs", again))[0]
        for when in ("when its groups are made", "after its first step"):
            self.assertRegex(log, rf"memory of the GPU {when}: \d+ MiB of \d+ MiB are free; the plan leaves \d+ MiB to CUDA and NCCL")
        for ours, theirs in zip(self.steps(job), self.steps(over_host), strict=True):
            self.assertLess(abs(ours["loss"] / theirs["loss"] - 1), 1e-2, ours)


if __name__ == "__main__":
    python_cases.main()

"""GPUs that fail under jobs, or before them, on emulated GPUs: NVML is the tests' own, and says what a file tells it to."""

import os
import signal
import sys
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, ClusterTest, TercioTest, layout, wait_for  # noqa: E402

BUILT = os.path.join(ROOT, "bazel-bin")
JOB = ("--set", "training.steps=8", "--set", "model.layers=2", "--set", "training.evaluate.every_steps=4",
       "--set", "checkpoint.every_steps=2", "--set", "resources.device=cuda")


class FakeGpus:
    """Machines with two GPUs each; `machine` is the one that is started next."""

    machine = "a"
    fault = None  # fault of the device, under trainers of agents that are started next
    compat = {}  # where agents that are started next find NVIDIA's package for forward compatibility

    def environment(self):
        fault = {"TERCIO_EMULATED_FAULT": self.fault} if self.fault else {}
        return {**super().environment(), **fault, **self.compat, "LD_LIBRARY_PATH": os.path.join(BUILT, "common", "gpus", "testing", "fake_nvml"),
                "TERCIO_FAKE_NVML": self.path("gpus-of-" + self.machine), "TERCIO_GPU_INTERVAL": "0.1",
                "TERCIO_TRAINER": os.path.join(BUILT, "worker", "trainer", "tercio-trainer-emulated")}

    def say(self, machine, *lines):
        """How the machine's GPUs are from now on."""
        path = self.path("gpus-of-" + machine)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
        os.rename(path + ".new", path)


class GpuFaults(FakeGpus, ClusterTest):

    def setUp(self):
        super().setUp()
        _, self.ready = self.coordinator()
        self.address = self.ready["coordinator"]

    def gpu_agent(self, name, *more):
        self.machine = name
        child, ready = self.agent(self.address, name, 2, "--device", "cuda", *more)
        wait_for(lambda: name in self.nodes() and self.nodes()[name]["state"] == "ready", "node " + name)
        return child, ready

    def nodes(self):
        return {node["name"]: node for node in self.json(*self.reach("nodes"))}

    def metrics(self, ready):
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=60) as page:
            return page.read().decode().splitlines()

    def finish(self, job):
        self.tercio(*self.reach("wait", job))

    def test_a_gpu_that_falls_off_the_bus_is_left(self):
        _, ready = self.gpu_agent("a")
        undisturbed = self.submit(*JOB, *layout(1, 1, 2))
        self.finish(undisturbed)
        self.gpu_agent("b")
        job = self.submit(*JOB, *layout(1, 1, 2))
        self.after_step(job, 2)
        self.assertEqual([rank["node"] for rank in self.get(job)["plan"]["ranks"]], ["a", "a"])
        self.say("a", "1.xid 79", "1.lost 1")
        self.finish(job)
        self.assertEqual(self.get(job)["restarts"], 1)
        self.assertNotIn(("a", 1), [(rank["node"], rank["device"]) for rank in self.get(job)["plan"]["ranks"]])
        self.assertEqual(self.curve_of(job), self.curve_of(undisturbed))
        broken = [event for event in self.events(job) if event["kind"] == "attempt_broken"]
        self.assertEqual(len(broken), 1)
        self.assertIn("GPU 1 (Fake GPU, GPU-1) of node a, used by rank 1: XID 79", broken[0]["message"])
        faulty = [event for event in self.events() if event["kind"] == "device_faulty"]
        self.assertEqual([(event["node"], "XID 79" in event["message"]) for event in faulty], [("a", True)])
        node = self.nodes()["a"]
        self.assertEqual((node["state"], node["devices"], node["free"]), ("ready", 2, 1))
        self.assertEqual([faulty["device"] for faulty in node["faulty_devices"]], [1])
        self.assertIn("restart the node", node["faulty_devices"][0]["fault"])
        out, _ = self.tercio(*self.reach("nodes"))
        self.assertIn("GPU 1: XID 79", out)
        self.assertIn("tercio_devices_faulty 1", self.metrics(self.ready))
        page = self.metrics(ready)
        self.assertIn('tercio_gpu_xid_errors_total{gpu="1",uuid="GPU-1",xid="79"} 1', page)
        self.assertIn('tercio_gpu_faulty{gpu="1",uuid="GPU-1"} 1', page)
        self.assertIn('tercio_gpu_faulty{gpu="0",uuid="GPU-0"} 0', page)
        self.assertIn('tercio_gpu_temperature_celsius{gpu="0",uuid="GPU-0"} 55', page)
        self.assertFalse([line for line in page if "temperature" in line and 'gpu="1"' in line])

    def test_a_job_waits_for_gpus_and_says_what_is_wrong_with_them(self):
        self.say("a", "0.compute_mode 2")
        self.gpu_agent("a")
        job = self.submit(*JOB, *layout(1, 1, 2))
        error = wait_for(lambda: self.get(job)["error"], "a reason")
        self.assertIn("needs 2 GPUs, 1 of 1 are free; GPU 0 of node a is faulty: its compute mode is prohibited", error)
        self.assertIn("nvidia-smi -i 0 -c DEFAULT", error)
        self.say("a")
        self.finish(job)
        self.assertIn("device_recovered", [event["kind"] for event in self.events()])

    def test_memory_that_others_have(self):
        self.say("a", "0.process 1 42949672960")
        self.gpu_agent("a")
        job = self.submit(*JOB, *layout(1, 1, 1))
        self.finish(job)
        self.assertEqual([rank["device"] for rank in self.get(job)["plan"]["ranks"]], [1])
        self.assertIn("other processes use its memory, the largest process 1 (",
                      self.nodes()["a"]["faulty_devices"][0]["fault"])

    def test_a_driver_that_is_too_old(self):
        self.say("a", "cuda_version 12020")
        self.gpu_agent("a")
        job = self.submit(*JOB, *layout(1, 1, 1))
        error = wait_for(lambda: self.get(job)["error"], "a reason")
        self.assertIn("the NVIDIA driver 580.1 supports CUDA 12.2", error)
        self.assertEqual(self.nodes()["a"]["free"], 0)

    def test_an_older_driver_with_nvidias_package_for_forward_compatibility(self):
        compat = self.path("compat")
        os.mkdir(compat)
        open(os.path.join(compat, "libcuda.so.1"), "w", encoding="utf-8").close()
        self.compat = {"TERCIO_CUDA_COMPAT": compat}
        self.say("a", "cuda_version 12020", "0.model H100", "1.model H100")
        self.gpu_agent("a")
        self.assertEqual(self.nodes()["a"]["free"], 2)
        job = self.submit(*JOB, *layout(1, 1, 1))
        trainer = wait_for(lambda: self.trainers(job), "a trainer")[0]
        with open(f"/proc/{trainer}/environ", encoding="utf-8") as file:
            path = [entry for entry in file.read().split("\0") if entry.startswith("LD_LIBRARY_PATH=")][0]
        self.assertTrue(path.startswith(f"LD_LIBRARY_PATH={compat}:"), path)
        self.finish(job)

    def test_the_end_of_a_rank_names_what_the_driver_has_said(self):
        self.gpu_agent("a")
        job = self.submit(*JOB, *layout(1, 1, 1))
        for code, of_device in ((31, False), (94, True)):
            before = len([kind for kind in self.kinds(job) if kind == "rank_exited"])
            step = self.get(job)["step"]
            self.after_step(job, step)
            device = self.get(job)["plan"]["ranks"][0]["device"]
            self.assertEqual(device, 0)
            self.say("a", *["0.xid 31"] * (1 if code == 31 else 2), *["0.xid 94"] * (1 if code == 94 else 0))
            os.kill(self.trainers(job)[0], signal.SIGKILL)
            wait_for(lambda: len([k for k in self.kinds(job) if k == "rank_exited"]) > before, "the end of the rank")
            ended = [event for event in self.events(job) if event["kind"] == "rank_exited"][-1]
            self.assertIn("killed by signal 9", ended["message"])
            self.assertIn(f"GPU 0 (GPU-0): ", ended["message"])
            self.assertIn(f"XID {code}", ended["message"])
            if of_device:
                # The next attempt does without that GPU, which is well again for others.
                self.finish(job)
                self.assertEqual([rank["device"] for rank in self.get(job)["plan"]["ranks"]], [1])
                self.assertEqual(self.nodes()["a"]["faulty_devices"], [])

    def test_a_rank_that_dies_of_a_device_error_goes_on_elsewhere(self):
        self.fault = "214 cudaMemcpyAsync 60"  # cudaErrorECCUncorrectable
        self.gpu_agent("a")
        job = self.submit(*JOB, *layout(1, 1, 1))
        self.fault = None
        self.gpu_agent("b")
        self.finish(job)
        ended = [event for event in self.events(job) if event["kind"] == "rank_exited"]
        self.assertEqual([(event["node"], event["message"].count("cudaErrorECCUncorrectable")) for event in ended],
                         [("a", 2), ("a", 2)])
        for gpu, event in enumerate(ended):
            self.assertIn(f"; GPU {gpu} (GPU-{gpu}): cudaErrorECCUncorrectable", event["message"])
        self.assertEqual(self.get(job)["plan"]["ranks"][0]["node"], "b")

    def test_a_driver_that_hangs_does_not_hang_the_agent(self):
        child, ready = self.gpu_agent("a")
        self.say("a", "hang 1")
        job = self.submit(*JOB, *layout(1, 1, 2))
        self.finish(job)
        ages = [time.time() - float(line.split()[-1]) for line in self.metrics(ready)
                if line.startswith("tercio_gpu_last_sample_timestamp_seconds{")]
        self.assertEqual(len(ages), 2)
        self.assertGreater(min(ages), 0)
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(60), 0)


class Doctor(FakeGpus, TercioTest):

    def environment(self):
        environment = super().environment()
        if getattr(self, "without_gpus", False):
            for name in ("LD_LIBRARY_PATH", "TERCIO_TRAINER"):
                del environment[name]
        return environment

    def findings(self, *more, code=0):
        answer = self.json("doctor", *more, code=code)
        self.assertEqual(answer["healthy"], code == 0)
        for finding in answer["findings"]:
            self.assertEqual(set(finding), {"check", "status", "detail", "mend"})
            self.assertIn(finding["status"], ("ok", "warning", "error", "unknown"))
        return {finding["check"]: finding for finding in answer["findings"]}

    def test_a_machine_without_gpus(self):
        self.without_gpus = True
        found = self.findings()
        self.assertEqual(found["gpu"]["detail"], "no GPU")
        for check in ("cpu", "memory", "disk", "open files", "clock"):
            self.assertIn(check, found)
        out, _ = self.tercio("doctor")
        self.assertIn("no GPU", out)

    def test_gpus_are_examined_and_measured(self):
        found = self.findings()
        self.assertIn("NVIDIA 580.1", found["driver"]["detail"])
        self.assertIn("NCCL 2.", found["libraries"]["detail"])
        self.assertEqual(found["gpu 1"]["status"], "ok")
        self.assertIn("TFLOP/s", found["cuda 0 products"]["detail"])
        self.assertIn("GB/s", found["cuda 0 host link"]["detail"])
        self.say("a", "1.mig 1", "0.persistence 0")
        found = self.findings(code=7)
        self.assertEqual(found["gpu 1"]["status"], "error")
        self.assertIn("nvidia-smi -i 1 -mig 0", found["gpu 1"]["detail"])
        self.assertEqual(found["gpu 0 persistence"]["status"], "warning")

    def test_the_coordinator_is_asked_where_it_is_named(self):
        self.without_gpus = True
        _, ready = self.coordinator()
        found = self.findings("--coordinator", ready["coordinator"])
        self.assertIn("answers, 0 nodes", found["coordinator"]["detail"])
        self.stop_daemons()
        found = self.findings("--coordinator", ready["coordinator"], code=7)
        self.assertEqual(found["coordinator"]["status"], "error")


if __name__ == "__main__":
    python_cases.main()

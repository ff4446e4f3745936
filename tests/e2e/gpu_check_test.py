"""tests/gpu.sh, which people run on GPUs, on emulated ones: the trainer for GPUs and the tests of kernels are linked with the emulation of
CUDA, NVML is the tests' own, models are tiny. So it is known to work, and to fail when it should."""

import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, ROOT, SECONDS, TercioTest  # noqa: E402

BUILT = os.path.join(ROOT, "bazel-bin")
DEVICE_TESTS = ("kernels/cuda/elementwise_test", "worker/device/cuda_device_test")

# Calls the real command line, with another seed in every job for GPUs: a trainer that computes something else.
OTHER_WEIGHTS = """#!/bin/bash
for word in "$@"; do
  if [[ -f "$word" ]] && grep -q '"device": "cuda"' "$word"; then exec "$(dirname "$0")/tercio-real" "$@" --set training.seed=7; fi
done
exec "$(dirname "$0")/tercio-real" "$@"
"""


class GpuCheck(TercioTest):

    def setUp(self):
        super().setUp()
        self.tree, self.output = self.path("tree"), self.path("output")
        os.makedirs(os.path.join(self.tree, "bin"))
        os.makedirs(os.path.join(self.tree, "tests"))
        for name in ("tercio", "tercio-coordinator", "tercio-agent", "tercio-trainer"):
            shutil.copy(os.path.join(BIN, name), os.path.join(self.tree, "bin"))
        shutil.copy(os.path.join(BUILT, "worker", "trainer", "tercio-trainer-emulated"),
                    os.path.join(self.tree, "bin", "tercio-trainer-cuda"))
        for name in DEVICE_TESTS:
            shutil.copy(os.path.join(BUILT, name), os.path.join(self.tree, "tests"))
        shutil.copy(os.path.join(BUILT, "tests", "bench", "kernels", "kernel_rates_emulated"), os.path.join(self.tree, "tests", "kernel_rates"))

    def replace(self, place, text):
        path = os.path.join(self.tree, place)
        os.remove(path)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def check(self, *more, code):
        environment = {**self.environment(), "LD_LIBRARY_PATH": os.path.join(BUILT, "common", "gpus", "testing", "fake_nvml")}
        done = subprocess.run([os.path.join(ROOT, "tests", "gpu.sh"), "--tree", self.tree, "--output", self.output, "--quick", *more],
                              capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        with open(os.path.join(self.output, "gpu.json"), encoding="utf-8") as file:
            report = json.load(file)
        with open(os.path.join(self.output, "gpu.md"), encoding="utf-8") as file:
            page = file.read()
        self.assertRegex(page, r"\nslowest: .* \(\d+\.\d s\)")
        for check in report["checks"]:
            self.assertIn(check["outcome"], ("passed", "failed", "skipped"))
            self.assertEqual(check["outcome"] == "passed", not check["reason"], check)
            self.assertIn(f"| {check['name']} | {check['outcome']} |", page)
        return report

    def outcomes(self, report):
        return {(check["part"], check["name"]): check["outcome"] for check in report["checks"]}

    def test_all_parts(self):
        report = self.check(code=0)
        self.assertEqual([gpu["name"] for gpu in report["gpus"]], ["Fake GPU", "Fake GPU"])
        self.assertEqual(report["driver"], "580.1")
        parts = {check["part"] for check in report["checks"]}
        self.assertEqual(parts, {"start", "operations", "curves", "architectures", "fp8", "repeat", "host", "nccl", "memory", "kill",
                                 "kernels", "speed"})
        # What may be missing here: PyTorch, and products of 8 bits.
        skipped = {check["name"] for check in report["checks"] if check["outcome"] == "skipped"}
        for name in skipped:
            self.assertRegex(name, "PyTorch|fp8, against bf16")
        numbers = {check["name"]: check["numbers"] for check in report["checks"]}
        self.assertGreater(numbers["elementwise_test"]["cases"], 0)
        self.assertRegex(numbers["elementwise_test"]["slowest"], r"^[\w/]+\.[\w/]+$")
        self.assertGreaterEqual(numbers["elementwise_test"]["slowest_seconds"], 0)
        for model in ("gpt2", "llama", "bert"):
            self.assertLess(numbers[f"{model}, fp32, against the CPU in fp32"]["loss_difference"], 1e-4)
        for model in ("gemma2", "t5"):
            self.assertLess(numbers[f"{model}, fp32, against the CPU"]["loss_difference"], 1e-4)
        memory = numbers["memory: as planned, and little beside it"]
        self.assertEqual(memory["planned"], memory["used"])
        self.assertEqual(numbers["kill -9 of a trainer: restart, equal bits"]["restarts"], 1)
        self.assertGreater(numbers["tiny, bf16, one GPU"]["tokens_per_second"], 0)
        self.assertGreater(numbers["bound by memory"]["bytes_per_second"]["AdamW"], 0)
        self.assertGreater(numbers["products and attention"]["flops_per_second"]["AttentionBackward, our own kernel"], 0)
        self.assertIn("forward", numbers["tiny: where a step's time goes"]["host_milliseconds"])

    def test_a_trainer_with_other_losses_fails_the_curves(self):
        shutil.copy(os.path.join(BIN, "tercio"), os.path.join(self.tree, "bin", "tercio-real"))
        self.replace("bin/tercio", OTHER_WEIGHTS)
        outcomes = self.outcomes(self.check("--only", "curves", code=1))
        for model in ("gpt2", "llama", "bert"):
            self.assertEqual(outcomes["curves", f"{model} on the CPU, fp32"], "passed")
            self.assertEqual(outcomes["curves", f"{model}, fp32, against the CPU in fp32"], "failed")

    def test_a_broken_trainer_and_a_failing_test_keep_nothing_from_running(self):
        self.replace("bin/tercio-trainer-cuda", "#!/bin/bash\nexit 1\n")
        self.replace("tests/elementwise_test", "#!/bin/bash\nexit 1\n")
        outcomes = self.outcomes(self.check("--only", "operations,repeat,memory", code=1))
        self.assertEqual(outcomes["operations", "elementwise_test"], "failed")
        self.assertEqual(outcomes["operations", "cuda_device_test"], "passed")
        self.assertEqual(outcomes["repeat", "a job and its repetition, bf16"], "failed")
        self.assertEqual(outcomes["memory", "memory: as planned, and little beside it"], "failed")

    def test_a_limit_of_all_parts_ends_what_is_left(self):
        report = self.check("--only", "operations", "--seconds", "0", code=1)
        reasons = [check["reason"] for check in report["checks"] if check["part"] == "operations"]
        self.assertTrue(reasons)
        for reason in reasons:
            self.assertIn("the time limit of this part", reason)

    def test_a_tarball_without_cuda_is_refused(self):
        os.remove(os.path.join(self.tree, "bin", "tercio-trainer-cuda"))
        report = self.check(code=1)
        self.assertEqual(len(report["checks"]), 1)
        self.assertIn("tercio-trainer-cuda is not in", report["checks"][0]["reason"])


if __name__ == "__main__":
    python_cases.main()

"""A teacher leaves its logits, and a student learns from them without it: writing that is killed and resumed, training in layouts and
after a kill, and what is wrong with logits."""

import glob
import json
import os
import shutil
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import TercioTest, layout, wait_for  # noqa: E402

STUDENT = """
name: student
model: {layers: 2, hidden: 16, heads: 2, context: 32}
data: {train: corpus.txt, validation: 0.1, tokenizer: chars}
training:
  objective: distill
  distillation: {logits: logits, temperature: 2, weight: 0.7}
  steps: 120
  global_batch: 8
  optimizer: {learning_rate: 1e-2}
  evaluate: {every_steps: 60, batches: 2}
checkpoint: {every_steps: 5}
fault_tolerance: {max_restarts: 2}
"""
TOP_K = 6


class StoredLogits(TercioTest):

    def setUp(self):
        super().setUp()
        self.job_file = self.path("student.yaml")
        with open(self.job_file, "w", encoding="utf-8") as file:
            file.write(STUDENT)
        teacher = self.run_job(self.path("teacher"), "--set", "training.steps=20", "--set", "model.layers=2")
        self.teacher = teacher["checkpoint"]["path"]

    def write(self, directory="logits", *more):
        return ["evaluate", "--checkpoint", self.teacher, "--job", self.job_file, "--write-logits", self.path(directory),
                "--top-k", str(TOP_K), *more]

    def train(self, state, *changes, code=0):
        return self.json("run", self.job_file, "--state-dir", state, *changes, code=code)

    def refused(self, *changes, code=2):
        arguments = [part for change in changes for part in ("--set", change)]
        return self.tercio("run", self.job_file, "--state-dir", self.state, *arguments, code=code)[1]

    def test_a_student_learns_in_layouts_and_after_a_kill(self):
        child = self.start(*self.write())
        wait_for(lambda: os.path.exists(self.path("logits.partial", "begun.json")), "the first file")
        child.send_signal(signal.SIGKILL)
        child.communicate()
        self.assertFalse(os.path.exists(self.path("logits")))
        self.assertIn("logits.json is not there", self.refused("model.layers=2"))
        written = self.json(*self.write())
        self.assertEqual(written["tokens"], 32 * written["samples"])
        self.assertEqual(written["top_k"], TOP_K)
        self.assertFalse(os.path.exists(self.path("logits.partial")))
        with open(self.path("logits", "logits.json"), encoding="utf-8") as file:
            header = json.load(file)
        self.assertEqual(sum(header["samples"]), written["samples"])
        self.assertIn("exists; remove it", self.tercio(*self.write(), code=7)[1])

        job = self.train(self.path("alone"), *layout(2, 1, 1))
        history = self.history(job["id"], self.path("alone"))
        self.assertLess(history[-1]["loss"], 0.8 * history[0]["loss"])
        self.assertEqual([step["step"] for step in history if step["validation_loss"] is not None], [60, 120])
        child = self.start("run", self.job_file, "--state-dir", self.state, *layout(2, 2, 2))
        wait_for(lambda: glob.glob(self.path("state", "checkpoints", "job-*", "step-*")), "a checkpoint")
        job_id = os.listdir(self.path("state", "checkpoints"))[0]
        trainers = self.trainers(job_id)
        self.assertEqual(len(trainers), 8)
        os.kill(trainers[0], signal.SIGKILL)
        child.communicate()
        self.assertEqual(child.returncode, 0)
        self.assertEqual(self.json("get", job_id, "--state-dir", self.state)["restarts"], 1)
        self.assertEqual(self.curve(job_id, self.state), self.curve(job["id"], self.path("alone")))

    def test_faults_are_named(self):
        self.assertIn("--write-logits needs --job", self.tercio("evaluate", "--checkpoint", self.teacher, "--write-logits",
                                                                self.path("logits"), code=2)[1])
        self.assertIn("--metric: --write-logits takes", self.tercio(*self.write("logits", "--metric", "loss"), code=2)[1])
        self.assertIn("is above the vocabulary", self.tercio(*self.write()[:-1], "200", code=2)[1])
        self.assertFalse(os.path.exists(self.path("logits")))
        self.tercio(*self.write())
        for changes, fault in ((("data.tokenizer=bytes",), "a vocabulary of "),
                               (("model.context=16",), "model.context 32, the job has 16"),
                               (("data.validation=0.3",), "samples "),
                               (("training.distillation.direction=reverse",), "direction"),
                               (("training.distillation.top_k=7",), "top_k")):
            self.assertIn(fault, self.refused(*changes))
        shutil.copytree(self.path("logits"), self.path("damaged"))
        with open(self.path("damaged", "logits-00000.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        message = self.refused("training.distillation.logits=damaged", code=7)
        self.assertIn("damaged/logits-00000.safetensors: its digest", message)


if __name__ == "__main__":
    python_cases.main()

"""Distillation as a user runs it: the example deploy/examples/distill, a teacher of another architecture in layouts that cut both
models, a job that is resumed and one whose trainer is killed, its figures, and teachers that are refused."""

import glob
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, ROOT, TercioTest, layout, wait_for  # noqa: E402

STUDENT = """
name: student
model: {layers: 2, hidden: 16, heads: 2, context: 32}
data: {train: corpus.txt, validation: 0.1, tokenizer: chars}
training:
  objective: distill
  distillation: {teacher: teacher, temperature: 2, weight: 0.7}
  steps: 20
  global_batch: 8
  optimizer: {learning_rate: 1e-2}
  schedule: {kind: constant}
  evaluate: {every_steps: 10, batches: 2}
checkpoint: {every_steps: 5}
fault_tolerance: {max_restarts: 2}
"""


class Distillation(TercioTest):

    def make_teacher(self):
        """A llama of three layers, which has seen the student's texts, as transformers has models."""
        job = self.run_job(self.path("school"), "--set", "model.architecture=llama", "--set", "model.layers=3", "--set", "training.steps=25",
                           "--set", "name=teacher")
        self.tercio("checkpoint", "export", job["id"], "--state-dir", self.path("school"), "--format", "hf", "--output",
                    self.path("teacher"))
        self.student = self.path("student.yaml")
        with open(self.student, "w", encoding="utf-8") as file:
            file.write(STUDENT)

    def train(self, state, *changes, code=0):
        return self.json("run", self.student, "--state-dir", state, *changes, code=code)

    def refused(self, *changes, code=2):
        arguments = [part for change in changes for part in ("--set", change)]
        return self.tercio("run", self.student, "--state-dir", self.state, *arguments, code=code)[1]

    def test_layouts_resumption_and_a_kill_have_the_same_bits(self):
        self.make_teacher()
        alone = ("--set", "training.objective=pretrain", "--set", "training.distillation=null")
        with_teacher, without = (self.json("plan", self.student, *layout(1, 2, 1), *more)["layouts"][0]["predicted"]["memory_bytes_peak"]
                                 for more in ((), alone))
        self.assertGreater(with_teacher, without)
        alone = self.train(self.path("alone"))
        history = self.history(alone["id"], self.path("alone"))
        self.assertLess(history[-1]["loss"], 0.8 * history[0]["loss"])
        self.assertLess(history[-1]["teacher_kl"], history[0]["teacher_kl"])
        for step in history:
            self.assertAlmostEqual(step["loss"], 0.3 * step["cross_entropy"] + 0.7 * 4 * step["teacher_kl"], delta=1e-6)
        evaluated = [step for step in history if step["validation_loss"] is not None]
        self.assertEqual([step["step"] for step in evaluated], [10, 20])
        self.assertGreater(evaluated[-1]["validation_teacher_kl"], 0)
        self.tercio("plot", alone["id"], "--state-dir", self.path("alone"), "--metric",
                    "teacher_kl,cross_entropy,validation_teacher_kl", "--output", self.path("curves.svg"))

        # Half of it, the rest in another layout, where the teacher's three layers are cut otherwise.
        half = self.train(self.path("half"), "--set", "training.steps=10")
        self.json("resume", half["id"], "--state-dir", self.path("half"), "--set", "training.steps=20",
                  "--set", "training.distillation.stage_layers=[1, 2]", *layout(1, 2, 2))
        self.assertEqual([step["loss"] for step in self.history(half["id"], self.path("half"))], [step["loss"] for step in history])

        # A trainer is killed: the next attempt loads the teacher again.
        child = self.start("run", self.student, "--state-dir", self.state, "--set", "training.steps=400", *layout(1, 2, 2))
        wait_for(lambda: glob.glob(self.path("state", "checkpoints", "job-*", "step-*")), "a checkpoint")
        job_id = os.listdir(self.path("state", "checkpoints"))[0]
        os.kill(self.trainers(job_id)[0], signal.SIGKILL)
        child.communicate()
        self.assertEqual(child.returncode, 0)
        self.assertEqual(self.json("get", job_id, "--state-dir", self.state)["restarts"], 1)
        self.assertEqual(self.curve(job_id, self.state)[:20], self.curve(alone["id"], self.path("alone")))

    def test_teachers_that_cannot_teach_are_named(self):
        self.make_teacher()
        self.assertIn("training.distillation.teacher", self.refused("training.distillation.teacher=nowhere"))
        self.assertIn("another vocabulary", self.refused("data.tokenizer=bytes"))
        self.assertIn("another vocabulary", self.refused("model.vocab_size=300"))
        # As many tokens, of which some are others.
        with open(self.path("corpus.txt"), encoding="utf-8") as file:
            text = file.read()
        with open(self.path("other.txt"), "w", encoding="utf-8") as file:
            file.write(text.replace(sorted(set(text))[-1], "ß"))
        self.assertIn("and that of the data's tokenizer is ", self.refused("data.train=other.txt"))
        self.assertIn("reads at most 32 tokens", self.refused("model.context=64"))
        self.assertIn("the teacher of training.distillation: ",
                      self.refused("resources.ranks=4", "parallelism.pipeline=4", "model.layers=4"))
        # Weights that were exchanged since the job was submitted.
        shutil.copytree(self.path("teacher"), self.path("other"))
        with open(self.path("other", "model.safetensors"), "r+b") as file:
            file.truncate(4096)
        self.assertIn("training.distillation.teacher", self.refused("training.distillation.teacher=other", code=7))

    def test_the_example_runs(self):
        for folder in ("chat", "distill"):
            shutil.copytree(os.path.join(ROOT, "deploy", "examples", folder), self.path("examples", folder))
        # Shorter than for people.
        for name in ("chat/chat.yaml", "distill/distill.yaml"):
            path = self.path("examples", *name.split("/"))
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace("epochs: 10", "epochs: 1").replace("epochs: 20", "epochs: 2"))
        environment = {**self.environment(), "PATH": BIN + os.pathsep + os.environ["PATH"]}
        subprocess.run(["bash", self.path("examples", "distill", "run.sh")], env=environment, check=True, stdout=subprocess.PIPE,
                       timeout=600)
        state = self.path("examples", "distill", "state")
        self.assertIn("teacher_kl", self.history("apprentice", state)[-1])
        self.assertNotIn("teacher_kl", self.history("alone", state)[-1])


if __name__ == "__main__":
    python_cases.main()

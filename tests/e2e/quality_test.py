"""A classifier as a user trains it: epochs, the quality of its validation data, the best checkpoint, the test data at the end."""

import glob
import json
import os
import random
import re
import sys
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, TercioTest, layout, wait_for  # noqa: E402

THINGS = ["film", "book", "song", "play", "meal", "walk"]
GOOD = ["lovely", "bright", "warm", "clever"]
BAD = ["dull", "broken", "cold", "stale"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "was", "."] + THINGS + GOOD + BAD

JOB = """
name: reviews
model: {architecture: bert, layers: 2, hidden: 32, heads: 4, context: 16, dropout: 0.1, labels: [bad, good]}
data: {train: train.jsonl, validation: dev.jsonl, test: test.tsv, tokenizer: vocab.txt}
training:
  epochs: 3
  global_batch: 20
  optimizer: {learning_rate: 3e-3}
  schedule: {kind: linear, warmup_steps: 3}
  evaluate: {every_epochs: 1, keep_best: f1}
checkpoint: {every_steps: 4, keep_last: 1}
fault_tolerance: {max_restarts: 5}
"""
SCORES = ("validation_accuracy", "validation_precision", "validation_recall", "validation_f1")


class Reviews:
    """Labelled sentences, one in five with the wrong label: no classifier is right about all of them."""

    def write_data(self, train=100, test=31):
        self.random = random.Random(7)
        with open(self.path("vocab.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(VOCABULARY) + "\n")
        for name, count in (("train.jsonl", train), ("dev.jsonl", 33)):
            with open(self.path(name), "w", encoding="utf-8") as file:
                for text, label in map(self.review, range(count)):
                    file.write(json.dumps({"text": text, "label": label}) + "\n")
        with open(self.path("test.tsv"), "w", encoding="utf-8") as file:
            file.write("text\tlabel\n")
            for text, label in map(self.review, range(test)):
                file.write(f"{text}\t{label}\n")
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)

    def review(self, _):
        label = self.random.choice(["bad", "good"])
        words = GOOD if label == "good" else BAD
        if self.random.random() < 0.2:
            words = THINGS
        return f"the {self.random.choice(THINGS)} was {self.random.choice(words)} .", label


class Quality(Reviews, TercioTest):

    def setUp(self):
        super().setUp()
        self.write_data()

    def evaluated(self, job, state):
        return {step["step"]: {key: step[key] for key in ("validation_loss", *SCORES)}
                for step in self.history(job["id"], state) if step["validation_loss"] is not None}

    def checkpoint(self, state, step):
        return glob.glob(os.path.join(state, "checkpoints", "*", f"step-{step:08d}"))

    def check_scores(self, evaluation, examples):
        """The figures follow from the table."""
        confusion = evaluation["confusion"]
        self.assertEqual(sum(map(sum, confusion)), examples)
        self.assertAlmostEqual(evaluation["accuracy"], sum(confusion[i][i] for i in range(2)) / examples)
        for i, label in enumerate(("bad", "good")):
            scores = evaluation["per_class"][label]
            self.assertEqual(scores["support"], sum(confusion[i]))
            self.assertAlmostEqual(scores["recall"], confusion[i][i] / sum(confusion[i]))
        self.assertAlmostEqual(evaluation["macro"]["recall"],
                               sum(evaluation["per_class"][label]["recall"] for label in ("bad", "good")) / 2)

    def test_epochs_scores_the_best_and_the_test_data(self):
        runs = []
        for name, changes in (("one", []), ("four", layout(1, 2, 2)), ("two", layout(2, 1, 1))):
            state = self.path(name)
            job = self.run_job(state, *changes)
            self.assertEqual((job["state"], job["step"], job["steps"]), ("succeeded", 15, 15))
            runs.append((job, self.evaluated(job, state), job["evaluation"]))
        (job, evaluated, evaluation), (_, of_four, at_four), (_, of_two, at_two) = runs
        # 100 samples in batches of 20.
        self.assertEqual(sorted(evaluated), [5, 10, 15])
        self.assertEqual((evaluated, evaluation), (of_four, at_four))
        for step, values in evaluated.items():
            self.assertAlmostEqual(values["validation_loss"], of_two[step]["validation_loss"], delta=1e-4)
            self.assertEqual({key: values[key] for key in SCORES}, {key: of_two[step][key] for key in SCORES})
        self.assertEqual(evaluation["test"]["confusion"], at_two["test"]["confusion"])
        best = max(evaluated, key=lambda step: (evaluated[step]["validation_f1"], -step))
        self.assertEqual((evaluation["best_step"], evaluation["test"]["step"], evaluation["problem"]), (best, best, None))
        self.assertEqual(evaluation["validation"]["step"], 15)
        self.assertEqual(evaluation["validation"]["accuracy"], evaluated[15]["validation_accuracy"])
        self.check_scores(evaluation["validation"], 33)
        self.check_scores(evaluation["test"], 31)
        self.check_what_people_see(job, best)
        # The same weights, by another program.
        found = self.json("evaluate", "--checkpoint", *self.checkpoint(self.path("one"), best), "--data",
                          self.path("test.tsv"), "--metric", "accuracy")
        self.assertEqual(found["value"], evaluation["test"]["accuracy"])
        self.assertEqual(found["confusion"], evaluation["test"]["confusion"])

    def check_what_people_see(self, job, best):
        here = ("--state-dir", self.path("one"))
        kept = self.json("checkpoint", "list", job["id"], *here)
        self.assertEqual([c["step"] for c in kept], sorted({best, 15}))
        self.assertEqual([c["step"] for c in kept if c["best"]], [best])
        text, _ = self.tercio("get", job["id"], *here)
        for words in ("15 of 15", "weighted average", f"step {best}, by f1"):
            self.assertIn(words, text)
        table, _ = self.tercio("history", job["id"], *here)
        self.assertEqual(table.split("\n")[0].split()[-5:], ["VALIDATION", "ACCURACY", "PRECISION", "RECALL", "F1"])
        self.tercio("plot", job["id"], *here, "--metric", "validation_accuracy,validation_f1", "--output",
                    self.path("plot.svg"))
        self.tercio("report", job["id"], *here, "--output", self.path("report.html"))
        with open(self.path("report.html"), encoding="utf-8") as file:
            page = file.read()
        for words in ("Classification", "predicted as", "test accuracy"):
            self.assertIn(words, page)
        history, _ = self.tercio("history", job["id"], *here, "-o", "jsonl")
        with open(self.path("run.jsonl"), "w", encoding="utf-8") as file:
            file.write(history)
        self.tercio("plot", self.path("run.jsonl"), "--metric", "validation_f1", "--output", self.path("other.svg"))
        with open(self.path("other.svg"), encoding="utf-8") as other:
            self.assertIn("<circle", other.read())

    def test_more_epochs_and_a_job_that_only_evaluates(self):
        job = self.run_job(self.state)
        _, err = self.tercio("resume", job["id"], "--state-dir", self.state, code=7)
        self.assertIn("more epochs: --set training.epochs=N", err)
        longer = self.json("resume", job["id"], "--state-dir", self.state, "--set", "training.epochs=4")
        self.assertEqual((longer["state"], longer["steps"]), ("succeeded", 20))
        self.assertEqual(sorted(self.evaluated(job, self.state)), [5, 10, 15, 20])
        evaluation = longer["evaluation"]
        best = evaluation["best_step"]
        self.assertEqual(evaluation["test"]["step"], best)
        # Its weights alone, in another layout.
        only = self.run_job(self.path("only"), "--set", f"model.from={self.checkpoint(self.state, best)[0]}", "--set",
                            "training.epochs=null", "--set", "training.steps=0", "--set",
                            "training.evaluate.keep_best=null", *layout(1, 2, 1))
        self.assertEqual((only["state"], only["step"], only["steps"]), ("succeeded", 0, 0))
        self.assertEqual(only["evaluation"]["test"]["confusion"], evaluation["test"]["confusion"])
        self.assertAlmostEqual(only["evaluation"]["test"]["loss"], evaluation["test"]["loss"], delta=1e-9)

    def test_language_models_have_a_loss_of_their_test_data(self):
        with open(self.path("gpt.yaml"), "w", encoding="utf-8") as file:
            file.write("model: {layers: 1, hidden: 16, heads: 2, context: 16}\n"
                       "data: {train: corpus.txt, validation: 0.1, test: corpus.txt, tokenizer: chars}\n"
                       "training: {steps: 4, global_batch: 4, optimizer: {learning_rate: 1e-3},\n"
                       "           evaluate: {every_steps: 2, keep_best: loss}}\n")
        job = self.json("run", self.path("gpt.yaml"), "--state-dir", self.state)
        evaluation = job["evaluation"]
        self.assertEqual((evaluation["best_step"], evaluation["test"]["step"]), (4, 4))
        self.assertIsNone(evaluation["test"]["accuracy"])
        self.assertAlmostEqual(evaluation["test"]["loss"], evaluation["validation"]["loss"], delta=0.1)
        self.assertIsNone(self.history(job["id"], self.state)[-1]["validation_f1"])

    def test_bad_input(self):
        for change, words in (
                ("training.steps=5", "training.epochs: conflicts with training.steps"),
                ("training.evaluate.metrics=[loss, bleu]", "training.evaluate.metrics: 'bleu' is not one of loss, accuracy"),
                ("training.evaluate.metrics=[accuracy]", "training.evaluate.keep_best: f1 is not among"),
                ("data.validation=null", "training.evaluate.keep_best: there is no data.validation"),
                ("model={architecture: gpt2, layers: 1, hidden: 16, heads: 2, context: 16}", "f1 is a classifier's"),
                ("data.train=[{path: train.jsonl, weight: 1}, {path: dev.jsonl, weight: 1}]", "which has no epochs")):
            out, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, "--set", change, code=2)
            self.assertEqual(out, "")
            self.assertIn(words, err)
        text, err = self.tercio("plan", self.path("job.yaml"))
        self.assertIn("the number of steps follows from the data", err)
        effective, _ = self.tercio("plan", self.path("job.yaml"), "--effective")
        self.assertIn("metrics: [loss, accuracy, precision, recall, f1], keep_best: f1", effective)
        self.assertIn("epochs: 3", effective)


class Faults(Reviews, ClusterTest):

    def setUp(self):
        super().setUp()
        # Epochs of 100 steps, and a test set: both take long enough to interfere.
        self.write_data(train=2000, test=30000)
        _, ready = self.coordinator("--heartbeat-interval", "0.5")
        self.address, self.metrics = ready["coordinator"], ready["metrics"]
        self.agent(self.address, "one", 4)

    def end(self, job, code=0):
        return self.json("wait", job, *self.reach(), code=code)

    def reviews(self, *changes):
        return self.submit("--set", "checkpoint.every_steps=40", *changes)

    def undisturbed(self):
        return self.end(self.reviews(*layout(1, 1, 2)))

    def message(self, job, kind):
        return [event["message"] for event in self.events(job) if event["kind"] == kind]

    def test_killed_while_training_and_while_testing(self):
        expected = self.undisturbed()
        job = self.reviews(*layout(1, 1, 2))
        self.after_step(job, 110)
        os.kill(self.trainers(job)[1], 9)
        wait_for(lambda: any("step 300," in text for text in self.message(job, "checkpoint_committed")), "the last step")
        os.kill(self.trainers(job)[0], 9)
        status = self.end(job)
        self.assertEqual((status["state"], status["attempt"]), ("succeeded", 3), self.events(job))
        self.assertEqual(status["evaluation"], expected["evaluation"])
        self.assertEqual(self.curve_of(job), self.curve_of(expected["id"]))
        self.assertEqual(self.message(job, "best_lost"), [])
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=20) as answer:
            page = answer.read().decode()
        label = f'{{job_id="{job}",job_name="reviews",metric="accuracy"}}'
        for metric, part in (("validation", "validation"), ("test", "test")):
            value = status["evaluation"][part]["accuracy"]
            line = next(line for line in page.splitlines() if line.startswith(f"tercio_job_{metric}_score{label}"))
            self.assertAlmostEqual(float(line.split()[-1]), value)
        for metric, value in (("best_step", status["evaluation"]["best_step"]), ("test_loss", status["evaluation"]["test"]["loss"])):
            (found,) = re.findall(rf'(?m)^tercio_job_{metric}{{job_id="{job}",job_name="reviews"}} (.*)$', page)
            self.assertAlmostEqual(float(found), value)

    def test_resumed_by_a_person(self):
        expected = self.undisturbed()
        job = self.reviews(*layout(1, 1, 2))
        self.after_step(job, 110)
        self.tercio(*self.reach("cancel", job))
        self.end(job, code=8)
        resumed = self.json("resume", job, *self.reach(), "--set", "parallelism={pipeline: 2}")
        self.assertEqual(resumed["evaluation"], expected["evaluation"])

    def test_a_best_checkpoint_that_is_damaged_is_reported(self):
        # Weights that stay as they are: the first evaluation is the best one.
        job = self.reviews("--set", "training.optimizer.learning_rate=0", *layout(1, 1, 1))
        wait_for(lambda: self.message(job, "best_checkpoint"), "the best checkpoint")
        (file,) = glob.glob(os.path.join(self.state, "checkpoints", job, "step-00000100", "attempt-1", "*.safetensors"))
        with open(file, "r+b") as content:
            content.seek(-100, os.SEEK_END)
            content.write(b"damage")
        status = self.end(job)
        evaluation = status["evaluation"]
        self.assertEqual((evaluation["best_step"], evaluation["test"]["step"]), (100, 300))
        self.assertIn("the best checkpoint, of step 100, cannot be loaded", evaluation["problem"])
        self.assertIn(evaluation["problem"], self.message(job, "best_lost"))


if __name__ == "__main__":
    python_cases.main()

"""BERT as a user meets it: pretraining in several layouts, fine-tuning a classifier from it, its metrics, export."""

import glob
import json
import os
import random
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, ROOT, TercioTest, layout  # noqa: E402

THINGS = ["film", "book", "song", "play", "meal", "walk"]
GOOD = ["lovely", "bright", "warm", "clever"]
BAD = ["dull", "broken", "cold", "stale"]
OTHER = ["the", "was", "and", "very", "a", "."]
# "lovely" in two pieces, so that whole words matter.
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "love", "##ly"] + THINGS + GOOD[1:] + BAD + OTHER

PRETRAINING = """
name: pretraining
model: {architecture: bert, layers: 2, hidden: 32, heads: 4, context: 24, dropout: 0.1, sentence_order: true}
data: {train: corpus.jsonl, validation: 0.1, tokenizer: vocab.txt, masking: {probability: 0.2, whole_word: true}}
training:
  steps: 30
  global_batch: 8
  optimizer: {learning_rate: 3e-3}
  schedule: {warmup_steps: 5}
  evaluate: {every_steps: 15, batches: 2}
checkpoint: {every_steps: 10}
"""

CLASSIFICATION = """
name: classifier
model: {from: FROM, labels: [bad, good]}
data: {train: train.jsonl, validation: test.jsonl, tokenizer: vocab.txt}
training:
  steps: 100
  global_batch: 16
  optimizer: {learning_rate: 5e-3}
  schedule: {kind: linear, warmup_steps: 10}
  evaluate: {every_steps: 50}
"""


class Bert(TercioTest):

    def setUp(self):
        super().setUp()
        self.random = random.Random(11)
        with open(self.path("vocab.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(VOCABULARY) + "\n")
        self.write_lines("corpus.jsonl", [{"text": " ".join(self.sentence()[0] for _ in range(6))}
                                          for _ in range(150)])
        for name, count in (("train.jsonl", 160), ("test.jsonl", 50)):
            self.write_lines(name, [dict(zip(("text", "label"), self.sentence())) for _ in range(count)])
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(PRETRAINING)

    def write_lines(self, name, lines):
        with open(self.path(name), "w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")

    def sentence(self):
        label = self.random.choice(["bad", "good"])
        words = ["the", self.random.choice(THINGS), "was"] + ["very"] * self.random.randint(0, 2)
        return " ".join(words + [self.random.choice(GOOD if label == "good" else BAD), "."]), label

    def newest(self, state):
        return sorted(glob.glob(os.path.join(state, "checkpoints", "*", "step-*")))[-1]

    def classify(self, state, start, *changes):
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(CLASSIFICATION.replace("FROM", start))
        job = self.run_job(state, *changes)
        self.assertEqual(job["state"], "succeeded")
        return job

    def metrics(self, directory, metric="accuracy", *more):
        return self.json("evaluate", "--checkpoint", directory, "--data", self.path("test.jsonl"), "--metric", metric,
                         *more)

    def test_pretraining_then_a_classifier_then_transformers_form(self):
        for norm in ("post", "pre"):
            curves = []
            for name, changes in (("one", []), ("four", layout(1, 2, 2)), ("two", layout(2, 1, 1))):
                state = self.path(f"{norm}-{name}")
                job = self.run_job(state, "--set", f"model.norm={norm}", *changes)
                self.assertEqual(job["state"], "succeeded")
                curves.append(self.curve(job["id"], state))
            self.assertEqual(curves[0], curves[1])
            for a, b in zip(curves[0], curves[2]):
                self.assertAlmostEqual(b[1] / a[1], 1, delta=1e-4)
            self.assertLess(curves[0][-1][1], curves[0][0][1] - 0.5)
            self.assertIsNotNone(curves[0][-1][-1])
        pretrained = self.newest(self.path("post-one"))
        one = self.classify(self.path("classes"), pretrained)
        two = self.classify(self.path("classes-two"), pretrained, *layout(1, 2, 1))
        self.assertEqual(self.curve(one["id"], self.path("classes")),
                         self.curve(two["id"], self.path("classes-two")))
        self.assertLess(one["loss"], 0.4)
        found = self.metrics(self.newest(self.path("classes")))
        self.assertGreater(found["value"], 0.9)
        self.assertEqual((found["examples"], [c["label"] for c in found["classes"]]), (50, ["bad", "good"]))
        self.assertEqual(sum(map(sum, found["confusion"])), 50)
        for metric in ("precision", "recall", "f1"):
            self.assertEqual(self.metrics(self.newest(self.path("classes")), metric)["value"], found[metric])
        exported = self.json("checkpoint", "export", one["id"], "--state-dir", self.path("classes"), "--format", "hf",
                             "--output", self.path("hf"))
        self.assertIn("config.json", exported["files"])
        with open(self.path("hf", "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual((config["architectures"], config["id2label"]),
                         (["BertForSequenceClassification"], {"0": "bad", "1": "good"}))
        self.assertEqual(self.metrics(self.path("hf")), found)

    def test_transformers_agrees_with_an_exported_classifier(self):
        python = os.environ.get("TERCIO_HF_PYTHON")
        if not python:
            raise unittest.SkipTest("TERCIO_HF_PYTHON names no Python with transformers")
        for norm in ("post", "pre"):
            with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
                file.write(PRETRAINING.replace("sentence_order: true", "labels: [bad, good]")
                           .replace("masking: {probability: 0.2, whole_word: true}", "")
                           .replace("corpus.jsonl, validation: 0.1", "train.jsonl"))
            state, exported = self.path("state-" + norm), self.path("hf-" + norm)
            job = self.run_job(state, "--set", f"model.norm={norm}", *layout(2, 2, 1))
            self.tercio("checkpoint", "export", job["id"], "--state-dir", state, "--format", "hf", "--output", exported)
            done = subprocess.run([python, os.path.join(ROOT, "tests", "huggingface", "check_classifier.py"), "--tercio",
                                   os.path.join(BIN, "tercio"), "--checkpoint", job["checkpoint"]["path"], "--exported",
                                   exported, "--data", self.path("test.jsonl")], capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_what_a_bert_cannot_do_is_said(self):
        self.run_job(self.state, "--set", "training.steps=2")
        checkpoint = self.newest(self.state)
        for words, expected in (
                (("generate", "--checkpoint", checkpoint, "--prompt", "the film"), "looks both ways"),
                (("evaluate", "--checkpoint", checkpoint, "--data", self.path("test.jsonl")), "looks both ways"),
                (("evaluate", "--checkpoint", checkpoint, "--data", self.path("test.jsonl"), "--metric", "f1"),
                 "no classes")):
            out, err = self.tercio(*words, code=2)
            self.assertEqual(out, "")
            self.assertIn(expected, err)
        self.write_lines("test.jsonl", [{"text": "the film", "label": "bad"}, {"text": "a meal", "label": "odd"}])
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(CLASSIFICATION.replace("FROM", checkpoint))
        _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.path("bad"), code=2)
        self.assertIn("test.jsonl:2", err)


if __name__ == "__main__":
    python_cases.main()

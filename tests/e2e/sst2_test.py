"""The example deploy/examples/sst2 with its small model, as a user runs it: training, evaluation in one process and in layouts, the
losses of transformers, and what is wrong with labelled tables."""

import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, TercioTest, layout  # noqa: E402

EXAMPLE = os.path.join(ROOT, "deploy", "examples", "sst2")
# The losses of transformers_baseline.py with the options that "command" names.
LOSSES = os.path.join(ROOT, "tests", "huggingface", "fixtures", "sst2_losses.json")
COMPARED_STEPS = 50
TOLERANCE = 1e-4
SCORES = ("accuracy", "per_class", "macro", "weighted", "confusion")


class Sst2(TercioTest):

    def setUp(self):
        super().setUp()
        self.small = self.path("small")
        subprocess.run([sys.executable, os.path.join(EXAMPLE, "make_small_model.py"), self.small], check=True,
                       stdout=subprocess.DEVNULL)
        self.job_file = os.path.join(self.small, "sst2.yaml")

    def train(self, state, *changes, code=0):
        return self.json("run", self.job_file, "--state-dir", state, *changes, code=code)

    def evaluate(self, checkpoint, *more):
        return self.json("evaluate", "--checkpoint", checkpoint, *more)

    def losses(self, job, state):
        return [step["loss"] for step in self.history(job, state)]

    def assert_losses(self, found, expected):
        self.assertGreaterEqual(len(found), COMPARED_STEPS)
        differences = [abs(a - b) for a, b in zip(found[:COMPARED_STEPS], expected[:COMPARED_STEPS], strict=True)]
        self.assertLess(max(differences), TOLERANCE, differences)
        return max(differences)

    def test_the_example_is_trained_and_evaluated(self):
        job = self.train(self.state)
        self.assertEqual((job["state"], job["step"], job["steps"]), ("succeeded", 90, 90))
        history = self.history(job["id"], self.state)
        self.assertEqual([step["step"] for step in history if step["validation_loss"] is not None], [30, 60, 90])
        self.assertLess(history[-1]["loss"], history[0]["loss"] / 2)
        with open(LOSSES, encoding="utf-8") as file:
            expected = json.load(file)
        self.assert_losses([step["loss"] for step in history], expected["losses"])
        test = job["evaluation"]["test"]
        self.assertEqual(test["confusion"], expected["test"]["confusion"])
        self.assertAlmostEqual(test["loss"], expected["test"]["loss"], delta=TOLERANCE)
        self.assertEqual(test["step"], job["evaluation"]["best_step"])

        # This process and the ranks of a job find what the training found.
        checkpoint = self.path("state", "checkpoints", job["id"], f"step-{test['step']:08}")
        keys = ("--text-key", "sentence", "--label-key", "label")
        one = self.evaluate(checkpoint, "--data", os.path.join(self.small, "test.tsv"), *keys)
        self.assertEqual((one["metric"], one["value"], one["examples"]), ("accuracy", test["accuracy"], 100))
        before = set(os.listdir(self.directory))
        by_job = self.evaluate(checkpoint, "--job", self.job_file)
        self.assertEqual(before, set(os.listdir(self.directory)))
        for key in SCORES:
            self.assertEqual(one[key], test[key], key)
            self.assertEqual(by_job[key], test[key], key)
        self.assertEqual(by_job["loss"], test["loss"])
        self.assertAlmostEqual(one["loss"], test["loss"], delta=1e-6)

        # In another layout, of another file, with keys from the command line.
        with open(os.path.join(self.small, "dev.tsv"), encoding="utf-8") as file:
            lines = file.read().replace("sentence\tlabel", "what\tkind").splitlines()
        with open(self.path("dev.csv"), "w", encoding="utf-8") as file:
            file.writelines('"{}",{}\r\n'.format(*line.split("\t")) for line in lines)
        with open(self.job_file, "a", encoding="utf-8") as file:
            file.write("parallelism: {tensor: 2, pipeline: 2}\n")
        keys = ("--data", self.path("dev.csv"), "--text-key", "what", "--label-key", "kind", "--metric", "f1")
        one, four = self.evaluate(checkpoint, *keys), self.evaluate(checkpoint, *keys, "--job", self.job_file)
        self.assertEqual([one[key] for key in SCORES], [four[key] for key in SCORES])
        self.assertEqual(one["value"], four["value"])
        self.assertAlmostEqual(one["loss"], four["loss"], delta=1e-5)
        out, _ = self.tercio("evaluate", "--checkpoint", checkpoint, *keys, "--job", self.job_file)
        self.assertRegex(out, r"CLASS +PRECISION.*\nnegative.*\npositive.*\nall .* 100\naccuracy")

    def test_a_language_model_is_evaluated_by_a_job(self):
        status = self.run_job(self.state, "--set", "training.steps=3")
        checkpoint = status["checkpoint"]["path"]
        with open(self.path("corpus.txt"), encoding="utf-8") as file:
            text = file.read()
        with open(self.path("test.txt"), "w", encoding="utf-8") as file:
            file.write(text[:32 * 20 + 1])  # whole windows of the context
        one = self.evaluate(checkpoint, "--data", self.path("test.txt"))
        with open(self.path("job.yaml"), "a", encoding="utf-8") as file:
            file.write("parallelism: {data: 2}\n")
        two = self.evaluate(checkpoint, "--data", self.path("test.txt"), "--job", self.path("job.yaml"))
        self.assertEqual((two["metric"], two["tokens"]), ("perplexity", 640))
        self.assertEqual(one["tokens"], two["tokens"])
        self.assertAlmostEqual(one["loss"], two["loss"], delta=1e-6)
        for words, expected in (
                (("--data", "x", "--stride", "8"), "--stride"), (("--data", "x", "--metric", "last_word_accuracy"), "leave --job out"),
                (("--data", "x", "--metric", "f1"), "the model has no classes"), ((), "without --data"),
                (("--data", self.path("none.txt")), "none.txt")):
            _, err = self.tercio("evaluate", "--checkpoint", checkpoint, "--job", self.path("job.yaml"), *words, code=2)
            self.assertIn(expected, err)
        with open(self.path("job.yaml"), encoding="utf-8") as file:
            other = file.read().replace("hidden: 32", "hidden: 64")
        with open(self.path("other.yaml"), "w", encoding="utf-8") as file:
            file.write(other)
        _, err = self.tercio("evaluate", "--checkpoint", checkpoint, "--job", self.path("other.yaml"), "--data",
                             self.path("test.txt"), code=2)
        self.assertRegex(err, r"model.hidden: 64, but the model in .* has 32")
        _, err = self.tercio("evaluate", "--checkpoint", checkpoint, code=2)
        self.assertIn("--data is missing", err)

    def test_what_is_wrong_with_tables_is_named_before_anything_starts(self):
        header, good = "sentence\tlabel\n", "a warm film \t1\n"
        for name, content, expected in (
                ("train", header + good + "a dull film \tbad\n", "train.tsv:3: column 'label': label 'bad' is not known"),
                ("train", header + "\n" + good + "a film\n", "train.tsv:4: has 1 field, but the header names 2 columns"),
                ("dev", header + " \t1\n", "dev.tsv:2: column 'sentence': the text is empty"),
                ("dev", header, "dev.tsv: no example"),
                ("test", "index\tsentence\n0\ta film\n", "test.tsv:1: the header has no column 'label'"),
                ("test", "sentense\tlabel\n" + good, "did you mean 'sentense'?")):
            path = os.path.join(self.small, name + ".tsv")
            with open(path, encoding="utf-8") as file:
                before = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
            _, err = self.tercio("run", self.job_file, "--state-dir", self.state, code=2)
            self.assertIn(expected, err)
            with open(path, "w", encoding="utf-8") as file:
                file.write(before)
        _, err = self.tercio("run", self.job_file, "--state-dir", self.state, "--set", "data.label_key=lable", code=2)
        self.assertRegex(err, r"train.tsv:1: .*its columns are: sentence, label; did you mean 'label'\?")
        jobs = self.json("list", "--state-dir", self.state)
        self.assertEqual(jobs, [])

    def test_transformers_has_the_same_losses(self):
        python = os.environ.get("TERCIO_HF_PYTHON")
        if not python:
            raise unittest.SkipTest("TERCIO_HF_PYTHON names no Python with transformers")
        out = self.path("transformers.json")
        done = subprocess.run([python, os.path.join(EXAMPLE, "transformers_baseline.py"), self.job_file, "--output", out,
                               "--order", "tercio", "--classifier", "tercio", "--processes", "1", "2"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(out, encoding="utf-8") as file:
            one, two = json.load(file)["methods"]
        job = self.train(self.state, *layout(1, 2, 1))
        for method in (one, two):
            expected = [step["loss"] for step in method["history"]]
            largest = self.assert_losses(self.losses(job["id"], self.state), expected)
            print(f"{method['name']}: the losses of {COMPARED_STEPS} steps differ by {largest:.1e} at most")
            self.assertEqual(method["evaluation"]["test"]["confusion"], job["evaluation"]["test"]["confusion"])

    def test_the_readme_names_files_and_options_that_exist(self):
        with open(os.path.join(EXAMPLE, "README.md"), encoding="utf-8") as file:
            page = file.read()
        with open(os.path.join(EXAMPLE, "transformers_baseline.py"), encoding="utf-8") as file:
            script = file.read()
        for option in re.findall(r"transformers_baseline\.py.*? (--[\w-]+)", page):
            self.assertIn(f'"{option}"', script)
        for name in re.findall(r"\b\w+\.(?:py|yaml)\b", page):
            self.assertTrue(os.path.exists(os.path.join(EXAMPLE, name)), name)


if __name__ == "__main__":
    python_cases.main()

"""Data sets with real processes: blends that are killed and resumed, tokenising that is killed and goes on."""

import json
import os
import random
import shutil
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, TercioTest, layout, wait_for  # noqa: E402

assert ROOT

WORDS = ["red", "green", "blue", "small", "large", "round", "heavy", "light", "caf\u00e9"]


class DataTest(TercioTest):

    def write_jsonl(self, name, documents, seed=1, words=40):
        generator = random.Random(seed)
        with open(self.path(name), "w", encoding="utf-8") as file:
            for i in range(documents):
                text = " ".join(generator.choices(WORDS, k=generator.randint(1, words)))
                file.write(json.dumps({"id": i, "text": text}) + "\n")
        return self.path(name)

    def write_llmc(self, name, ids):
        with open(self.path(name), "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253))
            file.write(struct.pack(f"<{len(ids)}H", *ids))
        return self.path(name)

    def files(self, prefix):
        content = []
        for suffix in (".bin", ".idx", ".tokenizer.json"):
            with open(prefix + suffix, "rb") as file:
                content.append(file.read())
        return content


class Blends(DataTest):

    def setUp(self):
        super().setUp()
        corpus = self.write_jsonl("a.jsonl", 400)
        self.tercio("data", "tokenize", "--input", self.path("corpus.txt"), "--tokenizer", "bytes",
                    "--output", self.path("tokens"))
        self.write_llmc("s_0.bin", [i * i % 251 for i in range(1500)])
        self.write_llmc("s_1.bin", [i % 256 for i in range(700)])
        self.blend = ["--set", f"data.train=[{{path: {corpus}, weight: 0.5}}, "
                               f"{{path: {self.path('tokens')}, weight: 0.3}}, "
                               f"{{path: '{self.path('s_*.bin')}', weight: 0.2}}]",
                      "--set", "data.tokenizer=bytes"]

    def test_killed_and_resumed_in_another_layout_has_the_same_bits(self):
        reference = self.run_job(self.path("reference"), *self.blend)
        self.assertEqual((reference["state"], reference["step"]), ("succeeded", 60))
        child = self.start("run", self.path("job.yaml"), "--state-dir", self.state, *self.blend,
                           *layout(1, 2, 1), "-o", "json")
        found = []

        def trainers_after_a_checkpoint():
            store = os.path.join(self.state, "checkpoints")
            jobs = os.listdir(store) if os.path.isdir(store) else []
            if not jobs or not os.path.exists(os.path.join(store, jobs[0], "step-00000010", "manifest.json")):
                return False
            found[:] = self.trainers(jobs[0])
            return found

        wait_for(trainers_after_a_checkpoint, "a checkpoint")
        os.kill(found[-1], signal.SIGKILL)
        out, err = child.communicate(timeout=120)
        self.assertEqual(child.returncode, 0, err)
        job = json.loads(out)
        self.assertGreaterEqual(job["restarts"], 1, err)
        expected = self.curve(reference["id"], self.path("reference"))
        self.assertIsNotNone(expected[-1][-1], "no validation loss")
        self.assertEqual(self.curve(job["id"], self.state), expected)
        part = self.run_job(self.path("part"), *self.blend, "--set", "training.steps=30",
                            "--set", "training.schedule.decay_steps=60")
        resumed = self.json("resume", part["id"], "--state-dir", self.path("part"), "--set",
                            "training.steps=60", *layout(1, 1, 2))
        self.assertEqual(resumed["step"], 60)
        # Without the last column: a run that ended at step 30 has evaluated there.
        self.assertEqual([step[:5] for step in self.curve(part["id"], self.path("part"))],
                         [step[:5] for step in expected])

    def test_shares_and_order_matter(self):
        first = self.run_job(self.path("one"), *self.blend, "--set", "training.steps=3")
        other = [part.replace("weight: 0.5", "weight: 0.1") for part in self.blend]
        second = self.run_job(self.path("two"), *other, "--set", "training.steps=3")
        self.assertNotEqual(self.curve(first["id"], self.path("one")),
                            self.curve(second["id"], self.path("two")))

    def test_bad_data_is_refused_before_a_job_exists(self):
        broken = self.path("broken.jsonl")
        with open(broken, "w", encoding="utf-8") as file:
            file.write(json.dumps({"text": "red " * 400}) + "\n{\"text\": \n")
        for changes, words in (
                (["data.train=[{path: a, weight: -1}]"], "data.train[0].weight: -1 is not a positive number"),
                (["data.train=" + broken], "broken.jsonl:2: not valid JSON"),
                (["data.train=" + self.path("nothing.jsonl")], "no such file"),
                (["data.train=" + self.directory], "is a directory"),
                (["data.train=" + self.path("x_*.bin")], "no file matches; check the pattern"),
                (["data.train=" + self.path("corpus.txt"), "model.vocab_size=5"], "model.vocab_size is 5"),
                (["data.train=" + self.path("s_0.bin"), "data.tokenizer=null", "model.vocab_size=100"],
                 "token id 249 is outside the vocabulary of 100")):
            settings = [word for change in changes for word in ("--set", change)]
            out, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, *settings, code=2)
            self.assertEqual(out, "")
            self.assertIn(words, err)
        skipping = ["--set", "data.train=" + broken, "--set", "data.skip_bad_lines=true"]
        out, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, *skipping,
                               "--set", "training.steps=2")
        self.assertIn("1 line was skipped: ", err)


class Tokenizing(DataTest):

    def tokenize(self, inputs, prefix, *more, code=0):
        return self.tercio("data", "tokenize", "--input", inputs, "--tokenizer", "chars", "--output",
                           self.path(prefix), *more, code=code)

    def test_killed_again_and_again_ends_with_the_same_files(self):
        # Two of one content: about ten blocks of tokens.
        inputs = self.write_jsonl("a.jsonl", 30000, seed=3, words=400) + "," + self.path("b.jsonl")
        shutil.copy(self.path("a.jsonl"), self.path("b.jsonl"))
        _, err = self.tokenize(inputs, "whole", "--threads", "2")
        self.assertIn("60000 documents", err)
        journal = self.path("part.partial", "journal")

        def lines():
            try:
                with open(journal, "rb") as file:
                    return file.read().count(b"\n")
            except OSError:
                return 0

        interrupted = []
        for how in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
            before = lines()
            child = self.start("data", "tokenize", "--input", inputs, "--tokenizer", "chars", "--output",
                               self.path("part"), "--threads", "1")
            while child.poll() is None and lines() <= max(before, 1):
                time.sleep(0.005)
            child.send_signal(how)
            _, err = child.communicate(timeout=60)
            if child.returncode == 0:
                break
            interrupted.append(how)
            self.assertEqual(child.returncode, {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[how])
            self.assertFalse(os.path.exists(self.path("part.idx")))
            if how != signal.SIGKILL:
                self.assertIn("run the same command again to resume", err)
        self.assertGreaterEqual(len(interrupted), 2)
        if not os.path.exists(self.path("part.idx")):
            _, err = self.tokenize(inputs, "part")
            self.assertIn("resuming an earlier run", err)
        self.assertEqual(self.files(self.path("part")), self.files(self.path("whole")))
        self.assertFalse(os.path.exists(self.path("part.partial")))

    def test_bad_lines(self):
        path = self.path("a.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"body": "red"}\n{"text": "green"}\nblue\n')
        out, err = self.tokenize(path, "t", code=2)
        self.assertEqual(out, "")
        self.assertIn("a.jsonl:1: the object has no key 'text'", err)
        _, err = self.tokenize(path, "t", "--skip-bad-lines")
        self.assertIn("2 lines were skipped, the first is", err)
        _, err = self.tokenize(path, "t", "--skip-bad-lines", "--text-key", "body")
        self.assertIn("1 documents, 3 tokens", err)
        self.assertIn("no end-of-text id", self.tokenize(path, "t", "--append-eod", code=2)[1])

    def test_inspect_every_kind(self):
        self.assertEqual(self.json("data", "inspect", self.write_llmc("x.bin", [5, 7, 300])),
                         {"documents": None, "tokens": 3, "dtype": "uint16", "vocab_size": 301})
        path = self.write_jsonl("a.jsonl", 7)
        self.assertEqual(self.json("data", "inspect", path),
                         {"documents": 7, "tokens": None, "dtype": None, "vocab_size": None})
        self.tokenize(path, "tokens")
        for name in ("tokens", "tokens.bin", "tokens.idx"):
            summary = self.json("data", "inspect", self.path(name))
            self.assertEqual((summary["documents"], summary["dtype"]), (7, "uint16"))
        with open(self.path("x.bin"), "r+b") as file:
            file.truncate(1026)
        self.assertIn("the header counts 3 tokens", self.tercio("data", "inspect", self.path("x.bin"), code=2)[1])


class Tokenizers(DataTest):
    """A job with each kind of tokenizer, from a .jsonl corpus to a sampled text."""

    def trained(self, tokenizer):
        corpus = self.write_jsonl("a.jsonl", 300)
        job = self.run_job(self.state, "--set", f"data.train={corpus}", "--set",
                           f"data.tokenizer={tokenizer}", "--set", "training.steps=10", *layout(1, 2, 1))
        self.assertEqual(job["state"], "succeeded")
        return job

    def test_a_job_with_every_kind_of_tokenizer_can_write(self):
        fixtures = os.path.join(ROOT, "tests", "tokenizer", "fixtures")
        for name in ("gpt2", "llama3.json", "unigram.model", "bytes.model", "bert_cased"):
            with self.subTest(name):
                checkpoint = self.trained(os.path.join(fixtures, name))["checkpoint"]["path"]
                arguments = ("generate", "--checkpoint", checkpoint, "--prompt", "red green", "--tokens",
                             "12", "--temperature", "0.5", "--top-p", "0.9", "--seed", "3")
                text = self.tercio(*arguments)[0]
                self.assertEqual(text, self.tercio(*arguments)[0])
                self.assertGreater(len(text.strip()), len("red green"))

    def test_documents_end_with_the_end_of_text(self):
        gpt2 = os.path.join(ROOT, "tests", "tokenizer", "fixtures", "gpt2")
        counts = {}
        for name, more in (("without", ()), ("with", ("--append-eod",))):
            self.tercio("data", "tokenize", "--input", self.path("corpus.txt"), "--tokenizer", gpt2,
                        "--output", self.path(name), *more)
            counts[name] = self.json("data", "inspect", self.path(name))["tokens"]
        self.assertEqual(counts["with"], counts["without"] + 1)
        # Lines of .jsonl are documents, and always end.
        self.tercio("data", "tokenize", "--input", self.write_jsonl("a.jsonl", 50), "--tokenizer", gpt2,
                    "--output", self.path("lines"))
        with open(os.path.join(gpt2, "vocab.json"), encoding="utf-8") as file:
            end = json.load(file)["<|endoftext|>"]
        with open(self.path("lines.bin"), "rb") as file:
            content = file.read()
        ids = struct.unpack(f"<{len(content) // 2}H", content)
        self.assertEqual((ids.count(end), ids[-1]), (50, end))


class Evaluation(DataTest):

    def test_documents_are_evaluated_as_they_are_trained_on(self):
        corpus = self.write_jsonl("a.jsonl", 60)
        job = self.run_job(self.state, "--set", "training.steps=2", "--set",
                           f"data={{train: {corpus}, tokenizer: bytes}}")
        self.tercio("data", "tokenize", "--input", corpus, "--tokenizer", "bytes", "--output", self.path("tokens"))
        checkpoint = ("--checkpoint", job["checkpoint"]["path"])
        found = self.json("evaluate", *checkpoint, "--data", corpus)
        for name in ("tokens", "tokens.bin", "tokens.idx"):  # none of them is a text
            self.assertEqual(found, self.json("evaluate", *checkpoint, "--data", self.path(name)))
        self.assertEqual(found["tokens"] + 1, self.json("data", "inspect", self.path("tokens"))["tokens"])
        with open(self.path("text.txt"), "wb") as file:
            file.write(bytes(i * i % 251 for i in range(500)).replace(b"\xff", b""))
        with open(self.path("text.txt"), "rb") as file:
            llmc = self.write_llmc("llmc.bin", file.read())
        self.assertEqual(self.json("evaluate", *checkpoint, "--data", llmc),
                         self.json("evaluate", *checkpoint, "--data", self.path("text.txt")))
        overlapping = self.json("evaluate", *checkpoint, "--data", corpus, "--stride", "8")
        self.assertEqual(overlapping["tokens"], found["tokens"])
        self.assertNotEqual(overlapping["loss"], found["loss"])
        _, err = self.tercio("evaluate", *checkpoint, "--data", corpus, "--stride", "33", code=2)
        self.assertIn("above the context of 32", err)

    def test_an_export_takes_a_job_for_a_folder_of_its_name_only_if_that_holds_one(self):
        job = self.run_job(self.state, "--set", "training.steps=2")
        os.mkdir(self.path("small"))
        os.chdir(self.directory)
        self.addCleanup(os.chdir, ROOT)
        exported = self.json("checkpoint", "export", "small", "--state-dir", self.state, "--format", "hf", "--output",
                             self.path("hf"))
        self.assertEqual(exported["step"], 2, job)


if __name__ == "__main__":
    python_cases.main()

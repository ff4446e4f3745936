"""Megatron-LM checkpoints as a user meets them: evaluation, import, training from one, export, import again."""

import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, ROOT, TercioTest, layout  # noqa: E402

FIXTURES = os.path.join(ROOT, "tests", "megatron", "fixtures")
CONTEXT, VOCABULARY = 8, 19

JOB = """
name: tuned
model: {from: gpt_v3}
data: {train: tokens}
training:
  steps: 4
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
"""

BERT_JOB = """
name: masked
model: {from: bert_v3}
data: {train: tokens, special_tokens: {cls: 0, sep: 1, mask: 2, pad: 3}}
training:
  steps: 3
  global_batch: 4
  optimizer: {learning_rate: 1e-3}
"""


class Megatron(TercioTest):

    def setUp(self):
        super().setUp()
        for name in os.listdir(FIXTURES):
            if os.path.isdir(os.path.join(FIXTURES, name)):
                shutil.copytree(os.path.join(FIXTURES, name), self.path(name))
        self.write_tokens([(i * i + 3 * i // 7) % VOCABULARY for i in range(CONTEXT * 8 + 1)])
        for name, text in (("job.yaml", JOB), ("bert.yaml", BERT_JOB)):
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(text)

    def write_tokens(self, tokens):
        """A Megatron data set of one document."""
        with open(self.path("tokens.bin"), "wb") as file:
            file.write(struct.pack(f"<{len(tokens)}H", *tokens))
        with open(self.path("tokens.idx"), "wb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", len(tokens)) +
                       struct.pack("<q", 0) + struct.pack("<qq", 0, 1))

    def refused(self, code, *arguments):
        out, err = self.tercio(*arguments, code=code)
        self.assertEqual(out, "")
        return err

    def loss(self, directory):
        return self.json("evaluate", "--checkpoint", directory, "--data", self.path("tokens"), "--metric", "loss")["loss"]

    def convert(self, verb, source, target, *more):
        return self.json("checkpoint", verb, source, "--format", "megatron", "--output", self.path(target), *more)

    def content(self, *parts):
        with open(self.path(*parts), "rb") as file:
            return file.read()

    def test_every_version_evaluates_alike_before_and_after_an_import(self):
        losses = {self.loss(self.path(f"gpt_v{version}")) for version in range(4)}
        self.assertEqual(len(losses), 1)
        for name in ("gpt_v0", "gpt_v3", "core_llama"):
            imported = self.convert("import", self.path(name), name + ".tercio")
            self.assertEqual(imported["architecture"], "llama" if name == "core_llama" else "gpt2")
            self.assertEqual(self.loss(self.path(name + ".tercio")), self.loss(self.path(name)))
        texts = [self.json("generate", "--checkpoint", self.path(name), "--prompt-ids", "7,0,18", "--tokens", "4")
                 for name in ("gpt_v1", "gpt_v3.tercio")]
        self.assertEqual(texts[0]["tokens"], texts[1]["tokens"])
        _, err = self.tercio("checkpoint", "import", self.path("gpt_v3"), "--format", "megatron", "--output",
                             self.path("again"))
        self.assertIn("gpt_v3: the state of the optimizer is left out", err)

    def test_imports_become_hugging_face_directories(self):
        for name, model_type in (("gpt_v2", "gpt2"), ("bert_v2", "megatron-bert"), ("core_llama", "llama")):
            self.convert("import", self.path(name), name + ".tercio")
            self.json("checkpoint", "export", self.path(name + ".tercio"), "--format", "hf", "--output",
                      self.path(name + ".hf"))
            with open(self.path(name + ".hf", "config.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file)["model_type"], model_type)
        self.assertEqual(self.loss(self.path("gpt_v2.hf")), self.loss(self.path("gpt_v2")))

    def test_training_from_one_export_and_import_again(self):
        curves = []
        for degrees in (layout(1, 1, 1), layout(2, 2, 1)):
            state = self.path(f"state-{len(curves)}")
            job = self.run_job(state, *degrees)
            self.assertEqual((job["state"], job["step"]), ("succeeded", 4))
            curves.append(self.curve(job["id"], state))
        # The batch is the whole file, so its first loss is that of the checkpoint's model.
        self.assertAlmostEqual(curves[0][0][1], self.loss(self.path("gpt_v3")), delta=1e-6)
        for one, other in zip(*curves):
            self.assertAlmostEqual(other[1] / one[1], 1, delta=1e-4)
        trained = sorted(glob.glob(self.path("state-1", "checkpoints", "*", "step-*")))[-1]
        exported = self.json("checkpoint", "export", job["id"], "--state-dir", self.path("state-1"), "--format",
                             "megatron", "--output", self.path("out"), "--tensor", "2", "--pipeline", "2")
        ranks = [f"iter_0000004/mp_rank_0{t}_00{p}/model_optim_rng.pt" for t in range(2) for p in range(2)]
        self.assertEqual(exported["files"], ranks + ["latest_checkpointed_iteration.txt"])
        self.assertEqual(exported["step"], 4)
        self.convert("import", self.path("out"), "again")
        self.assertEqual(self.loss(self.path("again")), self.loss(trained))
        # The same weights in other degrees and names are the same checkpoint again, bit by bit.
        self.convert("export", trained, "core", "--tensor", "2", "--layout", "core")
        self.convert("import", self.path("core"), "once-more")
        self.assertEqual(self.content("once-more", "weights.safetensors"), self.content("again", "weights.safetensors"))

    def test_training_from_a_bert(self):
        job = self.json("run", self.path("bert.yaml"), "--state-dir", self.state, *layout(2, 1, 1))
        self.assertEqual((job["state"], job["step"]), ("succeeded", 3))
        self.json("checkpoint", "export", job["id"], "--state-dir", self.state, "--format", "megatron", "--output",
                  self.path("out"), "--pipeline", "2")
        self.convert("import", self.path("out"), "again")

    def test_exit_codes(self):
        to = ("--format", "megatron", "--output", self.path("out"))
        self.assertIn("use hf, megatron or peft", self.refused(2, "checkpoint", "import", self.path("gpt_v1"), "--format",
                                                         "gguf", "--output", self.path("out")))
        self.assertIn("not there", self.refused(3, "checkpoint", "import", self.path("not there"), *to))
        self.convert("import", self.path("gpt_v1"), "ours")
        ours = self.path("ours")
        self.assertIn("does not divide the model's 4 heads",
                      self.refused(2, "checkpoint", "export", ours, *to, "--tensor", "3"))
        self.assertIn("--max-shard-size belongs to --format hf",
                      self.refused(2, "checkpoint", "export", ours, *to, "--max-shard-size", "1GB"))
        self.assertIn("--pipeline belongs to --format megatron",
                      self.refused(2, "checkpoint", "export", ours, "--format", "hf", "--output", self.path("out"),
                                   "--pipeline", "2"))
        self.assertIn("--layout", self.refused(2, "checkpoint", "export", ours, *to, "--layout", "nemo"))
        self.assertIn("import it first", self.refused(2, "checkpoint", "export", self.path("gpt_v1"), *to))
        self.assertFalse(os.path.exists(self.path("out")))
        # A checkpoint that misses a rank is refused before a job exists.
        shutil.rmtree(self.path("gpt_v3", "iter_0000100", "mp_rank_01_000"))
        for code, words in ((7, ("checkpoint", "import", self.path("gpt_v3"), *to)),
                            (2, ("run", self.path("job.yaml"), "--state-dir", self.state))):
            self.assertIn("mp_rank_01_000 has no model_optim_rng.pt", self.refused(code, *words))
        self.assertEqual(self.json("list", "--state-dir", self.state), [])

    def test_megatron_and_transformers_load_what_was_exported(self):
        python = os.environ.get("TERCIO_MEGATRON_PYTHON")
        if not python:
            raise unittest.SkipTest("TERCIO_MEGATRON_PYTHON names no Python with megatron-core and transformers 4")
        for name in ("gpt_v2", "bert_v2", "core_llama"):
            self.convert("import", self.path(name), name + ".tercio")
            done = subprocess.run([python, os.path.join(ROOT, "tests", "megatron", "check_export.py"), "--tercio",
                                   os.path.join(BIN, "tercio"), "--checkpoint", self.path(name + ".tercio")],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    python_cases.main()

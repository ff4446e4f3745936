"""Every architecture through the command line: from a directory that transformers wrote, trained over tensor x pipeline x data ranks,
explained, resumed in another layout, exported, and continued in words."""

import json
import os
import shutil
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, TercioTest, layout  # noqa: E402

FIXTURES = os.path.join(ROOT, "tests", "huggingface", "fixtures")
CONTEXT = 16
ARCHITECTURES = ("opt", "gptj", "gpt_neox", "phi", "phi3", "qwen2", "qwen3", "mistral", "gemma2")

JOB = """
name: tuned
model: {from: model, context: 16}
data: {train: tokens}
training:
  steps: 4
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
checkpoint: {every_steps: 2}
"""


def expected(name):
    with open(os.path.join(FIXTURES, name + ".json"), encoding="utf-8") as file:
        return json.load(file)


class Architectures(TercioTest):

    def setUp(self):
        super().setUp()
        tokens = [(i * i + 3 * i // 7) % 40 for i in range(CONTEXT * 16 + 1)]
        with open(self.path("tokens.bin"), "wb") as file:
            file.write(struct.pack(f"<{len(tokens)}H", *tokens))
        with open(self.path("tokens.idx"), "wb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", len(tokens)) +
                       struct.pack("<q", 0) + struct.pack("<qq", 0, 1))
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)

    def use(self, name):
        shutil.rmtree(self.path("model"), ignore_errors=True)
        shutil.copytree(os.path.join(FIXTURES, name), self.path("model"))

    def generated(self, directory, fixture):
        wanted = fixture["greedy"]
        prompt = ",".join(map(str, fixture["tokens"]))
        answer = self.json("generate", "--checkpoint", directory, "--prompt-ids", prompt, "--tokens", str(len(wanted)),
                           "--temperature", "0")
        return answer["tokens"]

    def losses(self, name, *changes):
        job = self.run_job(self.path("state"), *changes)
        self.assertEqual((job["state"], job["step"]), ("succeeded", 4), name)
        return job, [step["loss"] for step in self.history(job["id"], self.path("state"))]

    def check(self, name):
        self.use(name)
        fixture = expected(name)
        self.assertEqual(self.generated(self.path("model"), fixture), fixture["greedy"], name)
        _, alone = self.losses(name, *layout(1, 1, 1))
        job, many = self.losses(name, *layout(2, 2, 2))
        for one, other in zip(alone, many):
            self.assertAlmostEqual(one, other, delta=1e-4 * one, msg=name)
        self.assertLess(many[-1], many[0], name)
        # What was trained goes back to transformers' form, and from there gives the same words.
        exported = self.path("exported")
        shutil.rmtree(exported, ignore_errors=True)
        self.tercio("checkpoint", "export", job["id"], "--state-dir", self.path("state"), "--format", "hf", "--output", exported)
        with open(os.path.join(exported, "config.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["model_type"], name)
        self.assertEqual(self.generated(exported, fixture), self.generated(job["checkpoint"]["path"], fixture), name)

    def test_program(self):
        self.use("qwen3")
        changes = (*layout(1, 2, 2), "--set", "parallelism.zero_stage=3")
        out, _ = self.tercio("plan", self.path("job.yaml"), "--program", *changes)
        lines = out.splitlines()
        self.assertEqual(lines[:4], ["stage 0", "  begin forward, micro-batch 0", "  forward embedding, micro-batch 0",
                                     "  gather layers.0 into place 0"])
        self.assertIn("stage 1", lines)
        self.assertIn("  judge the step", lines)
        self.assertEqual(lines[-2:], ["  update head", "  publish head"])
        answer = self.json("plan", self.path("job.yaml"), "--program", *changes)
        self.assertEqual(answer["layout"], {"tensor": 1, "pipeline": 2, "data": 2})
        self.assertEqual(answer["stages"][0], [line.strip() for line in lines[1:lines.index("stage 1")]])

    def test_explained_tensors(self):
        self.use("qwen3")
        out, _ = self.tercio("plan", self.path("job.yaml"), "--explain-tensors", *layout(2, 2, 2))
        lines = {line.split("  ")[0]: line.split() for line in out.splitlines()}
        self.assertEqual(lines["layers.1.attention.query_norm.weight"][1:], ["16", "whole", "all", "4-7"])
        self.assertEqual(lines["layers.0.attention.query.weight"][1:],
                         ["64", "x", "32", "rows", "rows", "0", "to", "32", "0,", "2"])
        answer = self.json("plan", self.path("job.yaml"), "--explain-tensors", *layout(2, 2, 2))
        self.assertEqual(answer["layout"], {"tensor": 2, "pipeline": 2, "data": 2})
        tensors = {tensor["name"]: tensor for tensor in answer["tensors"]}
        down = tensors["layers.1.mlp.down.weight"]
        self.assertEqual((down["shape"], down["cut"]), ([32, 24], "columns"))
        self.assertEqual([part["ranks"] for part in down["parts"]], [[4, 6], [5, 7]])
        # Every element of every tensor is with somebody.
        for tensor in answer["tensors"]:
            elements = sum((part["rows"][1] - part["rows"][0]) * (part["columns"][1] - part["columns"][0])
                           for part in tensor["parts"])
            rows, columns = (tensor["shape"] + [1])[:2]
            self.assertEqual(elements, rows * columns, tensor["name"])

    def test_a_key_of_another_architecture_is_a_fault(self):
        self.use("opt")
        _, err = self.tercio("plan", self.path("job.yaml"), "--set", "model.sliding_window=4", code=2)
        self.assertIn("sliding_window", err)

    def test_a_layout_that_does_not_divide_the_heads_is_refused(self):
        self.use("qwen3")
        _, err = self.tercio("plan", self.path("job.yaml"), *layout(4, 1, 1), code=2)
        self.assertIn("does not divide model.kv_heads 2", err)


def add(name):
    def test(self):
        self.check(name)

    setattr(Architectures, f"test_{name}", test)


for architecture in ARCHITECTURES:
    add(architecture)

if __name__ == "__main__":
    python_cases.main()

"""An encoder and a decoder through the command line: pretrained by span corruption on plain text over tensor x pipeline x data ranks,
evaluated, stopped and resumed in another layout with equal bits, exported, and asked for answers."""

import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, TercioTest, layout  # noqa: E402

FIXTURES = os.path.join(ROOT, "tests", "huggingface", "fixtures")
STEPS = 40

JOB = f"""
name: spans
model:
  architecture: t5
  layers: 2
  decoder_layers: 2
  hidden: 32
  heads: 4
  ffn_hidden: 64
  context: 48
data: {{train: corpus.txt, tokenizer: bytes, validation: 0.1}}
training:
  steps: {STEPS}
  global_batch: 8
  optimizer: {{learning_rate: 1e-2}}
  evaluate: {{every_steps: 20}}
checkpoint: {{every_steps: 20}}
"""


# The two fixtures have 2 + 3 layers.
TUNED = """
name: tuned
model: {from: model, context: 24}
data:
  train: tokens
  special_tokens: {pad: 0, eos: 1, first_sentinel: 39, sentinels: 8}
training:
  steps: 4
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
"""


class T5(TercioTest):

    def setUp(self):
        super().setUp()
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)

    def trained(self, name, *changes):
        state = self.path(name)
        job = self.run_job(state, *changes)
        self.assertEqual((job["state"], job["step"]), ("succeeded", STEPS), name)
        return job, self.curve(job["id"], state), self.history(job["id"], state)

    def test_layouts_have_equal_bits_and_the_model_learns(self):
        _, alone, steps = self.trained("alone", *layout(1, 1, 1))
        _, piped, _ = self.trained("piped", *layout(1, 4, 2))
        self.assertEqual(alone, piped)
        self.assertLess(steps[-1]["loss"], 0.8 * steps[0]["loss"])
        self.assertLess(steps[-1]["validation_loss"], steps[19]["validation_loss"])
        # 48 tokens of the encoder and 12 of the decoder, 8 sequences a step.
        self.assertEqual(steps[-1]["tokens"], STEPS * 8 * (48 + 12))
        _, cut, _ = self.trained("cut", *layout(2, 2, 1))
        for (_, one, *_), (_, other, *_) in zip(alone, cut):
            self.assertAlmostEqual(one, other, delta=1e-4 * one)

    def test_resumed_in_another_layout(self):
        whole, expected, _ = self.trained("whole", *layout(2, 1, 1))
        state = self.path("parts")
        first = self.run_job(state, "--set", "training.steps=20", "--set", "training.schedule.decay_steps=40", *layout(2, 1, 1))
        self.json("resume", first["id"], "--state-dir", state, "--set", f"training.steps={STEPS}", *layout(2, 2, 2))
        steps = self.curve(first["id"], state)
        self.assertEqual(len(steps), STEPS)
        self.assertEqual([step[:2] for step in steps][:20], [step[:2] for step in expected][:20])
        self.assertTrue(whole["checkpoint"]["path"])

    def test_answers_and_exports(self):
        job, _, _ = self.trained("state", *layout(2, 2, 1))
        checkpoint = job["checkpoint"]["path"]
        ask = ("--prompt", "red green blue small", "--tokens", "8", "--temperature", "0")
        answer = self.json("generate", "--checkpoint", checkpoint, *ask)
        self.assertLessEqual(len(answer["tokens"]), 8)
        # The answer names the first span, which the byte tokenizer itself has no word for.
        self.assertEqual(answer["tokens"][0], 357)
        self.assertTrue(answer["text"].startswith("<extra_id_0>"), answer)
        out, _ = self.tercio("generate", "--checkpoint", checkpoint, *ask)
        self.assertEqual(out, answer["text"] + "\n")
        evaluation = self.json("evaluate", "--checkpoint", checkpoint, "--job", self.path("job.yaml"), "--data", self.path("corpus.txt"))
        # A sample has 52 raw tokens, and 12 that the decoder predicts.
        self.assertEqual(evaluation["tokens"], os.path.getsize(self.path("corpus.txt")) // 52 * 12)
        self.assertGreater(evaluation["loss"], 0)
        exported = self.path("exported")
        self.tercio("checkpoint", "export", job["id"], "--state-dir", self.path("state"), "--format", "hf", "--output", exported)
        with open(os.path.join(exported, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual((config["model_type"], config["num_layers"], config["num_decoder_layers"]), ("t5", 2, 2))
        ids = ("--prompt-ids", "7,8,9,10", "--tokens", "8", "--temperature", "0", "--start-id", "256", "--end-id", "257")
        self.assertEqual(self.json("generate", "--checkpoint", exported, *ids)["tokens"],
                         self.json("generate", "--checkpoint", checkpoint, *ids)["tokens"])

    def test_from_a_published_form(self):
        for name in ("t5", "t5_gated"):
            with self.subTest(name):
                self.tuned(name)

    def tuned(self, name):
        """A few steps from transformers' weights on token files, whose special tokens the job names."""
        shutil.rmtree(self.path("model"), ignore_errors=True)
        shutil.copytree(os.path.join(FIXTURES, name), self.path("model"))
        tokens = [2 + (i * i + 3 * i // 7) % 30 for i in range(4000)]
        with open(self.path("tokens.bin"), "wb") as file:
            file.write(struct.pack(f"<{len(tokens)}H", *tokens))
        with open(self.path("tokens.idx"), "wb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", len(tokens)) +
                       struct.pack("<q", 0) + struct.pack("<qq", 0, 1))
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(TUNED)
        curves = []
        for degrees in ((1, 1, 1), (1, 5, 2)):
            job = self.run_job(self.path("state"), *layout(*degrees))
            self.assertEqual((job["state"], job["step"]), ("succeeded", 4), name)
            curves.append(self.curve(job["id"], self.path("state")))
        self.assertEqual(*curves)
        exported = self.path("exported")
        shutil.rmtree(exported, ignore_errors=True)
        self.tercio("checkpoint", "export", job["id"], "--state-dir", self.path("state"), "--format", "hf", "--output", exported)
        ask = ("--prompt-ids", "7,8,9,10", "--tokens", "8", "--temperature", "0")
        self.assertEqual(self.json("generate", "--checkpoint", exported, *ask)["tokens"],
                         self.json("generate", "--checkpoint", job["checkpoint"]["path"], *ask)["tokens"])

    def test_what_does_not_fit_is_refused(self):
        _, err = self.tercio("plan", self.path("job.yaml"), "--set", "model.decoder_context=20", code=2)
        self.assertIn("decoder_context", err)
        _, err = self.tercio("plan", self.path("job.yaml"), *layout(1, 3, 1), code=2)
        self.assertIn("does not divide model.layers and model.decoder_layers together", err)
        _, err = self.tercio("plan", self.path("job.yaml"), "--set", "model.sliding_window=4", code=2)
        self.assertIn("sliding_window", err)


if __name__ == "__main__":
    python_cases.main()

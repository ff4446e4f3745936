"""Adapters through the command line: trained beside a model of Hugging Face in layouts, resumed, exported as peft's, merged,
imported and trained on; and what is refused."""

import json
import os
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
import tiny_model  # noqa: E402
from harness import BIN, ROOT, SECONDS, TercioTest, layout  # noqa: E402

JOB = """
name: adapters
model: {from: base, context: 64}
adapter: {kind: lora, rank: 4, alpha: 8, dropout: 0.05, targets: all-linear}
data: {train: text.txt, tokenizer: bytes, validation: 0.1}
training:
  steps: 20
  global_batch: 8
  optimizer: {learning_rate: 1e-2}
  schedule: {kind: constant}
  evaluate: {every_steps: 10, batches: 2}
checkpoint: {every_steps: 10}
resources: {device: cpu, ranks: 1}
"""


def header_of(path):
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(length))


class Adapters(TercioTest):

    def setUp(self):
        super().setUp()
        tiny_model.write(self.path("base"), 64)
        tiny_model.write_tokenizer(self.path("base"))
        with open(self.path("text.txt"), "w", encoding="utf-8") as file:
            file.writelines(f"Line {i} of a text that repeats itself, {i % 7} times seven.\n" for i in range(400))
        self.job_file = self.path("job.yaml")
        with open(self.job_file, "w", encoding="utf-8") as file:
            file.write(JOB)

    def train(self, state, *changes, code=0):
        return self.json("run", self.job_file, "--state-dir", state, *changes, code=code)

    def export(self, form, directory, *options, code=0):
        return self.tercio("checkpoint", "export", "adapters", "--state-dir", self.state, "--format", form, "--output",
                           self.path(directory), *options, code=code)

    def perplexity(self, directory):
        return self.json("evaluate", "--checkpoint", directory, "--data", self.path("text.txt"))["value"]

    def test_an_adapter_is_trained_in_layouts_and_goes_out_and_in(self):
        job = self.train(self.state)
        self.assertEqual((job["state"], job["step"]), ("succeeded", 20))
        history = self.history(job["id"], self.state)
        self.assertLess(history[-1]["loss"], 0.9 * history[0]["loss"])
        for name, changes in (("stages", layout(1, 2, 2)), ("shards", [*layout(1, 1, 2), "--set", "parallelism.zero_stage=3",
                                                                       "--set", "training.micro_batch=1"])):
            state = self.path(name)
            other = self.train(state, *changes)
            self.assertEqual(self.curve(other["id"], state), self.curve(job["id"], self.state), name)
        # Stopped half way, and resumed with tensor ranks.
        state = self.path("halves")
        self.train(state, "--set", "training.steps=10")
        self.tercio("resume", "adapters", "--state-dir", state, "--set", "training.steps=20", *layout(2, 1, 2))
        for a, b in zip(history, self.history("adapters", state)):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=2e-4)

        self.export("peft", "peft")
        self.assertEqual(sorted(os.listdir(self.path("peft"))), ["adapter_config.json", "adapter_model.safetensors",
                                                               "tercio_base.json"])
        with open(self.path("peft", "adapter_config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual((config["peft_type"], config["r"], config["lora_alpha"], config["base_model_name_or_path"]),
                         ("LORA", 4, 8, self.path("base")))
        self.assertEqual(sorted(config["target_modules"]), ["c_attn", "c_fc", "c_proj"])
        self.assertEqual(header_of(self.path("peft", "adapter_model.safetensors"))
                         ["base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"]["shape"], [96, 4])

        message = self.export("hf", "plain", code=2)[1]
        self.assertIn("has an adapter: add --merge for a whole model, or use --format peft", message)
        self.export("hf", "merged", "--merge")
        adapted = self.perplexity(self.path("peft"))
        self.assertAlmostEqual(self.perplexity(self.path("merged")), adapted, delta=1e-5 * adapted)
        self.assertLess(adapted, 0.9 * self.perplexity(self.path("base")))

        # On from the adapter, and from a checkpoint of it: the same curve.
        more = ["--set", "training.steps=5"]
        one = self.train(self.path("on"), "--set", f"adapter.from={self.path('peft')}", *more)
        first = self.history(one["id"], self.path("on"))[0]["loss"]
        self.assertLess(first, 0.9 * history[0]["loss"])
        self.tercio("checkpoint", "import", self.path("peft"), "--format", "peft", "--output", self.path("imported"))
        other = self.train(self.path("on2"), "--set", f"model.from={self.path('imported')}", *more)
        self.assertEqual(self.curve(other["id"], self.path("on2")), self.curve(one["id"], self.path("on")))

    def test_the_example_learns_to_answer(self):
        for name in ("chat", "lora"):
            shutil.copytree(os.path.join(ROOT, "deploy", "examples", name), self.path("examples", name))
        environment = {**self.environment(), "PATH": BIN + os.pathsep + os.environ["PATH"]}
        for job in ("lora.yaml", "qlora.yaml"):
            out = subprocess.run(["bash", self.path("examples", "lora", "run.sh"), job], env=environment, check=True,
                                 capture_output=True, text=True, timeout=SECONDS).stdout
            base, adapter = out.split("== base\n")[1].split("== adapter\n")
            self.assertNotEqual(base.strip(), adapter.strip())
        for name in ("lock", "lock-nf4"):
            history = self.history(name, self.path("examples", "lora", "state"))
            self.assertLess(history[-1]["loss"], 0.9 * history[0]["loss"])

    def refused(self, *changes):
        return self.tercio("run", self.job_file, "--state-dir", self.state, *changes, code=2)[1]

    def test_what_cannot_be_is_named(self):
        effective, _ = self.tercio("plan", self.job_file, "--effective", "--set", "adapter.targets=[c_attn, mlp.c_proj]")
        self.assertIn('targets: ["attention.query_key_value","mlp.down"]', effective)
        self.assertIn("adapter.targets: 'q_proj' matches no product of the model; it has attention.query_key_value, attention.output, "
                      "mlp.up, mlp.down", self.refused("--set", "adapter.targets=[q_proj]"))
        self.assertIn("adapter.train: no tensor of the model is named 'score.*'", self.refused("--set", "adapter.train=[score.*]"))
        self.assertIn("adapter.rank", self.refused("--set", "adapter.rank=0"))
        os.mkdir(self.path("other"))
        self.assertIn("adapter_config.json", self.refused("--set", f"adapter.from={self.path('other')}"))
        tiny_model.HIDDEN, hidden = 64, tiny_model.HIDDEN
        self.addCleanup(setattr, tiny_model, "HIDDEN", hidden)
        tiny_model.write(self.path("wider"), 64)
        self.train(self.state, "--set", "training.steps=1")
        self.export("peft", "peft")
        message = self.refused("--set", f"model.from={self.path('wider')}", "--set", f"adapter.from={self.path('peft')}")
        self.assertIn("it is for another model", message)
        message = self.refused("--set", f"adapter.from={self.path('peft')}", "--set", "adapter.rank=8")
        self.assertIn("but the adapter that it starts from is {kind: lora, rank: 4", message)
        # Other weights of the same shapes.
        tiny_model.HIDDEN = hidden
        tiny_model.write(self.path("twin"), 64, seed=2)
        tiny_model.write_tokenizer(self.path("twin"))
        change = ("--set", f"adapter.from={self.path('peft')}", "--set", f"model.from={self.path('twin')}")
        message = self.tercio("run", self.job_file, "--state-dir", self.path("twins"), *change, code=7)[1]
        self.assertIn("was trained beside other weights", message)
        self.tercio("checkpoint", "import", self.path("peft"), "--format", "peft", "--base", self.path("twin"), "--output",
                    self.path("imported"), code=7)
        shutil.rmtree(self.path("base"))
        message = self.tercio("generate", "--checkpoint", self.path("peft"), "--prompt", "a", code=3)[1]
        self.assertIn("which is no directory of this machine", message)


if __name__ == "__main__":
    python_cases.main()

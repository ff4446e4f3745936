"""Hugging Face directories as a user meets them: import, export, generation, evaluation, training from one."""

import filecmp
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import unittest
import zipfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
import torch_files  # noqa: E402
from harness import BIN, ROOT, TercioTest, layout  # noqa: E402

FIXTURES = os.path.join(ROOT, "tests", "huggingface", "fixtures")
CONTEXT, BATCH = 16, 8

JOB = """
name: tuned
model: {from: gpt2}
data: {train: tokens}
training:
  steps: 6
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
checkpoint: {every_steps: 3}
"""


class HuggingFace(TercioTest):

    def setUp(self):
        super().setUp()
        for name in ("gpt2", "llama", "llama_bf16"):
            shutil.copytree(os.path.join(FIXTURES, name), self.path(name))
        self.write_tokens("tokens", [(i * i + 3 * i // 7) % 40 for i in range(CONTEXT * BATCH + 1)])
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)

    def write_tokens(self, name, tokens):
        """A Megatron data set of one document."""
        with open(self.path(name + ".bin"), "wb") as file:
            file.write(struct.pack(f"<{len(tokens)}H", *tokens))
        with open(self.path(name + ".idx"), "wb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", len(tokens)) +
                       struct.pack("<q", 0) + struct.pack("<qq", 0, 1))

    def change_config(self, name, **changes):
        path = self.path(name, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**config, **changes}, file)

    def refused(self, code, *arguments):
        out, err = self.tercio(*arguments, code=code)
        self.assertEqual(out, "")
        return err

    def newest(self, state):
        return sorted(glob.glob(os.path.join(state, "checkpoints", "*", "step-*")))[-1]

    # ---- import and export ----

    def test_a_directory_comes_back_byte_for_byte(self):
        for name in ("gpt2", "llama", "llama_bf16"):
            imported = self.json("checkpoint", "import", self.path(name), "--format", "hf", "--output",
                                 self.path(name + ".tercio"))
            self.assertIn("config.json", imported["kept"])
            exported = self.json("checkpoint", "export", self.path(name + ".tercio"), "--format", "hf",
                                 "--output", self.path(name + ".again"))
            names = sorted(os.listdir(self.path(name)))
            self.assertEqual(sorted(os.listdir(self.path(name + ".again"))), names)
            self.assertEqual(exported["files"], names)
            _, different, errors = filecmp.cmpfiles(self.path(name), self.path(name + ".again"), names,
                                                    shallow=False)
            self.assertEqual((different, errors), ([], []), name)

    def test_exit_codes(self):
        to = ("--format", "hf", "--output", self.path("out"))
        self.assertIn("holds no checkpoint",
                      self.refused(3, "generate", "--checkpoint", self.directory, "--prompt-ids", "1"))
        self.assertIn("not there", self.refused(3, "checkpoint", "import", self.path("not there"), *to))
        self.assertIn("use hf", self.refused(2, "checkpoint", "import", self.path("gpt2"), "--format", "gguf",
                                             "--output", self.path("out")))
        self.refused(2, "checkpoint", "import", self.path("gpt2"))
        self.change_config("gpt2", activation_function="relu")
        self.assertIn("activation_function", self.refused(2, "checkpoint", "import", self.path("gpt2"), *to))
        weights = self.path("llama_bf16", "model.safetensors")
        with open(weights, "r+b") as file:
            file.truncate(os.path.getsize(weights) - 1)
        self.assertIn(weights, self.refused(7, "checkpoint", "import", self.path("llama_bf16"), *to))
        self.assertFalse(os.path.exists(self.path("out")))
        self.tercio("checkpoint", "import", self.path("llama"), *to)
        self.assertIn("the name is already taken", self.refused(7, "checkpoint", "import", self.path("llama"), *to))
        more = ("--format", "hf", "--output", self.path("more"))
        self.assertIn("step 3", self.refused(3, "checkpoint", "export", self.path("out"), "--step", "3", *more))
        self.assertIn("use fp32, bf16 or fp16", self.refused(2, "checkpoint", "export", self.path("out"), *more,
                                                             "--dtype", "int8"))
        self.assertIn("is not a size", self.refused(2, "checkpoint", "export", self.path("out"), *more,
                                              "--max-shard-size", "big"))
        part = self.path("out", "weights.safetensors")
        with open(part, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        self.assertIn(part, self.refused(7, "checkpoint", "export", self.path("out"), *more))
        self.assertIn("holds no jobs", self.refused(3, "checkpoint", "export", "job-none", "--state-dir",
                                                    self.path("nowhere"), *more))
        self.assertEqual([n for n in os.listdir(self.directory) if "partial" in n], [])

    # ---- generation and evaluation ----

    def test_a_directory_generates_and_is_evaluated(self):
        self.tercio("checkpoint", "import", self.path("llama"), "--format", "hf", "--output", self.path("imported"))
        texts, losses = [], []
        for directory in ("llama", "imported"):
            texts.append(self.json("generate", "--checkpoint", self.path(directory), "--prompt-ids", "7,0,39",
                                   "--tokens", "9"))
            losses.append(self.json("evaluate", "--checkpoint", self.path(directory), "--data",
                                    self.path("tokens"), "--metric", "loss", "--context", "16"))
        self.assertEqual(texts[0], texts[1])
        self.assertEqual((len(texts[0]["tokens"]), texts[0]["text"]), (9, None))
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0]["tokens"], CONTEXT * BATCH)
        out, _ = self.tercio("generate", "--checkpoint", self.path("llama"), "--prompt-ids", "7,0,39", "--tokens", "9")
        self.assertEqual([int(i) for i in out.split(",")], texts[0]["tokens"])
        self.assertIn("--prompt-ids", self.refused(2, "generate", "--checkpoint", self.path("llama"), "--prompt", "x"))
        self.assertIn("vocabulary", self.refused(2, "generate", "--checkpoint", self.path("llama"), "--prompt-ids", "40"))
        self.assertIn("longer", self.refused(2, "generate", "--checkpoint", self.path("llama"), "--prompt-ids", "4",
                                             "--context", "65"))

    def test_prompts_of_a_file_are_continued_as_each_alone(self):
        model = ("--checkpoint", self.path("llama"), "--tokens", "70", "--seed", "5")  # beyond the context of 64
        prompts = [[7, 0, 39], [1], [5, 4, 3, 2, 1] * 3, [38, 38], [9, 8]]
        with open(self.path("prompts.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"prompt_ids": ids}) + "\n" for ids in prompts)
        alone = [self.json("generate", *model, "--prompt-ids", ",".join(map(str, ids))) for ids in prompts]
        self.assertNotEqual(alone[0]["tokens"], alone[1]["tokens"])
        # Two at a time, so that a later prompt takes the place of one that has ended.
        for batch in ("2", "8"):
            self.assertEqual(self.json("generate", *model, "--prompts", self.path("prompts.jsonl"), "--batch", batch),
                             alone)
        out, _ = self.tercio("generate", *model, "--prompts", self.path("prompts.jsonl"))
        self.assertEqual([json.loads(line) for line in out.splitlines()], alone)
        with open(self.path("prompts.jsonl"), "a", encoding="utf-8") as file:
            file.write("{}\n")
        self.assertIn("prompts.jsonl:6: ",
                      self.refused(2, "generate", *model, "--prompts", self.path("prompts.jsonl")))

    def test_a_tokenizer_is_named_where_the_directory_brings_none(self):
        model = ("--checkpoint", self.path("llama"))
        ids = self.json("generate", *model, "--prompt-ids", "33,35,38", "--tokens", "9")
        text = self.json("generate", *model, "--prompt", "!#&", "--tokens", "9", "--tokenizer", "bytes")
        self.assertEqual((text["prompt_ids"], text["tokens"]), ([33, 35, 38], ids["tokens"]))
        self.assertIsNotNone(text["text"])
        content = "!#& %' " * 20
        with open(self.path("signs.txt"), "w", encoding="utf-8") as file:
            file.write(content)
        self.write_tokens("signs", list(content.encode()))
        evaluate = ("evaluate", *model, "--metric", "loss", "--data")
        self.assertEqual(self.json(*evaluate, self.path("signs.txt"), "--tokenizer", "bytes"),
                         self.json(*evaluate, self.path("signs")))
        # The same from a file, which `data tokenize` has written.
        self.tercio("data", "tokenize", "--input", self.path("signs.txt"), "--tokenizer", "bytes", "--output",
                    self.path("again"))
        self.assertEqual(self.json("generate", *model, "--prompt", "!#&", "--tokens", "9", "--tokenizer",
                                   self.path("again.tokenizer.json")), text)
        for words in (("generate", *model, "--prompt", "x"), (*evaluate, self.path("signs.txt")),
                      ("evaluate", *model, "--metric", "last_word_accuracy", "--data", self.path("signs.txt"))):
            self.assertIn("name one with --tokenizer PATH", self.refused(2, *words))
        self.assertIn("--tokenizer: there is no tokenizer at 'morse'",
                      self.refused(2, "generate", *model, "--prompt", "x", "--tokenizer", "morse"))
        self.assertIn("--tokenizer chars", self.refused(2, "generate", *model, "--prompt", "x", "--tokenizer", "chars"))

    # ---- training from a directory ----

    def test_training_starts_from_the_weights_in_any_layout(self):
        evaluated = self.json("evaluate", "--checkpoint", self.path("gpt2"), "--data", self.path("tokens"))
        curves = {}
        for name, changes in {"1x1x1": [], "1x2x2": layout(1, 2, 2), "2x2x1": layout(2, 2, 1)}.items():
            job = self.run_job(self.path(name), *changes)
            self.assertEqual((job["state"], job["step"]), ("succeeded", 6))
            curves[name] = self.curve(job["id"], self.path(name))
        one = curves["1x1x1"]
        # The batch is the whole file, so its first loss is that of the directory's model.
        self.assertAlmostEqual(one[0][1], evaluated["loss"], delta=1e-6)
        self.assertLess(one[-1][1], one[0][1])
        self.assertEqual(one, curves["1x2x2"])
        for a, b in zip(one, curves["2x2x1"]):
            self.assertAlmostEqual(b[1] / a[1], 1, delta=1e-4)
        self.tercio("checkpoint", "import", self.path("gpt2"), "--format", "hf", "--output", self.path("imported"))
        job = self.run_job(self.path("again"), "--set", "model.from=imported")
        self.assertEqual(self.curve(job["id"], self.path("again")), one)

    def test_a_shorter_context_and_fewer_ids_than_the_vocabulary(self):
        job = self.run_job(self.state, "--set", "model.context=8", "--set", "model.dropout=0.1", "--set",
                           "data={train: corpus.txt, tokenizer: chars, validation: 0.1}")
        self.assertEqual(job["state"], "succeeded")
        exported = self.json("checkpoint", "export", job["id"], "--state-dir", self.state, "--format", "hf",
                             "--output", self.path("out"))
        self.assertIn("tokenizer.json", exported["files"])
        with open(self.path("out", "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual((config["n_positions"], config["vocab_size"], config["n_inner"]), (8, 40, 40))

    def test_a_job_goes_on_without_the_directory(self):
        reference = self.run_job(self.path("reference"), "--set", "training.steps=9", "--set",
                                 "training.schedule.decay_steps=6")
        first = self.run_job(self.state)
        shutil.rmtree(self.path("gpt2"))
        again = self.json("resume", first["id"], "--state-dir", self.state, "--set", "training.steps=9")
        self.assertEqual((again["state"], again["step"]), ("succeeded", 9))
        losses = [step[:3] for step in self.curve(first["id"], self.state)]
        self.assertEqual(losses, [step[:3] for step in self.curve(reference["id"], self.path("reference"))])

    def test_contradictions_and_damage_are_found_before_a_job_exists(self):
        err = self.refused(2, "run", self.path("job.yaml"), "--state-dir", self.state, "--set", "model.layers=3")
        self.assertIn(f"model.layers: 3, but the model in {self.path('gpt2')} has 2", err)
        err = self.refused(2, "run", self.path("job.yaml"), "--state-dir", self.state, "--set",
                           "data={train: corpus.txt, tokenizer: bytes}")
        self.assertIn("model.vocab_size is 40, but the tokenizer 'bytes' has 256 ids", err)
        os.remove(self.path("gpt2", "model.safetensors"))
        err = self.refused(2, "run", self.path("job.yaml"), "--state-dir", self.state)
        self.assertIn(self.path("gpt2"), err)

    def test_a_node_that_cannot_read_the_directory_is_named(self):
        _, ready = self.coordinator()
        address = ("--coordinator", ready["coordinator"])
        job, _ = self.tercio("submit", self.path("job.yaml"), *address)
        shutil.rmtree(self.path("gpt2"))
        self.agent(ready["coordinator"])
        self.tercio("wait", job.strip(), *address, code=1)
        status = self.json("get", job.strip(), *address)
        self.assertEqual((status["state"], status["restarts"]), ("failed", 0))
        self.assertIn("node one", status["error"])
        self.assertIn(self.path("gpt2"), status["error"])

    # ---- published forms ----

    def as_published(self, name, rename, stream=False, more=None):
        """The weights of a directory as a file of torch, under other names and with more tensors."""
        weights = self.path(name, "model.safetensors")
        tensors = {rename(tensor): value for tensor, value in torch_files.read_safetensors(weights).items()}
        torch_files.save({**tensors, **(more or {})}, self.path(name, "pytorch_model.bin"), stream)
        os.remove(weights)

    def bring_gpt2_tokenizer(self, name):
        letters = sorted(set("redgreenbluesmalllargeroundheavylight")) + ["\u0120", "\u010a", "."]
        tokens = letters + ["re", "red", "\u0120b", "<|endoftext|>"]
        with open(self.path(name, "vocab.json"), "w", encoding="utf-8") as file:
            json.dump({token: i for i, token in enumerate(tokens)}, file)
        with open(self.path(name, "merges.txt"), "w", encoding="utf-8") as file:
            file.write("#version: 0.2\nr e\nre d\n\u0120 b\n")

    def test_a_published_gpt2_brings_all_that_is_needed(self):
        shutil.copytree(self.path("gpt2"), self.path("safe"))
        mask = {f"h.{layer}.attn.bias": ("U8", [1, 1, 16, 16], bytes(256)) for layer in range(2)}
        self.as_published("gpt2", lambda tensor: tensor.removeprefix("transformer."), more=mask)
        for name in ("gpt2", "safe"):
            self.bring_gpt2_tokenizer(name)
        text = ("--set", "data={train: corpus.txt}")
        curves = []
        _, err = self.tercio("checkpoint", "import", self.path("gpt2"), "--format", "hf", "--output", self.path("imported"))
        self.assertIn("note: " + self.path("gpt2") + ": the export of this import will have the same weights as safetensors", err)
        for name in ("safe", "gpt2", "imported"):
            job = self.run_job(self.path("state-" + name), "--set", "model.from=" + name, *text)
            curves.append(self.curve(job["id"], self.path("state-" + name)))
        self.assertEqual(curves[0], curves[1])
        self.assertEqual(curves[0], curves[2])
        words = ("--prompt", "red blue", "--tokens", "5", "--temperature", "0")
        texts = [self.json("generate", "--checkpoint", self.path(name), *words) for name in ("safe", "gpt2", "imported")]
        self.assertTrue(texts[0]["text"])
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[0], texts[2])
        exported = self.json("checkpoint", "export", self.path("imported"), "--format", "hf", "--output", self.path("out"))
        self.assertEqual(exported["files"], ["config.json", "generation_config.json", "merges.txt", "model.safetensors", "vocab.json"])
        self.assertEqual(torch_files.read_safetensors(self.path("out", "model.safetensors")),
                         torch_files.read_safetensors(self.path("safe", "model.safetensors")))

    def test_a_classifier_starts_from_a_published_bert(self):
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for name in ("safe", "bert"):
            shutil.copytree(os.path.join(FIXTURES, "bert"), self.path(name))
            with open(self.path(name, "vocab.txt"), "w", encoding="utf-8") as file:
                file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", *map(str, range(31))]))
            with open(self.path(name, "tokenizer_config.json"), "w", encoding="utf-8") as file:
                file.write('{"do_lower_case": true, "model_max_length": 512}')
        self.as_published("bert", lambda tensor: next((tensor.replace(new, before) for new, before in old.items()
                                                       if tensor.endswith(new)), tensor), stream=True)
        with open(self.path("train.jsonl"), "w", encoding="utf-8") as file:
            for i in range(32):
                file.write(json.dumps({"text": f"A {'good' if i % 2 else 'bad'} film {i}", "label": i % 2}) + "\n")
        self.tercio("checkpoint", "import", self.path("bert"), "--format", "hf", "--output", self.path("imported"))
        curves = []
        for name in ("safe", "bert", "imported"):
            out, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.path("state-" + name), "--set",
                                   f"model={{from: {name}, labels: [negative, positive]}}", "--set", "data={train: train.jsonl}",
                                   "-o", "json")
            job = json.loads(out)
            self.assertEqual(job["state"], "succeeded")
            self.assertIn(f"model.from {self.path(name)}: it has no classifier.weight, classifier.bias", err)
            if name != "imported":
                self.assertIn(f"model.from {self.path(name)}: the model has no use for cls.predictions.bias", err)
            curves.append(self.curve(job["id"], self.path("state-" + name)))
        self.assertEqual(curves[0], curves[1])
        self.assertEqual(curves[0], curves[2])

    def test_files_of_torch_are_not_trusted(self):
        self.as_published("gpt2", lambda tensor: tensor)
        weights = self.path("gpt2", "pytorch_model.bin")
        with open(weights, "rb") as file:
            good = file.read()
        ran = self.path("ran")
        faults = {
            (2, "it names os.system"): f"cos\nsystem\n(S'touch {ran}'\ntR.".encode(),
            (2, "it names torch.nn.modules.linear.Linear"): b"ctorch.nn.modules.linear\nLinear\n)\x81}b.",
            (7, "the archive is truncated"): None,
        }
        for (code, what), pickled in faults.items():
            if pickled is None:
                with open(weights, "wb") as file:
                    file.write(good[:len(good) // 2])
            else:
                with zipfile.ZipFile(weights, "w") as archive:
                    archive.writestr("archive/data.pkl", pickled)
            for words in (("checkpoint", "import", self.path("gpt2"), "--format", "hf", "--output", self.path("out")),
                          ("run", self.path("job.yaml"), "--state-dir", self.state),
                          ("generate", "--checkpoint", self.path("gpt2"), "--prompt-ids", "1")):
                err = self.refused(code, *words)
                self.assertIn(weights, err)
                self.assertIn(what, err)
        self.assertEqual(self.json("list", "--state-dir", self.state), [])
        self.assertFalse(os.path.exists(self.path("out")) or os.path.exists(ran))

    # ---- exports of jobs trained from scratch ----

    def test_weights_of_half_the_size(self):
        job = self.run_job(self.state)
        losses, sizes = {}, {}
        for dtype, known in (("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")):
            out = self.path(dtype)
            self.tercio("checkpoint", "export", job["id"], "--state-dir", self.state, "--format", "hf", "--output", out,
                        "--dtype", dtype)
            with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file)["dtype"], known)
            sizes[dtype] = os.path.getsize(os.path.join(out, "model.safetensors"))
            losses[dtype] = self.json("evaluate", "--checkpoint", out, "--data", self.path("tokens"))["loss"]
        for dtype in ("bf16", "fp16"):
            self.assertLess(sizes[dtype], 0.6 * sizes["fp32"])
            self.assertAlmostEqual(losses[dtype], losses["fp32"], delta=0.02)
            self.assertNotEqual(losses[dtype], losses["fp32"])

    def train_from_scratch(self, model, tokenizer):
        state = self.path("state-" + model["architecture"])
        job = self.run_job(state, "--set", f"model={json.dumps(model)}", "--set",
                           f"data={{train: corpus.txt, tokenizer: {tokenizer}}}")
        exported = self.path("exported-" + model["architecture"])
        _, err = self.tercio("checkpoint", "export", job["id"], "--state-dir", state, "--format", "hf", "--output",
                             exported, "--max-shard-size", "40KB")
        return self.newest(state), exported, err

    def scratch_models(self):
        gpt2 = {"architecture": "gpt2", "layers": 2, "hidden": 32, "heads": 4, "context": 16, "bias": False}
        llama = {"architecture": "llama", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "context": 16}
        checkpoint, exported, err = self.train_from_scratch(gpt2, "chars")
        self.assertIn("biases", err)
        yield checkpoint, exported
        yield self.train_from_scratch(llama, "bytes")[:2]

    def test_a_job_trained_from_scratch_is_exported(self):
        for checkpoint, exported in self.scratch_models():
            self.assertTrue(os.path.exists(os.path.join(exported, "model.safetensors.index.json")))
            self.assertTrue(os.path.exists(os.path.join(exported, "tokenizer.json")))
            texts = [self.json("generate", "--checkpoint", directory, "--prompt-ids", "1,2,3", "--tokens", "12")
                     for directory in (checkpoint, exported)]
            self.assertEqual(texts[0]["tokens"], texts[1]["tokens"])

    def test_transformers_loads_what_was_exported(self):
        python = os.environ.get("TERCIO_HF_PYTHON")
        if not python:
            raise unittest.SkipTest("TERCIO_HF_PYTHON names no Python with transformers")
        pairs = list(self.scratch_models())
        for name in ("gpt2", "llama", "llama_bf16"):
            self.tercio("checkpoint", "import", self.path(name), "--format", "hf", "--output", self.path(name + ".t"))
            self.tercio("checkpoint", "export", self.path(name + ".t"), "--format", "hf", "--output",
                        self.path(name + ".h"), "--max-shard-size", "30KB")
            pairs.append((self.path(name + ".t"), self.path(name + ".h")))
        for checkpoint, exported in pairs:
            text = ["--text", "red green"] if os.path.exists(os.path.join(exported, "tokenizer.json")) else []
            done = subprocess.run([python, os.path.join(ROOT, "tests", "huggingface", "check_export.py"), "--tercio",
                                   os.path.join(BIN, "tercio"), "--checkpoint", checkpoint, "--exported", exported,
                                   *text], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_transformers_agrees_with_every_tokenizer(self):
        python = os.environ.get("TERCIO_HF_PYTHON")
        if not python:
            raise unittest.SkipTest("TERCIO_HF_PYTHON names no Python with transformers")
        done = subprocess.run([python, os.path.join(ROOT, "tests", "huggingface", "check_tokenizers.py"), "--tercio",
                               os.path.join(BIN, "tercio")], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    python_cases.main()

"""Fine-tuning over quantised weights (model.base_format) as a user meets it: from a Hugging Face directory, in other layouts, resumed in
another one, exported."""

import glob
import json
import os
import random
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import TercioTest, layout  # noqa: E402

LAYERS, HIDDEN, HEADS, FFN, VOCABULARY, CONTEXT = 2, 128, 4, 256, 64, 16
BLOCK = 64
MATRICES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

JOB = """
name: tuned
model: {from: llama, base_format: nf4}
data: {train: tokens}
training:
  steps: 6
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
  schedule: {decay_steps: 6}
  frozen: ["layers.*.weight"]
checkpoint: {every_steps: 3}
"""


def shapes():
    yield "model.embed_tokens.weight", [VOCABULARY, HIDDEN]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{norm}.weight", [HIDDEN]
        for name in MATRICES:
            rows = FFN if name in ("mlp.gate_proj", "mlp.up_proj") else HIDDEN
            yield f"{prefix}{name}.weight", [rows, FFN if name == "mlp.down_proj" else HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCABULARY, HIDDEN]


def write_llama(directory):
    os.makedirs(directory)
    numbers = random.Random(7)
    header, content = {}, bytearray()
    for name, shape in shapes():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = len(content)
        content += struct.pack(f"<{count}f", *(numbers.gauss(1.0 if "norm" in name else 0.0, 0.05) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(content)]}
    head = json.dumps(header).encode()
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + content)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "max_position_embeddings": CONTEXT,
              "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
              "attention_bias": False, "torch_dtype": "float32"}
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def read_floats(directory):
    """Tensors of a Hugging Face directory, by name."""
    tensors = {}
    for path in glob.glob(os.path.join(directory, "*.safetensors")):
        with open(path, "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
            content = file.read()
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            tensors[name] = struct.unpack(f"<{(end - begin) // 4}f", content[begin:end])
    return tensors


class QuantizedBase(TercioTest):

    def setUp(self):
        super().setUp()
        write_llama(self.path("llama"))
        self.write_tokens("tokens", [(i * i + 3 * i // 7) % 40 for i in range(CONTEXT * 8 + 1)])
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)

    def write_tokens(self, name, tokens):
        """A Megatron data set of one document."""
        with open(self.path(name + ".bin"), "wb") as file:
            file.write(struct.pack(f"<{len(tokens)}H", *tokens))
        with open(self.path(name + ".idx"), "wb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", len(tokens)) +
                       struct.pack("<q", 0) + struct.pack("<qq", 0, 1))

    def newest(self, state):
        return sorted(glob.glob(os.path.join(state, "checkpoints", "*", "step-*")))[-1]

    def test_every_layout_trains_the_same_and_a_resumed_job_goes_on(self):
        curves = {}
        for name, changes in {"1x1x1": [], "1x2x2": layout(1, 2, 2), "2x2x1": layout(2, 2, 1)}.items():
            job = self.run_job(self.path(name), *changes)
            self.assertEqual((job["state"], job["step"]), ("succeeded", 6))
            curves[name] = self.curve(job["id"], self.path(name))
        self.assertLess(curves["1x1x1"][-1][1], curves["1x1x1"][0][1])
        self.assertEqual(curves["1x1x1"], curves["1x2x2"])
        for a, b in zip(curves["1x1x1"], curves["2x2x1"]):
            self.assertAlmostEqual(b[1] / a[1], 1, delta=1e-4)
        # Three steps, and three more in another layout, without the directory: the checkpoint has the codes.
        job = self.run_job(self.state, "--set", "training.steps=3", *layout(1, 1, 2))
        os.rename(self.path("llama"), self.path("moved"))
        again = self.json("resume", job["id"], "--state-dir", self.state, "--set", "training.steps=6", *layout(1, 2, 1))
        self.assertEqual((again["state"], again["step"]), ("succeeded", 6))
        losses = [step[:3] for step in self.curve(job["id"], self.state)]
        self.assertEqual(losses, [step[:3] for step in curves["1x1x1"]])

    def test_a_checkpoint_is_exported_as_the_values_of_its_codes(self):
        job = self.run_job(self.state)
        self.assertEqual(job["state"], "succeeded")
        self.tercio("checkpoint", "verify", job["id"], "--state-dir", self.state)
        self.tercio("checkpoint", "export", job["id"], "--state-dir", self.state, "--format", "hf", "--output", self.path("out"))
        before, after = read_floats(self.path("llama")), read_floats(self.path("out"))
        self.assertEqual(sorted(before), sorted(after))
        for name, values in before.items():
            if not any(matrix in name for matrix in MATRICES):
                continue
            codes = after[name]
            self.assertNotEqual(codes, values)
            for at in range(0, len(values), BLOCK):
                largest = max(abs(value) for value in values[at:at + BLOCK])
                # Half of the largest distance of two numbers of NF4, and what the scale is rounded by.
                for value, code in zip(values[at:at + BLOCK], codes[at:at + BLOCK]):
                    self.assertLess(abs(value - code), 0.2 * largest, name)
                self.assertLessEqual(len(set(codes[at:at + BLOCK])), 16)
        # What is trained has moved.
        self.assertNotEqual(before["lm_head.weight"], after["lm_head.weight"])
        evaluated = [self.json("evaluate", "--checkpoint", path, "--data", self.path("tokens"))["loss"]
                     for path in (self.newest(self.state), self.path("out"))]
        self.assertEqual(evaluated[0], evaluated[1])

    def test_faults_name_the_key_and_what_to_do(self):
        for change, fault in (("training.frozen=[]", "name them in training.frozen"),
                              ("training.frozen=[lm*]", "no tensor of the model is named"),
                              ("parallelism={tensor: 1, data: 2, zero_stage: 3}", "which would have to divide codes"),
                              ("model.base_format=nf5", "nf5")):
            _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, "--set", change, code=2)
            self.assertIn(fault, err)


if __name__ == "__main__":
    python_cases.main()

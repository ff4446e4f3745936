"""`tercio serve` beside transformers' generate, alternating in one run: greedy, fp32, on all cores; prints a table.

    TERCIO_HF_PYTHON=PYTHON_WITH_TRANSFORMERS serve.py [--rounds N] [--models gpt2-124m,llama-135m] [--texts N] [--prompt N] [--tokens N]
                                                       [--program TERCIO] [--keep FOLDER]

Without TERCIO_HF_PYTHON only Tercio is measured. The models have the sizes of GPT-2 124M and SmolLM-135M and random weights, which are
written first. A text is a request of its own: `--texts` clients ask at once for so many tokens each, and a figure counts all new tokens
over the time from the first request to the last answer. transformers gets the prompts as one batch of equal lengths. Both read their
prompts within that time.
"""

import argparse
import array
import concurrent.futures
import http.client
import json
import math
import os
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
import tiny_model  # noqa: E402

MODELS = {
    "gpt2-124m": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 768,
                  "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 1024, "layer_norm_epsilon": 1e-5, "vocab_size": 50257,
                  "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None},
    "llama-135m": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 576,
                   "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
                   "head_dim": 64, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 49152,
                   "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "bos_token_id": None,
                   "eos_token_id": None},
}

# What the other Python runs: a model is loaded, then each line of input is a batch.
TRANSFORMERS = """
import json, sys, time
import torch, transformers
torch.set_num_threads(int(sys.argv[2]))
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
print(json.dumps({"torch": torch.__version__, "version": transformers.__version__}), flush=True)
for line in sys.stdin:
    batch = json.loads(line)
    ids = torch.tensor(batch["prompts"])
    begin = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=batch["tokens"],
                             min_new_tokens=batch["tokens"], pad_token_id=0)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "ids": out[:, ids.shape[1]:].tolist()}), flush=True)
"""


def gpt2_shapes(c):
    hidden = c["n_embd"]
    yield "transformer.wte.weight", [c["vocab_size"], hidden]
    yield "transformer.wpe.weight", [c["n_positions"], hidden]
    for layer in range(c["n_layer"]):
        prefix = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            yield f"{prefix}{norm}.weight", [hidden]
            yield f"{prefix}{norm}.bias", [hidden]
        for name, rows, columns in (("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden),
                                    ("mlp.c_fc", hidden, 4 * hidden), ("mlp.c_proj", 4 * hidden, hidden)):
            yield f"{prefix}{name}.weight", [rows, columns]
            yield f"{prefix}{name}.bias", [columns]
    yield "transformer.ln_f.weight", [hidden]
    yield "transformer.ln_f.bias", [hidden]


def llama_shapes(c):
    hidden, inner, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    queries, keys = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", [c["vocab_size"], hidden]
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{norm}.weight", [hidden]
        for name, rows, columns in (("self_attn.q_proj", queries, hidden), ("self_attn.k_proj", keys, hidden),
                                    ("self_attn.v_proj", keys, hidden), ("self_attn.o_proj", hidden, queries),
                                    ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
                                    ("mlp.down_proj", hidden, inner)):
            yield f"{prefix}{name}.weight", [rows, columns]
    yield "model.norm.weight", [hidden]


def write_model(directory, config):
    """Numbers of a normal distribution, which repeat: how fast a model is does not depend on them."""
    os.makedirs(directory)
    numbers = random.Random(1)
    pattern = array.array("f", (numbers.gauss(0, 0.02) for _ in range((1 << 20) + 7))).tobytes()
    shapes = list((gpt2_shapes if config["model_type"] == "gpt2" else llama_shapes)(config))
    header, at = {}, 0
    for name, shape in shapes:
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * math.prod(shape)]}
        at = header[name]["data_offsets"][1]
    head = json.dumps(header).encode()
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        place = 0
        for name, shape in shapes:
            left = 4 * math.prod(shape)
            if len(shape) == 1 and name.endswith("weight"):
                file.write(array.array("f", [1.0] * shape[0]).tobytes())
                continue
            while left > 0:
                part = pattern[place:place + left]
                file.write(part)
                left -= len(part)
                place = (place + len(part)) % len(pattern)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    tiny_model.write_tokenizer(directory)
    path = os.path.join(directory, "tokenizer.json")
    with open(path, encoding="utf-8") as file:
        tokenizer = json.load(file)
    # The other ids are words that say which.
    tokenizer["model"]["vocab"].update({f"t{i}.": i for i in range(256, config["vocab_size"])})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)


class Server:

    def __init__(self, program, directory, slots):
        self.process = subprocess.Popen([program, "serve", directory, "--listen", "127.0.0.1:0", "--slots", str(slots)],
                                        stdout=subprocess.PIPE, text=True)
        ready = re.search(r"serve=(\S+)", self.process.stdout.readline())
        if ready is None:
            sys.exit(f"error: {program} serve {directory} did not start")
        self.address = ready.group(1)

    def ask(self, ids, tokens):
        connection = http.client.HTTPConnection(self.address, timeout=3600)
        body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        if answer.get("usage", {}).get("completion_tokens") != tokens:
            sys.exit(f"error: {answer}")
        return answer["choices"][0]["text"]

    def run(self, prompts, tokens):
        """Seconds, and the texts."""
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            begin = time.perf_counter()
            texts = list(pool.map(lambda ids: self.ask(ids, tokens), prompts))
            return time.perf_counter() - begin, texts

    def close(self):
        self.process.terminate()
        self.process.wait()


class Transformers:

    def __init__(self, python, directory):
        self.process = subprocess.Popen([python, "-c", TRANSFORMERS, directory, str(os.cpu_count())], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.versions = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("error: the Python of TERCIO_HF_PYTHON has ended")
        return json.loads(line)

    def run(self, prompts, tokens):
        print(json.dumps({"prompts": prompts, "tokens": tokens}), file=self.process.stdin, flush=True)
        answer = self.read()
        return answer["seconds"], answer["ids"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def equal_beginnings(text, ids):
    """How many ids both have before the first that differs. Among random weights some logits nearly tie."""
    ours = [int(word) for word in re.findall(r"t(\d+)\.", text)]
    theirs = [i for i in ids if i >= 256]
    return next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), len(theirs))


def measure(name, options, folder):
    config = MODELS[name]
    directory = os.path.join(folder, name)
    if not os.path.exists(directory):
        write_model(directory, config)
    numbers = random.Random(2)
    prompts = [[numbers.randrange(256, config["vocab_size"]) for _ in range(options.prompt)] for _ in range(options.texts)]
    server = Server(options.program, directory, options.texts)
    python = os.environ.get("TERCIO_HF_PYTHON")
    judge = Transformers(python, directory) if python else None
    ours, theirs = [], []
    texts = ids = None
    # The first round of each is not counted. The prompts of a round are its own: none is known from before.
    for round_number in range(options.rounds + 1):
        mine = [ids_of[:-1] + [256 + round_number] for ids_of in prompts]
        mine = [[256 + round_number] + ids_of[1:] for ids_of in mine]
        seconds, texts = server.run(mine, options.tokens)
        ours.append(seconds)
        if judge:
            seconds, ids = judge.run(mine, options.tokens)
            theirs.append(seconds)
    server.close()
    all_tokens = options.texts * options.tokens
    rate = [all_tokens / seconds for seconds in ours[1:]]
    row = {"tercio": statistics.median(rate), "low": min(rate), "high": max(rate)}
    if judge:
        judge.close()
        row["transformers"] = statistics.median(all_tokens / seconds for seconds in theirs[1:])
        row["ratio"] = statistics.median(b / a for a, b in zip(ours[1:], theirs[1:]))
        row["equal"] = sum(equal_beginnings(a, b) for a, b in zip(texts, ids)) / all_tokens
        row |= judge.versions
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--program", default=os.path.join(ROOT, "bin/tercio"))
    parser.add_argument("--keep", help="folder for the models, which stay there")
    options = parser.parse_args()
    folder = options.keep or tempfile.mkdtemp()
    print(f"{options.texts} texts, {options.prompt} + {options.tokens} tokens each, fp32, greedy, {os.cpu_count()} cores")
    print("| model | Tercio, tokens/s | (least to most) | transformers, tokens/s | times transformers | equal ids |")
    print("|---|---|---|---|---|---|")
    try:
        for name in options.models.split(","):
            row = measure(name, options, folder)
            print(f"| {name} | {row['tercio']:.1f} | {row['low']:.1f} to {row['high']:.1f} |", end="")
            if "ratio" in row:
                print(f" {row['transformers']:.1f} | {row['ratio']:.2f} | {100 * row['equal']:.0f} % |"
                      f" <!-- torch {row['torch']}, transformers {row['version']} -->")
            else:
                print(" | | |")
            sys.stdout.flush()
    finally:
        if not options.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()

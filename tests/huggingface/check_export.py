"""Loads an exported directory in transformers and compares it with the checkpoint it came from: the loss of every
window of a random token file, the likeliest continuation, and the ids of a text.

    PYTHON_WITH_TRANSFORMERS tests/huggingface/check_export.py --tercio bin/tercio --checkpoint DIR --exported DIR
        [--text TEXT]

tests/e2e/huggingface_test.py runs it where TERCIO_HF_PYTHON names such a Python. Ends with 1 and a message on a
difference.
"""

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TOKENS = 1000
SEED = 7


def write_tokens(prefix, tokens):
    """A Megatron data set of one document (docs/formats.md)."""
    with open(prefix + ".bin", "wb") as file:
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", len(tokens)) +
                   struct.pack("<q", 0) + struct.pack("<qq", 0, 1))


def tercio(options, *arguments):
    out = subprocess.run([options.tercio, *arguments, "--checkpoint", options.checkpoint, "-o", "json"], check=True,
                         capture_output=True, text=True).stdout
    return json.loads(out)


def loss_of(model, tokens, context):
    """As tercio evaluate: windows that do not overlap, every token but the first is predicted once."""
    total, count = 0.0, 0
    for begin in range(0, len(tokens) - 1, context):
        window = torch.tensor([tokens[begin:begin + context + 1]])
        logits = model(window[:, :-1]).logits[0]
        total += torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum").item()
        count += window.shape[1] - 1
    return total / count


def check(what, ours, theirs, good):
    print(f"{what}: tercio {ours}, transformers {theirs}")
    if not good:
        sys.exit(f"{what} differs")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tercio", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--exported", required=True)
    parser.add_argument("--text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(options.exported, dtype=torch.float32).to(torch.float64).eval()
    generator = random.Random(SEED)
    tokens = [generator.randrange(model.config.vocab_size) for _ in range(TOKENS)]
    context = model.config.max_position_embeddings
    with torch.no_grad(), tempfile.TemporaryDirectory() as directory:
        prefix = os.path.join(directory, "tokens")
        write_tokens(prefix, tokens)
        ours = tercio(options, "evaluate", "--data", prefix)["loss"]
        theirs = loss_of(model, tokens, context)
        check("loss", ours, theirs, abs(ours - theirs) < 1e-5 * theirs)
        prompt = tokens[:context // 2]
        ours = tercio(options, "generate", "--temperature", "0", "--tokens", "8", "--prompt-ids",
                      ",".join(map(str, prompt)))["tokens"]
        theirs = []
        while len(theirs) < 8:
            window = (prompt + theirs)[-context:]
            theirs.append(int(model(torch.tensor([window])).logits[0, -1].argmax()))
        check("continuation", ours, theirs, ours == theirs)
    if options.text:
        tokenizer = AutoTokenizer.from_pretrained(options.exported)
        ours = tercio(options, "generate", "--tokens", "1", "--prompt", options.text)["prompt_ids"]
        theirs = tokenizer(options.text, add_special_tokens=False)["input_ids"]
        check("ids", ours, theirs, ours == theirs)
        check("text", options.text, tokenizer.decode(theirs), tokenizer.decode(theirs) == options.text)


if __name__ == "__main__":
    main()

"""Whether peft and transformers load what Tercio exports of the adapters in adapters/, and compute the fixtures' values with it. Run by
hand, where `tercio` is on the path, with the packages of make_adapters.py:

    ~/hf-venv/bin/python tests/huggingface/check_adapters.py
"""

import json
import os
import subprocess
import tempfile

import torch
from make_adapters import ADAPTERS, HERE, results
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification


def load(name, folder):
    auto = AutoModelForSequenceClassification if name == "bert_classes" else AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def difference(model, expected):
    """The largest one, relative to the largest value."""
    ours, theirs = torch.tensor(results(model.double().eval())), torch.tensor(expected)
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def check(name, scratch):
    def tercio(*arguments):
        subprocess.run(["tercio", "checkpoint", *arguments], check=True, stdout=subprocess.DEVNULL)

    with open(os.path.join(HERE, "adapters", name + ".json"), encoding="utf-8") as file:
        fixture = json.load(file)
    expected = fixture["classes"] if "classes" in fixture else fixture["logits"]
    checkpoint, peft, merged = (os.path.join(scratch, name + end) for end in ("", ".peft", ".merged"))
    tercio("import", os.path.join(HERE, "adapters", name), "--format", "peft", "--output", checkpoint)
    tercio("export", checkpoint, "--format", "peft", "--output", peft)
    tercio("export", checkpoint, "--format", "hf", "--merge", "--output", merged)
    base = load(name, os.path.join(HERE, "fixtures", name.removesuffix("_ia3")))
    errors = difference(PeftModel.from_pretrained(base, peft), expected), difference(load(name, merged), expected)
    print(f"{name}: adapter {errors[0]:.1e}, merged {errors[1]:.1e}")
    assert max(errors) < 1e-5


def main():
    with tempfile.TemporaryDirectory() as scratch:
        for name in ADAPTERS:
            check(name, scratch)


if __name__ == "__main__":
    main()

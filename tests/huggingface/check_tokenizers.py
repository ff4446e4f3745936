"""Exports a checkpoint with each tokenizer of tests/tokenizer/fixtures, and with `bytes` and `chars`, and compares what
transformers' AutoTokenizer says of the directory with what the tokenizer's own library said (expected.json): ids of all
texts, and with bert what stands around them. Tercio itself must make the same token file from the directory.

    PYTHON_WITH_TRANSFORMERS tests/huggingface/check_tokenizers.py --tercio bin/tercio

tests/e2e/huggingface_test.py runs it where TERCIO_HF_PYTHON names such a Python (with sentencepiece). Ends with 1 and a
message on a difference.
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile

from transformers import AutoTokenizer

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENIZERS = os.path.join(TESTS, "tokenizer", "fixtures")
MODELS = os.path.join(TESTS, "huggingface", "fixtures")


class Xxh128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh128(content):
    function = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    function.restype = Xxh128
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    value = function(content, len(content))
    return f"{value.high:016x}{value.low:016x}"


def write_checkpoint(imported, tokenizer, directory):
    """The checkpoint of an import as if training had written it: nothing kept, and a tokenizer."""
    shutil.copytree(imported, directory, ignore=shutil.ignore_patterns("hf"))
    shutil.copyfile(tokenizer, os.path.join(directory, "tokenizer.json"))
    with open(tokenizer, "rb") as file:
        content = file.read()
    path = os.path.join(directory, "manifest.json")
    with open(path, encoding="utf-8") as file:
        manifest = json.load(file)
    manifest["files"] = {name: entry for name, entry in manifest["files"].items() if not name.startswith("hf/")}
    manifest["version"] = 2  # which has no digest of itself
    manifest["files"]["tokenizer.json"] = {"bytes": len(content), "xxh128": xxh128(content)}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(manifest, file)


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Checker:

    def __init__(self, tercio, directory):
        self.tercio_path, self.directory = tercio, directory
        with open(os.path.join(TOKENIZERS, "expected.json"), encoding="utf-8") as file:
            self.expected = json.load(file)
        self.texts = self.expected["texts"]
        self.corpus = self.path("texts.jsonl")
        with open(self.corpus, "w", encoding="utf-8") as file:
            for text in self.texts:
                file.write(json.dumps({"text": text}) + "\n")
        for model in ("llama", "bert"):
            self.tercio("checkpoint", "import", os.path.join(MODELS, model), "--format", "hf", "--output",
                        self.path(model))

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def tercio(self, *arguments):
        done = subprocess.run([self.tercio_path, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"tercio {' '.join(arguments)}: {done.stderr}")

    def tokenize(self, tokenizer, prefix):
        self.tercio("data", "tokenize", "--input", self.corpus, "--tokenizer", tokenizer, "--output", prefix)

    def ids_of(self, name):
        if name == "bytes":
            return [list(text.encode()) for text in self.texts]
        if name == "chars":
            id_of = {c: i for i, c in enumerate(sorted(set("".join(self.texts))))}
            return [[id_of[c] for c in text] for text in self.texts]
        return self.expected["ids"][name]

    def check(self, name, model):
        where = self.path(f"{name}.{model}")
        self.tokenize(os.path.join(TOKENIZERS, name) if name in self.expected["ids"] else name, where)
        write_checkpoint(self.path(model), where + ".tokenizer.json", where + ".checkpoint")
        self.tercio("checkpoint", "export", where + ".checkpoint", "--format", "hf", "--output", where + ".out")
        tokenizer = AutoTokenizer.from_pretrained(where + ".out")
        expected = self.ids_of(name)
        for text, ids in zip(self.texts, expected):
            found = tokenizer(text, add_special_tokens=False)["input_ids"]
            if found != ids:
                sys.exit(f"{name}, {text!r}: {type(tokenizer).__name__} says {found}, not {ids}")
        with open(where + ".tokenizer.json", encoding="utf-8") as file:
            self.check_around(name, model, tokenizer, expected, json.load(file).get("special", {}))
        self.tokenize(where + ".out", where + ".again")
        if read(where + ".bin") != read(where + ".again.bin"):
            sys.exit(f"{name}: Tercio reads another tokenizer out of {where}.out")
        print(f"{name} with {model}: {type(tokenizer).__name__}, {len(expected)} texts, "
              f"{sum(map(len, expected))} ids")

    def check_around(self, name, model, tokenizer, expected, special):
        """What stands around a text and between two, and what a model is given."""
        first, second = self.texts.index("Hello, world!"), self.texts.index("hello world")
        one = tokenizer(self.texts[first])
        two = tokenizer(self.texts[first], self.texts[second])
        ends = special.get("beginning"), special.get("end_of_text")
        cls, sep = [special.get(role, end if ends[0] != ends[1] else None)
                    for role, end in zip(("cls", "separator"), ends)]
        if model == "bert" and cls is not None and sep is not None:
            around = [cls] + expected[first] + [sep]
            good = (one["input_ids"] == around and two["input_ids"] == around + expected[second] + [sep] and
                    two["token_type_ids"] == [0] * len(around) + [1] * (len(expected[second]) + 1))
        else:
            good = one["input_ids"] == expected[first]
        if model == "llama":
            good = good and set(one) == {"input_ids", "attention_mask"}
        if not good:
            sys.exit(f"{name} with {model}: {one} and {two}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tercio", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        checker = Checker(os.path.abspath(options.tercio), directory)
        for name in [*checker.expected["ids"], "bytes", "chars"]:
            for model in ("llama", "bert"):
                checker.check(name, model)


if __name__ == "__main__":
    main()

"""Seeds for the fuzz targets: small valid files, from which libFuzzer's changes begin.

    python3 tests/fuzz/make_seeds.py DIR     writes DIR/TARGET/NAME
"""

import json
import os
import pickle
import struct
import sys
import zipfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def safetensors_seeds():
    for name, tensors in {"none": [], "two": [("a", "F32", [2, 3]), ("b.weight", "BF16", [4])]}.items():
        header, place = {"__metadata__": {"format": "pt"}}, 0
        for tensor, dtype, shape in tensors:
            size = {"F32": 4, "BF16": 2}[dtype]
            for extent in shape:
                size *= extent
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}
            place += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        yield name, struct.pack("<Q", len(text)) + text
        yield name + "_file", struct.pack("<Q", len(text)) + text + bytes(place)


def torch_file_seeds():
    fixtures = os.path.join(ROOT, "tests/torch/fixtures")
    for name in ("archive.pt", "stream.pt", "protocol4.pt", "training.pt", "whole_model.pt"):
        path = os.path.join(fixtures, name)
        with open(path, "rb") as file:
            yield name, b"\0" + file.read()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield name + "_pickle", b"\1" + archive.read(name[:-len(".pt")] + "/data.pkl")
    yield "text_pickle", b"\1" + pickle.dumps({"a": [1, -2, 2.5, True, None, 2**70], "b": ("x", b"y")}, protocol=0)


def indexed_dataset_seeds():
    for name, code, width, documents in [("uint16", 8, 2, [[3, 2, 5], [4]]), ("int32", 4, 4, [[12], [], [1, 9]]),
                                         ("empty", 8, 2, [])]:
        lengths = [length for document in documents for length in document]
        borders = [0]
        for document in documents:
            borders.append(borders[-1] + len(document))
        index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(borders))
        index += struct.pack(f"<{len(lengths)}i", *lengths)
        index += struct.pack(f"<{len(lengths)}q", *(width * sum(lengths[:i]) for i in range(len(lengths))))
        index += struct.pack(f"<{len(borders)}q", *borders)
        yield name, struct.pack("<H", width * sum(lengths)) + index


def tokenizer_seeds():
    fixtures = os.path.join(ROOT, "tests/tokenizer/fixtures")
    for form, name in [(1, "bert.json"), (1, "llama3.json"), (1, "llama2.json"), (1, "mistral.json"), (1, "roberta.json"),
                       (2, "unigram.model"),
                       (2, "bytes.model"), (2, "suffix.model"), (3, "bert_cased/vocab.txt")]:
        with open(os.path.join(fixtures, name), "rb") as file:
            yield name.replace("/", "_"), bytes([form]) + file.read()
    special = {"cls": 1, "pad": 0}
    for name, stored in {
            "bytes": {"kind": "bytes", "vocab_size": 256},
            "chars": {"kind": "chars", "vocab_size": 3, "characters": "ab\u00e9"},
            "word_piece": {"kind": "word_piece", "most_characters": 9, "vocabulary": ["[PAD]", "[CLS]", "[UNK]", "a", "##b"],
                           "added_tokens": [{"id": 0, "content": "[PAD]", "special": True}], "special": special},
            "byte_level_bpe": {"kind": "byte_level_bpe", "pattern": "gpt2", "vocabulary": ["a", "b", "ab", None, "\u0120"],
                               "merges": [0, 1], "added_tokens": [], "special": {}},
            "sentence_piece": {"kind": "sentence_piece", "algorithm": "unigram", "charsmap": "", "unknown_surface": "?",
                               "pieces": ["<unk>", "\u2581", "\u2581a", "b"], "scores": [0, -1, -2.5, -3],
                               "types": [2, 1, 1, 1], "special": {}}}.items():
        yield "stored_" + name, b"\0" + json.dumps(stored).encode()


def megatron_seeds():
    fixtures = os.path.join(ROOT, "tests/megatron/fixtures")
    for name in ("bert_v0/release", "gpt_v1/iter_0000100", "core_gpt/iter_0000100"):
        with open(os.path.join(fixtures, name, "mp_rank_00", "model_optim_rng.pt"), "rb") as file:
            yield name.split("/")[0], file.read()


def job_file_seeds():
    common = "training: {steps: 9, global_batch: 4, optimizer: {learning_rate: 1e-3, betas: [0.9, 0.95]}}\n"
    sizes = "layers: 2, hidden: 32, heads: 4, context: 16"
    yield "small", f"model: {{{sizes}}}\ndata: {{train: a.txt, validation: 0.1}}\n{common}".encode()
    yield "preset", ("name: x\nmodel:\n  preset: gpt2-124m\n  dropout: 0.1\ndata:\n  train: [a.bin, b.bin]\n"
                     + common + "parallelism: {tensor: 2, pipeline: 2, schedule: gpipe}\n").encode()
    yield "llama", (f"model: {{architecture: llama, {sizes}, kv_heads: 2, rope_scaling: {{factor: 8}}}}\n"
                    "data: {train: [{path: a.jsonl, weight: 0.7}, {path: [b, c], weight: 2}], text_key: body}\n"
                    + common + "resources: {ranks: 2}\nfault_tolerance: {hang_timeout: 2m}\n").encode()
    yield "bert", (f"model: {{architecture: bert, {sizes}}}\ndata: {{train: a, masking: {{probability: 0.2}}, "
                   "special_tokens: {cls: 1, sep: 2, mask: 3, pad: 0}}\n" + common).encode()
    yield "schedule", (f"model: {{{sizes}}}\ndata: {{train: a}}\ntraining:\n  steps: 9\n  global_batch: 4\n"
                       "  optimizer: {learning_rate: 1}\n  schedule: {kind: wsd, decay_fraction: 0.1}\n"
                       "  evaluate: {every_steps: 3}\ncheckpoint: {every_steps: 2, keep_last: 1}\n").encode()


def labelled_texts_seeds():
    yield "csv", b"\0" + b'text,label,text_pair\r\n"a, ""b""\nc",yes,d\r\n\r\ne,0,\n'
    yield "tsv", b"\1" + b'\xef\xbb\xbflabel\ttext\n1\t"a it \'s \n0\tb\t\nno\tc'
    yield "tsv_skipping", b"\5" + b"label\ttext\n1\ta\nmaybe\tb\n0\t\n1\n"
    yield "jsonl", b"\2" + b'{"text": "a", "label": 1}\n{"label": "no", "text": "\\u00e9", "text_pair": "b"}\n'


def main():
    for target, seeds in {"safetensors": safetensors_seeds, "torch_file": torch_file_seeds,
                          "indexed_dataset": indexed_dataset_seeds, "tokenizer": tokenizer_seeds,
                          "job_file": job_file_seeds, "megatron": megatron_seeds,
                          "labelled_texts": labelled_texts_seeds}.items():
        folder = os.path.join(sys.argv[1], target)
        os.makedirs(folder, exist_ok=True)
        for name, content in seeds():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)


if __name__ == "__main__":
    main()

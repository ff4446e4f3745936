"""A Hugging Face directory of a small GPT-2 with random weights, and one id for each byte."""

import json
import os
import random
import struct

LAYERS, HIDDEN, HEADS, VOCABULARY = 2, 32, 4, 256


def shapes(context):
    yield "transformer.wte.weight", [VOCABULARY, HIDDEN]
    yield "transformer.wpe.weight", [context, HIDDEN]
    for layer in range(LAYERS):
        prefix = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            yield f"{prefix}{norm}.weight", [HIDDEN]
            yield f"{prefix}{norm}.bias", [HIDDEN]
        for name, rows, columns in (("attn.c_attn", HIDDEN, 3 * HIDDEN), ("attn.c_proj", HIDDEN, HIDDEN),
                                    ("mlp.c_fc", HIDDEN, 4 * HIDDEN), ("mlp.c_proj", 4 * HIDDEN, HIDDEN)):
            yield f"{prefix}{name}.weight", [rows, columns]
            yield f"{prefix}{name}.bias", [columns]
    yield "transformer.ln_f.weight", [HIDDEN]
    yield "transformer.ln_f.bias", [HIDDEN]


def characters_of_bytes():
    """The characters that stand for bytes in GPT-2's vocabulary: itself where a byte is printable, else one from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def write_tokenizer(directory):
    """The same ids as a tokenizer of Hugging Face: byte-level BPE without merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": level, "post_processor": level, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                           "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                           "vocab": {character: byte for byte, character in characters_of_bytes().items()}, "merges": []}}
    with open(os.path.join(directory, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}, file)


def write_tensors(path, shapes_by_name, value):
    """A safetensors file of floats; value(name, shape) is that of the next element."""
    header, content = {}, bytearray()
    for name, shape in shapes_by_name:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = len(content)
        content += struct.pack(f"<{count}f", *(value(name, shape) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(content)]}
    head = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + content)


def write_adapter(directory, base, rank, modules, seed):
    """An adapter as peft saves it, which changes every text: B is random, too."""
    os.makedirs(directory)
    numbers = random.Random(seed)
    sizes = {"attn.c_attn": (HIDDEN, 3 * HIDDEN), "attn.c_proj": (HIDDEN, HIDDEN), "mlp.c_fc": (HIDDEN, 4 * HIDDEN),
             "mlp.c_proj": (4 * HIDDEN, HIDDEN)}
    tensors = [(f"base_model.model.transformer.h.{layer}.{module}.lora_{matrix}.weight", shape)
               for layer in range(LAYERS) for module in modules
               for matrix, shape in (("A", [rank, sizes[module][0]]), ("B", [sizes[module][1], rank]))]
    write_tensors(os.path.join(directory, "adapter_model.safetensors"), tensors, lambda name, shape: numbers.gauss(0, 0.2))
    with open(os.path.join(directory, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": modules,
                   "base_model_name_or_path": base}, file)


def write(directory, context, seed=1):
    """Ids that repeat would hide faults: the weights are large enough for texts of many bytes."""
    os.makedirs(directory)
    numbers = random.Random(seed)

    def value(name, shape):
        middle = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
        return numbers.gauss(middle, 0.1 if len(shape) == 1 else 0.3)

    write_tensors(os.path.join(directory, "model.safetensors"), shapes(context), value)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
                   "n_embd": HIDDEN, "n_head": HEADS, "n_inner": 4 * HIDDEN, "n_layer": LAYERS, "n_positions": context,
                   "layer_norm_epsilon": 1e-5, "vocab_size": VOCABULARY, "tie_word_embeddings": True,
                   "bos_token_id": None, "eos_token_id": None}, file)

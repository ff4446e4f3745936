"""Makes a small stand-in for what sst2.yaml needs, so that the example runs offline and in a minute.

    python3 make_small_model.py DIRECTORY

The directory gets `bert-base-uncased`, in the form in which that model is published but with few random weights, three
small data sets in the form of SST-2, made from a template, and the job and the experiment with a learning rate that suits
them. Every run writes the same bytes. Needs nothing but Python.
"""

import array
import itertools
import json
import math
import os
import random
import re
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
HIDDEN, LAYERS, HEADS, WIDE, CONTEXT = 64, 2, 4, 128, 512
EXAMPLES = {"train": 600, "dev": 100, "test": 100}

THINGS = ["film", "plot", "cast", "story", "ending", "music", "script", "camera work", "dialogue", "pacing"]
GOOD = ["warm", "funny", "clever", "moving", "bright", "fresh", "charming", "tense"]
BAD = ["dull", "flat", "cold", "clumsy", "tired", "loud", "shallow", "slow"]
FORMS = ["the {thing} is {adverb} {word} .", "a {adverb} {word} {thing} , and that 's that",
         "{adverb} {word} from the first scene , like its {thing}", "i found the {thing} {adverb} {word}"]
ADVERBS = ["", "very", "really", "truly", "rather"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"

# As published, but for the sizes.
CONFIG = {
    "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": HIDDEN, "initializer_range": 0.02,
    "intermediate_size": WIDE, "layer_norm_eps": 1e-12, "max_position_embeddings": CONTEXT, "model_type": "bert",
    "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "pad_token_id": 0, "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True,
}


def vocabulary():
    words = {word for text in itertools.chain(THINGS, GOOD, BAD, FORMS, ADVERBS, ["not"])
             for word in re.findall(r"[a-z]+|[.,']", re.sub(r"\{\w+\}", " ", text))}
    special = ["[PAD]", *(f"[unused{i}]" for i in range(8)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # Letters, alone and within a word, spell what the list does not have.
    return special + sorted(words | set(LETTERS)) + ["##" + letter for letter in LETTERS]


def tensors(words):
    """(name, shape, kind) in the order of the published file, with the names that norms had in it."""
    def linear(name, rows, columns):
        return [(name + ".weight", [rows, columns], "normal"), (name + ".bias", [rows], "zeros")]

    def norm(name):
        return [(name + ".gamma", [HIDDEN], "ones"), (name + ".beta", [HIDDEN], "zeros")]

    found = [("bert.embeddings.word_embeddings.weight", [words, HIDDEN], "normal"),
             ("bert.embeddings.position_embeddings.weight", [CONTEXT, HIDDEN], "normal"),
             ("bert.embeddings.token_type_embeddings.weight", [2, HIDDEN], "normal"), *norm("bert.embeddings.LayerNorm")]
    for layer in range(LAYERS):
        at = f"bert.encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            found += linear(f"{at}attention.self.{part}", HIDDEN, HIDDEN)
        found += linear(at + "attention.output.dense", HIDDEN, HIDDEN) + norm(at + "attention.output.LayerNorm")
        found += linear(at + "intermediate.dense", WIDE, HIDDEN) + linear(at + "output.dense", HIDDEN, WIDE)
        found += norm(at + "output.LayerNorm")
    found += linear("bert.pooler.dense", HIDDEN, HIDDEN)
    found += [("cls.predictions.bias", [words], "zeros"), *linear("cls.predictions.transform.dense", HIDDEN, HIDDEN),
              *norm("cls.predictions.transform.LayerNorm"), *linear("cls.seq_relationship", 2, HIDDEN)]
    return found


# random() is the one method whose numbers are the same in every version of Python.
def choice(generator, values):
    return values[int(generator.random() * len(values))]


def normal(generator):
    return 0.02 * math.sqrt(-2 * math.log(1 - generator.random())) * math.cos(2 * math.pi * generator.random())


def write_weights(path, words):
    generator = random.Random(11)
    header, body = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, shape, kind in tensors(words):
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = array.array("f", (normal(generator) if kind == "normal" else float(kind == "ones")
                                   for _ in range(count)))
        if sys.byteorder == "big":
            values.byteswap()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + 4 * count]}
        body += values.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def write_examples(path, count, generator):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("sentence\tlabel\n")
        for _ in range(count):
            positive = generator.random() < 0.5
            # What is not good is bad.
            negated = generator.random() < 0.15
            text = choice(generator, FORMS).format(
                thing=choice(generator, THINGS), adverb="not" if negated else choice(generator, ADVERBS),
                word=choice(generator, GOOD if positive != negated else BAD))
            # SST-2 has a space behind each sentence.
            file.write(f"{' '.join(text.split())} \t{int(positive)}\n")


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: make_small_model.py DIRECTORY")
    root = sys.argv[1]
    model = os.path.join(root, "bert-base-uncased")
    os.makedirs(model, exist_ok=True)
    words = vocabulary()
    with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as file:
        json.dump({**CONFIG, "vocab_size": len(words)}, file, indent=2)
    with open(os.path.join(model, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"do_lower_case": True, "model_max_length": CONTEXT}, file)
    with open(os.path.join(model, "vocab.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(words) + "\n")
    write_weights(os.path.join(model, "model.safetensors"), len(words))
    generator = random.Random(12)
    for name, count in EXAMPLES.items():
        write_examples(os.path.join(root, name + ".tsv"), count, generator)
    for name in ("sst2.yaml", "experiment.yaml"):
        with open(os.path.join(HERE, name), encoding="utf-8") as file:
            text = file.read()
        with open(os.path.join(root, name), "w", encoding="utf-8") as file:
            file.write(text.replace("learning_rate: 5e-5", "learning_rate: 2e-3"))
    print(f"{root}: run sst2.yaml there")


if __name__ == "__main__":
    main()

"""Loads an exported bert classifier in transformers and compares its mean loss and accuracy over a labelled .jsonl file,
tokenised by AutoTokenizer, with what `tercio evaluate` says of the checkpoint.

    PYTHON_WITH_TRANSFORMERS tests/huggingface/check_classifier.py --tercio bin/tercio --checkpoint DIR --exported DIR
        --data LABELLED.jsonl

tests/e2e/bert_test.py runs it where TERCIO_HF_PYTHON names such a Python. Ends with 1 and a message on a difference.
"""

import argparse
import json
import subprocess
import sys

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def main():
    parser = argparse.ArgumentParser()
    for name in ("--tercio", "--checkpoint", "--exported", "--data"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ours = json.loads(subprocess.run([options.tercio, "evaluate", "--checkpoint", options.checkpoint, "--data",
                                      options.data, "--metric", "accuracy", "-o", "json"], check=True,
                                     capture_output=True, text=True).stdout)
    model = AutoModelForSequenceClassification.from_pretrained(options.exported, dtype=torch.float32)
    model = model.to(torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.exported)
    context = model.config.max_position_embeddings
    losses, right = [], 0
    with open(options.data, encoding="utf-8") as file, torch.no_grad():
        for line in file:
            example = json.loads(line)
            inputs = tokenizer(example["text"], return_tensors="pt", padding="max_length", max_length=context,
                               truncation=True)
            label = model.config.label2id[example["label"]]
            out = model(**inputs, labels=torch.tensor([label]))
            losses.append(out.loss.item())
            right += int(out.logits.argmax()) == label
    loss, accuracy = sum(losses) / len(losses), right / len(losses)
    print(f"{type(model).__name__}: tercio {ours['loss']}, {ours['value']}; transformers {loss}, {accuracy}")
    if abs(ours["loss"] - loss) > 1e-5 * loss or ours["value"] != accuracy:
        sys.exit("they differ")


if __name__ == "__main__":
    main()

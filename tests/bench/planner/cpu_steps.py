"""Measures steps of two small models on this machine's CPUs in many layouts, each round with the machine's figures of the
same minute, and writes what `bazel test //plan/planner/cost:cpu_accuracy_test` compares with predictions:

    python3 tests/bench/planner/cpu_steps.py [--rounds N] [--output DIR] [--models NAME,...]

./deploy/build.sh --cpu comes first. DIR (plan/planner/cost/testdata) gets cpu_steps.csv, a row for each round and layout, and
cpu_figures.jsonl, a line for each round. Machines are shared, and what disturbs a run only ever makes it slower: a row has
the lower quartile of a run's steps. Keep the machine free of other work meanwhile; where that is impossible, start it with
`chrt -r 1` (as root): trainers keep the class, and nobody else gets more than a twentieth of a core.
"""

import argparse
import csv
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))

MODELS = {
    "nanogpt": {"layers": 4, "heads": 4, "hidden": 128, "context": 64, "vocab_size": 65, "bias": False, "batch": 12,
                "steps": 60},
    "gpt256": {"layers": 4, "heads": 4, "hidden": 256, "context": 128, "vocab_size": 512, "bias": True, "batch": 8,
               "steps": 25},
}
COLUMNS = ("round", "model", "tensor", "pipeline", "data", "micro_batch", "recompute", "sequence_parallel", "steps",
           "seconds")


def layouts(batch):
    """(tensor, pipeline, data, micro-batch, recompute, sequence_parallel)"""
    return [
        (1, 1, 1, batch, "none", False),
        (1, 1, 1, batch, "full", False),
        (1, 1, 1, batch // 4, "none", False),
        (1, 1, 2, batch // 2, "none", False),
        (1, 1, 2, batch // 4, "full", False),
        (2, 1, 1, batch, "none", False),
        (2, 1, 1, batch, "none", True),
        (2, 1, 1, batch // 2, "full", False),
        (1, 2, 1, batch // 4, "none", False),
        (1, 2, 1, batch // 2, "full", False),
        (1, 1, 4, batch // 4, "none", False),
        (2, 1, 2, batch // 2, "none", False),
        (1, 2, 2, batch // 4, "none", False),
        (1, 4, 1, batch // 4, "none", False),
        (4, 1, 1, batch, "none", False),
    ]


def tokens(folder, vocabulary):
    """A Megatron data set of random ids: 64 documents of 8,192 tokens."""
    prefix = os.path.join(folder, f"tokens-{vocabulary}")
    if os.path.exists(prefix + ".idx"):
        return prefix
    generator = random.Random(7)
    documents, length = 64, 8192
    with open(prefix + ".bin", "wb") as file:
        for _ in range(documents):
            file.write(struct.pack(f"<{length}H", *(generator.randrange(vocabulary) for _ in range(length))))
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
        file.write(struct.pack(f"<{documents}i", *[length] * documents))
        file.write(struct.pack(f"<{documents}q", *[2 * length * i for i in range(documents)]))
        file.write(struct.pack(f"<{documents + 1}q", *range(documents + 1)))
    return prefix


def call(*command):
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"error: {' '.join(command)} ended with {result.returncode}:\n{result.stdout[-500:]}{result.stderr[-2000:]}")
    return result.stdout


def step_seconds(tercio, folder, name, layout):
    model = MODELS[name]
    tensor, pipeline, data, micro_batch, recompute, sequence_parallel = layout
    job = {
        "name": "cpu-steps",
        "model": {"architecture": "gpt2",
                  **{key: model[key] for key in ("layers", "heads", "hidden", "context", "bias", "vocab_size")}},
        "data": {"train": tokens(folder, model["vocab_size"])},
        "training": {"steps": model["steps"], "global_batch": model["batch"], "micro_batch": micro_batch,
                     "optimizer": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.9, 0.99]}},
        "parallelism": {"tensor": tensor, "pipeline": pipeline, "data": data, "sequence_parallel": sequence_parallel,
                        "recompute": recompute},
        "resources": {"device": "cpu", "ranks": tensor * pipeline * data},
        "checkpoint": {"every_steps": 1000000, "keep_last": 1},
    }
    state = tempfile.mkdtemp(dir=folder)
    path = os.path.join(state, "job.yaml")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(job, file)  # JSON is YAML
    ran = json.loads(call(tercio, "run", path, "--state-dir", state, "-o", "json"))
    history = call(tercio, "history", ran["id"], "--state-dir", state, "-o", "jsonl")
    shutil.rmtree(state)
    seconds = sorted(json.loads(line)["step_seconds"] for line in history.splitlines()[3:-1])
    return len(seconds), seconds[len(seconds) // 4]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--bin", default=os.path.join(ROOT, "bin"), help="folder of the programs")
    parser.add_argument("--output", default=os.path.join(ROOT, "plan/planner/cost/testdata"))
    options = parser.parse_args()
    rows, figures = [], []
    with tempfile.TemporaryDirectory(prefix="tercio-cpu-steps-") as folder:
        for number in range(options.rounds):
            for name in options.models.split(","):
                figures.append({"round": number, "model": name,
                                "figures": json.loads(call(os.path.join(options.bin, "tercio-trainer"), "--measure"))})
                for layout in layouts(MODELS[name]["batch"]):
                    steps, seconds = step_seconds(os.path.join(options.bin, "tercio"), folder, name, layout)
                    rows.append((number, name, *layout[:4], layout[4], str(layout[5]).lower(), steps, f"{seconds:.6f}"))
                    print(*rows[-1], file=sys.stderr, flush=True)
    with open(os.path.join(options.output, "cpu_steps.csv"), "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    with open(os.path.join(options.output, "cpu_figures.jsonl"), "w", encoding="utf-8") as file:
        for one in figures:
            file.write(json.dumps(one) + "\n")


if __name__ == "__main__":
    main()

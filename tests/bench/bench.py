"""Tercio beside PyTorch, alternating in one run; prints a table of ratios. tests/bench/run.sh calls it.

    bench.py --python PYTHON_WITH_TORCH [--rounds N] [--models nanogpt,gpt2-124m] [--engine_only]

Every figure is the median over the rounds of the median step of a run. Tercio runs as users run it (`tercio run`,
every rank a process, step_seconds from `tercio history`), but for rows that say `engine`: those leave the
service out.
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
TORCH = os.path.join(ROOT, "tests/bench/torch_gpt.py")
MODELS = {
    "nanogpt": {"layers": 4, "heads": 4, "hidden": 128, "context": 64, "vocab_size": 65, "batch": 12,
                "bias": False, "steps": 100},
    "gpt2-124m": {"layers": 12, "heads": 12, "hidden": 768, "context": 256, "vocab_size": 50257, "batch": 4,
                  "bias": True, "steps": 6},
}


def run_json(command):
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"error: {' '.join(command)} ended with {result.returncode}:\n{result.stderr[-3000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


class Bench:

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.cores = os.cpu_count()
        self.engine = os.path.join(ROOT, "bazel-bin/tests/bench/engine_bench")

    def torch_step(self, model, processes=1, compiled=False):
        command = [self.options.python, TORCH, "--model", model, "--steps", str(MODELS[model]["steps"]),
                   "--threads", str(self.cores // processes), "--processes", str(processes)]
        return run_json(command + (["--compile"] if compiled else []))["step_seconds"]

    def engine_step(self, model):
        return run_json([self.engine, model, str(MODELS[model]["steps"]), str(self.cores), "1", "1", "1"])[
            "step_seconds"]

    def tercio_step(self, model, tensor=1, pipeline=1, data=1):
        m = MODELS[model]
        ranks = tensor * pipeline * data
        job = {
            "name": f"bench-{model}",
            "model": {"architecture": "gpt2", **{key: m[key] for key in ("layers", "heads", "hidden", "context",
                                                                        "bias", "vocab_size")}},
            "data": {"train": self.tokens(m["vocab_size"])},
            "training": {"steps": m["steps"], "global_batch": m["batch"],
                         "optimizer": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.9, 0.99]}},
            "parallelism": {"tensor": tensor, "pipeline": pipeline, "data": data},
            "resources": {"device": "cpu", "ranks": ranks, "threads_per_rank": max(1, self.cores // ranks)},
            "checkpoint": {"every_steps": 1000000, "keep_last": 1},
        }
        state = tempfile.mkdtemp(dir=self.folder)
        path = os.path.join(state, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(job, file)  # JSON is YAML
        program = os.path.join(ROOT, "bin/tercio")
        out = subprocess.run([program, "run", path, "--state-dir", state, "-o", "json"], capture_output=True,
                             text=True, check=False)
        if out.returncode != 0:
            sys.exit(f"error: tercio run ended with {out.returncode}:\n{out.stderr[-3000:]}")
        history = subprocess.run([program, "history", json.loads(out.stdout)["id"], "--state-dir", state, "-o",
                                  "jsonl"], capture_output=True, text=True, check=True).stdout
        seconds = [json.loads(line)["step_seconds"] for line in history.splitlines()]
        shutil.rmtree(state)
        return statistics.median(seconds[max(1, len(seconds) // 5):-1])

    def tokens(self, vocabulary):
        """A Megatron data set of random ids: 64 documents of 8,192 tokens."""
        prefix = os.path.join(self.folder, f"tokens-{vocabulary}")
        if os.path.exists(prefix + ".idx"):
            return prefix
        generator = random.Random(7)
        documents, length = 64, 8192
        with open(prefix + ".bin", "wb") as file:
            for _ in range(documents):
                ids = [generator.randrange(vocabulary) for _ in range(length)]
                file.write(struct.pack(f"<{length}H", *ids))
        with open(prefix + ".idx", "wb") as file:
            file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
            file.write(struct.pack(f"<{documents}i", *[length] * documents))
            file.write(struct.pack(f"<{documents}q", *[2 * length * i for i in range(documents)]))
            file.write(struct.pack(f"<{documents + 1}q", *range(documents + 1)))
        return prefix

    def gemm(self):
        ours = run_json([self.engine, "gemm", str(self.cores)])["gemm_gflops"]
        theirs = run_json([self.options.python, TORCH, "--gemm", "--threads", str(self.cores)])
        return ours, theirs["gemm_gflops"], theirs["version"]


def model_flops(m):
    """Floating point operations of a step, forward and backward; attention counted in full."""
    weights = m["layers"] * 12 * m["hidden"]**2 + m["vocab_size"] * m["hidden"]
    attention = 12 * m["layers"] * m["hidden"] * m["context"]
    return m["batch"] * m["context"] * (6 * weights + attention)


def measure(bench, model):
    """name -> seconds of a step, each measured once per round, in turn."""
    runs = {"PyTorch eager": lambda: bench.torch_step(model),
            "Tercio engine": lambda: bench.engine_step(model)}
    if not bench.options.engine_only:
        runs["Tercio, one rank"] = lambda: bench.tercio_step(model)
        runs["PyTorch DDP, 2 processes"] = lambda: bench.torch_step(model, processes=2)
        runs["Tercio, data 2"] = lambda: bench.tercio_step(model, data=2)
        runs["Tercio, tensor 2"] = lambda: bench.tercio_step(model, tensor=2)
        runs["Tercio, pipeline 2"] = lambda: bench.tercio_step(model, pipeline=2)
    if bench.options.compiled:
        runs["PyTorch compiled"] = lambda: bench.torch_step(model, compiled=True)
    seconds = {name: [] for name in runs}
    for round_number in range(bench.options.rounds):
        for name, run in runs.items():
            seconds[name].append(run())
            print(f"{model} round {round_number + 1} {name}: {seconds[name][-1] * 1e3:.1f} ms", file=sys.stderr)
    return {name: statistics.median(values) for name, values in seconds.items()}


def print_model(model, seconds, gflops):
    m = MODELS[model]
    print(f"\n### {model}: {m['layers']} layers, {m['hidden']} wide, batch {m['batch']} x {m['context']} tokens\n")
    print("| run | ms a step | tokens/s | times PyTorch | of the machine's GEMM rate |")
    print("|---|---|---|---|---|")
    for name, value in seconds.items():
        pair = "PyTorch DDP, 2 processes" if name == "Tercio, data 2" else "PyTorch eager"
        rate = model_flops(m) / value / 1e9 / gflops
        print(f"| {name} | {value * 1e3:.1f} | {m['batch'] * m['context'] / value:,.0f} | "
              f"{seconds[pair] / value:.2f}{' (DDP)' if pair != 'PyTorch eager' else ''} | {rate:.0%} |")


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="nanogpt,gpt2-124m")
    parser.add_argument("--engine_only", action="store_true", help="leave the service and DDP out")
    parser.add_argument("--compiled", action="store_true", help="also torch.compile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tercio-bench-") as folder:
        bench = Bench(options, folder)
        ours, theirs, version = bench.gemm()
        print(f"{time.strftime('%Y-%m-%d')}, {cpu_name()}, {bench.cores} cores, load before the run "
              f"{os.getloadavg()[0]:.1f}, fp32, PyTorch {version}, {options.rounds} rounds")
        print(f"\nProducts of 2048 x 2048, all cores: Tercio {ours:.0f} GFLOP/s, PyTorch {theirs:.0f} GFLOP/s.")
        for model in options.models.split(","):
            print_model(model, measure(bench, model), max(ours, theirs))


if __name__ == "__main__":
    main()

"""How fast: GPT-2 124M and 1.5B on one GPU, tokens a second, share of the GPU's rate, memory, where a step's time goes; and PyTorch
on the same sizes in the same run."""

import json
import os
import re
import statistics
import sys
import time

from checks import Skip, require
from machine import has_torch
from tree import write_tokens

_WARM_UP = 3  # steps that are not counted
_LEAST_STEPS = 5
_MEMORY_SHARE = 0.9  # share of the GPU's memory that a plan may take
_MODELS = {
    "gpt2-124m": {"layers": 12, "heads": 12, "hidden": 768, "context": 1024, "vocab_size": 50257, "batch": 32, "seconds": 15},
    "gpt2-1.5b": {"layers": 48, "heads": 25, "hidden": 1600, "context": 1024, "vocab_size": 50257, "batch": 16, "seconds": 20},
}
_TINY = {"tiny": {"layers": 1, "heads": 2, "hidden": 32, "context": 16, "vocab_size": 64, "batch": 4, "seconds": 1}}


def parameters(m):
    h = m["hidden"]
    return (m["vocab_size"] + m["context"]) * h + m["layers"] * (12 * h * h + 13 * h) + 2 * h


def flops_per_token(m):
    """As llm.c counts: 6 for each parameter, and attention over the half of the scores that are not masked."""
    return 6 * parameters(m) + 6 * m["layers"] * m["hidden"] * m["context"]


def _job(m, prefix, micro_batch, steps):
    sizes = {key: m[key] for key in ("layers", "heads", "hidden", "context", "vocab_size")}
    return {
        "name": "speed",
        "model": {"architecture": "gpt2", **sizes},
        "data": {"train": prefix},
        "training": {"steps": steps, "global_batch": m["batch"], "micro_batch": micro_batch, "precision": "bf16",
                     "optimizer": {"learning_rate": 3e-4, "betas": [0.9, 0.95]}},
        "parallelism": {"tensor": 1, "pipeline": 1, "data": 1},
        "resources": {"device": "cuda", "ranks": 1},
        "checkpoint": {"every_steps": 0, "keep_last": 1},
    }


def _largest_micro_batch(part, tree, machine, m, prefix):
    """The largest whose planned memory leaves the GPU some room for what its libraries need."""
    memory = machine.gpus[0]["memory_bytes"]
    micro_batch = m["batch"]
    while micro_batch >= 1:
        # Ends with 2, too, where the plan does not fit into this machine's own memory, and prints it.
        _, out, err = tree.tercio(part, "plan", tree.write_job(_job(m, prefix, micro_batch, 10)), "-o", "json", codes=(0, 2))
        require(out, f"tercio plan: {err.strip()[-300:]}")
        if json.loads(out)["layouts"][0]["predicted"]["memory_bytes_peak"] <= memory * _MEMORY_SHARE:
            return micro_batch
        micro_batch //= 2
    raise Skip(f"it does not fit into {memory / 2**30:.0f} GiB")


def _measure(part, tree, machine, m, prefix, numbers):
    micro_batch = _largest_micro_batch(part, tree, machine, m, prefix)
    busy, steps = [], []
    with tree.cluster(part, 1) as cluster:
        job = cluster.submit(_job(m, prefix, micro_batch, 1000000))
        cluster.after_step(job, _WARM_UP)
        end = time.monotonic() + m["seconds"]
        while time.monotonic() < end or len(steps) < _WARM_UP + _LEAST_STEPS:
            part.remaining()
            busy.append(machine.busy_percent())
            steps = cluster.history(job)
            time.sleep(0.1)
        memory = {key: value for key, value in cluster.metrics().items()
                  if key.startswith("tercio_memory_bytes{") and f'job_id="{job}"' in key}
        numbers["device_bytes_in_use"] = machine.used_bytes()
        cluster.cancel(job)
    seconds = statistics.median(step["step_seconds"] for step in steps[_WARM_UP:])
    rate = m["batch"] * m["context"] / seconds
    peak = machine.peak_flops()
    numbers.update({
        "parameters": parameters(m), "batch": m["batch"], "micro_batch": micro_batch, "context": m["context"],
        "precision": "bf16", "steps": len(steps) - _WARM_UP, "step_seconds": seconds, "tokens_per_second": rate,
        "flops_per_token": flops_per_token(m), "peak_flops": peak,
        "mfu": flops_per_token(m) * rate / peak if peak else None,
        "peak_bytes": max((int(v) for k, v in memory.items() if 'kind="used"' in k), default=None),
        "gpu_busy_percent": statistics.mean(busy) if busy and None not in busy else None,
    })
    return micro_batch


def _phases(part, tree, m, prefix, micro_batch, numbers):
    """Of one traced step, as the trainer's own clock sees them: host time, in which a GPU may still be at the phase before."""
    trace = os.path.join(tree.folder("trace"), "trace.json")
    tree.run_job(part, _job(m, prefix, micro_batch, 6), "--trace", trace, "--trace-step", "5")
    with open(trace, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    require(events, "the trace is empty")
    milliseconds = {}
    for event in events:
        name = re.sub(r" \d+$", "", event["name"])
        milliseconds[name] = milliseconds.get(name, 0) + event["dur"] / 1e3
    begin = min(event["ts"] for event in events)
    numbers["step_milliseconds"] = (max(event["ts"] + event["dur"] for event in events) - begin) / 1e3
    numbers["host_milliseconds"] = {name: round(value, 3) for name, value in sorted(milliseconds.items())}


def _torch(part, tree, m, numbers):
    if not has_torch():
        raise Skip("PyTorch is not installed for this python3")
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_baseline.py")
    sizes = {key: m[key] for key in ("layers", "heads", "hidden", "context", "vocab_size", "batch")}
    # The caller's libraries, not those that were found for our programs: PyTorch brings its own.
    code, out, err = tree.run(part, [sys.executable, script, json.dumps(sizes)], environment=dict(os.environ), codes=(0, 3))
    if code == 3:
        raise Skip(err.strip().splitlines()[-1])
    numbers.update(json.loads(out.strip().splitlines()[-1]))


def run(part, tree, machine, options):
    rates = {}
    for name, m in (_TINY if options.quick else _MODELS).items():
        prefix = os.path.join(tree.folder("tokens"), "tokens")
        write_tokens(prefix, m["vocab_size"], 16, 64 * m["context"])
        micro_batch = None
        with part.check(f"{name}, bf16, one GPU") as numbers:
            micro_batch = _measure(part, tree, machine, m, prefix, numbers)
            rates[name] = numbers["tokens_per_second"]
        if name == "gpt2-1.5b":  # a job that ends keeps a checkpoint, here of 19 GB
            continue
        with part.check(f"{name}: where a step's time goes") as numbers:
            if micro_batch is None:
                raise Skip("it did not run")
            _phases(part, tree, m, prefix, micro_batch, numbers)
    # Only the first: compiling the second takes minutes.
    name, m = next(iter((_TINY if options.quick else _MODELS).items()))
    with part.check(f"{name}: PyTorch, torch.compile, flash attention") as numbers:
        _torch(part, tree, m, numbers)
        if name in rates:
            numbers["tercio_times_torch"] = rates[name] / numbers["tokens_per_second"]

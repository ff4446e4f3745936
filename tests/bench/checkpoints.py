"""What checkpoints (weights and moments, one rank) cost.

    tests/bench/checkpoints.py [--rounds N] [--only store,stall,path,stream]

`./deploy/build.sh` and `bazel build //tests/bench:store_bench` come first.

  store  the coordinator's store alone (from memory to the commit), and the whole way from a trainer on the same machine
         to the commit, beside dd with fsync of as much, alternating
  stall  GPT-2 124M with a snapshot every 20 s: what the steps wait for it by the job's own ledger, and how long a step
         takes beside the same job without snapshots, alternating
  path   GPT-2 355M with checkpoint.path: what its rank takes to write its part and to load it again, beside dd with
         fsync of as much and cat of the same files, on the same disk, alternating; nothing is in the page cache
  stream GPT-2 124M with a save to checkpoint.path every other step: how long these steps take beside those between them
"""

import argparse
import glob
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

from cluster import Cluster
from harness import ROOT, wait_for

GPT2 = """
name: gpt2
model: {preset: gpt2-124m, context: 256}
data: {train: corpus.txt, tokenizer: bytes}
training: {steps: 1000000, global_batch: 4, micro_batch: 4, optimizer: {learning_rate: 1e-4}}
parallelism: {tensor: 1, pipeline: 1, data: 1}
resources: {ranks: 1}
"""
STALL_SECONDS = 130
STORE_BENCH = os.path.join(ROOT, "bazel-bin/tests/bench/store_bench")


def gpt2(cluster, *changes):
    with open(cluster.path("job.yaml"), "w", encoding="utf-8") as file:
        file.write(GPT2)
    return cluster.submit(*changes)


def seconds_of_dd(directory, size):
    begin = time.monotonic()
    subprocess.run(["dd", "if=/dev/zero", f"of={directory}/dd", "bs=1M", f"count={size >> 20}", "conv=fsync"],
                   check=True, capture_output=True)
    taken = time.monotonic() - begin
    os.remove(f"{directory}/dd")
    return taken


def store_once(model):
    """Bytes; seconds of dd, of the store alone, of the whole way."""
    with Cluster(1, 1) as cluster:
        job = gpt2(cluster, "--set", f"model.preset={model}", "--set", "training.steps=1",
                   "--set", "training.global_batch=1", "--set", "training.micro_batch=1")
        cluster.tercio(*cluster.reach("wait", job))
        path = cluster.get(job)["checkpoint"]["path"]
        size = sum(file.stat().st_size for file in os.scandir(path))
        saved = [e["message"] for e in cluster.events(job) if e["kind"] == "checkpoint_committed"]
        shutil.rmtree(path)
        dd = seconds_of_dd(cluster.directory, size)
        alone = subprocess.run([STORE_BENCH, cluster.path("store"), str(size // 1_000_000)], check=True,
                               capture_output=True, text=True).stdout
        return size, dd, float(alone), float(re.search(r" in ([0-9.]+) s,", saved[0]).group(1))


def store(rounds):
    print("\n| GB | | seconds, median | MB/s | of dd, each round |\n|---|---|---|---|---|")
    for model in ("gpt2-124m", "gpt2-355m"):
        sizes, dd, alone, whole = zip(*(store_once(model) for _ in range(rounds)))
        for name, seconds in (("dd with fsync", dd), ("the store", alone), ("trainer to commit", whole)):
            ratios = ", ".join(f"{y / x:.2f}" for x, y in zip(seconds, dd))
            print(f"| {sizes[0] / 1e9:.2f} | {name} | {statistics.median(seconds):.2f} | "
                  f"{sizes[0] / statistics.median(seconds) / 1e6:,.0f} | {ratios} |")


def stall_once(*changes):
    """Seconds of each step, and the job's ledger."""
    with Cluster(1, 1) as cluster:
        job = gpt2(cluster, *changes)
        cluster.after_step(job, 2)
        time.sleep(STALL_SECONDS)
        steps = [step["step_seconds"] for step in cluster.steps(job)[2:]]
        ledger = cluster.get(job)["goodput"]
        cluster.tercio(*cluster.reach("cancel", job, "--no-save"))
        return steps, ledger


def stall(rounds):
    without, with_snapshots, ledgers = [], [], []
    for _ in range(rounds):
        without += stall_once()[0]
        steps, ledger = stall_once("--set", "checkpoint={every_seconds: 20}")
        with_snapshots += steps
        ledgers.append(ledger)
    stalled = sum(ledger["checkpoint_stall"] for ledger in ledgers)
    productive = sum(ledger["productive"] for ledger in ledgers)
    print("\n| a snapshot every 20 s | |\n|---|---|")
    print(f"| the steps wait for it, of the time | {stalled / (stalled + productive):.2%} |")
    print(f"| a step beside one without snapshots (it shares the cores with the upload), means | "
          f"{statistics.mean(with_snapshots) / statistics.mean(without):.3f} |")


def parts_of(path):
    return glob.glob(os.path.join(path, "attempt-*", "*.safetensors"))


def forget(files):
    """Drops what the kernel has cached of them."""
    for name in files:
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class GivenMemory:
    """Memory of this machine that was written a moment ago. A virtual machine may have given what is free back to its
    host (free page reporting), and waits for each page that it takes again: that is no cost of what is measured here."""

    HOLD = ("import mmap, sys\n"
            "memory = mmap.mmap(-1, int(sys.argv[1]), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
            "memory.madvise(14)\n"  # MADV_HUGEPAGE
            "memory.madvise(23)\n"  # MADV_POPULATE_WRITE
            "print('held', flush=True)\n"
            "sys.stdin.read()\n")

    def __init__(self, size):
        self.child = subprocess.Popen([sys.executable, "-c", self.HOLD, str(size)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE)
        if not self.child.stdout.readline():
            sys.exit(f"there is no room for {size} bytes")

    def __enter__(self):
        return self

    def release(self):
        self.child.kill()
        self.child.wait()

    def __exit__(self, *_):
        self.release()


def seconds_of_cat(files):
    forget(files)
    with GivenMemory(3 * sum(map(os.path.getsize, files))) as memory:
        memory.release()
        begin = time.monotonic()
        with open(os.devnull, "wb") as nothing:
            subprocess.run(["cat", *files], check=True, stdout=nothing)
        return time.monotonic() - begin


def seconds_of_load(cluster, job, size):
    with GivenMemory(3 * size) as memory:
        resumed = cluster.start(*cluster.reach("resume", job, "--set", "training.steps=2"))
        while not cluster.trainers(job):
            time.sleep(0.02)
        memory.release()
        resumed.wait()
    cluster.tercio(*cluster.reach("wait", job))
    logs = cluster.tercio(*cluster.reach("logs", job))[0]
    return float(re.search(r"this rank read \d+ bytes in ([0-9.]+) s", logs).group(1))


def path_once(swap):
    """Bytes; seconds of dd, of the save, of cat, of the load."""
    with Cluster(1, 1) as cluster:
        small_steps = ["--set", "model={preset: gpt2-355m, context: 32}", "--set", "training.global_batch=1",
                       "--set", "training.micro_batch=1", "--set", f"checkpoint.path={cluster.path('shared')}"]
        job = gpt2(cluster, *small_steps, "--set", "training.steps=1")
        cluster.tercio(*cluster.reach("wait", job))
        files = parts_of(cluster.get(job)["checkpoint"]["path"])
        size = sum(os.path.getsize(name) for name in files)
        saved = [e["message"] for e in cluster.events(job) if e["kind"] == "checkpoint_committed"]
        # The coordinator reads it back, on the same disk.
        wait_for(lambda: json.loads(cluster.tercio(*cluster.reach("checkpoint", "list", job, "--output", "json"))[0])
                 [-1]["verified_at"], "a checkpoint that is verified")
        dd = seconds_of_dd(cluster.directory, size)
        cat = seconds_of_cat(files) if swap else None
        forget(files)
        load = seconds_of_load(cluster, job, size)
        cat = cat or seconds_of_cat(files)
        return size, dd, float(re.search(r" in ([0-9.]+) s,", saved[0]).group(1)), cat, load


def path(rounds):
    print("\n| | seconds, median | MB/s | speed beside the other, each round |\n|---|---|---|---|")
    sizes, dd, save, cat, load = zip(*(path_once(i % 2 == 0) for i in range(rounds)))
    for name, seconds, other in (("dd with fsync", dd, dd), ("save", save, dd), ("cat", cat, cat), ("load", load, cat)):
        ratios = ", ".join(f"{y / x:.2f}" for x, y in zip(seconds, other)) if seconds is not other else ""
        print(f"| {sizes[0] / 1e9:.2f} GB: {name} | {statistics.median(seconds):.2f} | "
              f"{sizes[0] / statistics.median(seconds) / 1e6:,.0f} | {ratios} |")


def stream_once():
    """Seconds of the steps in which a save was written and verified, of those between them, and of the saves."""
    with Cluster(1, 1) as cluster:
        job = gpt2(cluster, "--set", f"checkpoint={{path: {cluster.path('shared')}, every_steps: 2, keep_last: 2}}")
        cluster.after_step(job, 4)
        time.sleep(STALL_SECONDS)
        steps = cluster.steps(job)[2:]
        saves = [float(found.group(1)) for event in cluster.events(job) if event["kind"] == "checkpoint_committed"
                 and (found := re.search(r" in ([0-9.]+) s,", event["message"]))]
        cluster.tercio(*cluster.reach("cancel", job, "--no-save"))
    during, others = ([step["step_seconds"] for step in steps if step["step"] % 2 == odd] for odd in (1, 0))
    if max(saves) > min(others):
        sys.exit(f"saves of up to {max(saves)} s do not fit into steps of {min(others)} s")
    return during, others, saves


def stream(rounds):
    print("\n| steps | seconds, median | beside the others |\n|---|---|---|")
    during, others, saves = (sum(parts, []) for parts in zip(*(stream_once() for _ in range(rounds))))
    print(f"| {len(others)} with no save | {statistics.median(others):.3f} | |")
    print(f"| {len(during)} with a save of {statistics.median(saves):.2f} s | {statistics.median(during):.3f} | "
          f"{statistics.median(during) / statistics.median(others):.3f} |")


PARTS = {"store": store, "stall": stall, "path": path, "stream": stream}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    names = options.only.split(",")
    for name in names:
        if name not in PARTS:
            parser.error(f"no part {name}; there are {', '.join(PARTS)}")
    for name in names:
        PARTS[name](options.rounds)


if __name__ == "__main__":
    main()

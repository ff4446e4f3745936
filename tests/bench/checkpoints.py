"""A checkpoint of GPT-2's blocks (weights and moments) through the whole service beside dd with fsync, alternating.

    tests/bench/checkpoints.py [--rounds N]

./deploy/build.sh comes first.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from harness import ClusterTest  # noqa: E402

GPT2 = """
name: gpt2
model: {preset: gpt2-124m, context: 256}
data: {train: corpus.txt, tokenizer: bytes}
training: {steps: 1000000, global_batch: 4, micro_batch: 4, optimizer: {learning_rate: 1e-4}}
parallelism: {tensor: 1, pipeline: 1, data: 1}
resources: {ranks: 1}
"""


class Cluster(ClusterTest):
    """A coordinator and agents with the defaults of people."""

    def runTest(self):
        pass

    def open(self, nodes, slots):
        self.setUp()
        _, ready = self.daemon("tercio-coordinator", "--state-dir", self.state, "--listen", "127.0.0.1:0",
                               "--metrics-listen", "127.0.0.1:0", "--allow-drills")
        self.address = ready["coordinator"]
        return [self.agent(self.address, f"node{i}", slots)[0] for i in range(nodes)]

    def close(self):
        self.doCleanups()


def gpt2(cluster, *changes):
    with open(cluster.path("job.yaml"), "w", encoding="utf-8") as file:
        file.write(GPT2)
    return cluster.submit(*changes)


def store(options):
    ours, theirs, size = [], [], 0
    for _ in range(options.rounds):
        cluster = Cluster()
        cluster.open(1, 1)
        try:
            job = gpt2(cluster, "--set", "training.steps=1", "--set", "training.global_batch=1",
                       "--set", "training.micro_batch=1")
            cluster.tercio(*cluster.reach("wait", job))
            size = sum(file.stat().st_size for file in os.scandir(cluster.get(job)["checkpoint"]["path"]))
            saved = [e["message"] for e in cluster.events(job) if e["kind"] == "checkpoint_committed"]
            ours.append(float(re.search(r" in ([0-9.]+) s,", saved[0]).group(1)))
            begin = time.monotonic()
            subprocess.run(["dd", "if=/dev/zero", f"of={cluster.path('dd')}", "bs=1M", f"count={size >> 20}",
                            "conv=fsync"], check=True, capture_output=True)
            theirs.append(time.monotonic() - begin)
        finally:
            cluster.close()
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"\n| a checkpoint of {size / 1e9:.2f} GB | seconds | MB/s | of dd |\n|---|---|---|---|")
    print(f"| dd with fsync | {b:.2f} | {size / b / 1e6:,.0f} | 1 |")
    print(f"| the service: streams, digests, files, fsync, commit | {a:.2f} | {size / a / 1e6:,.0f} | {b / a:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    store(parser.parse_args())


if __name__ == "__main__":
    main()

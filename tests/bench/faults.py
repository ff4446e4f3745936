"""How soon faults are found and mended, and what checkpoints cost; prints tables.

    tests/bench/faults.py [--rounds N] [--only detection,stall,store]

./deploy/build.sh comes first. Real processes on this machine, with the daemons' own defaults (heartbeats every 5 s).

  detection  a trainer that is killed, one that is stopped, a node that is gone; from the fault to the event, from the
             event to the next step; medians of N rounds
  stall      GPT-2 124M with a snapshot every 20 s: what the steps wait for, by the job's own ledger, and how long
             steps take beside those of the same job without snapshots (alternating)
  store      its checkpoint (weights and moments) through the whole service against dd with fsync, alternating
"""

import argparse
import datetime
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from harness import TercioTest, layout, processes, wait_for  # noqa: E402

GPT2 = """
name: gpt2
model: {preset: gpt2-124m, context: 256}
data: {train: corpus.txt, tokenizer: bytes}
training: {steps: 1000000, global_batch: 4, micro_batch: 4}
parallelism: {tensor: 1, pipeline: 1, data: 1}
resources: {ranks: 1}
"""


class Cluster(TercioTest):
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

    def reach(self, *arguments):
        return [*arguments, "--coordinator", self.address]

    def submit(self, *changes):
        return self.tercio(*self.reach("submit", self.path("job.yaml"), *changes))[0].strip()

    def get(self, job):
        return self.json(*self.reach("get", job))

    def events(self, job):
        out, _ = self.tercio(*self.reach("events", job, "-o", "jsonl"))
        return [json.loads(line) for line in out.splitlines()]

    def steps(self, job):
        out, _ = self.tercio(*self.reach("history", job, "-o", "jsonl"))
        return [json.loads(line) for line in out.splitlines()]

    def after_step(self, job, step):
        return wait_for(lambda: (s := self.get(job))["step"] > step and s, f"step {step}", 600)

    def wait_for_event(self, job, kind, after):
        found = lambda: [e for e in self.events(job) if e["kind"] == kind and moment(e["time"]) >= after]
        return wait_for(found, kind, 600)[0]


def moment(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def drill(cluster, job, fault):
    cluster.after_step(job, cluster.get(job)["step"] + 20)
    done = cluster.json(*cluster.reach("drill", job, "--fault", fault, "--rank", "1"))
    return done["detected_seconds"], done["recovered_seconds"] - done["detected_seconds"]


def lose_node(cluster, agents, job):
    """Agent and trainers of one node die at once, as when a machine is switched off and its network with it: the agent
    is stopped first, so that no closed stream tells of it."""
    cluster.after_step(job, cluster.get(job)["step"] + 20)
    node = cluster.get(job)["plan"]["ranks"][0]["node"]
    agent = agents[int(node.removeprefix("node"))]
    begin = time.time()
    agent.send_signal(signal.SIGSTOP)
    for process in processes(f"tercio-trainer {job}"):
        with open(f"/proc/{process}/stat", "rb") as file:
            if int(file.read().rsplit(b")", 1)[1].split()[1]) == agent.pid:
                os.kill(process, signal.SIGKILL)
    lost = moment(cluster.wait_for_event(job, "node_lost", begin)["time"])
    agent.kill()
    agent.wait()
    resumed = wait_for(lambda: (s := cluster.get(job))["state"] == "running" and s["attempt"] > 1 and
                       s["step"] > 0 and time.time(), "the next attempt", 600)
    return lost - begin, resumed - lost


def detection(options):
    rows = {"a trainer is killed": [], "a trainer is stopped (SIGSTOP)": [],
            "a node is gone (heartbeats every 5 s, lease 15 s)": []}
    for _ in range(options.rounds):
        cluster = Cluster()
        agents = cluster.open(3, 2)
        try:
            job = cluster.submit("--set", "training.steps=1000000", *layout(2, 1, 2))
            rows["a trainer is killed"].append(drill(cluster, job, "kill-trainer"))
            rows["a trainer is stopped (SIGSTOP)"].append(drill(cluster, job, "freeze-trainer"))
            rows["a node is gone (heartbeats every 5 s, lease 15 s)"].append(lose_node(cluster, agents, job))
        finally:
            cluster.close()
    print("\n| fault | seconds to its event | from there to the next step |\n|---|---|---|")
    for name, values in rows.items():
        found, mended = (statistics.median(value[i] for value in values) for i in (0, 1))
        print(f"| {name} | {found:.2f} | {mended:.2f} |")


def gpt2(cluster, *changes):
    with open(cluster.path("job.yaml"), "w", encoding="utf-8") as file:
        file.write(GPT2)
    return cluster.submit(*changes)


def stall(options):
    seconds, ledgers = {"without": [], "every 20 s": []}, []
    for _ in range(options.rounds):
        for name in seconds:
            cluster = Cluster()
            cluster.open(1, 1)
            try:
                every = ["--set", "checkpoint={every_seconds: 20}"] if name != "without" else []
                job = gpt2(cluster, *every)
                cluster.after_step(job, 2)
                time.sleep(130)
                seconds[name] += [step["step_seconds"] for step in cluster.steps(job)[2:]]
                if every:
                    ledgers.append(cluster.get(job)["goodput"])
                cluster.tercio(*cluster.reach("cancel", job, "--no-save"))
            finally:
                cluster.close()
    stalled = sum(ledger["checkpoint_stall"] for ledger in ledgers)
    productive = sum(ledger["productive"] for ledger in ledgers)
    medians = {name: statistics.mean(values) for name, values in seconds.items()}
    print("\n| GPT-2 124M, one rank, a snapshot every 20 s | |\n|---|---|")
    print(f"| the steps wait for it, of the time | {stalled / (stalled + productive):.2%} |")
    print(f"| a step beside one without snapshots (it shares the cores with the upload) | "
          f"{medians['every 20 s'] / medians['without']:.3f} |")


def store(options):
    ours, theirs, size = [], [], 0
    for _ in range(options.rounds):
        cluster = Cluster()
        cluster.open(1, 1)
        try:
            job = gpt2(cluster, "--set", "training={steps: 1, global_batch: 1, micro_batch: 1}")
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
    print(f"| the service: snapshot, streams, digests, files, fsync, commit | {a:.2f} | {size / a / 1e6:,.0f} | {b / a:.2f} |")


PARTS = {"detection": detection, "stall": stall, "store": store}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    for name in options.only.split(","):
        if name not in PARTS:
            parser.error(f"no part {name}; there are {', '.join(PARTS)}")
    for name in options.only.split(","):
        PARTS[name](options)
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""A coordinator under a cluster of simulated agents: how long until all ranks run, and what it costs then.

    python3 tests/bench/scale/scale.py [--agents 192,1536] [--devices 8] [--steady 30] [--connections 0]
                                       [--perf FILE]

Starts the real coordinator (./bin), submits a job that takes all devices with the real command line, then
scale_bench attaches the agents over loopback. Prints a table, and the counts of messages and bytes per rank.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

TENSOR, PIPELINE, MICRO_BATCHES = 8, 8, 16

JOB = """
name: scale
model: {{architecture: gpt2, layers: 64, hidden: 512, heads: 8, context: 1024}}
data: {{train: corpus.txt, tokenizer: bytes}}
training:
  steps: 1000000
  global_batch: {batch}
  micro_batch: 1
  optimizer: {{learning_rate: 1e-4}}
parallelism: {{tensor: {tensor}, pipeline: {pipeline}, data: {data}}}
resources: {{ranks: {ranks}}}
checkpoint: {{every_steps: 1000, keep_last: 1}}
"""


def write_job(directory, ranks):
    data = ranks // (TENSOR * PIPELINE)
    if data * TENSOR * PIPELINE != ranks:
        sys.exit(f"error: {ranks} ranks are no multiple of {TENSOR * PIPELINE}")
    path = os.path.join(directory, "job.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(JOB.format(batch=data * MICRO_BATCHES, tensor=TENSOR, pipeline=PIPELINE, data=data,
                              ranks=ranks))
    with open(os.path.join(directory, "corpus.txt"), "w", encoding="utf-8") as file:
        file.write("The agents are simulated: nobody reads this.\n")
    return path


def raise_file_limit():
    """Every agent has a socket at both ends."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def measure(options, agents):
    directory = tempfile.mkdtemp(prefix="tercio-scale.")
    coordinator = subprocess.Popen(
        [os.path.join(options.bin, "tercio-coordinator"), "--state-dir", os.path.join(directory, "state"),
         "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--parent-death"],
        stdout=subprocess.PIPE, text=True)
    try:
        address = coordinator.stdout.readline().split("coordinator=")[1].split()[0]
        job = json.loads(subprocess.run(
            [os.path.join(options.bin, "tercio"), "submit", write_job(directory, agents * options.devices),
             "--coordinator", address, "-o", "json"], stdout=subprocess.PIPE, check=True).stdout)["id"]
        profiler = None
        if options.perf:
            profiler = subprocess.Popen(["perf", "record", "-g", "-o", options.perf, "-p", str(coordinator.pid)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(1)
        bench = subprocess.run(
            [options.scale_bench, "--coordinator", address, "--pid", str(coordinator.pid), "--job", job,
             "--agents", str(agents), "--devices", str(options.devices), "--steady", str(options.steady),
             "--connections", str(options.connections)], stdout=subprocess.PIPE, check=True)
        if profiler:
            profiler.send_signal(signal.SIGINT)
            profiler.wait()
        return json.loads(bench.stdout)
    finally:
        coordinator.terminate()
        coordinator.wait()
        shutil.rmtree(directory, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", default="192,1536", help="sizes, one after the other")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--steady", type=float, default=30)
    parser.add_argument("--connections", type=int, default=0, help="0: one for each agent")
    parser.add_argument("--bin", default=os.path.join(ROOT, "bin"))
    parser.add_argument("--scale_bench", default=os.path.join(ROOT, "bazel-bin/tests/bench/scale/scale_bench"))
    parser.add_argument("--perf", help="writes a profile of the coordinator (perf record)")
    options = parser.parse_args()
    raise_file_limit()
    print("| ranks | agents | to the last rank's word that it runs, s | coordinator's CPU in that time, s | "
          "afterwards, of one core | resident, MiB |")
    print("|---|---|---|---|---|---|", flush=True)
    results = []
    for agents in [int(word) for word in options.agents.split(",")]:
        result = measure(options, agents)
        results.append(result)
        print(f"| {result['ranks']:,} | {agents:,} | {result['start_seconds']:.2f} | "
              f"{result['start_cpu_seconds']:.2f} | {100 * result.get('steady_cores', 0):.1f}% | "
              f"{result.get('resident_bytes', 0) / 2**20:.0f} |", flush=True)
    print("\n| each rank's share until all run | " + " | ".join(f"{r['ranks']:,} ranks" for r in results) + " |")
    print("|---|" + "---|" * len(results))
    rows = [("bytes of the order to start", "start_bytes_per_rank"), ("bytes from the coordinator", "bytes_from_per_rank"),
            ("bytes to the coordinator", "bytes_to_per_rank"), ("bytes of unique ids", "id_bytes_per_rank"),
            ("messages from the coordinator", "messages_from_per_rank"),
            ("messages to the coordinator", "messages_to_per_rank"), ("calls for unique ids", "id_calls_per_rank")]
    for text, key in rows:
        print(f"| {text} | " + " | ".join(f"{r['start_traffic'][key]:,.2f}" for r in results) + " |")


if __name__ == "__main__":
    main()

"""How soon faults are found, and how soon steps go on after that; prints a table.

    tests/bench/faults.py [--rounds N]

./deploy/build.sh comes first. A small job, 2 x 1 x 2 ranks on two of three nodes, with the daemons' defaults (heartbeats
every 5 s). Each round, each with a job of its own: a trainer is killed, one is stopped, a node goes away.
"""

import argparse
import datetime
import os
import signal
import statistics
import time

from cluster import Cluster
from harness import layout, processes, wait_for

FAULTS = ("a trainer is killed", "a trainer is stopped (SIGSTOP)", "a node is gone")


def moment(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def go_on(cluster, job):
    """Until the job is well under way again, so that the next fault meets a job that has learned how long steps take."""
    cluster.after_step(job, cluster.get(job)["step"] + 50)


def drill(cluster, job, fault):
    go_on(cluster, job)
    done = cluster.json(*cluster.reach("drill", job, "--fault", fault, "--rank", "1"))
    return done["detected_seconds"], done["recovered_seconds"] - done["detected_seconds"]


def parent(process):
    with open(f"/proc/{process}/stat", "rb") as file:
        return int(file.read().rsplit(b")", 1)[1].split()[1])


def lose_node(cluster, job):
    """As if a machine were switched off: its trainers die, and no closed stream tells of its agent."""
    go_on(cluster, job)
    before = cluster.get(job)
    agent = cluster.agents[before["plan"]["ranks"][0]["node"]]
    begin = time.time()
    agent.send_signal(signal.SIGSTOP)
    for process in processes(f"tercio-trainer {job}"):
        if parent(process) == agent.pid:
            os.kill(process, signal.SIGKILL)
    lost = wait_for(lambda: [e for e in cluster.events() if e["kind"] == "node_lost"], "node_lost", 120)
    found = moment(lost[0]["time"])
    wait_for(lambda: cluster.get(job)["attempt"] > before["attempt"], "the next attempt", 120)
    restarted = cluster.get(job)["attempt"]
    wait_for(lambda: any(step["attempt"] == restarted for step in cluster.steps(job)), "its first step", 120)
    stepped = time.time()
    agent.kill()
    agent.wait()
    return found - begin, stepped - found


def once(fault, *arguments):
    with Cluster(3, 2) as cluster:
        return fault(cluster, cluster.submit("--set", "training.steps=1000000", *layout(2, 1, 2)), *arguments)


def one_round():
    return once(drill, "kill-trainer"), once(drill, "freeze-trainer"), once(lose_node)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = [one_round() for _ in range(options.rounds)]
    print("\n| fault | seconds until it is found | from there to the next step |\n|---|---|---|")
    for i, name in enumerate(FAULTS):
        found, mended = ([values[i][part] for values in rounds] for part in (0, 1))
        print(f"| {name} | {statistics.median(found):.2f} (most {max(found):.2f}) | "
              f"{statistics.median(mended):.2f} (most {max(mended):.2f}) |")


if __name__ == "__main__":
    main()

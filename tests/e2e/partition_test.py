"""A node that cannot reach the coordinator, in network namespaces of the test's own: real packets, TLS.

The coordinator, two nodes and a spare each have a namespace with one interface on a bridge in a fourth. The
network between the nodes always works: only the way to the coordinator is cut."""

import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from certificates import Authority  # noqa: E402
from harness import BIN, ClusterTest, layout, processes, wait_for  # noqa: E402
from network import Network  # noqa: E402

HEARTBEAT = 2.0
LEASE = 3 * HEARTBEAT
EVERY = 200  # steps between two checkpoints


class Partition(ClusterTest):

    def setUp(self):
        super().setUp()
        self.network = Network(self)
        for name in ("coordinator", "one", "two", "spare"):
            self.network.plug_in(name)
        # Before their namespaces go: clean-ups run in reverse.
        self.addCleanup(self.stop_daemons)
        authority = Authority(self.directory, "ca")
        self.tls = {name: authority.issue(name, f"IP:{address}", role="coordinator" if name == "coordinator" else "agent")
                    for name, address in self.network.addresses.items()}
        self.tls["operator"] = authority.issue("operator", role="admin")
        _, ready = self.daemon_in("coordinator", "tercio-coordinator", "--state-dir", self.state, "--listen",
                                  self.network.addresses["coordinator"] + ":0", "--metrics-listen", "127.0.0.1:0",
                                  "--first-backoff", "0.2", "--heartbeat-interval", str(HEARTBEAT))
        self.address = ready["coordinator"]

    def daemon_in(self, name, program, *arguments):
        log = open(self.path(f"{name}.{len(self.daemons)}.log"), "w", encoding="utf-8")
        child = subprocess.Popen([*self.network.inside(name), os.path.join(BIN, program), *arguments,
                                  *self.tls[name]], stdout=subprocess.PIPE, stderr=log, text=True,
                                 env=self.environment())
        log.close()
        self.daemons.append(child)
        ready = child.stdout.readline()
        self.assertTrue(ready.startswith("ready "), f"{program}: {ready!r}")
        return child, dict(part.split("=", 1) for part in ready.split()[1:])

    def node(self, name):
        return self.daemon_in(name, "tercio-agent", "--coordinator", self.address, "--state-dir",
                              self.path("agent-" + name), "--name", name, "--slots", "1", "--metrics-listen",
                              "127.0.0.1:0", "--stop-grace", "5", "--data-address", self.network.addresses[name],
                              "--data-root", self.directory)

    def start(self, *arguments, **options):
        """Verbs run beside the coordinator, except those that need none."""
        if "--coordinator" not in arguments:
            return super().start(*arguments, **options)
        return subprocess.Popen([*self.network.inside("coordinator"), os.path.join(BIN, "tercio"),
                                 *arguments, *self.tls["operator"]], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=self.environment(), **options)

    def start_job(self):
        self.changes = ["--set", f"checkpoint.every_steps={EVERY}", *layout(1, 1, 2)]
        job = self.submit("--set", "training.steps=1000000", *self.changes)
        # Behind a checkpoint, and well before the next one, which waits for a node that is cut off.
        wait_for(lambda: (step := self.get(job)["step"]) > EVERY and step % EVERY < EVERY / 2, "steps")
        return job

    def after(self, job, steps):
        """So many steps from now, of the present attempt."""
        now = self.get(job)
        wait_for(lambda: (s := self.get(job))["step"] > now["step"] + steps or s["attempt"] != now["attempt"],
                 f"{steps} steps after {now['step']}")
        self.assertEqual(self.get(job)["attempt"], now["attempt"], self.events(job))

    def finish(self, job):
        """Ends the job; what it has done has the bits of an undisturbed one."""
        self.tercio(*self.reach("cancel", job, "--no-save"))
        self.json(*self.reach("wait", job), code=8)
        out, _ = self.tercio(*self.reach("history", job, "-o", "jsonl"))
        keys = ("step", "loss", "grad_norm", "learning_rate", "tokens")
        ours = [tuple(json.loads(line)[key] for key in keys) for line in out.splitlines()]
        alone = self.run_job(self.path("alone"), "--set", f"training.steps={len(ours)}", "--set",
                             "training.schedule.decay_steps=1000000", *self.changes)
        self.assertEqual(ours, [point[:5] for point in self.curve(alone["id"], self.path("alone"))])

    def attempts_on(self, job, agent):
        """Attempts of which a trainer lives below this agent."""
        found = set()
        for pid in processes(f"tercio-trainer {job}"):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().decode().split("\0")
                with open(f"/proc/{pid}/stat", "rb") as file:
                    parent = int(file.read().rsplit(b")", 1)[1].split()[1])
            except OSError:
                continue
            if parent == agent.pid and "--attempt" in words:  # it may have ended just now
                found.add(int(words[words.index("--attempt") + 1]))
        return found

    def test_a_short_cut_is_nothing(self):
        self.node("one")
        self.node("two")
        job = self.start_job()
        for _ in range(2):
            self.network.between("coordinator", "two", "add")
            time.sleep(HEARTBEAT)
            self.network.between("coordinator", "two", "del")
            self.after(job, 20)
        # The connection is whole again, the lease renewed.
        time.sleep(LEASE + HEARTBEAT)
        self.after(job, 20)
        status = self.get(job)
        self.assertEqual((status["state"], status["attempt"], status["restarts"]), ("running", 1, 0))
        self.assertNotIn("node_lost", [event["kind"] for event in self.events()])
        self.finish(job)

    def test_a_node_that_stays_away_is_fenced(self):
        self.node("one")
        two, _ = self.node("two")
        job = self.start_job()
        self.network.between("coordinator", "two", "add")
        self.after(job, 3)  # the way between the ranks is open: training goes on
        wait_for(lambda: "node_lost" in [event["kind"] for event in self.events()], "the end of the lease")
        self.node("spare")
        status = wait_for(lambda: (s := self.get(job))["attempt"] == 2 and s["state"] == "running" and s,
                          "the next attempt, elsewhere")
        self.assertEqual({rank["node"] for rank in status["plan"]["ranks"]}, {"one", "spare"})
        # What the node that was cut off still runs is of the old attempt only.
        self.assertLessEqual(self.attempts_on(job, two), {1})
        self.network.between("coordinator", "two", "del")
        wait_for(lambda: not self.attempts_on(job, two), "the end of the old attempt's rank")
        nodes = lambda: {n["name"]: n["state"] for n in self.json(*self.reach("nodes"))}  # noqa: E731
        wait_for(lambda: nodes().get("two") == "ready", "the node to be back")
        self.after(job, 20)
        status = self.get(job)
        self.assertEqual((status["state"], status["attempt"], status["restarts"]), ("running", 2, 1))
        # Nothing of the first attempt came after the second had begun.
        out, _ = self.tercio(*self.reach("history", job, "--all-attempts", "-o", "jsonl"))
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual({line["attempt"] for line in lines}, {1, 2})
        self.finish(job)


if __name__ == "__main__":
    python_cases.main()

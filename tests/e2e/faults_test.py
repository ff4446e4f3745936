"""Faults on a real machine: memory that runs out, data that is changed, a rank that is slow, a coordinator that dies in a
submit or moves to another address."""

import os
import random
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from certificates import Authority  # noqa: E402
from harness import BIN, ClusterTest, FailingFilesTest, lasting_port, layout, wait_for  # noqa: E402

MEMORY_LIMIT = 96 << 20


class MemoryGroup:
    """A control group of the test's own, of either version, with a limit of memory."""

    def __init__(self, limit):
        name = f"tercio-test-{os.getpid()}-{random.randrange(1 << 30)}"
        if os.path.isdir("/sys/fs/cgroup/memory"):
            self.path, file = f"/sys/fs/cgroup/memory/{name}", "memory.limit_in_bytes"
        else:
            self.path, file = f"/sys/fs/cgroup/{name}", "memory.max"
        os.mkdir(self.path)
        try:
            self.write(file, limit)
        except OSError:
            os.rmdir(self.path)
            raise

    def write(self, file, value):
        with open(os.path.join(self.path, file), "w", encoding="utf-8") as opened:
            opened.write(str(value))

    @staticmethod
    def release(pid):
        """Takes a process out of the groups of tests."""
        root = "/sys/fs/cgroup/memory" if os.path.isdir("/sys/fs/cgroup/memory") else "/sys/fs/cgroup"
        with open(os.path.join(root, "cgroup.procs"), "w", encoding="utf-8") as opened:
            opened.write(str(pid))

    def is_empty(self):
        with open(os.path.join(self.path, "cgroup.procs"), encoding="utf-8") as file:
            return not file.read().strip()

    def remove(self):
        wait_for(self.is_empty, "the end of what ran in the group")
        os.rmdir(self.path)


class Cluster(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator("--heartbeat-interval", "0.5", "--allow-drills")
        self.address = ready["coordinator"]
        self.agent_, _ = self.agent(self.address, "one", 4)

class OutOfMemory(Cluster):

    def test_a_rank_that_the_kernel_kills_ends_the_job_with_the_reason(self):
        try:
            group = MemoryGroup(MEMORY_LIMIT)
        except OSError as error:
            self.skipTest(f"no control group for memory can be made here: {error}")
        self.addCleanup(group.remove)
        self.addCleanup(self.stop_daemons)
        group.write("cgroup.procs", self.agent_.pid)  # what it starts is in the group as well
        job = self.submit("--set", "training.steps=1000000", "--set",
                          "model={layers: 8, hidden: 512, heads: 8, context: 32}", *layout(1, 1, 1))
        # The agent leaves the group to the rank: the kernel may end a second process while the first still holds its memory. The
        # agent's unit protects it from that (OOMScoreAdjust), which takes rights that a test need not have.
        wait_for(lambda: self.trainers(job), "a rank")
        MemoryGroup.release(self.agent_.pid)
        status = self.json("wait", job, *self.reach(), code=1)
        self.assertEqual((status["state"], status["restarts"]), ("failed", 0), self.events(job))
        self.assertIn("killed by signal 9 (out of memory)", status["error"])

    def test_another_kill_is_none_for_want_of_memory(self):
        job = self.submit("--set", "training.steps=1000000", *layout(1, 1, 2))
        self.after_step(job, 20)
        ranks = self.trainers(job)
        for rank in ranks:  # they offer themselves before the agent
            with open(f"/proc/{rank}/oom_score_adj", encoding="utf-8") as score:
                self.assertEqual(score.read().strip(), "500")
        os.kill(ranks[1], 9)
        wait_for(lambda: self.get(job)["attempt"] == 2 and self.get(job)["state"] == "running", "a restart")
        exits = [event["message"] for event in self.events(job) if event["kind"] == "rank_exited"]
        self.assertTrue(any("signal 9" in text for text in exits), exits)
        self.assertFalse(any("memory" in text for text in exits), exits)


class OtherData(Cluster):

    def change_data(self):
        with open(self.path("corpus.txt"), "r+", encoding="utf-8") as file:
            text = file.read()
            file.seek(0)
            file.write(text.replace("red", "der"))

    def test_data_that_changes_under_a_job(self):
        steps = "training.steps=1000000"
        job = self.submit("--set", steps, *layout(1, 1, 2))
        self.after_step(job, 40)
        wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
        self.change_data()
        os.kill(self.trainers(job)[0], 9)
        status = self.json("wait", job, *self.reach(), code=1)
        self.assertEqual((status["state"], status["restarts"]), ("failed", 1))
        for words in ("the job's data has changed", "node one", "--accept-data-change"):
            self.assertIn(words, status["error"])
        self.assertIn("data_refused", [event["kind"] for event in self.events(job)])
        # Asked again, the answer is the same; accepted, the job goes on from its checkpoint.
        more = ["--set", f"training.steps={status['checkpoint']['step'] + 20}"]
        refused = self.json("resume", job, *more, *self.reach(), code=1)
        self.assertIn("the job's data has changed", refused["error"])
        done = self.json("resume", job, *more, "--accept-data-change", *self.reach())
        self.assertEqual((done["state"], done["step"]), ("succeeded", status["checkpoint"]["step"] + 20))


class SlowRank(Cluster):

    def test_a_slow_rank_is_named_soon(self):
        job = self.submit("--set", "training.steps=1000000", "--set",
                          "model={layers: 4, hidden: 256, heads: 4, context: 64}", *layout(1, 1, 2))
        self.after_step(job, 60)
        start = len(self.events(job))
        done = self.json("drill", job, "--fault", "slow-rank", "--rank", "1", "--seconds", "10", *self.reach())
        named = [event for event in self.events(job)[start:] if event["kind"] == "straggler"]
        self.assertEqual({event["rank"] for event in named}, {1}, named)
        # Three reports, and what the machine's other work adds.
        self.assertLess(done["detected_seconds"], 5)
        self.assertEqual(done["steps_lost"], 0)
        self.assertEqual(self.get(job)["attempt"], 1)


class KilledInASubmit(FailingFilesTest):

    def start_coordinator(self, listen):
        self.child, ready = self.with_rules("coordinator", self.daemon, "tercio-coordinator", "--state-dir", self.state,
                                            "--listen", listen, "--metrics-listen", "127.0.0.1:0")
        self.address = ready["coordinator"]

    def test_there_is_one_job(self):
        self.start_coordinator(f"127.0.0.1:{lasting_port()}")
        log = os.path.join(self.state, "state.sqlite-wal")
        size = lambda: os.path.exists(log) and os.path.getsize(log)  # noqa: E731
        self.tercio(*self.reach("list"))
        # The job is in the log of the database, the disk has not said so, nobody has been told.
        self.rule("coordinator", "hold fsync /state.sqlite-wal")
        before = size()
        submit = self.start(*self.reach("submit", self.path("job.yaml")))
        wait_for(lambda: size() > before, "the job to be written")
        self.child.kill()
        self.child.wait()
        self.assertIsNone(submit.poll())
        self.rule("coordinator")
        self.start_coordinator(self.address)
        out, err = submit.communicate(timeout=60)
        self.assertEqual(submit.returncode, 0, err)
        self.assertEqual([job["id"] for job in self.json(*self.reach("list"))], [out.strip()])
        # One that is not there at all is not waited for.
        self.child.kill()
        self.child.wait()
        began = time.monotonic()
        self.tercio(*self.reach("submit", self.path("job.yaml")), code=5)
        self.assertLess(time.monotonic() - began, 8)


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class OtherAddress(ClusterTest):
    """The coordinator's machine is replaced by one with another address, and the name leads there."""

    NAME = "coordinator.tercio.test"

    def names(self, address):
        """In place: what is mounted over /etc/hosts is this very file."""
        with open(self.path("hosts"), "w", encoding="utf-8") as file:
            file.write(f"127.0.0.1 localhost\n{address} {self.NAME}\n")

    def start_coordinator(self, listen):
        child, ready = self.daemon(
            "tercio-coordinator", "--state-dir", self.state, "--listen", listen, "--metrics-listen", "127.0.0.1:0",
            "--first-backoff", "0.2", "--heartbeat-interval", "3", *self.tls["coordinator"])
        self.address = ready["coordinator"]
        return child

    def start_agent(self, port):
        """Where /etc/hosts is ours, and no server of names answers."""
        with open(self.path("resolv.conf"), "w", encoding="utf-8") as file:
            file.write("nameserver 127.0.0.1\n")
        log = open(self.path("agent.log"), "w", encoding="utf-8")
        script = 'mount --bind "$0" /etc/hosts && mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'
        child = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script, self.path("hosts"), self.path("resolv.conf"),
             os.path.join(BIN, "tercio-agent"), "--coordinator", f"{self.NAME}:{port}", "--state-dir", self.path("agent-one"),
             "--name", "one", "--slots", "2", "--metrics-listen", "127.0.0.1:0", "--stop-grace", "5",
             "--data-address", "127.0.0.1", "--data-root", self.directory, *self.tls["agent"]], stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment())
        log.close()
        self.daemons.append(child)
        self.assertTrue(child.stdout.readline().startswith("ready "), "see agent.log")

    def test_agents_find_it(self):
        tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            self.skipTest(f"no file system of its own for /etc/hosts: {tried.stderr.strip()}")
        authority = Authority(self.directory, "ca")
        self.tls = {"agent": authority.issue("one", role="agent"), "admin": authority.issue("operator", role="admin"),
                    "coordinator": authority.issue("coordinator", f"DNS:{self.NAME},IP:127.0.0.1,IP:127.0.0.2", role="coordinator")}
        self.names("127.0.0.1")
        first = self.start_coordinator(f"127.0.0.1:{lasting_port()}")
        port = self.address.rsplit(":", 1)[1]
        self.start_agent(port)
        job = self.submit("--set", "training.steps=1000000", *layout(1, 1, 2))
        self.after_step(job, 20)
        first.kill()
        first.wait()
        self.names("127.0.0.2")
        self.start_coordinator(f"127.0.0.2:{port}")
        step = self.get(job)["step"]
        # Within its lease.
        self.after_step(job, step + 20)
        status = self.get(job)
        self.assertEqual((status["state"], status["attempt"], status["restarts"]), ("running", 1, 0))
        self.assertNotIn("node_lost", [event["kind"] for event in self.events()])

    def reach(self, *arguments):
        return [*arguments, "--coordinator", self.address, *self.tls["admin"]]


if __name__ == "__main__":
    python_cases.main()

"""Programs of different versions: those whose minor versions are one apart work together, others are refused by name.

A program of another version is a copy in which that text is another one; everything else is the same.
"""

import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, ROOT, ClusterTest, layout, wait_for  # noqa: E402

PROGRAMS = ("tercio", "tercio-coordinator", "tercio-agent", "tercio-trainer")
CHANGES = ("--set", "training.steps=300", *layout(1, 1, 2))


def own_version():
    with open(os.path.join(ROOT, "common", "version.cc"), encoding="utf-8") as file:
        return re.search(r'kVersion = "([^"]+)"', file.read()).group(1)


def apart(minors):
    """A version so many minor versions from ours, with as many characters."""
    major, minor, patch = own_version().split(".")
    return f"{major}.{int(minor) + minors}.{patch}"


class VersionSkew(ClusterTest):

    def setUp(self):
        super().setUp()
        self.folders = {own_version(): BIN}
        self.started = []
        self.addCleanup(self.stop_all)

    def stop_all(self):
        for child in reversed(self.started):
            if child.poll() is None:
                child.terminate()
                child.wait(30)
            child.stdout.close()

    def programs(self, version):
        """The folder of the programs of a version."""
        if version in self.folders:
            return self.folders[version]
        folder = self.path("programs", version)
        os.makedirs(folder)
        for name in PROGRAMS:
            with open(os.path.join(BIN, name), "rb") as file:
                content = file.read()
            text = b"\0" + own_version().encode() + b"\0"
            self.assertGreater(content.count(text), 0, name)
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content.replace(text, b"\0" + version.encode() + b"\0"))
            os.chmod(os.path.join(folder, name), 0o755)
        self.folders[version] = folder
        return folder

    def run_program(self, version, name, *arguments):
        log = open(self.path(f"{name}-{len(self.started)}.log"), "w", encoding="utf-8")
        child = subprocess.Popen([os.path.join(self.programs(version), name), *arguments], stdout=subprocess.PIPE, stderr=log, text=True,
                                 env=self.environment())
        child.log = log.name
        log.close()
        self.started.append(child)
        line = child.stdout.readline()
        self.assertTrue(line.startswith("ready "), line)
        return child, dict(part.split("=", 1) for part in line.split()[1:])

    def start_coordinator(self, version):
        _, ready = self.run_program(version, "tercio-coordinator", "--state-dir", self.state, "--listen", "127.0.0.1:0", "--metrics-listen",
                                    "127.0.0.1:0", "--first-backoff", "0.2")
        self.address = ready["coordinator"]

    def start_agent(self, version):
        return self.run_program(version, "tercio-agent", "--coordinator", self.address, "--state-dir", self.path("agent"), "--name", "one",
                                "--slots", "4", "--metrics-listen", "127.0.0.1:0", "--stop-grace", "5")[0]

    def log_of(self, child):
        with open(child.log, encoding="utf-8") as file:
            return file.read()

    def finished(self, job):
        status = self.json(*self.reach("wait", job))
        self.assertEqual((status["state"], status["step"], status["attempt"]), ("succeeded", 300, 1), self.tercio(*self.reach("events", job))[0])

    def test_the_copies_have_other_versions(self):
        for name in PROGRAMS:
            for version in (own_version(), apart(1)):
                command = [os.path.join(self.programs(version), name), "version" if name == "tercio" else "--version"]
                said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                self.assertIn(version, said)

    def test_a_newer_coordinator_and_older_nodes(self):
        self.start_coordinator(apart(1))
        self.start_agent(own_version())
        self.finished(self.submit(*CHANGES))
        node = self.json(*self.reach("nodes"))[0]
        self.assertEqual(node["version"], own_version())

    def test_newer_nodes_and_an_older_coordinator(self):
        self.start_coordinator(own_version())
        self.start_agent(apart(1))
        self.finished(self.submit(*CHANGES))

    def test_two_versions_apart_are_refused(self):
        self.start_coordinator(own_version())
        agent = self.start_agent(apart(2))
        said = f"node one runs Tercio {apart(2)} and the coordinator {own_version()}"
        wait_for(lambda: said in self.log_of(agent), "the reason in the agent's log")
        self.assertEqual(self.json(*self.reach("nodes")), [])
        self.assertIsNone(agent.poll())  # it goes on asking: the coordinator may be upgraded

    def test_an_agent_is_upgraded_under_a_running_job(self):
        self.start_coordinator(apart(1))
        agent = self.start_agent(own_version())
        job = self.submit(*CHANGES)
        self.after_step(job, 20)
        trainers = self.trainers(job)
        agent.send_signal(signal.SIGUSR1)
        self.assertEqual(agent.wait(20), 0)
        self.start_agent(apart(1))
        self.after_step(job, self.get(job)["step"])
        self.assertEqual(self.trainers(job), trainers)
        self.finished(job)

    def test_trainers_two_versions_older_are_replaced(self):
        self.start_coordinator(apart(1))
        agent = self.start_agent(own_version())
        job = self.submit("--set", "training.steps=20000", *CHANGES[2:])
        self.after_step(job, 20)
        agent.send_signal(signal.SIGUSR1)
        self.assertEqual(agent.wait(20), 0)
        agent = self.start_agent(apart(2))
        wait_for(lambda: f"runs Tercio {own_version()} and this agent {apart(2)}" in self.log_of(agent), "the reason")
        wait_for(lambda: self.get(job)["attempt"] == 2 and self.get(job)["state"] == "running", "the next attempt")
        self.tercio(*self.reach("cancel", job))

    def test_the_command_line_says_so(self):
        self.start_coordinator(own_version())
        for version, warned in ((own_version(), False), (apart(1), False), (apart(2), True)):
            done = subprocess.run([os.path.join(self.programs(version), "tercio"), "list", "--coordinator", self.address, "-o", "json"],
                                  capture_output=True, text=True, check=True, env=self.environment())
            self.assertEqual(done.stdout.strip(), "[]")
            self.assertEqual("warning: the coordinator runs Tercio" in done.stderr, warned, done.stderr)


if __name__ == "__main__":
    python_cases.main()

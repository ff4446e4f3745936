"""What jobs may read, as whom their data is read and their ranks run, and what stays within bounds."""

import json
import os
import shutil
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, layout, processes, wait_for  # noqa: E402
from security_test import SecureTest  # noqa: E402


class Bounds(SecureTest):

    def setUp(self):
        super().setUp()
        self.serve()
        self.login("ann", "admin")

    def submit(self, *changes):
        return self.verb("ann", "submit", self.path("job.yaml"), *layout(1, 1, 2), *changes)[0].strip()

    def test_jobs_read_what_the_agent_allows(self):
        os.mkdir(self.path("allowed"))
        shutil.copy(self.path("corpus.txt"), self.path("allowed", "corpus.txt"))
        os.symlink(self.path("corpus.txt"), self.path("allowed", "link.txt"))
        self.agent(self.address, "one", 2, "--enroll", self.enroll, "--join-token-file", self.token_file("one"),
                   "--data-root", self.path("allowed"))
        for path in (self.path("corpus.txt"), self.path("allowed", "link.txt"), "/etc/shadow", "/etc/no-such-file"):
            job = self.submit("--set", f"data.train={path}")
            self.verb("ann", "wait", job, "--timeout", "60s", code=1)
            error = self.status("ann", job)["error"]
            self.assertIn(f"node one: data.train: {path} is outside the directories that jobs may read on "
                          "this node (--data-root of its agent)", error)
        job = self.submit("--set", f"data.train={self.path('allowed', 'corpus.txt')}")
        self.verb("ann", "wait", job, "--timeout", "100s")

    def token_file(self, node):
        path = self.path("token-" + node)
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.token("agent", node))
        return path

    @unittest.skipUnless(os.geteuid() == 0, "only root can start trainers as somebody else")
    def test_trainers_of_a_root_agent_are_nobody(self):
        # Where nobody may go: the program is copied out of its builder's home, the directory opened.
        os.chmod(self.directory, 0o755)
        shutil.copy(os.path.join(BIN, "tercio-trainer"), self.path("tercio-trainer"))
        self.node("one", "--trainer-user", "nobody", "--trainer", self.path("tercio-trainer"))
        job = self.submit("--set", "training.steps=1000000", "--set", "checkpoint.every_steps=20")
        wait_for(lambda: (self.status("ann", job)["checkpoint"] or {"step": 0})["step"] > 0, "a checkpoint")
        trainers = processes(f"tercio-trainer {job}")
        self.assertEqual(len(trainers), 2)
        for pid in trainers:
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                lines = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            self.assertEqual(lines["Uid"].split(), ["65534"] * 4)
            self.assertEqual(lines["Gid"].split(), ["65534"] * 4)
            self.assertEqual(lines["Groups"].strip(), "")
            self.assertEqual(int(lines["CapEff"], 16), 0)
            self.assertEqual(lines["NoNewPrivs"], "1")
        # What is the agent's alone stays so.
        for secret in ("access/key.pem", "agent.db"):
            done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat",
                                   self.path("agent-one", secret)], capture_output=True, check=False)
            self.assertNotEqual(done.returncode, 0, secret)
        os.kill(trainers[0], 9)
        wait_for(lambda: self.status("ann", job)["restarts"] == 1 and self.status("ann", job)["state"] == "running",
                 "a restart")
        self.verb("ann", "cancel", job, "--no-save")

    def preparations(self, agent):
        """The processes in which an agent has data read."""
        def parent(pid):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                    return int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                return None
        return [pid for pid in processes("tercio-trainer --prepare") if parent(pid) == agent.pid]

    @unittest.skipUnless(os.geteuid() == 0, "only root can read data as somebody else")
    def test_data_is_read_by_nobody(self):
        os.chmod(self.directory, 0o755)
        shutil.copy(os.path.join(BIN, "tercio-trainer"), self.path("tercio-trainer"))
        agent, _ = self.node("one", "--trainer-user", "nobody", "--trainer", self.path("tercio-trainer"),
                             "--data-memory", "300MiB")
        # To open it is to wait for its other end.
        os.mkfifo(self.path("fifo.txt"), 0o644)
        job = self.submit("--set", f"data.train={self.path('fifo.txt')}")
        pid = wait_for(lambda: self.preparations(agent), "the process that reads the data")[0]
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            lines = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        self.assertEqual(lines["Uid"].split(), ["65534"] * 4)
        self.assertEqual(lines["Gid"].split(), ["65534"] * 4)
        self.assertEqual(lines["Groups"].strip(), "")
        self.assertEqual(int(lines["CapEff"], 16), 0)
        self.assertEqual(lines["NoNewPrivs"], "1")
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
            names = [entry.split("=")[0] for entry in file.read().split("\0") if entry]
        self.assertEqual(sorted({name for name in names if name.startswith(("TERCIO_", "XDG_"))}), ["TERCIO_LOG_LEVEL"])
        with open(f"/proc/{pid}/limits", encoding="utf-8") as file:
            limits = {line[:25].strip(): line[25:].split()[0] for line in file}
        self.assertEqual(limits["Max data size"], str(300 << 20))
        self.assertEqual(limits["Max core file size"], "0")
        self.verb("ann", "cancel", job, "--no-save")
        wait_for(lambda: not self.preparations(agent), "the end of the process")
        # On disk a hole of 8 GiB, to a parser all the memory that it may take.
        with open(self.path("tokenizer.json"), "w", encoding="utf-8") as file:
            file.write("{")
        os.truncate(self.path("tokenizer.json"), 8 << 30)
        job = self.submit("--set", f"data.tokenizer={self.path('tokenizer.json')}")
        self.verb("ann", "wait", job, "--timeout", "100s", code=1)
        status = self.status("ann", job)
        self.assertEqual((status["state"], status["restarts"]), ("failed", 0))
        for words in ("node one: cannot read", self.path("tokenizer.json"), "out of memory", "--data-memory"):
            self.assertIn(words, status["error"])
        self.assertIsNone(agent.poll(), "the agent has ended")
        job = self.submit("--set", "training.steps=3")
        self.verb("ann", "wait", job, "--timeout", "100s")
        self.assertEqual(os.stat(self.path("agent-one", "data-cache")).st_uid, 65534)

    def test_what_reads_data_ends_with_its_agent(self):
        agent, _ = self.node("one")
        os.mkfifo(self.path("fifo.txt"), 0o644)
        self.submit("--set", f"data.train={self.path('fifo.txt')}")
        pid = wait_for(lambda: self.preparations(agent), "the process that reads the data")[0]
        agent.kill()
        agent.wait()
        wait_for(lambda: pid not in processes("tercio-trainer --prepare"), "the end of the process")
        # The next one is asked again, and a stop does not wait for it.
        agent, _ = self.node("one")
        wait_for(lambda: self.preparations(agent), "the process that reads the data")
        agent.terminate()
        agent.wait(60)

    def test_a_full_disk_under_the_audit_log_stops_nobody(self):
        os.remove(os.path.join(self.state, "audit.log"))
        self.server.terminate()
        self.server.wait(30)
        os.symlink("/dev/full", os.path.join(self.state, "audit.log"))
        self.server, _ = self.coordinator("--listen", self.address)
        job = self.submit()
        self.verb("ann", "cancel", job)
        wait_for(lambda: any("lines lost so far" in open(self.path(name), encoding="utf-8").read()
                             for name in os.listdir(self.directory) if name.startswith("tercio-coordinator")),
                 "a warning", 20)


if __name__ == "__main__":
    python_cases.main()

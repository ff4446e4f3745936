"""The coordinator of `tercio run`: its user's alone."""

import os
import re
import shutil
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, TercioTest, layout, processes, wait_for  # noqa: E402


def listening_ports(pid):
    """TCP ports on which a process listens."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        link = os.readlink(f"/proc/{pid}/fd/{name}")
        if link.startswith("socket:["):
            inodes.add(link[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="utf-8") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


class PrivateCoordinator(TercioTest):

    def setUp(self):
        super().setUp()
        self.child = self.start("run", self.path("job.yaml"), "--state-dir", self.state, "--set", "training.steps=1000000", *layout(1, 1, 1))
        self.addCleanup(self.end)
        line = self.child.stderr.readline()
        found = re.match(r"coordinator (unix:(/\S+)/coordinator\.sock), metrics http://\S+/metrics and http://\S+/metrics$", line)
        self.assertTrue(found, line)
        self.address, self.folder = found.groups()

    def end(self):
        self.child.terminate()
        self.child.communicate(timeout=60)

    def test_its_user_reaches_it_and_it_leaves_nothing(self):
        for where in (["--state-dir", self.state], ["--coordinator", self.address]):
            job = wait_for(lambda where=where: self.json("list", *where), "the job")[0]
            self.assertEqual(job["owner"], None)
        wait_for(lambda: self.json("get", job["id"], "--state-dir", self.state)["step"] > 5, "steps")
        self.assertEqual(stat.S_IMODE(os.stat(self.folder).st_mode), 0o700)
        # The one port that it listens on is that of its metrics.
        for pid in processes(f"tercio-coordinator {self.state}"):
            self.assertEqual(len(listening_ports(pid)), 1)
        self.end()
        self.assertFalse(os.path.exists(self.folder))
        # Also without it: a coordinator for the length of a question.
        self.assertEqual([one["id"] for one in self.json("list", "--state-dir", self.state)], [job["id"]])

    @unittest.skipUnless(os.geteuid() == 0, "only root can be another user")
    def test_others_are_refused(self):
        os.chmod(self.directory, 0o755)
        os.chmod(self.state, 0o755)
        shutil.copy(os.path.join(BIN, "tercio"), self.path("tercio"))
        for arguments in (["list"], ["submit", self.path("job.yaml")], ["cancel", "small"]):
            done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", self.path("tercio"), *arguments,
                                   "--coordinator", self.address], capture_output=True, text=True, timeout=60, check=False,
                                  env={**self.environment(), "HOME": "/nonexistent"}, cwd="/")
            self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)
            self.assertIn("belongs to another user", done.stderr)
        self.assertEqual(len(self.json("list", "--state-dir", self.state)), 1)


if __name__ == "__main__":
    python_cases.main()

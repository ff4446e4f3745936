"""Mutual TLS: who is let in, who is not, and that everybody is told why."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from certificates import Authority  # noqa: E402
from harness import BIN, TercioTest, layout, wait_for  # noqa: E402


def reachable(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class Tls(TercioTest):

    def setUp(self):
        super().setUp()
        self.ours = Authority(self.directory, "ours")
        self.theirs = Authority(self.directory, "theirs")

    def start_coordinator(self, flags):
        _, ready = self.coordinator(*flags)
        self.address = ready["coordinator"]

    def refused(self, flags, *words):
        """A verb ends with 4 and says why; nobody hears of the job."""
        _, err = self.tercio("list", "--coordinator", self.address, *flags, code=4)
        for word in words:
            self.assertIn(word, err)
        self.assertEqual(len(err.strip().splitlines()), 1, err)

    def test_with_good_certificates_a_job_trains(self):
        flags = self.ours.issue("coordinator")
        self.start_coordinator(flags)
        self.agent(self.address, "one", 2, "--data-root", self.directory, *self.ours.issue("one", role="agent"))
        client = ["--coordinator", self.address, *self.ours.issue("ann", role="user")]
        job = self.tercio("submit", self.path("job.yaml"), *layout(1, 1, 2), *client)[0].strip()
        status = self.json("wait", job, *client)
        self.assertEqual(status["state"], "succeeded")
        self.assertEqual(status["checkpoint"]["step"], 60)  # which ranks send by TLS, too

    def test_clients_that_are_refused_are_told_which_certificate_and_why(self):
        self.start_coordinator(self.ours.issue("coordinator"))
        self.refused([], "speaks TLS", "--tls-cert")
        self.refused(self.ours.issue("late", days=-1), "rejects the --tls-cert certificate", "late.pem", "expired")
        strange = self.theirs.issue("stranger").with_authority(self.ours)
        self.refused(strange, "rejects the --tls-cert certificate", "stranger.pem", "does not know")
        mixed = self.ours.issue("ann")
        mixed.key = self.ours.issue("bob").key
        self.refused(mixed, "does not belong to the certificate")
        # The others are served all the while.
        self.tercio("list", "--coordinator", self.address, *self.ours.issue("carl", role="viewer"))

    def test_a_certificate_that_names_no_role_has_none(self):
        self.start_coordinator(self.ours.issue("coordinator"))
        self.refused(self.ours.issue("ann"), "ann has no role", "tercio:role/ROLE", "--default-role")
        self.refused(self.ours.issue("bob", role="king"), "bob has no role")
        ann = self.ours.issue("ann")
        for role, code in (("viewer", 4), ("admin", 3)):
            self.start_again([*self.ours.issue("coordinator"), "--default-role", role])
            self.tercio("list", "--coordinator", self.address, *ann)
            self.tercio("cancel", "nothing", "--coordinator", self.address, *ann, code=code)

    def test_a_coordinator_that_is_not_the_one_is_refused(self):
        client = self.ours.issue("ann")
        self.start_coordinator(self.theirs.issue("coordinator").with_authority(self.ours))
        self.refused(client, "the certificate of the coordinator is rejected", "not signed by the authority of --tls-ca")
        self.start_again(self.ours.issue("other", names="DNS:other.example,IP:10.9.8.7"))
        self.refused(client, "it is not for 127.0.0.1", "other.example, 10.9.8.7")

    def test_certificates_that_have_expired(self):
        old = self.ours.issue("old", days=-1)
        # A daemon refuses to start with one, and says both times.
        done = subprocess.run([os.path.join(BIN, "tercio-coordinator"), "--state-dir", self.state, "--listen",
                               "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", *old], capture_output=True,
                              text=True, env=self.environment(), timeout=60, check=False)
        self.assertEqual(done.returncode, 7)
        for word in (old.certificate, "it expired at", "this machine's clock says"):
            self.assertIn(word, done.stderr)
        # A server whose certificate has expired while it ran.
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = subprocess.Popen(["openssl", "s_server", "-accept", str(port), "-cert", old.certificate, "-key",
                                   old.key, "-alpn", "h2", "-quiet"], stdin=subprocess.PIPE,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.stdin.close)
        self.addCleanup(server.kill)
        wait_for(lambda: reachable(port), "openssl's server")
        self.address = f"127.0.0.1:{port}"
        self.refused(self.ours.issue("ann"), "the certificate of the coordinator is rejected", "it has expired")

    def start_again(self, flags):
        self.daemons[-1].send_signal(signal.SIGTERM)
        self.daemons[-1].wait(20)
        self.start_coordinator(flags)

    def test_no_tls_on_either_side(self):
        self.start_coordinator([])
        self.refused(self.ours.issue("ann"), "does not speak TLS")
        self.daemons[-1].send_signal(signal.SIGTERM)
        self.daemons[-1].wait(20)
        _, err = self.tercio("list", "--coordinator", self.address, *self.ours.issue("bob"), code=5)
        self.assertIn("cannot reach", err)

    def test_an_agent_says_why_it_is_not_let_in(self):
        self.start_coordinator(self.ours.issue("coordinator"))
        flags = self.theirs.issue("agent").with_authority(self.ours)
        agent = subprocess.Popen(
            [os.path.join(BIN, "tercio-agent"), "--coordinator", self.address, "--state-dir", self.path("agent"),
             "--metrics-listen", "127.0.0.1:0", *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.environment())
        self.addCleanup(agent.stderr.close)
        self.addCleanup(agent.wait)
        self.addCleanup(agent.kill)
        wait_for(lambda: "rejects the --tls-cert certificate" in agent.stderr.readline(), "a warning")
        self.assertEqual(self.json("nodes", "--coordinator", self.address, *self.ours.issue("ann", role="viewer")), [])


if __name__ == "__main__":
    python_cases.main()

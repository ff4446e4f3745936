"""gRPC's health service, also on the plain port for probes (--health-listen), as the kubelet asks it."""

import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import certificates  # noqa: E402
import python_cases  # noqa: E402
from harness import BIN, SECONDS, ClusterTest, wait_for  # noqa: E402

PYTHON = "/usr/bin/python3"  # which sees Debian's python3-grpcio
ASK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ask_health.py")


class Health(ClusterTest):

    def ask(self, address, service, *method):
        done = subprocess.run([PYTHON, ASK, address, service, *method], capture_output=True, text=True, timeout=SECONDS, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_coordinator_and_agent(self):
        coordinator, ready = self.coordinator("--health-listen", "127.0.0.1:0")
        self.address, health = ready["coordinator"], ready["health"]
        _, agents = self.agent(self.address, "one", 2, "--health-listen", "127.0.0.1:0")
        for service in ("liveness", "readiness", ""):
            self.assertEqual(self.ask(health, service), "SERVING", service)
            self.assertEqual(self.ask(self.address, service), "SERVING", service)  # its own port has it, too
            wait_for(lambda: self.ask(agents["health"], service) == "SERVING", "an agent that is accepted")
        self.assertEqual(self.ask(health, "other"), "NOT_FOUND")
        # Nothing of Tercio's is there.
        for method in ("/tercio.v1.JobService/List", "/tercio.v1.NodeService/Attach"):
            self.assertEqual(self.ask(health, "", method), "UNIMPLEMENTED", method)
            self.assertEqual(self.ask(agents["health"], "", method), "UNIMPLEMENTED", method)
        # An agent whose coordinator is away lives, and is not ready.
        coordinator.send_signal(signal.SIGTERM)
        coordinator.wait(SECONDS)
        wait_for(lambda: self.ask(agents["health"], "readiness") == "NOT_SERVING", "an agent that is not ready")
        self.assertEqual(self.ask(agents["health"], "liveness"), "SERVING")

    def test_beside_mutual_tls(self):
        ours = certificates.Authority(self.directory, "ours")
        _, ready = self.coordinator("--health-listen", "127.0.0.1:0", *ours.issue("coordinator"))
        self.assertEqual(self.ask(ready["health"], "readiness"), "SERVING")
        self.assertEqual(self.ask(ready["coordinator"], "readiness"), "UNAVAILABLE")  # in plain text, without a certificate

    def test_a_port_that_is_taken(self):
        _, ready = self.coordinator("--health-listen", "127.0.0.1:0")
        done = subprocess.run([os.path.join(BIN, "tercio-agent"), "--coordinator", ready["coordinator"], "--state-dir", self.path("agent"), "--metrics-listen",
                               "127.0.0.1:0", "--health-listen", ready["health"]], capture_output=True, text=True, timeout=SECONDS, check=False)
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn(f"cannot listen on --health-listen {ready['health']}", done.stderr)


if __name__ == "__main__":
    python_cases.main()

"""A coordinator and agents for benchmarks: real processes on this machine, with the defaults that people get."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from harness import ClusterTest  # noqa: E402


class Cluster(ClusterTest):

    def runTest(self):
        pass

    def __init__(self, nodes, slots):
        super().__init__()
        self.setUp()
        try:
            _, ready = self.daemon("tercio-coordinator", "--state-dir", self.state, "--listen", "127.0.0.1:0",
                                   "--metrics-listen", "127.0.0.1:0", "--allow-drills")
            self.address = ready["coordinator"]
            self.agents = {f"node{i}": self.agent(self.address, f"node{i}", slots)[0] for i in range(nodes)}
        except BaseException:
            self.doCleanups()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.doCleanups()

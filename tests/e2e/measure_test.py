"""`tercio doctor --measure`: figures of a machine, on the screen and in the coordinator."""

import json
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, wait_for  # noqa: E402

RATES = ["memory_bytes_per_second", "norm_bytes_per_second", "activation_bytes_per_second", "loss_bytes_per_second",
         "update_bytes_per_second", "operation_seconds", "link_bytes_per_second", "link_seconds", "step_seconds"]


class Measure(ClusterTest):

    def figures(self, node):
        return {one["name"]: one["figures"] for one in self.json(*self.reach("nodes"))}[node]

    def measure(self, *more, code=0):
        return self.tercio("doctor", "--measure", "--device", "cpu", "--threads", "1", *more, code=code)

    def test_figures_are_kept_with_the_node(self):
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 2)
        self.agent(self.address, "two", 2)
        self.assertIsNone(self.figures("one"))

        answer = json.loads(self.measure(*self.reach("--node", "one", "-o", "json"))[0])
        self.assertEqual(answer["recorded_for"], "one")
        figures = answer["figures"]
        self.assertEqual((figures["device"], figures["devices"], figures["threads"]), ("cpu", 1, 1))
        for rate in RATES:
            self.assertGreater(figures[rate], 0, rate)
        formats = {rate["format"] for rate in figures["products"]}
        self.assertEqual(formats, {"fp32", "bf16"})
        self.assertTrue(all(rate["flops_per_second"] > 1e8 for rate in figures["products"]))
        kept = self.figures("one")
        self.assertIsNotNone(kept["recorded"])
        self.assertEqual({**kept, "recorded": None}, figures)
        self.assertIsNone(self.figures("two"))
        self.assertIn("node_measured", [event["kind"] for event in self.events()])

        # This host's name is the node's, unless another one is given; there is no such node.
        _, err = self.measure(*self.reach(), code=3)
        self.assertIn(f"no node {socket.gethostname()}", err)

        # What is recorded outlives the coordinator.
        first = self.daemons[0]
        first.terminate()
        first.wait(20)
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        wait_for(lambda: "one" in {node["name"] for node in self.json(*self.reach("nodes"))}, "the stored node")
        self.assertEqual(self.figures("one"), kept)

    def test_without_a_coordinator_they_are_shown(self):
        out, _ = self.measure()
        self.assertIn("product fp32 512 x 1024 x 256", out)
        self.assertIn("medians of several repetitions", out)
        self.assertIn("Not recorded", out)

    def test_what_is_not_there_is_refused(self):
        _, err = self.tercio("doctor", "--measure", "--threads", "100000", "--device", "cpu", code=7)
        self.assertIn("cannot measure 100000 cores", err)
        if not os.path.exists("/proc/driver/nvidia"):
            _, err = self.tercio("doctor", "--measure", "--device", "cuda", code=3)
            self.assertIn("no GPU", err)


if __name__ == "__main__":
    python_cases.main()

"""`tercio doctor --measure`: figures of a machine, on the screen and in the coordinator."""

import json
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, TercioTest, wait_for  # noqa: E402

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
        if os.cpu_count() > 1:  # figures of one core of several are not those of the machine
            self.assertFalse(os.path.exists(self.path("xdg", "tercio", "cpu-figures.json")))

    def test_what_is_not_there_is_refused(self):
        _, err = self.tercio("doctor", "--measure", "--threads", "100000", "--device", "cpu", code=7)
        self.assertIn("cannot measure 100000 cores", err)
        if not os.path.exists("/proc/driver/nvidia"):
            _, err = self.tercio("doctor", "--measure", "--device", "cuda", code=3)
            self.assertIn("no GPU", err)


class Kept(TercioTest):
    """Jobs on the machine that was measured."""

    def predicted(self, *changes):
        """Seconds of a step by `plan`, and its notices."""
        out, err = self.tercio("plan", self.path("job.yaml"), "-o", "json", *changes)
        plan = json.loads(out)
        return plan["layouts"][plan["chosen"]]["predicted"]["step_seconds"], err

    def ran(self):
        """Seconds of a step in the plan of a job that has run, its notices, and what became of its node's figures."""
        out, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, "--set", "training.steps=2", "-o", "json")
        job = json.loads(out)
        events = [json.loads(line) for line in self.tercio("events", "--state-dir", self.state, "-o", "jsonl")[0].splitlines()]
        figures = [event["message"].split()[-1] for event in events if event["kind"] == "node_measured"]
        parts = self.json("plan", "--job", job["id"], "--state-dir", self.state)["parts"]
        return {part["part"]: part["predicted"] for part in parts}["step"], err, figures

    def test_plans_and_runs_use_what_was_measured_here(self):
        assumed, err = self.predicted()
        self.assertNotIn("measured", err)
        told = json.loads(self.tercio("doctor", "--measure", "--device", "cpu", "-o", "json")[0])
        path = self.path("xdg", "tercio", "cpu-figures.json")
        self.assertEqual(told["kept_in"], path)
        # No machine is that slow: assumed figures cannot be taken for these.
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        kept["figures"]["step_seconds"] = 0.5
        with open(path, "w", encoding="utf-8") as file:
            json.dump(kept, file)
        measured, err = self.predicted()
        self.assertGreater(measured, 0.5)
        self.assertLess(assumed, 0.5)
        self.assertEqual(err.count("predictions use what was measured on this machine on 2"), 1)
        seconds, err, figures = self.ran()
        self.assertGreater(seconds, 0.5)
        self.assertEqual(err.count("predictions use what was measured on this machine on 2"), 1)
        self.assertEqual(figures, ["recorded"])
        # What a node has is not recorded again.
        seconds, err, figures = self.ran()
        self.assertGreater(seconds, 0.5)
        self.assertEqual(figures, ["recorded"])

        # The same home on another machine: there its runs have assumed figures, whatever their node had before.
        kept["count"] += 1
        with open(path, "w", encoding="utf-8") as file:
            json.dump(kept, file)
        elsewhere, err = self.predicted()
        self.assertEqual(elsewhere, assumed)
        self.assertEqual(err.count("is not used, and speeds are assumed"), 1)
        seconds, err, figures = self.ran()
        self.assertLess(seconds, 0.5)
        self.assertEqual(err.count("is not used, and speeds are assumed"), 1)
        self.assertEqual(figures, ["recorded", "removed"])


if __name__ == "__main__":
    python_cases.main()

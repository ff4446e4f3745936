"""Plans for clusters that are described in a file: tables and JSON as a user gets them."""

import json
import os
import re
import sys
import xml.etree.ElementTree

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import TercioTest  # noqa: E402

JOB = """
model: {architecture: gpt2, layers: 24, hidden: 2048, heads: 16, context: 2048, vocab_size: 51200, dropout: 0}
data: {train: /not/here.txt, tokenizer: bytes}
training: {steps: 10, global_batch: 64, precision: bf16, reproducibility: layout, optimizer: {learning_rate: 1e-4}}
resources: {device: cuda}
"""
CLUSTER = """
nodes: [{count: 2, gpus: 8, gpu: a100-80gb, nics: [{count: 8, bandwidth: 25GB/s}]}]
cost: {per_device_hour: 2, currency: EUR}
"""


class PlanCluster(TercioTest):

    def setUp(self):
        super().setUp()
        for name, text in (("job.yaml", JOB), ("cluster.yaml", CLUSTER)):
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(text)

    def plan(self, *options):
        return self.json("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), *options)

    def test_layouts_are_ranked_and_explained(self):
        plan = self.plan()
        fitting = [layout for layout in plan["layouts"] if layout["rejected"] is None]
        self.assertEqual(plan["chosen"], 0)
        self.assertGreater(len(fitting), 3)
        seconds = [layout["predicted"]["step_seconds"] for layout in fitting]
        self.assertEqual(seconds, sorted(seconds))
        for layout in fitting:
            self.assertEqual(layout["tensor"] * layout["pipeline"] * layout["data"], 16)
            self.assertLessEqual(layout["predicted"]["memory_bytes_peak"], layout["memory_bytes_available"])
            self.assertAlmostEqual(sum(layout["time"].values()), layout["predicted"]["step_seconds"], delta=1e-6)
        self.assertGreater(plan["memory"][0]["parameters"], 0)
        out, _ = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"))
        for part in ("TENSOR", "TIME OF A STEP", "pipeline bubble", "MEMORY OF A RANK", "layouts considered"):
            self.assertIn(part, out)

    def test_what_if_explain_and_compare(self):
        best = self.plan()["layouts"][0]["predicted"]["step_seconds"]
        faster = self.plan("--what-if", "gpu=h100")["layouts"][0]["predicted"]["step_seconds"]
        self.assertLess(faster, 0.7 * best)
        slower = self.plan("--what-if", "nic.bandwidth=1GB/s")["layouts"][0]["predicted"]["step_seconds"]
        self.assertGreater(slower, best)
        named = self.plan("--explain", "4x2x2,recompute=full")
        self.assertTrue(all((each["tensor"], each["pipeline"], each["data"], each["recompute"]) == (4, 2, 2, "full")
                            for each in named["layouts"]))
        compared = self.plan("--compare", "8x1x2", "1x1x16")["compared"]
        self.assertEqual([each["tensor"] for each in compared], [8, 1])
        _, err = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), "--explain", "3x1x1", code=2)
        self.assertIn("no layout of 16 GPUs is '3x1x1'", err)
        _, err = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), "--explain", "4x4x1",
                             "--set", "model.heads=2", "--set", "model.hidden=512", code=2)
        self.assertIn("tensor 4 does not divide model.heads 2", err)

    def test_nodes_of_several_kinds(self):
        with open(self.path("mixed.yaml"), "w", encoding="utf-8") as file:
            file.write("nodes:\n"
                       "  - {name: old, count: 1, gpus: 8, gpu: v100-32gb, nics: [{count: 4, bandwidth: 12.5GB/s}]}\n"
                       "  - {name: new, count: 1, gpus: 8, gpu: a100-80gb, nics: [{count: 8, bandwidth: 25GB/s}]}\n"
                       "interconnect: {kind: ethernet, bandwidth: 10Gb/s}\n")
        options = ("plan", self.path("job.yaml"), "--cluster", self.path("mixed.yaml"))
        plan = self.json(*options)
        best = plan["layouts"][0]
        layers = {"old": 0, "new": 0}
        for stage in best["placement"]:
            self.assertEqual(len(stage["nodes"]), 1, "a stage that straddles the slow network")
            layers[stage["nodes"][0]] += stage["layers"]
        self.assertEqual(sum(layers.values()), 24)
        self.assertGreater(layers["new"], 1.5 * layers["old"])
        self.assertEqual([stage["first_rank"] for stage in best["placement"]],
                         [i * best["tensor"] * best["data"] for i in range(best["pipeline"])])
        out, _ = self.tercio(*options, "--svg", self.path("mixed.svg"), "--simulate", "10d")
        for part in ("STAGES", "LAYERS OF EACH", "old", "new"):
            self.assertIn(part, out)
        # More of the network between them, and of the old GPUs, only helps.
        faster = self.json(*options, "--what-if", "interconnect.bandwidth=25GB/s", "--what-if", "nodes[0].gpu=a100-80gb")
        self.assertLess(faster["layouts"][0]["predicted"]["step_seconds"], 0.7 * best["predicted"]["step_seconds"])
        _, err = self.tercio(*options, "--scale", "4,8", code=2)
        self.assertIn("--scale: needs nodes of one kind", err)
        self.assertIsNone(self.plan()["layouts"][0]["placement"])

    def test_runs_and_scale(self):
        plan = self.plan("--tokens", "1e9", "--scale", "4,16", "--weak")
        run = plan["run"]
        tokens_per_second = plan["layouts"][0]["predicted"]["tokens_per_second"]
        self.assertAlmostEqual(run["days"], 1e9 / tokens_per_second / 86400, places=6)
        self.assertAlmostEqual(run["cost"], 2 * 24 * 16 * run["days"], places=4)
        self.assertEqual(run["currency"], "EUR")
        self.assertEqual([(point["devices"], point["global_batch"]) for point in plan["scale"]], [(4, 64), (16, 256)])

    def test_a_long_run(self):
        forecast = self.plan("--simulate", "30d", "--tokens", "1e12")["forecast"]
        self.assertEqual((forecast["nodes"], forecast["length_seconds"], forecast["seed"]), (2, 30 * 86400, 1))
        self.assertAlmostEqual(forecast["seconds_to_failure"], 54 * 2048 / 466 * 86400 / 2, places=3)
        self.assertAlmostEqual(sum(forecast["seconds"].values()), 30 * 86400, places=2)
        self.assertAlmostEqual(forecast["goodput"]["mean"], forecast["seconds"]["useful"] / (30 * 86400), places=6)
        self.assertEqual([each["name"] for each in forecast["intervals"]],
                         ["job", "young_1974", "daly_2006", "least_expected_waste", "simulated"])
        self.assertEqual(forecast["intervals"][0]["steps"], 500)
        for each in forecast["intervals"]:
            self.assertLessEqual(abs(each["goodput"] - each["expected_goodput"]), 0.01)
        self.assertGreater(forecast["days"], self.plan("--tokens", "1e12")["run"]["days"])
        keys = [each["key"] for each in forecast["assumed"]]
        self.assertEqual(keys[:4], ["node_mtbf", "detect", "restart", "spare_nodes"])
        self.assertIsNone(self.plan()["forecast"])

    def test_what_faults_cost(self):
        often = ("--simulate", "10d", "--what-if", "faults.node_mtbf=1d", "--what-if", "faults.restart=20m")
        forecast = self.plan(*often)["forecast"]
        self.assertEqual(forecast, self.plan(*often)["forecast"])
        self.assertNotEqual(forecast["goodput"], self.plan(*often, "--seed", "2")["forecast"]["goodput"])
        self.assertNotIn("restart", [each["key"] for each in forecast["assumed"]])
        self.assertLess(forecast["goodput"]["mean"], 0.98)
        quicker = self.plan(*often, "--what-if", "faults.restart=1m")["forecast"]
        self.assertGreater(quicker["goodput"]["mean"], forecast["goodput"]["mean"] + 0.01)
        waiting = self.plan(*often, "--what-if", "faults.spare_nodes=0", "--what-if", "faults.replace=5h")["forecast"]
        self.assertLess(waiting["goodput"]["mean"], forecast["goodput"]["mean"] - 0.1)
        jitter = self.plan(*often, "--what-if", "faults.pass_jitter=0.1")["forecast"]
        self.assertGreater(jitter["seconds"]["slower"], 0.01 * 864000)
        seldom = self.plan(*often, "--set", "checkpoint.every_seconds=6h", "--set", "checkpoint.every_steps=0")["forecast"]
        self.assertEqual(seldom["intervals"][0]["seconds"], 6 * 3600)
        self.assertLess(seldom["goodput"]["mean"], forecast["intervals"][2]["goodput"])
        out, _ = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), *often)
        for part in ("RUN OF 10.0 d", "WHERE ITS TIME GOES", "Daly 2006", "best simulated", "ASSUMED (faults)"):
            self.assertIn(part, out)
        _, err = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), "--simulate", "a month", code=2)
        _, alone = self.tercio("plan", self.path("job.yaml"), "--simulate", "30d", code=2)
        self.assertIn("--simulate has no effect without --cluster CLUSTER.yaml; add it, or leave --simulate out", alone)
        _, alone = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), "--seed", "3", code=2)
        self.assertIn("--seed has no effect without --simulate DURATION; add it, or leave --seed out", alone)
        self.assertIn("--simulate a month: is no length of a run; write a duration such as 12h or 30d", err)

    def test_timeline_of_a_step(self):
        svg, trace = self.path("step.svg"), self.path("step.json")
        plan = self.plan("--explain", "2x4x2,micro_batch=2,recompute=full", "--svg", svg, "--timeline", trace)
        layout = plan["layouts"][0]
        with open(svg, encoding="utf-8") as file:
            text = file.read()
        root = xml.etree.ElementTree.fromstring(text)
        titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
        for kind in ("forward", "recomputation", "backward"):
            passes = [title for title in titles if f": {kind}, " in title]
            self.assertEqual(len(passes), 4 * layout["virtual_pipeline"] * 64 // (2 * 2))
            self.assertEqual(len({title.split(":")[0] for title in passes}), len(passes))
        self.assertIn("prefers-color-scheme:dark", text)
        with open(trace, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        done = [event for event in events if event["ph"] == "X"]
        self.assertEqual({event["pid"] for event in done}, {0, 4, 8, 12})
        self.assertLessEqual({event["name"] for event in done},
                             {"forward", "backward", "wait activation", "wait gradient", "finish reduction", "optimizer"})
        # The host's part, which no event of the trainer has, is 10 ms.
        end = max(event["ts"] + event["dur"] for event in done) / 1e6
        self.assertAlmostEqual(end + layout["time"]["other"], layout["predicted"]["step_seconds"], delta=2e-3 * end)

    def test_timelines_that_cannot_be_written(self):
        for option in ("--svg", "--timeline"):
            out, err = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), option,
                                   self.path("none/step"), code=7)
            self.assertEqual(out, "")
            self.assertIn(f"{option}: cannot", err)
            self.assertIn("name a file in a folder that exists", err)

    def test_what_fits_nowhere(self):
        out, err = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), "-o", "json",
                               "--set", "model={architecture: gpt2, layers: 96, hidden: 12288, heads: 96, context: 2048, vocab_size: 51200}",
                               "--what-if", "nodes=1", code=2)
        self.assertIn('"chosen":null', out.replace(" ", ""))
        self.assertIn("does not fit in memory: needs", err)
        # What is named there fits.
        more, larger, host = re.search(r"it would fit on (\d+) GPUs \(--what-if nodes=\d+\), or on GPUs with (\d+) GB "
                                       r"\(--what-if gpu.memory=\d+GB --what-if host_memory=(\d+)GB\)", err).groups()
        self.assertGreater(int(more), 8)
        # The copy of a checkpoint has no room on the hosts that are assumed.
        self.assertGreater(int(host), 1024)
        model = "model={architecture: gpt2, layers: 96, hidden: 12288, heads: 96, context: 2048, vocab_size: 51200}"
        for changes in ([f"nodes={int(more) // 8}"], [f"gpu.memory={larger}GB", f"host_memory={host}GB"]):
            what_if = [word for change in changes for word in ("--what-if", change)]
            self.assertIsNotNone(self.plan("--set", model, "--what-if", "nodes=1", *what_if)["chosen"])

    def test_state_on_the_host(self):
        one = ("--what-if", "nodes=1", "--what-if", "gpus=1", "--what-if", "gpu=v100-16", "--set", "training.global_batch=8",
               "--set", "parallelism=auto")
        best = self.plan(*one)["layouts"][0]
        self.assertIsNone(best["rejected"])
        self.assertGreater(best["offload_share"], 0)
        self.assertGreater(best["time"]["offload"], 0)
        self.assertLessEqual(best["host_bytes"], best["host_bytes_available"])
        slower = self.plan(*one, "--what-if", "host_link_bandwidth=5GB/s")["layouts"][0]
        self.assertGreater(slower["predicted"]["step_seconds"], best["predicted"]["step_seconds"])
        _, err = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), *one,
                             "--set", "offload.optimizer=none", code=2)
        self.assertIn("does not fit in memory: needs", err)

    def test_the_largest_model_of_each_method(self):
        largest = {(each["method"], each["layout"]["recompute"]): each["model"]["parameters"]
                   for each in self.plan("--largest")["largest"]}
        self.assertGreater(largest["data parallel, zero_stage 3", "none"], largest["data parallel", "none"])
        self.assertGreater(largest["tensor and pipeline parallel", "full"], largest["tensor parallel within a node", "full"])
        out, _ = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), "--largest")
        self.assertIn("LARGEST MODEL WITH", out)
        _, err = self.tercio("plan", self.path("job.yaml"), "--largest", code=2)
        self.assertIn("--largest has no effect without --cluster CLUSTER.yaml", err)

    def test_faults_of_the_file(self):
        with open(self.path("cluster.yaml"), "w", encoding="utf-8") as file:
            file.write("nodes: [{count: 2, gpu: a100-81gb}]\n")
        out, err = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), code=2)
        self.assertEqual(out, "")
        with open(self.path("cluster.yaml"), "a", encoding="utf-8") as file:
            file.write("faults: {restart: soon}\n")
        _, more = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("cluster.yaml"), code=2)
        self.assertIn("cluster.yaml:2: faults.restart: is 'soon'; expected a time such as 30s", more)
        for fault in ("cluster.yaml:1: nodes[0].gpus: missing", "no accelerator is named \"a100-81gb\"", "nics: missing"):
            self.assertIn(fault, err)


if __name__ == "__main__":
    python_cases.main()

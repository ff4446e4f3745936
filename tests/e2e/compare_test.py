"""compare: an experiment from its file to the page in a real browser, interrupted, resumed, extended."""

import csv
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from browser import look, screenshot  # noqa: E402
from harness import BIN, SECONDS, ClusterTest, TercioTest, wait_for  # noqa: E402
from terminal import Terminal  # noqa: E402

EXPERIMENT = """
name: one against many
job: job.yaml
variants:
  - {name: one device}
  - {name: data 2,     set: {parallelism: {data: 2}}}
  - {name: pipeline 2, set: {parallelism: {pipeline: 2}}}
  - {name: tensor 2,   set: {parallelism: {tensor: 2}}}
baselines:
  - {name: other software, results: baseline.json}
cost: {per_device_hour: 2.50, currency: EUR}
"""

BASELINE = {
    "format": "tercio-results-1",
    "methods": [{
        "name": "one process", "kind": "baseline", "software": "another 1.0", "state": "succeeded", "error": None, "job_id": None,
        "layout": {"tensor": 1, "pipeline": 1, "data": 1, "ranks": 1}, "device": "cpu", "parameters": 50000, "global_batch": 8,
        "epochs": None, "steps": 60, "samples_per_epoch": None, "seconds": 3.0, "epoch_seconds": [],
        "step_seconds": {"median": 0.05, "p10": 0.04, "p90": 0.06}, "micro_batch_seconds": None, "samples_per_second": 160.0,
        "tokens_per_second": 5120.0, "cores_used": None, "device_utilization": None,
        "memory": {"planned_bytes": None, "used_bytes": None, "resident_bytes": 100 << 20}, "communication_bytes": None,
        "wait_share": None, "history": [{"step": step, "loss": 3 - step / 60, "step_seconds": 0.05} for step in range(1, 61)],
        "evaluation": {"validation": None, "test": None, "best_step": None}, "cost": None, "largest_model": None}]}

SECTIONS = ["Methods side by side", "Speed and cost", "Memory and communication", "Losses", "Classification", "Runs",
            "Planned and measured", "Time by phase", "Memory of each rank", "Where the time went", "Faults", "Environment",
            "Configuration"]


def flat(value, path=""):
    """The leaves of the JSON of a method, as the columns of results.csv are named."""
    if not isinstance(value, dict):
        return {path: value}
    leaves = {}
    for key, part in value.items():
        if path or key != "history":
            leaves.update(flat(part, f"{path}.{key}" if path else key))
    return leaves


class CompareTest(TercioTest):

    def setUp(self):
        super().setUp()
        self.results = self.path("results")

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def experiment(self, *variants, more=""):
        self.write("experiment.yaml", "job: job.yaml\nvariants:\n" + "".join(f"  - {variant}\n" for variant in variants) + more)

    def shorten(self, steps):
        """Fewer steps for all variants."""
        with open(self.path("job.yaml"), encoding="utf-8") as file:
            text = file.read()
        self.write("job.yaml", text.replace("steps: 60", f"steps: {steps}"))

    def arguments(self, *more):
        return ["compare", self.path("experiment.yaml"), "--output", self.results, *more]

    def compare(self, *more, code=0):
        """The methods by name, and what was said."""
        out, err = self.tercio(*self.arguments("-o", "json", *more), code=code)
        told = json.loads(out)
        self.assertEqual((told["directory"], told["page"]), (self.results, os.path.join(self.results, "index.html")))
        return {method["name"]: method for method in told["methods"]}, err

    def read(self, name):
        with open(os.path.join(self.results, name), encoding="utf-8") as file:
            return file.read()

    def written(self):
        return json.loads(self.read("results.json"))

    def runs(self):
        """Job ids by variant, as recorded."""
        return [(run["variant"], run["job"]) for run in json.loads(self.read("runs.json"))["runs"]]

    def csv_is_the_json(self):
        with open(os.path.join(self.results, "results.csv"), encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        methods = self.written()["methods"]
        self.assertEqual(len(rows), len(methods))
        for row, method in zip(rows, methods):
            leaves = flat(method)
            for column, field in row.items():
                value = leaves.get(column)
                self.assertEqual(field, "" if value is None else value if isinstance(value, str) else field)
                if value is not None and not isinstance(value, str):
                    self.assertEqual(json.loads(field), value, column)
            # A group that is null has no column where others have its parts.
            missing = [key for key, value in leaves.items() if key not in row and value is not None]
            self.assertEqual(missing, [])


class Experiments(CompareTest):

    def test_four_layouts_and_a_baseline(self):
        self.write("experiment.yaml", EXPERIMENT)
        self.write("baseline.json", json.dumps(BASELINE))
        methods, err = self.compare()
        for title in ("1/4 one device", "2/4 data 2", "3/4 pipeline 2", "4/4 tensor 2"):
            self.assertRegex(err, rf"(?m)^{title}  succeeded  step 60/60")
        self.assertEqual(list(methods), ["one device", "data 2", "pipeline 2", "tensor 2", "other software"])
        self.losses()
        self.numbers(methods)
        self.csv_is_the_json()
        self.figures()
        self.page()
        self.nothing_runs_twice(methods)

    def losses(self):
        histories = {method["name"]: [step["loss"] for step in method["history"]] for method in self.written()["methods"]}
        self.assertEqual(len(histories["one device"]), 60)
        for name in ("data 2", "pipeline 2"):
            self.assertEqual(histories[name], histories["one device"], name)
        for loss, other in zip(histories["tensor 2"], histories["one device"]):
            self.assertAlmostEqual(loss, other, delta=1e-4)

    def numbers(self, methods):
        one = methods["one device"]
        self.assertEqual(one["layout"], {"tensor": 1, "pipeline": 1, "data": 1, "ranks": 1})
        self.assertEqual(one["communication_bytes"], {"tensor": 0, "pipeline": 0, "data": 0, "world": 0})
        self.assertEqual((one["speed_up"], one["efficiency"]), (1, 1))
        for name, group in (("data 2", "data"), ("pipeline 2", "pipeline"), ("tensor 2", "tensor")):
            method = methods[name]
            self.assertEqual((method["state"], method["layout"]["ranks"], method["layout"][group]), ("succeeded", 2, 2))
            sent = method["communication_bytes"]
            self.assertGreater(min(sent[group], sent["world"]), 0)
            self.assertEqual([kind for kind in ("tensor", "pipeline", "data") if sent[kind] > 0], [group])
            self.assertAlmostEqual(method["speed_up"], method["samples_per_second"] / one["samples_per_second"])
            self.assertAlmostEqual(method["efficiency"], method["speed_up"] / 2)
            self.assertAlmostEqual(method["cost"], 2 * method["seconds"] / 3600 * 2.5)
            self.assertGreater(method["wait_share"], 0)
        # 4 micro-batches of 2 x 32 rows of 32 floats go to the other stage and come back, in each step and each evaluation.
        flow = 8 * 32 * 32 * 4
        self.assertGreaterEqual(methods["pipeline 2"]["communication_bytes"]["pipeline"], 60 * 2 * flow)
        for name in ("one device", "data 2", "pipeline 2", "tensor 2"):
            method = methods[name]
            self.assertGreater(method["memory"]["planned_bytes"], 0)
            self.assertGreaterEqual(method["memory"]["planned_bytes"], method["memory"]["used_bytes"])
            self.assertGreater(method["largest_model"]["parameters"], method["parameters"])
            self.assertAlmostEqual(method["samples_per_second"], 8 / method["step_seconds"]["median"])
        # What is cut fits larger models; a copy for each rank does not.
        largest = {name: method["largest_model"]["parameters"] for name, method in methods.items() if method["largest_model"]}
        self.assertGreater(largest["pipeline 2"], largest["data 2"])
        baseline = methods["other software"]
        self.assertEqual((baseline["kind"], baseline["software"]), ("baseline", "another 1.0"))
        self.assertAlmostEqual(baseline["speed_up"], 160 / one["samples_per_second"])

    def figures(self):
        names = sorted(name for name in os.listdir(self.results) if name.endswith(".svg"))
        self.assertEqual(names, ["communication.svg", "cost.svg", "efficiency.svg", "loss-by-time.svg", "loss.svg", "memory.svg",
                                 "steps.svg", "throughput.svg", "validation.svg", "waiting.svg"])
        for name in names:
            root = xml.etree.ElementTree.parse(os.path.join(self.results, name)).getroot()
            self.assertTrue(root.tag.endswith("svg"), name)

    def page(self):
        page = os.path.join(self.results, "index.html")
        for width in (1280, 700, 390):
            found, console = look(self.directory, page, width, "tercio-compare")
            self.assertEqual((console, found["resources"]), ([], []))
            self.assertEqual((found["wide"], found["flat"], found["outside"]), ([], 0, 0), f"{width} pixels")
            self.assertLessEqual(found["scroll"], width)
        self.assertEqual(found["headings"], SECTIONS)
        # Ten figures of the methods, and a chart of phases and one of memory for each variant.
        self.assertGreaterEqual(found["svgs"], 18)
        self.assertIn("Comparison: one against many", found["title"])
        data = json.loads(found["data"])
        self.assertEqual([method["name"] for method in data["methods"]], [method["name"] for method in self.written()["methods"]])
        self.assertTrue(screenshot(self.directory, page, self.path("page.png")).startswith(b"\x89PNG"))

    def nothing_runs_twice(self, before):
        runs = self.runs()
        again, err = self.compare()
        self.assertEqual(self.runs(), runs)
        for method in ("one device", "data 2", "pipeline 2", "tensor 2"):
            self.assertEqual(again[method], before[method])
        self.assertIn("4/4 tensor 2: already there", err)
        # Another name runs nothing, and a further variant runs alone.
        self.experiment("{name: alone}", "{name: data 2, set: {parallelism: {data: 2}}}",
                        "{name: bf16, set: {training: {precision: bf16}}}")
        changed, err = self.compare()
        self.assertEqual(changed["alone"]["job_id"], before["one device"]["job_id"])
        self.assertEqual([run[0] for run in self.runs()], [run[0] for run in runs] + ["bf16"])
        self.assertEqual((changed["bf16"]["precision"], changed["alone"]["precision"]), ("bf16", "fp32"))
        # Nothing has a price any more.
        self.assertFalse(os.path.exists(os.path.join(self.results, "cost.svg")))

    def test_one_that_fails(self):
        self.shorten(20)
        self.experiment("{name: bad, set: {training: {optimizer: {learning_rate: 1e30}, clip_grad_norm: 0}}}", "{name: good}")
        methods, err = self.compare(code=1)
        self.assertEqual((methods["bad"]["state"], methods["good"]["state"]), ("failed", "succeeded"))
        self.assertRegex(methods["bad"]["error"], "is nan|not finite")
        self.assertIn("error: 1/2 bad: failed: ", err)
        self.assertIn("bad: failed: ", self.read("index.html"))
        self.csv_is_the_json()
        # It is run again, and nothing else is.
        good = methods["good"]["job_id"]
        methods, err = self.compare(code=1)
        self.assertEqual(methods["good"]["job_id"], good)
        self.assertIn("2/2 good: already there", err)
        self.assertEqual([run[0] for run in self.runs()], ["bad", "good"])
        out, _ = self.tercio(*self.arguments(), code=1)
        self.assertRegex(out, r"(?m)^bad  +failed  ")
        self.assertIn(f"page {os.path.join(self.results, 'index.html')}", out)

    def test_other_models_are_refused(self):
        self.shorten(10)
        self.experiment("{name: large}", "{name: small, set: {model: {layers: 2}}}")
        _, err = self.tercio(*self.arguments(), code=2)
        self.assertIn("experiment.yaml: variant 'small': model.layers is 2, but 4 in 'large'", err)
        self.assertIn("--allow-different", err)
        self.assertFalse(os.path.exists(self.results))
        methods, _ = self.compare("--allow-different")
        self.assertLess(methods["small"]["parameters"], methods["large"]["parameters"])
        self.assertEqual(self.written()["different"]["model.layers"], {"large": "4", "small": "2"})
        self.assertIn("What the variants train differs", self.read("index.html"))

    def test_mistakes_are_found_before_anything_starts(self):
        for text, expected, code in (
                ("job: job.yaml\nvariants:\n  - {nam: a}\n", "experiment.yaml:3: variants[0].nam: unknown key; did you mean 'name'?", 2),
                ("job: none.yaml\nvariants: [{name: a}]\n", "none.yaml", 3),
                ("job: job.yaml\nvariants: [{name: a, set: {parallelism: {tensor: 3}}}]\n", "variant 'a': impossible layout: tensor 3", 2),
                ("job: job.yaml\nvariants: [{name: a}]\nbaselines: [{name: b, results: b.json}]\n", "b.json: methods: expected", 2),
                ("job: job.yaml\nvariants: [{name: a, set: {resources: {device: cuda}}}]\n", "there is no NVIDIA driver", 2)):
            self.write("experiment.yaml", text)
            self.write("b.json", json.dumps({"format": "tercio-results-1", "methods": []}))
            out, err = self.tercio(*self.arguments(), code=code)
            self.assertEqual(out, "")
            self.assertIn(expected, err)
            self.assertFalse(os.path.exists(self.results))
        # A fault of the data is one of all variants.
        self.experiment("{name: a}", "{name: b, set: {parallelism: {data: 2}}}")
        os.remove(self.path("corpus.txt"))
        _, err = self.tercio(*self.arguments(), code=2)
        self.assertIn("corpus.txt", err)
        self.assertFalse(os.path.exists(os.path.join(self.results, "index.html")))
        # A directory of something else stays as it is.
        self.write("results/runs.json", "{}")
        _, err = self.tercio(*self.arguments(), code=7)
        self.assertIn("runs.json: not a list of runs", err)


class Interrupted(CompareTest):

    def steps_of(self, variant):
        """Steps that the job of this variant has made; 0 also while one pair has ended and the next is not there yet."""
        child = self.start("list", "--state-dir", os.path.join(self.results, "state"), "-o", "json")
        out, err = child.communicate(timeout=SECONDS)
        if child.returncode == 5:  # the coordinator cannot be reached
            return 0
        self.assertEqual(child.returncode, 0, err)
        jobs = json.loads(out)
        return max([job["step"] for job in jobs if job["name"] == f"small: {variant}"], default=0)

    def stop(self, variant, number):
        """Starts the command, and stops it while the variant runs."""
        child = self.start(*self.arguments())
        wait_for(lambda: self.steps_of(variant) > 20, f"steps of {variant}")
        child.send_signal(number)
        _, err = child.communicate(timeout=SECONDS)
        self.assertEqual(child.returncode, {signal.SIGINT: 130, signal.SIGTERM: 143}[number], err)
        self.assertIn("saving a checkpoint and stopping", err)
        self.assertIn("to resume: give the same command again", err)
        return {method["name"]: method for method in self.written()["methods"]}

    def test_what_is_done_is_kept(self):
        self.shorten(1000)
        self.experiment("{name: one}", "{name: two, set: {parallelism: {data: 2}}}")
        methods = self.stop("one", signal.SIGINT)
        self.assertEqual([methods[name]["state"] for name in ("one", "two")], ["cancelled", "not run"])
        self.assertIn("one: cancelled", self.read("index.html"))
        first = methods["one"]["job_id"]
        methods = self.stop("two", signal.SIGTERM)
        self.assertEqual([methods[name]["state"] for name in ("one", "two")], ["succeeded", "cancelled"])
        # The job that was stopped has continued.
        self.assertEqual(methods["one"]["job_id"], first)
        self.assertEqual([step["step"] for step in methods["one"]["history"]], list(range(1, 1001)))
        self.assertIn(2, {step["attempt"] for step in methods["one"]["history"]})
        second = methods["two"]["job_id"]
        methods, _ = self.compare()
        self.assertEqual([methods[name]["job_id"] for name in ("one", "two")], [first, second])
        self.assertEqual(self.runs(), [("one", first), ("two", second)])
        losses = {method["name"]: [step["loss"] for step in method["history"]] for method in self.written()["methods"]}
        self.assertEqual(losses["one"], losses["two"])

    def test_a_terminal_shows_one_line_and_a_second_command_waits_for_none(self):
        self.shorten(1000)
        self.experiment("{name: alone}")
        terminal = Terminal([os.path.join(BIN, "tercio"), *self.arguments()], {**self.environment(), "TERM": "xterm"})
        self.addCleanup(terminal.close)
        wait_for(lambda: "\r\x1b[K1/1 alone  running  step " in terminal.read(), "progress")
        _, err = self.tercio(*self.arguments(), code=7)
        self.assertIn("another tercio compare runs in", err)
        os.kill(terminal.process.pid, signal.SIGINT)
        wait_for(lambda: terminal.read() and terminal.process.poll() is not None, "the end")
        self.assertEqual(terminal.process.returncode, 130)


class OnACluster(CompareTest, ClusterTest):

    def test_repeated_runs_and_their_medians(self):
        _, ready = self.coordinator("--heartbeat-interval", "0.5")
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 2)
        self.shorten(15)
        self.experiment("{name: one}", "{name: two, set: {parallelism: {pipeline: 2}}}")
        reach = ["--coordinator", self.address]
        methods, err = self.compare("--repeat", "2", *reach)
        self.assertIn("2/2 two, run 2 of 2  succeeded", err)
        self.assertEqual([run[0] for run in self.runs()], ["one", "two", "one", "two"])
        self.assertEqual(sorted(job["id"] for job in self.json("list", *reach)), sorted(run[1] for run in self.runs()))
        self.assertFalse(os.path.exists(os.path.join(self.results, "state")))
        for method in methods.values():
            seconds = sorted(run["step_seconds"] for run in method["runs"])
            self.assertEqual(len(seconds), 2)
            self.assertAlmostEqual(method["step_seconds"]["median"], sum(seconds) / 2)
        # A third run of each, and no more; jobs that were deleted are run again.
        deleted = methods["one"]["runs"][0]["job_id"]
        self.tercio("delete", deleted, *reach)
        methods, err = self.compare("--repeat", "3", *reach)
        self.assertEqual(len(self.runs()), 6)
        self.assertNotIn(deleted, [run[1] for run in self.runs()])
        self.assertEqual(err.count("already there"), 3)
        self.assertEqual([len(method["runs"]) for method in methods.values()], [3, 3])
        self.tercio(*self.arguments("--coordinator", "127.0.0.1:1"), code=5)


if __name__ == "__main__":
    python_cases.main()

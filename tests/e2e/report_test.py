"""plot, diff and report on real jobs, the page in a real browser, and the event files in the real TensorBoard."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import xml.etree.ElementTree

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from browser import look, screenshot  # noqa: E402
from harness import ROOT, SECONDS, ClusterTest, TercioTest, layout, wait_for  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</script><script>alert(1)</script>'\"&"

# Prints what TensorBoard's own reader shows of a directory: {tag: [[step, value], ...]}, and the texts.
READER = """
import json, sys
from tensorboard.backend.event_processing import event_accumulator
events = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={'scalars': 0, 'tensors': 0})
events.Reload()
scalars = {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()['scalars']}
texts = {tag: [e.tensor_proto.string_val[0].decode() for e in events.Tensors(tag)] for tag in events.Tags()['tensors']}
print(json.dumps({'scalars': scalars, 'texts': texts}))
"""


def tensorboard(directory):
    python = subprocess.run([os.path.join(ROOT, "tests", "python", "environment.sh")], capture_output=True, text=True,
                            timeout=5 * SECONDS, check=True).stdout.strip()
    done = subprocess.run([python, "-c", READER, directory], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def single(value):
    """As a float of 32 bits, which is what event files hold."""
    return struct.unpack("f", struct.pack("f", value))[0]


class Reports(TercioTest):

    def verb(self, *arguments, **options):
        return self.tercio(*arguments, "--state-dir", self.state, **options)

    def get(self, job):
        return self.json("get", job, "--state-dir", self.state)

    def two_jobs(self):
        one = self.run_job(self.state, "--set", "name=one", "--set", "training.steps=40")
        four = self.run_job(self.state, "--set", "name=four", "--set", "training.steps=40", *layout(2, 1, 2))
        return one["id"], four["id"]

    def curves(self, svg):
        return [path for path in svg.iter(SVG + "path") if "l c" in path.get("class") or "l w c" in path.get("class")]

    def test_two_jobs_beside_each_other(self):
        one, four = self.two_jobs()
        self.plots(one, four)
        self.differences(one, four)
        self.report(one, four)

    def plots(self, one, four):
        loss = self.path("loss.svg")
        told = json.loads(self.verb("plot", one, four, "--output", loss, "--metric", "loss,throughput,memory,grad_norm,learning_rate",
                                    "-o", "json")[0])
        self.assertEqual(told, {"path": loss, "jobs": [one, four], "bytes": os.path.getsize(loss)})
        svg = xml.etree.ElementTree.parse(loss).getroot()
        self.assertEqual(svg.tag, SVG + "svg")
        titles = [span.text for span in svg.iter(SVG + "tspan") if span.get("class") == "h"]
        self.assertEqual(titles, ["Loss", "Throughput", "Memory of rank 0", "Gradient norm", "Learning rate"])
        # Five panels with two jobs, two curves of validation losses, and the legend.
        self.assertGreaterEqual(len(self.curves(svg)), 12)
        # A file of one cluster beside a job of another.
        exported = self.path("exported.jsonl")
        with open(exported, "w", encoding="utf-8") as file:
            file.write(self.verb("history", four, "-o", "jsonl")[0])
        out = self.verb("plot", exported, one, "--output", "-", "--x", "tokens", "--smooth", "5", "--log")[0]
        texts = [text.text for text in xml.etree.ElementTree.fromstring(out).iter(SVG + "text")]
        self.assertIn("exported", texts)
        self.assertIn("tokens", texts)
        alone, _ = self.tercio("plot", exported, "--output", "-", "--coordinator", "127.0.0.1:1")
        self.assertTrue(alone.startswith("<svg"))
        # Nothing is written where something is wrong.
        for arguments, code in ((("nobody",), 3), ((one, "--metric", "lost"), 2), ((one, "--x", "day"), 2), ((one, "--smooth", "0"), 2)):
            out, _ = self.verb("plot", *arguments, "--output", self.path("none.svg"), code=code)
            self.assertEqual(out, "")
        self.assertFalse(os.path.exists(self.path("none.svg")))
        self.verb("plot", one, "--output", self.path("no", "such", "folder.svg"), code=7)
        os.symlink("/dev/null", self.path("device.svg"))
        _, err = self.verb("plot", one, "--output", self.path("device.svg"), code=7)
        self.assertIn("not a regular file", err)
        with open(exported, "a", encoding="utf-8") as file:
            file.write("not json\n")
        _, err = self.tercio("plot", exported, "--output", "-", code=2)
        self.assertIn("exported.jsonl:41", err)

    def differences(self, one, four):
        told = json.loads(self.verb("diff", one, four, "-o", "json")[0])
        self.assertEqual(told["configuration"]["resources.ranks"], {"a": "1", "b": "4"})
        self.assertNotIn("training.steps", told["configuration"])
        self.assertEqual(told["plan"]["tensor"], {"a": "1", "b": "2"})
        losses = [self.history(job, self.state)[-1]["loss"] for job in (one, four)]
        final = told["results"]["final_loss"]
        self.assertEqual([final["a"], final["b"]], losses)
        self.assertEqual(final["ratio"], losses[1] / losses[0])
        out, _ = self.verb("diff", one, four)
        self.assertIn("CONFIGURATION", out)
        same = json.loads(self.verb("diff", one, one, "-o", "json")[0])
        self.assertEqual((same["configuration"], same["plan"]), ({}, {}))
        self.assertEqual(same["comparison"]["steps_with_equal_losses"], 40)
        self.verb("diff", one, "nobody", code=3)
        self.verb("diff", one, code=2)

    def report(self, one, four):
        page = self.path("report.html")
        told = json.loads(self.verb("report", one, four, "--output", page, "-o", "json")[0])
        self.assertEqual(told, {"path": page, "jobs": [one, four], "bytes": os.path.getsize(page)})
        for width in (1280, 700, 390):
            found, console = look(self.directory, page, width)
            self.assertEqual(console, [])
            self.assertEqual(found["resources"], [])
            self.assertEqual((found["wide"], found["flat"], found["outside"]), ([], 0, 0), f"{width} pixels")
            self.assertLessEqual(found["scroll"], width)
        self.assertGreaterEqual(found["svgs"], 9)
        self.assertGreaterEqual(found["tables"], 5)
        data = json.loads(found["data"])
        for job, shown in zip((one, four), data["jobs"]):
            steps, status = self.history(job, self.state), self.get(job)
            numbers = shown["numbers"]
            self.assertEqual((shown["id"], shown["state"]), (job, "succeeded"))
            self.assertEqual(numbers["final_loss"], steps[-1]["loss"])
            self.assertEqual(numbers["validation_loss"], status["validation_loss"])
            self.assertEqual(numbers["tokens"], status["tokens"])
            seconds = sorted(step["step_seconds"] for step in steps[1:])
            self.assertEqual(numbers["step_seconds"]["median"], seconds[len(seconds) // 2])
            self.assertAlmostEqual(numbers["goodput"], status["goodput"]["productive"] / status["goodput"]["total"])
            self.assertGreater(numbers["peak_bytes_total"], 0)
        self.assertEqual([job["numbers"]["ranks"] for job in data["jobs"]], [1, 4])
        compared, = data["comparisons"]
        first, second = ([step["loss"] for step in self.history(job, self.state)] for job in (one, four))
        self.assertEqual(compared["steps_with_equal_losses"], sum(a == b for a, b in zip(first, second)))
        self.assertEqual(compared["largest_loss_difference"], max(abs(a - b) for a, b in zip(first, second)))
        self.assertTrue(screenshot(self.directory, page, self.path("report.png")).startswith(b"\x89PNG"))

    def test_jobs_that_did_not_end_well(self):
        # A name that would be a script, a cause of failure that is one, and no step at all.
        failed = self.run_job(self.state, "--set", f"name={json.dumps(HOSTILE)}", "--set", "training.optimizer.learning_rate=1e30",
                              "--set", "training.clip_grad_norm=0", code=1)
        self.assertEqual(failed["state"], "failed")
        page = self.path("failed.html")
        self.verb("report", failed["id"], "--output", page)
        with open(page, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(re.findall("<script[^>]*>", text), ['<script type="application/json" id="tercio-report">'])
        found, console = look(self.directory, page)
        self.assertEqual((console, found["wide"], found["outside"]), ([], [], 0))
        self.assertIn(HOSTILE, found["title"])
        self.assertEqual(json.loads(found["data"])["jobs"][0]["name"], HOSTILE)
        out = self.verb("plot", failed["id"], failed["id"], "--output", "-")[0]
        xml.etree.ElementTree.fromstring(out)


class Running(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator("--heartbeat-interval", "0.5")
        self.address = ready["coordinator"]

    def page(self, job):
        path = self.path("page.html")
        self.tercio(*self.reach("report", job, "--output", path))
        found, console = look(self.directory, path)
        self.assertEqual((console, found["wide"]), ([], []))
        with open(path, encoding="utf-8") as file:
            return file.read(), json.loads(found["data"])["jobs"][0]

    def test_before_and_after_a_fault(self):
        """One job: while it waits, while it trains, after a rank was killed. What TensorBoard shows of it has no step twice."""
        events = self.path("events")
        job = self.submit("--set", "training.steps=200", "--set", "checkpoint.every_steps=100", "--set", "tensorboard=events", *layout(1, 1, 2))
        text, shown = self.page(job)
        self.assertIn("is queued", text)
        self.assertEqual(shown["numbers"]["steps"], 0)
        self.assertIsNone(shown["numbers"]["final_loss"])
        self.agent(self.address, "one", 2)
        # At least ten steps of the first attempt come after its last checkpoint.
        self.after_step(job, 110)
        os.kill(self.trainers(job)[0], signal.SIGKILL)
        _, shown = self.page(job)
        self.assertGreaterEqual(shown["numbers"]["steps"], 100)
        status = self.json(*self.reach("wait", job))
        self.assertEqual((status["state"], status["restarts"]), ("succeeded", 1))
        text, shown = self.page(job)
        self.assertIn("attempt_broken", text)
        self.assertEqual(shown["numbers"]["restarts"], 1)
        every = self.tercio(*self.reach("history", job, "--all-attempts", "-o", "jsonl"))[0].splitlines()
        self.assertEqual(shown["numbers"]["lost_steps"], len(every) - 200)
        self.assertGreaterEqual(len(every), 210)
        self.events_are(events, self.steps(job), job)

    def events_are(self, directory, steps, job):
        read = tensorboard(directory)
        tags = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/learning_rate": "learning_rate",
                "train/tokens": "tokens", "speed/step_seconds": "step_seconds"}
        for tag, key in tags.items():
            self.assertEqual(read["scalars"][tag], [[step["step"], single(step[key])] for step in steps], tag)
        self.assertEqual(read["scalars"]["validation/loss"], [[step["step"], single(step["validation_loss"])]
                                                              for step in steps if step["validation_loss"] is not None])
        for tag in ("speed/tokens_per_second", "memory/used_bytes", "memory/resident_bytes"):
            self.assertEqual(len(read["scalars"][tag]), len(steps), tag)
        self.assertIn('"global_batch": "8"', read["texts"]["configuration"][0])
        files = [name for name in os.listdir(directory) if name.startswith("events.out.tfevents.")]
        self.assertEqual(len(files), 2)
        with open(os.path.join(directory, "tercio-job"), encoding="utf-8") as file:
            self.assertEqual(file.read(), job)


class Unwritable(TercioTest):

    def test_training_goes_on(self):
        with open(self.path("events"), "w", encoding="utf-8") as file:
            file.write("a file is no directory")
        job = self.run_job(self.state, "--set", "tensorboard=events/here", "--set", "training.steps=10")
        self.assertEqual((job["state"], job["step"]), ("succeeded", 10))
        out, _ = self.tercio("logs", job["id"], "--state-dir", self.state)
        warnings = [line for line in out.splitlines() if "tensorboard" in line]
        self.assertEqual(len(warnings), 1, out)
        self.assertIn("training continues", warnings[0])


if __name__ == "__main__":
    python_cases.main()

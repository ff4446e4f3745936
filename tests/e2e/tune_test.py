"""`tercio tune`: layouts that are tried on this machine, and predictions beside what was measured."""

import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import TercioTest, wait_for  # noqa: E402


class Tune(TercioTest):

    def setUp(self):
        super().setUp()
        self.result = self.path("tuned")

    def arguments(self, *more):
        return ["tune", self.path("job.yaml"), "--output", self.result, "-o", "json", "--steps", "4", "--set", "parallelism=auto",
                "--set", "resources.ranks=2", "--set", "training.global_batch=8", *more]

    def trials(self):
        try:
            with open(os.path.join(self.result, "trials.json"), encoding="utf-8") as file:
                return json.load(file)["trials"]
        except FileNotFoundError:
            return {}

    def test_the_fastest_is_written_and_nothing_runs_twice(self):
        out, err = self.tercio(*self.arguments("--budget", "10m"))
        told = json.loads(out)
        self.assertIn("trial 1: ", err)
        seconds = [trial["measured"]["step_seconds"] for trial in told["trials"]]
        self.assertGreaterEqual(len(seconds), 2)
        self.assertLessEqual(len(seconds), told["candidates"])
        fastest = min(told["trials"], key=lambda trial: trial["measured"]["step_seconds"])
        for degree in ("tensor", "pipeline", "data", "micro_batch"):
            self.assertEqual(told["layout"][degree], fastest[degree])
        self.assertGreater(told["correction"]["compute"], 0)
        self.assertEqual(len(self.trials()), len(seconds))
        # The job that results runs, in that layout, for its own number of steps.
        plan = self.json("plan", told["job_file"])
        self.assertEqual(plan["layouts"][plan["chosen"]]["micro_batch"], fastest["micro_batch"])
        self.assertEqual(len(plan["layouts"]), 1)
        done = self.json("run", told["job_file"], "--state-dir", self.state, "--set", "training.steps=3")
        self.assertEqual(done["state"], "succeeded")
        # Everything is known: the same command runs nothing.
        again, err = self.tercio(*self.arguments())
        self.assertNotIn("trial 1: ", err)
        self.assertEqual(json.loads(again)["trials"], told["trials"])
        # No job of a trial is left.
        self.assertEqual(self.json("list", "--state-dir", os.path.join(self.result, "state")), [])

    def test_an_interrupted_call_continues(self):
        child = self.start(*self.arguments())
        wait_for(self.trials, "the first trial")
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        self.assertIn(child.returncode, (130, -signal.SIGINT), err)
        kept = self.trials()
        out, _ = self.tercio(*self.arguments())
        for digest, measured in kept.items():
            self.assertEqual(self.trials()[digest], measured)
        self.assertGreater(len(json.loads(out)["trials"]), len(kept))

    def test_the_budget_is_kept(self):
        began = time.monotonic()
        out, err = self.tercio(*self.arguments("--budget", "10ms"))
        self.assertLess(time.monotonic() - began, 60)
        self.assertIn("the budget is used up", err)
        self.assertEqual(len(json.loads(out)["trials"]), 1)

    def test_faults(self):
        _, err = self.tercio(*self.arguments("--set", "parallelism={tensor: 2}"), code=2)
        self.assertIn("give --set parallelism=auto", err)
        os.makedirs(self.result)
        with open(os.path.join(self.result, "trials.json"), "w", encoding="utf-8") as file:
            file.write("[]")
        _, err = self.tercio(*self.arguments(), code=7)
        self.assertIn("not a file of tercio tune", err)

    def test_what_was_predicted_beside_what_was_measured(self):
        job = self.run_job(self.state, "--set", "training.steps=6", "--set", "parallelism={tensor: 2, pipeline: 1, data: 1}",
                           "--set", "resources.ranks=2")["id"]
        told = self.json("plan", "--job", job, "--state-dir", self.state)
        self.assertEqual((told["job"], told["layout"]["tensor"]), (job, 2))
        parts = {part["part"]: part for part in told["parts"]}
        self.assertEqual(set(parts), {"compute", "wait", "optimizer", "other", "step", "tokens_per_second", "memory"})
        for part in parts.values():
            self.assertGreater(part["predicted"], 0, part)
            self.assertGreater(part["measured"], 0, part)
        of_step = sum(parts[part]["predicted"] for part in ("compute", "wait", "optimizer", "other"))
        self.assertAlmostEqual(of_step, parts["step"]["predicted"], places=9)
        # The arena is planned to the byte.
        self.assertLessEqual(parts["memory"]["measured"], parts["memory"]["predicted"])
        out, _ = self.tercio("plan", "--job", job, "--state-dir", self.state)
        self.assertIn("waiting for other ranks", out)
        for wrong in (["--job", job, self.path("job.yaml")], [], ["--job", job, "--program"]):
            self.tercio("plan", *wrong, "--state-dir", self.state, code=2)


if __name__ == "__main__":
    python_cases.main()

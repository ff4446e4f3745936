"""Faults that make no noise: a bit that turns over in one replica, and data that makes a spike."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, TercioTest, layout, wait_for  # noqa: E402


class Replicas(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator("--heartbeat-interval", "0.5", "--allow-drills")
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 2)
        self.agent(self.address, "two", 2)

    def events_of(self, job, kind):
        return [event for event in self.events(job) if event["kind"] == kind]

    def flip(self, rank, *changes):
        """A drill in the middle of a job that then ends well; what the drill says, and the job."""
        job = self.submit(*changes)
        wait_for(lambda: self.get(job)["step"] > 25, "a checkpoint")
        done = self.json(*self.reach("drill", job, "--fault", "flip-bit", "--rank", str(rank)))
        status = self.json(*self.reach("wait", job))
        self.assertEqual((status["state"], status["restarts"], status["attempt"]), ("succeeded", 1, 2))
        alone = self.run_job(self.path("alone"), *changes)
        self.assertEqual(self.curve_of(job), self.curve(alone["id"], self.path("alone")))
        return done, job

    def test_the_odd_one_of_four_is_named(self):
        done, job = self.flip(2, *layout(1, 1, 4), "--set", "training.steps=300", "--set",
                              "fault_tolerance.check_replicas_every=5")
        self.assertIn("replicas_differ: replicas differ after step", done["detected_by"])
        self.assertIn("the weights of rank 2 differ from those of its replicas (", done["detected_by"])
        self.assertGreater(done["recovered_seconds"], done["detected_seconds"])
        self.assertLessEqual(done["steps_lost"], 15)
        events = self.events_of(job, "replicas_differ")
        self.assertEqual([(event["rank"], event["node"]) for event in events], [(2, done["node"])])
        self.assertNotEqual(done["node"], "")

    def test_of_two_both_are_named(self):
        # Found by the comparison before the checkpoint: there is no other in between.
        done, job = self.flip(1, *layout(1, 2, 2), "--set", "training.steps=200", "--set",
                              "fault_tolerance.check_replicas_every=1000")
        self.assertIn("one of ranks", done["detected_by"])
        self.assertEqual(len(self.events_of(job, "replicas_differ")), 1)

    def test_a_flip_that_nobody_would_find_is_refused(self):
        for changes in (layout(1, 2, 1), [*layout(1, 1, 2), "--set", "fault_tolerance.check_replicas_every=0"]):
            job = self.submit(*changes, "--set", "training.steps=100000")
            wait_for(lambda: self.get(job)["step"] > 0, "a step")
            _, err = self.tercio(*self.reach("drill", job, "--fault", "flip-bit"), code=7)
            self.assertIn("fault_tolerance.check_replicas_every", err)
            self.tercio(*self.reach("cancel", job, "--no-save"))
            self.json(*self.reach("wait", job), code=8)


class Spikes(TercioTest):
    """The alphabet again and again, which is soon learned; one sample, that of step 250, runs backwards."""

    STEPS = 280
    SAMPLE = 551

    def setUp(self):
        super().setUp()
        text = "abcdefghijklmnopqrstuvwxyz" * 3700
        place = 32 * self.SAMPLE + 1  # its first token and the next sample's stay
        bad = text[place:place + 31][::-1]
        with open(self.path("corpus.txt"), "w", encoding="utf-8") as file:
            file.write(text[:place] + bad + text[place + len(bad):])
        self.changes = ["--set", f"training.steps={self.STEPS}", "--set", "training.evaluate.every_steps=0",
                        "--set", "model={layers: 2, hidden: 16, heads: 2, context: 32, dropout: 0}",
                        "--set", "training.optimizer.learning_rate=1e-2",
                        "--set", "fault_tolerance.spike_threshold=4", "--set", "checkpoint.every_steps=20"]

    def train(self, policy, *changes):
        state = self.path("state-" + policy)
        job = self.run_job(state, *self.changes, "--set", f"fault_tolerance.on_spike={policy}", *changes)
        self.assertEqual(job["state"], "succeeded")
        return job, self.history(job["id"], state)

    def events(self, job, policy):
        out, _ = self.tercio("events", job["id"], "--state-dir", self.path("state-" + policy), "-o", "jsonl")
        return [json.loads(line) for line in out.splitlines()]

    def losses(self, steps):
        return [step["loss"] for step in steps]

    def test_what_a_job_does_about_them(self):
        job, reported = self.train("report")
        spikes = [step["step"] for step in reported if "spike" in step]
        self.assertEqual(spikes, [250])
        first = spikes[0]
        self.assertIn("usually", reported[first - 1]["spike"])
        events = [event["message"] for event in self.events(job, "report") if event["kind"] == "spike"]
        self.assertEqual(len(events), len(spikes))
        self.assertIn(f"step {first}: ", events[0])

        _, quiet = self.train("off")
        self.assertEqual(self.losses(quiet), self.losses(reported))
        self.assertFalse([step for step in quiet if "spike" in step])

        _, skipped = self.train("skip", *layout(1, 1, 2))
        self.assertEqual(self.losses(skipped[:first]), self.losses(reported[:first]))
        self.assertTrue(skipped[first - 1]["skipped"])
        self.assertNotEqual(skipped[first]["loss"], reported[first]["loss"])

    def test_a_roll_back_goes_over_the_data(self):
        _, reported = self.train("report")
        first = [step["step"] for step in reported if "spike" in step][0]
        resume = (first - 1) // 20 * 20
        job, rolled = self.train("rollback", *layout(1, 1, 2))
        self.assertEqual([step["step"] for step in rolled], list(range(1, self.STEPS + 1)))
        backs = [event["message"] for event in self.events(job, "rollback") if event["kind"] == "rolled_back"]
        self.assertEqual(len(backs), job["restarts"])
        self.assertIn(f"step {first} was a spike: the run rolls back to step {resume} and skips the "
                      f"{first - resume} batches", backs[0])
        # Up to there the same bits, and then the batches that follow the bad one.
        self.assertEqual(self.losses(rolled[:resume]), self.losses(reported[:resume]))
        self.assertNotEqual(rolled[resume]["loss"], reported[resume]["loss"])
        self.assertFalse([step for step in rolled if "spike" in step])
        # Everything that was left out is still told.
        all_attempts = self.history(job["id"], self.path("state-rollback"), "--all-attempts")
        self.assertIn(first, [step["step"] for step in all_attempts if "spike" in step])

    def test_more_than_one_layout_sees_the_same(self):
        _, one = self.train("skip")
        _, other = self.train("skip", *layout(1, 2, 2), "--set", "checkpoint.every_steps=7", "--set", "resources.threads_per_rank=1")
        self.assertEqual(self.losses(one), self.losses(other))


if __name__ == "__main__":
    python_cases.main()

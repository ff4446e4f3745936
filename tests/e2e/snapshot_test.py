"""Copies of snapshots in the memory of agents: what a run goes on from while nothing can be saved."""

import json
import os
import re
import signal
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, layout, processes, wait_for  # noqa: E402

EVERY = 50  # steps between two snapshots
STEPS = ["--set", "training.steps=1000000", *layout(2, 1, 2), "--set",
         f"checkpoint={{every_steps: {EVERY}, peer_copies: 1}}"]


class Snapshots(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator("--heartbeat-interval", "0.5", "--allow-drills")
        self.address = ready["coordinator"]

    def nodes_of(self, job):
        return {rank["node"] for rank in self.get(job)["plan"]["ranks"]}

    def trainers_of(self, job, agent):
        def parent(pid):
            with open(f"/proc/{pid}/stat", "rb") as file:
                return int(file.read().rsplit(b")", 1)[1].split()[1])
        return [pid for pid in self.trainers(job) if parent(pid) == agent.pid]

    def bytes_held(self, ready):
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=10) as page:
            text = page.read().decode()
        return float(re.search(r"^tercio_agent_snapshot_bytes (\S+)", text, re.MULTILINE).group(1))

    def unsaved_run(self, *changes):
        """A job that goes on while no checkpoint can be committed, and the step of the last one."""
        job = self.submit(*STEPS, *changes)
        wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
        drill = self.start(*self.reach("drill", job, "--fault", "full-disk", "--seconds", "3600"))
        self.addCleanup(lambda: (drill.kill(), drill.communicate()))
        wait_for(lambda: "checkpoint_failed" in self.kinds(job), "a save that fails")
        committed = self.get(job)["checkpoint"]["step"]
        step = self.after_step(job, committed + 3 * EVERY)["step"]
        self.assertEqual(self.get(job)["checkpoint"]["step"], committed)
        return job, committed, step

    def check_resumed(self, job, committed, step):
        """The step from which the job went on; it trains again."""
        wait_for(lambda: "resumed_from_memory" in self.kinds(job), "a snapshot in memory")
        event = [e for e in self.events(job) if e["kind"] == "resumed_from_memory"][-1]
        resumed = int(re.match(r"step (\d+) of attempt 1,", event["message"]).group(1))
        self.assertGreater(resumed, committed)
        self.assertEqual(resumed % EVERY, 0)
        # The last one that was complete when `step` was looked at, at least.
        self.assertGreaterEqual(resumed, step // EVERY * EVERY - EVERY)
        self.after_step(job, resumed + 2 * EVERY)
        self.assertEqual(self.get(job)["attempt"], 2)
        return event["message"]

    def check_curve(self, job):
        """Every step once, with the bits of a run that nothing happened to."""
        self.tercio(*self.reach("cancel", job, "--no-save"))
        status = self.json(*self.reach("wait", job), code=8)
        out, _ = self.tercio(*self.reach("history", job, "-o", "jsonl"))
        keys = ("step", "loss", "grad_norm", "learning_rate", "tokens")
        curve = [tuple(json.loads(line)[key] for key in keys) for line in out.splitlines()]
        self.assertEqual([point[0] for point in curve], list(range(1, status["step"] + 1)))
        alone = self.run_job(self.path("alone"), *STEPS, "--set", f"training.steps={len(curve)}", "--set",
                             "training.schedule.decay_steps=1000000", "--set", "checkpoint.peer_copies=0")
        self.assertEqual(curve, [point[:5] for point in self.curve(alone["id"], self.path("alone"))])
        goodput = status["goodput"]
        self.assertAlmostEqual(sum(value for key, value in goodput.items() if key != "total"),
                               goodput["total"], places=5)

    def test_a_killed_rank_goes_on_from_memory(self):
        _, one = self.agent(self.address, "one", 2)
        two, _ = self.agent(self.address, "two", 2)
        job, committed, step = self.unsaved_run()
        self.assertGreater(self.bytes_held(one), 0)
        os.kill(self.trainers_of(job, two)[0], signal.SIGKILL)
        self.assertIn("from the memory of one, two;", self.check_resumed(job, committed, step))
        self.check_curve(job)
        wait_for(lambda: self.bytes_held(one) == 0, "memory that is given back")

    def test_a_lost_node_is_replaced_from_the_memory_of_its_peer(self):
        self.agent(self.address, "one", 2)
        two, _ = self.agent(self.address, "two", 2)
        # Each rank's copies are its shard of the state; the bits are those of ranks that have all of it.
        job, committed, step = self.unsaved_run("--set", "parallelism={tensor: 2, data: 2, zero_stage: 3}")
        self.agent(self.address, "spare", 2)
        wait_for(lambda: len(self.json(*self.reach("nodes"))) == 3, "the spare")
        trainers = self.trainers_of(job, two)
        two.send_signal(signal.SIGKILL)
        for pid in trainers:
            os.kill(pid, signal.SIGKILL)
        two.wait()
        self.assertIn("from the memory of one;", self.check_resumed(job, committed, step))
        self.assertEqual(self.nodes_of(job), {"one", "spare"})
        self.check_curve(job)

    def test_an_agent_that_was_replaced_is_given_copies_again(self):
        _, one = self.agent(self.address, "one", 2)
        two, _ = self.agent(self.address, "two", 2)
        job, committed, step = self.unsaved_run()
        two.send_signal(signal.SIGUSR1)
        two.wait()
        _, again = self.agent(self.address, "two", 2)
        # Copies of its own ranks and of its peer's, as before.
        wait_for(lambda: 0 < self.bytes_held(one) <= self.bytes_held(again), "copies of all ranks")
        self.assertEqual(self.get(job)["attempt"], 1)
        step = self.get(job)["step"]
        os.kill(processes(f"tercio-trainer --rank 0 {job}")[0], signal.SIGKILL)
        self.check_resumed(job, committed, step)


if __name__ == "__main__":
    python_cases.main()

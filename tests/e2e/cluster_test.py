"""Several nodes: draining, fewer ranks for a while, queues, drills, and where the time went."""

import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, ClusterTest, TercioTest, layout, wait_for  # noqa: E402


class Cluster(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator("--heartbeat-interval", "0.5", "--allow-drills")
        self.address = ready["coordinator"]

    def nodes(self):
        return {node["name"]: node for node in self.json(*self.reach("nodes"))}

    def nodes_of(self, job):
        plan = self.get(job)["plan"]
        return {rank["node"] for rank in plan["ranks"]} if plan else set()

    def undisturbed(self, *changes):
        job = self.run_job(self.path("alone"), *changes)
        return self.curve(job["id"], self.path("alone"))

    def check_goodput(self, job):
        goodput = self.get(job)["goodput"]
        self.assertAlmostEqual(sum(value for key, value in goodput.items() if key != "total"),
                               goodput["total"], places=5)
        self.assertTrue(all(value >= 0 for value in goodput.values()), goodput)
        return goodput

    def damaged(self, job):
        out, _ = self.start(*self.reach("checkpoint", "verify", job, "-o", "json")).communicate()
        return [finding["path"] for finding in json.loads(out) if not finding["ok"]]

    def test_a_drained_node_is_left_and_taken_back(self):
        steps = ["--set", "training.steps=400", *layout(2, 1, 1)]
        self.agent(self.address, "one", 2)
        job = self.submit(*steps)
        self.after_step(job, 20)
        self.agent(self.address, "two", 2)
        self.tercio(*self.reach("nodes", "drain", "one"))
        wait_for(lambda: self.nodes()["one"]["state"] == "drained", "a drained node")
        self.assertEqual(self.nodes()["one"]["free"], 0)
        self.assertIn("drained", self.nodes()["one"]["reason"])
        status = self.json(*self.reach("wait", job))
        self.assertEqual((status["state"], status["restarts"], status["attempt"]), ("succeeded", 0, 2))
        self.assertEqual(self.nodes_of(job), {"two"})
        self.assertEqual(self.check_goodput(job)["lost_work"], 0)
        self.assertIn("moving", self.kinds(job))
        self.assertEqual(self.curve_of(job), self.undisturbed(*steps))
        self.tercio(*self.reach("nodes", "undrain", "one"))
        self.assertEqual(self.nodes()["one"]["state"], "ready")
        self.tercio(*self.reach("nodes", "drain", "nobody"), code=3)

    def test_fewer_ranks_while_a_node_is_away(self):
        changes = ["--set", "training.steps=1000000", *layout(1, 1, 4), "--set", "checkpoint.every_steps=50"]
        self.agent(self.address, "one", 2)
        two, _ = self.agent(self.address, "two", 2)
        job = self.submit(*changes, "--set", "fault_tolerance={elastic_min_ranks: 2, elastic_wait: 1s}")
        self.after_step(job, 60)
        trainers = [pid for pid in self.trainers(job) if parent_of(pid) == two.pid]
        self.assertEqual(len(trainers), 2)
        two.send_signal(signal.SIGKILL)
        for pid in trainers:
            kill(pid)
        two.wait()
        wait_for(lambda: "shrunk" in self.kinds(job), "fewer ranks")
        wait_for(lambda: len((self.get(job)["plan"] or {}).get("ranks", [])) == 2, "two ranks")
        step = self.after_step(job, self.get(job)["step"])["step"]
        self.agent(self.address, "two", 2)
        wait_for(lambda: "grown" in self.kinds(job), "all ranks again")
        wait_for(lambda: len(self.get(job)["plan"]["ranks"]) == 4, "four ranks")
        self.after_step(job, step + 20)
        self.tercio(*self.reach("cancel", job))
        status = self.json(*self.reach("wait", job), code=8)
        goodput = self.check_goodput(job)
        for kind in ("productive", "degraded", "restarting", "starting"):
            self.assertGreater(goodput[kind], 0, kind)
        # Four lanes on two ranks or on four: the same bits.
        curve = self.curve_of(job)
        self.assertEqual([point[0] for point in curve], list(range(1, status["step"] + 1)))
        alone = self.undisturbed("--set", f"training.steps={len(curve)}", "--set",
                                 "training.schedule.decay_steps=1000000", *changes[2:])
        self.assertEqual([point[:5] for point in curve], [point[:5] for point in alone])

    def test_two_agents_of_one_name(self):
        self.agent(self.address, "one", 2)
        second = subprocess.Popen(
            [os.path.join(BIN, "tercio-agent"), "--coordinator", self.address, "--state-dir",
             self.path("other"), "--name", "one", "--metrics-listen", "127.0.0.1:0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.environment())
        self.addCleanup(second.wait)
        self.addCleanup(second.kill)
        line = wait_for(second.stderr.readline, "a refusal")
        self.assertIn("a node named one is already connected", line)
        self.assertEqual([node["devices"] for node in self.nodes().values()], [2])

    def test_jobs_wait_in_a_queue(self):
        self.agent(self.address, "one", 2)
        first = self.submit("--set", "training.steps=100000", *layout(1, 1, 2))
        second = self.submit(*layout(1, 1, 2))
        third = self.submit(*layout(1, 1, 1))
        self.after_step(first, 0)
        self.assertEqual([self.get(job)["queue_position"] for job in (first, second, third)], [None, 1, 2])
        self.tercio(*self.reach("cancel", first, "--no-save"))
        for job in (second, third):
            self.assertEqual(self.json(*self.reach("wait", job))["state"], "succeeded")
            self.assertGreater(self.check_goodput(job)["queued"], 0)

    def test_drills_measure_what_happens(self):
        self.agent(self.address, "one", 4)
        job = self.submit("--set", "training.steps=1000000", *layout(2, 1, 2))
        self.after_step(job, 25)
        done = self.json(*self.reach("drill", job, "--fault", "kill-trainer", "--rank", "3"))
        self.assertEqual((done["fault"], done["rank"], done["node"]), ("kill-trainer", 3, "one"))
        self.assertIn("signal 9", done["detected_by"])
        self.assertLess(done["detected_seconds"], 1)
        self.assertGreater(done["recovered_seconds"], done["detected_seconds"])
        self.after_step(job, self.get(job)["step"] + 25)
        done = self.json(*self.reach("drill", job, "--fault", "corrupt-checkpoint"))
        self.assertIn("checkpoint_damaged", done["detected_by"])
        self.assertGreater(done["steps_lost"], 0)
        done = self.json(*self.reach("drill", job, "--fault", "full-disk", "--seconds", "1"))
        self.assertIn("checkpoint_failed", done["detected_by"])
        done = self.json(*self.reach("drill", job, "--fault", "partition-node", "--seconds", "0.5"))
        self.assertEqual(done["steps_lost"], 0)
        # One for the rank; two for the checkpoint, whose damage the ranks that load it find: the attempt after them passes it over.
        self.assertEqual(self.get(job)["restarts"], 3)
        self.tercio(*self.reach("drill", job, "--fault", "flood"), code=2)
        self.tercio(*self.reach("drill", job, "--fault", "kill-trainer", "--rank", "9"), code=2)
        self.tercio(*self.reach("cancel", job, "--no-save"))
        self.json(*self.reach("wait", job), code=8)
        before = self.damaged(job)
        self.tercio(*self.reach("drill", job, "--fault", "corrupt-checkpoint"), code=7)
        self.assertEqual(self.damaged(job), before, "a drill that is refused does no harm")


class NoDrills(TercioTest):

    def test_a_cluster_that_does_not_allow_them(self):
        _, ready = self.coordinator()
        self.agent(ready["coordinator"])
        reach = ["--coordinator", ready["coordinator"]]
        job = self.tercio("submit", self.path("job.yaml"), *reach)[0].strip()
        _, err = self.tercio("drill", job, "--fault", "kill-trainer", *reach, code=4)
        self.assertIn("--allow-drills", err)


def parent_of(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rsplit(b")", 1)[1].split()[1])


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    python_cases.main()

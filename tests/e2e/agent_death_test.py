"""An agent dies, freezes or is replaced beside its trainers, as an operator meets it."""

import json
import os
import select
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, ClusterTest, layout, processes, wait_for  # noqa: E402

assert ROOT
STEPS = 1000
CHANGES = ("--set", f"training.steps={STEPS}", *layout(1, 1, 2))


class AgentDeath(ClusterTest):

    reference_curve = None  # curve of the same job, undisturbed

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator()
        self.address = ready["coordinator"]

    def started(self, *agent_flags):
        """An agent, a job that trains there, and its processes."""
        agent, _ = self.agent(self.address, "one", 4, *agent_flags)
        job = self.submit(*CHANGES)
        wait_for(lambda: self.get(job)["step"] > 50, "steps")
        trainers = self.trainers(job)
        self.assertEqual(len(trainers), 2)
        return agent, job, trainers

    def kill(self, agent):
        agent.kill()
        agent.wait()

    def kill_wholly(self, trainer):
        """Returns when the last of its threads has ended: the next agent would see a remaining one end. The main
        thread alone is a zombie without a command line before that."""
        handle = os.pidfd_open(trainer)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            self.assertTrue(ended.poll(30000), "the trainer has not ended within 30 s of its kill")
        finally:
            os.close(handle)

    def finished(self, job, restarts):
        status = self.json(*self.reach("wait", job))
        self.assertEqual((status["state"], status["step"]), ("succeeded", STEPS), status)
        self.assertEqual(status["restarts"], restarts, self.tercio(*self.reach("events", job))[0])
        self.assertEqual(self.trainers(job), [])
        steps = self.json_lines(*self.reach("history", job, "-o", "jsonl"))
        keys = ("step", "loss", "grad_norm", "learning_rate", "tokens", "validation_loss")
        self.assertEqual([tuple(step[key] for key in keys) for step in steps], self.reference())

    def json_lines(self, *arguments):
        return [json.loads(line) for line in self.tercio(*arguments)[0].splitlines()]

    def reference(self):
        if AgentDeath.reference_curve is None:
            state = self.path("reference")
            AgentDeath.reference_curve = self.curve(self.run_job(state, *CHANGES)["id"], state)
        return AgentDeath.reference_curve

    def test_killed_and_started_again(self):
        agent, job, trainers = self.started()
        self.kill(agent)
        time.sleep(0.5)
        self.assertEqual(self.trainers(job), trainers)
        self.agent(self.address, "one", 4)
        now = self.get(job)["step"]
        wait_for(lambda: self.get(job)["step"] > now, "a step that the new agent tells")
        self.assertEqual(self.trainers(job), trainers, "others than before")
        self.finished(job, restarts=0)
        lines = self.tercio(*self.reach("logs", job))[0].splitlines()
        self.assertEqual(len(lines), len(set(lines)), "a line was told twice")

    def test_killed_again_and_again(self):
        agent, job, trainers = self.started()
        for _ in range(4):
            self.kill(agent)
            agent, _ = self.agent(self.address, "one", 4)
            time.sleep(0.3)
        self.assertEqual(self.trainers(job), trainers)
        self.finished(job, restarts=0)

    def test_not_started_again(self):
        agent, job, trainers = self.started("--agent-grace", "1")
        self.kill(agent)
        wait_for(lambda: not self.trainers(job), "the end of the trainers", 30)
        self.assertTrue(trainers)
        # The next agent tells what became of them, and the job goes on.
        self.agent(self.address, "one", 4)
        self.finished(job, restarts=1)
        self.assertIn("agent_grace", self.tercio(*self.reach("events", job))[0])

    def test_a_rank_dies_while_the_agent_is_away(self):
        agent, job, trainers = self.started()
        self.kill(agent)
        self.kill_wholly(trainers[0])
        self.agent(self.address, "one", 4)
        self.finished(job, restarts=1)
        self.assertIn("while its agent was away", self.tercio(*self.reach("events", job))[0])

    def test_frozen(self):
        agent, job, trainers = self.started("--agent-grace", "1")
        os.kill(agent.pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(agent.pid, signal.SIGCONT)
        self.assertEqual(self.trainers(job), trainers)
        self.finished(job, restarts=0)

    def test_replaced_by_another_version(self):
        agent, job, trainers = self.started()
        agent.send_signal(signal.SIGUSR1)
        self.assertEqual(agent.wait(20), 0)
        self.assertEqual(self.trainers(job), trainers)
        self.agent(self.address, "one", 4)
        self.finished(job, restarts=0)

    def test_ended_with_its_trainers(self):
        agent, job, _ = self.started()
        agent.send_signal(signal.SIGTERM)
        self.assertEqual(agent.wait(40), 0)
        self.assertEqual(self.trainers(job), [])
        self.assertEqual(processes(f"tercio-agent {self.directory}"), [])


if __name__ == "__main__":
    python_cases.main()

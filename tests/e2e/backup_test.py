"""Back-up and restore, as docs/operations.md says: the commands there are taken from the page and run."""

import os
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, SECONDS, ClusterTest, layout, wait_for  # noqa: E402


def commands(title):
    """The indented lines below a heading of docs/operations.md."""
    with open(os.path.join(ROOT, "docs", "operations.md"), encoding="utf-8") as file:
        section = re.search(rf"^#+ {title}$(.*?)^#", file.read(), re.MULTILINE | re.DOTALL).group(1)
    return "\n".join(line.strip() for line in section.splitlines() if line.startswith("    "))


class BackUp(ClusterTest):

    def follow(self, title):
        """With the folders of this test in the places of those that the page names."""
        script = commands(title)
        for word in ("/var/lib/tercio", "/backup/tercio"):
            self.assertIn(word, script)
        script = script.replace("/var/lib/tercio", self.state).replace("/backup/tercio", self.path("backup"))
        # The test itself runs the services here.
        script = "\n".join(line for line in script.splitlines() if not line.startswith("systemctl ") and "chown" not in line)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=SECONDS, check=False)
        self.assertEqual(done.returncode, 0, f"{script}\n{done.stdout}{done.stderr}")

    def start_coordinator(self, *more):
        child, ready = self.coordinator(*more)
        self.address = ready["coordinator"]
        return child

    def test_from_a_running_coordinator(self):
        coordinator = self.start_coordinator()
        port = self.address.rsplit(":", 1)[1]
        self.agent(self.address, "one", 4)
        changes = ("--set", "training.steps=800", "--set", "checkpoint.every_steps=100", *layout(1, 1, 2))
        job = self.submit(*changes)
        self.after_step(job, 210)
        wait_for(lambda: (self.get(job)["checkpoint"] or {}).get("step", 0) >= 200, "a checkpoint")
        saved = self.get(job)["step"]
        self.follow("Back up")
        self.after_step(job, saved + 100)
        lost = self.get(job)["step"] + 100  # at most: it goes on until it is killed
        # The machine is lost with its disk; nodes and trainers go on.
        coordinator.send_signal(signal.SIGKILL)
        coordinator.wait()
        shutil.rmtree(self.state)
        self.follow("Restore")
        self.daemons[0].stdout.close()
        _, ready = self.daemon("tercio-coordinator", "--state-dir", self.state, "--listen", f"127.0.0.1:{port}", "--metrics-listen",
                               "127.0.0.1:0", "--first-backoff", "0.2")
        self.address = ready["coordinator"]
        self.assertEqual(self.get(job)["name"], "small")
        status = self.json(*self.reach("wait", job))
        self.assertEqual((status["state"], status["step"]), ("succeeded", 800), self.tercio(*self.reach("events", job))[0])
        # What agents told the lost coordinator after the back-up is not told again: those steps are missing, and no others.
        steps = [step["step"] for step in self.steps(job)]
        missing = sorted(set(range(1, 801)) - set(steps))
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(missing, list(range(missing[0], missing[-1] + 1)) if missing else [])
        self.assertTrue(all(saved < step <= lost for step in missing), f"{missing}: saved at {saved}, lost at {lost}")
        self.assertEqual(self.tercio(*self.reach("checkpoint", "verify", job))[0].count("damaged"), 0)

    def test_from_a_stopped_coordinator(self):
        coordinator = self.start_coordinator()
        self.agent(self.address, "one", 4)
        job = self.submit("--set", "training.steps=60")
        self.assertEqual(self.json(*self.reach("wait", job))["state"], "succeeded")
        before = self.steps(job)
        coordinator.send_signal(signal.SIGTERM)
        self.assertEqual(coordinator.wait(SECONDS), 0)
        self.follow("Back up")
        shutil.rmtree(self.state)
        self.follow("Restore")
        self.start_coordinator()
        self.assertEqual(self.steps(job), before)
        self.tercio(*self.reach("checkpoint", "verify", job))


if __name__ == "__main__":
    python_cases.main()

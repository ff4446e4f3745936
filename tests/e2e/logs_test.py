"""Logs: what lines say, what may be asked of them, floods and full disks. And watching on a terminal."""

import contextlib
import errno
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import termios
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, ROOT, ClusterTest, layout, wait_for  # noqa: E402
from terminal import Terminal  # noqa: E402

LONG = ["--set", "training.steps=1000000", "--set", "fault_tolerance.max_restarts=0"]


class Secrets(ClusterTest):

    def token(self):
        """Of the only job's present attempt, from the coordinator's database."""
        with contextlib.closing(sqlite3.connect(f"file:{self.state}/state.sqlite?mode=ro", uri=True)) as database:
            record, = database.execute("SELECT record FROM jobs").fetchone()
        with open(os.path.join(ROOT, "proto", "tercio", "v1", "state.proto"), encoding="utf-8") as file:
            number = int(re.search(r"^message JobRecord \{.*?\n  string token = (\d+);", file.read(), re.M | re.S).group(1))
        # The key of a string of this number, its length, and the string.
        key = number << 3 | 2
        key = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
        return re.search(re.escape(key + b"\x20") + rb"([0-9a-f]{32})", record).group(1).decode()

    def test_the_token_of_an_attempt_is_in_no_output(self):
        _, coordinator = self.coordinator("--heartbeat-interval", "0.2")
        self.address = coordinator["coordinator"]
        _, agent = self.agent(self.address, "one", 2)
        job = self.submit("--set", "training.steps=1000000", "--set", "checkpoint.every_steps=20", *layout(1, 1, 2))
        tokens = set()
        for attempt in (1, 2):
            wait_for(lambda: (s := self.get(job))["attempt"] == attempt and s["state"] == "running" and s["checkpoint"],  # noqa: B023
                     "a checkpoint")
            tokens.add(self.token())
            for pid in self.trainers(job):
                for name in ("cmdline", "environ"):
                    with open(f"/proc/{pid}/{name}", "rb") as file:
                        self.assertFalse([t for t in tokens if t.encode() in file.read()], name)
            os.kill(self.trainers(job)[0], signal.SIGKILL)
        self.assertEqual(len(tokens), 2, "one for each attempt")
        for token in tokens:
            self.assertRegex(token, "^[0-9a-f]{32}$")
        self.tercio(*self.reach("cancel", job, "--no-save"))
        self.json(*self.reach("wait", job), code=8)
        told = ["".join(self.tercio(*self.reach(*verb))) for verb in (
            ("get", job), ("get", job, "-o", "json"), ("list", "-o", "json"), ("nodes", "-o", "json"), ("events", job, "-o", "json"),
            ("logs", job, "-o", "json"), ("history", job, "-o", "json"), ("checkpoint", "list", job, "-o", "json"))]
        for ready in (coordinator, agent):
            with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=10) as page:
                told.append(page.read().decode())
        for name in os.listdir(self.directory):
            if name.endswith(".log"):
                with open(self.path(name), encoding="utf-8") as file:
                    told.append(file.read())
        self.assertGreater(len("".join(told)), 10_000)
        for token in tokens:
            self.assertFalse([text[:200] for text in told if token in text])

    def test_a_job_has_no_environment_of_its_own(self):
        self.tercio("plan", self.path("job.yaml"), "--set", "environment={HF_TOKEN: secret}", code=2)


class Logs(ClusterTest):

    def setUp(self):
        super().setUp()
        self.coordinator_process, ready = self.coordinator("--heartbeat-interval", "0.2")
        self.address = ready["coordinator"]

    def lines(self, job, *more):
        out, _ = self.tercio(*self.reach("logs", job, "-o", "jsonl", *more))
        return [json.loads(line) for line in out.splitlines()]

    def lost_lines(self, ready):
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=10) as page:
            text = page.read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith("tercio_log_lines_lost_total{"))

    def test_each_line_says_whose_it_is_and_lines_can_be_chosen(self):
        self.agent(self.address, "one", 4, "--log-format", "json")
        # Each rank says how it multiplies.
        job = self.submit(*LONG, *layout(1, 2, 2), "--set", "training.precision=bf16")
        self.after_step(job, 3)
        victim = self.trainers(job)[0]
        with open(f"/proc/{victim}/fd/2", "ab", buffering=0) as out:
            out.write("a library is unhappy: größe \x1b[2J\x9b2J\0\n".encode() + b"\xff\n")
        wait_for(lambda: any("unhappy" in line["line"] for line in self.lines(job)), "the line of the library")
        with open(f"/proc/{victim}/fd/2", "ab", buffering=0) as out:
            out.write(f"time=2026-05-01T12:00:00.000Z level=error program=trainer msg=bad job={job} attempt=1 "
                      f"rank={rank_of(victim)}\n".encode())
        wait_for(lambda: any("msg=bad" in line["line"] for line in self.lines(job)), "the error")
        os.kill(victim, signal.SIGKILL)
        self.json(*self.reach("wait", job), code=1)
        lines = self.lines(job)
        ours = [line for line in lines if line["level"]]
        self.assertEqual({line["rank"] for line in ours}, {0, 1, 2, 3})
        self.assertEqual([line["line"] for line in lines if not line["level"]], ["a library is unhappy: größe ?[2J?2J?", "?"])
        for line in ours:
            self.assertRegex(line["line"], rf"^time=\S+Z level={line['level']} program=trainer msg=")
            self.assertIn(f"job={job} attempt=1 rank={line['rank']}", line["line"])
        ranks = {line["rank"] for line in lines}
        self.assertGreater(len(ranks), 1, "somebody noticed that another has gone")
        some = sorted(ranks)[:2]
        chosen = self.lines(job, "--rank", ",".join(map(str, some)))
        self.assertEqual([line for line in lines if line["rank"] in some], chosen)
        for level, levels in (("error", {"error"}), ("info", {"info", "warning", "error"})):
            self.assertEqual(self.lines(job, "--level", level),
                             [line for line in lines if line["level"] in levels])
        self.assertEqual(self.lines(job, "--since", "1h"), lines)
        middle = lines[len(lines) // 2]["time"]
        self.assertEqual(self.lines(job, "--since", middle),
                         [line for line in lines if line["time"] >= middle])
        self.assertEqual(self.lines(job, "--since", "2100-01-01T00:00:00Z"), [])
        _, err = self.tercio(*self.reach("logs", job, "--since", "yesterday"), code=2)
        self.assertIn("--since yesterday", err)
        self.tercio(*self.reach("logs", job, "--level", "loud"), code=2)
        # What the agent says about itself is JSON, as it was asked.
        with open(self.path("tercio-agent.1.log"), encoding="utf-8") as file:
            for line in file:
                self.assertEqual(json.loads(line)["program"], "agent")

    def test_followed_lines_survive_the_coordinator(self):
        listen = self.address
        self.coordinator_process.send_signal(signal.SIGTERM)
        self.coordinator_process.wait()
        restart = ["tercio-coordinator", "--state-dir", self.state, "--listen", listen, "--metrics-listen",
                   "127.0.0.1:0", "--heartbeat-interval", "0.2", "--first-backoff", "0.2"]
        first, _ = self.daemon(*restart)
        self.agent(self.address)
        job = self.submit("--set", "training.steps=1000000", *layout(1, 1, 2), "--set",
                          "training.precision=bf16")
        self.after_step(job, 3)
        follower = self.start(*self.reach("logs", job, "--follow", "-o", "jsonl"))
        self.addCleanup(lambda: follower.poll() is None and follower.kill())
        os.kill(self.trainers(job)[0], signal.SIGKILL)
        wait_for(lambda: self.get(job)["attempt"] == 2 and self.get(job)["state"] == "running", "attempt 2")
        first.send_signal(signal.SIGKILL)
        first.wait()
        self.daemon(*restart)
        wait_for(lambda: self.get(job)["state"] == "running", "the job goes on")
        os.kill(self.trainers(job)[0], signal.SIGKILL)
        wait_for(lambda: self.get(job)["attempt"] == 3 and self.get(job)["state"] == "running", "attempt 3")
        self.tercio(*self.reach("cancel", job, "--no-save"))
        out, err = follower.communicate(timeout=60)
        self.assertEqual(follower.returncode, 0, err)
        followed = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(followed, self.lines(job))
        self.assertEqual({(line["attempt"], line["rank"]) for line in followed},
                         {(attempt, rank) for attempt in (1, 2, 3) for rank in (0, 1)})

    def test_a_flood_is_cut_and_told(self):
        _, ready = self.agent(self.address, "one", 2, "--log-rate", "50", "--log-bytes", "64KiB", "--log-quota",
                              "1MiB")
        job = self.submit(*LONG, *layout(1, 1, 2))
        self.after_step(job, 3)
        victim = self.trainers(job)[0]
        log = os.readlink(f"/proc/{victim}/fd/2")
        # As the rank itself would write, at 10 MB a second or so.
        begin = time.monotonic()
        with open(f"/proc/{victim}/fd/2", "ab", buffering=0) as out:
            while time.monotonic() - begin < 2:
                out.write(b"".join(b"a line of no use, of the rank itself %d\n" % i for i in range(5000)))
                time.sleep(0.02)
        wait_for(lambda: self.lost_lines(ready) > 1000, "lines that are counted")
        wait_for(lambda: "log_lines_lost" in self.kinds(job), "an event")
        self.after_step(job, self.get(job)["step"] + 3)
        # What is left out when the rank ends is told, and counted, too.
        with open(f"/proc/{victim}/fd/2", "ab", buffering=0) as out:
            out.write(b"".join(b"a line of no use, the last %d\n" % i for i in range(1000)))
        os.kill(victim, signal.SIGKILL)
        self.json(*self.reach("wait", job), code=1)
        noise = [line for line in self.lines(job) if "of no use" in line["line"]]
        self.assertLess(len(noise), 50 * 20)
        markers = [line for line in self.lines(job) if "lines were dropped here" in line["line"]]
        self.assertTrue(markers)
        self.assertEqual(markers[0]["level"], "warning")
        told = sum(int(re.search(r"(\d+) lines were dropped here", line["line"])[1]) for line in markers)
        self.assertEqual(self.lost_lines(ready), told)
        self.assertEqual(self.kinds(job).count("log_lines_lost"), 1)
        folder = os.path.dirname(log)
        wait_for(lambda: sum(os.stat(os.path.join(folder, name)).st_size for name in os.listdir(folder))
                 < 32 << 20, "a bounded log")

    def test_training_goes_on_when_the_disk_of_the_logs_is_full(self):
        small = self.path("small")
        os.mkdir(small)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], capture_output=True,
                                 check=False)
        if mounted.returncode != 0:
            self.skipTest("a full disk needs the right to mount a tmpfs")
        self.addCleanup(subprocess.run, ["umount", "-l", small], check=False)
        _, ready = self.agent(self.address, "one", 2, "--log-dir", small)
        job = self.submit("--set", "training.steps=1000000", *layout(1, 1, 2), "--set",
                          "checkpoint.every_steps=100000", "--set", "fault_tolerance.on_spike=off")
        self.after_step(job, 3)
        with open(os.path.join(small, "fill"), "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                self.assertEqual(error.errno, errno.ENOSPC)
        # What is left of the last page of each log.
        for name in os.listdir(os.path.join(small, job)):
            with open(os.path.join(small, job, name), "ab", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x")
                except OSError as error:
                    self.assertEqual(error.errno, errno.ENOSPC)
        self.assertEqual(self.lost_lines(ready), 0)
        # Every trainer says that its agent has gone and come back.
        agent = self.daemons[-1]
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        _, ready = self.agent(self.address, "one", 2, "--log-dir", small)
        wait_for(lambda: self.lost_lines(ready) > 0, "lines that are counted")
        wait_for(lambda: "log_lines_lost" in self.kinds(job), "an event")
        self.after_step(job, self.get(job)["step"] + 5)
        self.assertEqual(self.get(job)["attempt"], 1)
        self.tercio(*self.reach("cancel", job, "--no-save"))
        self.json(*self.reach("wait", job), code=8)

    def test_the_last_words_of_the_rank_at_fault(self):
        self.agent(self.address, "one", 2)
        job = self.submit(*LONG, *layout(1, 1, 2))
        self.after_step(job, 3)
        other, victim = self.trainers(job)
        with open(f"/proc/{victim}/fd/2", "ab", buffering=0) as out:
            out.write(b"the end is near\x1b[2J\n")
        wait_for(lambda: any("the end is near" in line["line"] for line in self.lines(job)), "the line")
        # The rank that is seen to end first is the one at fault: the other, whose peer is gone, must not be faster. The agent
        # kills it.
        os.kill(other, signal.SIGSTOP)
        os.kill(victim, signal.SIGKILL)
        status = self.json(*self.reach("wait", job), code=1)
        for status in (status, self.get(job)):
            self.assertTrue(status["last_lines"])
            self.assertIn("the end is near", status["last_lines"][-1]["line"])
            self.assertEqual(status["last_lines"][-1]["node"], "one")
        text, _ = self.tercio(*self.reach("get", job))
        self.assertIn("last output of rank", text)
        self.assertIn("the end is near?[2J", text)
        self.assertNotIn("\x1b", text)


def rank_of(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().decode().split("\0")
    return int(words[words.index("--rank") + 1])


class Watching(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator("--heartbeat-interval", "0.2")
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 8)

    def watch(self, job, *more, **variables):
        environment = {**self.environment(), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        environment.pop("NO_COLOR", None)
        environment.update(variables)
        terminal = Terminal([os.path.join(BIN, "tercio"), *self.reach("watch", job, *more)], environment)
        self.addCleanup(terminal.close)
        return terminal

    def test_a_job_on_a_terminal(self):
        job = self.submit("--set", "training.steps=1000000", *layout(2, 2, 2))
        self.after_step(job, 10)
        terminal = self.watch(job)
        wait_for(lambda: "\x1b[?1049h" in terminal.read(), "the screen is taken over")
        wait_for(lambda: sum(line.startswith("stage ") for line in terminal.screen()) == 2, "a row for each stage")
        wait_for(lambda: re.search(r"stage 0 +r0 \d+ \d+M \d+%", "\n".join(terminal.screen())), "figures")
        first = wait_for(lambda: re.match(r"running  step (\d+)/1000000 .* loss \d", terminal.screen()[0]), "progress")
        wait_for(lambda: (now := re.match(r"running  step (\d+)/", terminal.screen()[0])) and
                 int(now[1]) > int(first[1]), "more progress")
        self.assertRegex(terminal.screen()[2], r"^loss +[▁▂▃▄▅▆▇█]+")
        self.assertIn("\x1b[3", terminal.read(), "colours")
        terminal.resize(24, 60)
        wait_for(lambda: all(len(line) <= 60 for line in terminal.screen()) and
                 any(re.match(r"stage 1 +4 ranks", line) for line in terminal.screen()), "stages in a narrow window")
        os.write(terminal.master, b"\x03")
        self.assertEqual(terminal.process.wait(30), 130)
        rest = terminal.read().split("\x1b[?1049l")
        self.assertEqual(len(rest), 2, "the screen is given back once")
        self.assertIn("\x1b[?25h", rest[0][-40:])
        self.assertIn("the job continues", rest[1])
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.before)
        self.assertEqual(self.get(job)["state"], "running")
        # A crash gives it back, too.
        terminal = self.watch(job, NO_COLOR="1")
        wait_for(lambda: any(line.startswith("stage ") for line in terminal.screen()), "the view")
        terminal.process.send_signal(signal.SIGSEGV)
        self.assertEqual(terminal.process.wait(30), -signal.SIGSEGV)
        text = terminal.read()
        self.assertIn("\x1b[?1049l", text)
        self.assertNotRegex(text, r"\x1b\[(1|2|3[0-9])m", "no colours")
        self.tercio(*self.reach("cancel", job, "--no-save"))

    def test_it_ends_with_the_job_and_is_one_line_where_it_cannot_be_more(self):
        job = self.submit("--set", "training.steps=1000000", *layout(1, 1, 2))
        self.after_step(job, 3)
        full = self.watch(job)
        plain = self.watch(job, "--plain")
        dumb = self.watch(job, TERM="dumb")
        wait_for(lambda: "\x1b[?1049h" in full.read(), "a view")
        wait_for(lambda: "running  step" in plain.read(), "a line")
        wait_for(lambda: "running  step" in dumb.read(), "a line")
        self.tercio(*self.reach("cancel", job, "--no-save"))
        for terminal in (full, plain, dumb):
            self.assertEqual(terminal.process.wait(60), 8)
        self.assertIn("cancelled  step", full.read().split("\x1b[?1049l")[1])
        for terminal in (plain, dumb):
            self.assertNotIn("\x1b[?1049h", terminal.read())
            self.assertNotIn("\x1b[3", terminal.read())


if __name__ == "__main__":
    python_cases.main()

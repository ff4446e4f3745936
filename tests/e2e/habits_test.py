"""What a person at a terminal does: mistypes, presses Ctrl-C, names another coordinator, removes old checkpoints."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, SECONDS, ClusterTest, TercioTest, layout, wait_for  # noqa: E402
from terminal import Terminal  # noqa: E402


class Words(TercioTest):

    def refused(self, expected, *words):
        out, err = self.tercio(*words, code=2)
        self.assertEqual(out, "")
        self.assertTrue(err.startswith(f"error: {expected}"), err)

    def test_mistakes_are_named(self):
        self.refused("tercio has no verb 'lst'; did you mean 'list'?\n`tercio --help` shows what there is", "lst")
        self.refused("tercio has no verb 'frobnicate'", "frobnicate", "--help")
        self.refused("tercio checkpoint has no verb 'lits'; did you mean 'list'?", "checkpoint", "lits", "x")
        self.refused("tercio checkpoint needs a verb: list, verify, prune", "checkpoint")
        self.refused("tercio nodes has no verb 'drian'; did you mean 'drain'?", "nodes", "drian", "one")
        self.refused("tercio list has no option --outptu; did you mean '--output'?\n`tercio list --help`", "list", "--outptu", "json")
        self.refused("tercio get does not take 'y'", "get", "x", "y")
        self.refused("tercio get: job is required", "get")
        self.refused("tercio list: --output: yaml not in {json,jsonl}", "list", "-o", "yaml")
        self.refused("tercio wait: --timeout", "wait", "x", "--timeout", "5x")

    def test_help_and_version(self):
        out, err = self.tercio(code=2)
        self.assertEqual(out, "")
        self.assertIn("Usage: tercio", err)
        self.assertEqual(self.tercio("help", "checkpoint", "list")[0], self.tercio("checkpoint", "list", "--help")[0])
        self.assertEqual(self.tercio("help")[0], self.tercio("--help")[0])
        self.assertEqual(self.tercio("--version")[0], self.tercio("version")[0])


class Coordinators(ClusterTest):

    def environment(self):
        return {**super().environment(), **self.variables}

    def setUp(self):
        super().setUp()
        self.variables = {}
        _, ready = self.coordinator()
        self.address = ready["coordinator"]

    def test_an_option_wins_over_the_environment(self):
        job = self.submit(*layout(1, 1, 2))
        self.variables = {"TERCIO_COORDINATOR": "127.0.0.1:1"}
        self.assertEqual(self.json(*self.reach("list"))[0]["id"], job)
        self.assertEqual(self.json(*self.reach("nodes")), [])
        self.tercio(*self.reach("nodes", "drain", "nobody"), code=3)
        self.tercio("list", code=5)
        self.variables = {"TERCIO_COORDINATOR": self.address}
        self.assertEqual(self.json("list")[0]["id"], job)
        _, err = self.tercio("cancel", job, "--coordinator", "127.0.0.1:1", code=5)
        self.assertIn("127.0.0.1:1", err)
        self.assertEqual(self.json("get", job)["state"], "queued")

    def test_so_it_does_for_the_commands_of_the_coordinator(self):
        def command(*words, **variables):
            return subprocess.run([os.path.join(BIN, "tercio-coordinator"), *words], capture_output=True, text=True, timeout=SECONDS,
                                  check=False, env={**self.environment(), **variables}).returncode
        here, there = self.path("here"), self.path("there")
        self.assertEqual(command("init", "--state-dir", here, TERCIO_STATE_DIR=there), 0)
        self.assertFalse(os.path.exists(there))
        self.assertEqual(command("access", "--state-dir", here, TERCIO_STATE_DIR=there), 0)
        self.assertEqual(command("access", TERCIO_STATE_DIR=here), 0)
        self.assertEqual(command("access"), 2)

    def test_names_that_are_meant(self):
        first = self.submit("--set", "name=shakespeare", *layout(1, 1, 2))
        second = self.submit("--set", f"name={'n' * 200}", *layout(1, 1, 2))
        for verb in ("get", "history", "events", "logs", "cancel", "watch", "wait", "resume"):
            _, err = self.tercio(*self.reach(verb, "shakespeer"), code=3)
            self.assertIn("no job shakespeer; did you mean 'shakespeare'?", err, verb)
        _, err = self.tercio(*self.reach("get", first[:-1]), code=3)
        self.assertIn(f"did you mean '{first}'?", err)
        _, err = self.tercio(*self.reach("get", "frobnicated"), code=3)
        self.assertIn("no job frobnicated; `tercio list` shows all", err)
        out, _ = self.tercio(*self.reach("list"))
        self.assertLess(max(map(len, out.splitlines())), 120)
        self.assertIn("nnn…", out)
        self.assertEqual(self.json(*self.reach("get", second))["name"], "n" * 200)
        # Why the second waits.
        self.assertIn("queued, place 2 of the queue", self.tercio(*self.reach("get", second))[0])


class Interrupted(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 2)

    def on_terminal(self, *words, columns=120, **variables):
        environment = {**self.environment(), "TERM": "xterm", "LC_ALL": "C.UTF-8", **variables}
        terminal = Terminal([os.path.join(BIN, "tercio"), *self.reach(*words)], environment, columns=columns)
        self.addCleanup(terminal.close)
        return terminal

    def end(self, terminal, job):
        os.write(terminal.master, b"\x03")
        self.assertEqual(terminal.process.wait(SECONDS), 130)
        last = terminal.read().replace("\r", "").split("\n")
        self.assertEqual(last[-1], "")
        self.assertEqual(last[-2], f"the job goes on; look again: tercio watch {job}")

    def test_the_job_goes_on(self):
        job = self.submit("--set", "training.steps=1000000", *layout(1, 1, 2))
        self.after_step(job, 3)
        for words in (("watch", job, "--plain"), ("wait", job), ("logs", job, "--follow"), ("history", job, "--follow"),
                      ("events", job, "--follow")):
            terminal = self.on_terminal(*words)
            if words[0] in ("wait", "logs"):
                wait_for(lambda: len(os.listdir(f"/proc/{terminal.process.pid}/task")) > 1, "a connection")
            else:
                wait_for(terminal.read, "something to read")
            self.end(terminal, job)
        self.assertEqual(self.get(job)["state"], "running")
        # It waits for its turn; a resumed one, too.
        terminal = self.on_terminal("submit", self.path("job.yaml"), "--watch", *layout(1, 1, 2))
        second = wait_for(lambda: "queued" in terminal.read() and terminal.read().split()[0], "the line of the second")
        self.end(terminal, second)
        self.tercio(*self.reach("cancel", second))
        terminal = self.on_terminal("resume", second)
        wait_for(lambda: "queued" in terminal.read(), "the line of the resumed")
        self.end(terminal, second)
        self.assertEqual(self.get(second)["state"], "queued")

    def test_a_line_fits_the_terminal(self):
        job = self.submit("--set", "training.steps=1000000", *layout(1, 1, 2))
        self.after_step(job, 3)
        narrow = self.on_terminal("watch", job, "--plain", columns=30)
        dumb = self.on_terminal("watch", job, TERM="dumb")
        wait_for(lambda: narrow.read().count("running") > 3, "a line that is drawn again")
        wait_for(lambda: "running" in dumb.read(), "a line")
        for line in narrow.read().split("\r\x1b[K"):
            self.assertLess(len(line), 30)
        self.assertNotIn("\x1b", dumb.read())
        self.end(dumb, job)
        self.assertNotIn("\x1b", dumb.read())

    def test_wait_says_what_came_of_it(self):
        job = self.submit("--set", "training.optimizer.learning_rate=1e30", "--set", "training.clip_grad_norm=0", *layout(1, 1, 2))
        out, err = self.tercio(*self.reach("wait", job), code=1)
        self.assertEqual(out, "")
        self.assertTrue(err.startswith(f"job {job} failed: "), err)


class Prune(ClusterTest):

    def setUp(self):
        super().setUp()
        child, ready = self.coordinator()
        self.child, self.address = child, ready["coordinator"]
        self.agent(self.address, "one", 2)

    def kept(self, job):
        return [checkpoint["step"] for checkpoint in self.json(*self.reach("checkpoint", "list", job))]

    def prune(self, job, *more, code=0):
        told = self.json(*self.reach("checkpoint", "prune", job, *more), code=code)
        steps = lambda key: [checkpoint["step"] for checkpoint in told[key]]
        return steps("removed"), steps("kept")

    def test_what_is_superfluous_goes(self):
        job = self.submit("--set", "checkpoint.keep_last=100", *layout(1, 1, 2))
        self.json(*self.reach("wait", job))
        self.assertEqual(self.kept(job), [10, 20, 30, 40, 50, 60])
        self.assertEqual(self.prune(job), ([], [10, 20, 30, 40, 50, 60]))
        self.assertEqual(self.prune(job, "--keep-last", "4", "--dry-run"), ([10, 20], [30, 40, 50, 60]))
        self.assertEqual(self.kept(job), [10, 20, 30, 40, 50, 60])
        out, _ = self.tercio(*self.reach("checkpoint", "prune", job, "--keep-last", "4"))
        self.assertRegex(out, r"(?s)removed .*step-00000010\nremoved .*step-00000020\nremoved 2 checkpoints, .*; 4 stay\n")
        self.assertEqual(self.kept(job), [30, 40, 50, 60])
        # The newest two are damaged: the last that can be loaded stays.
        for step in (50, 60):
            path = os.path.join(self.state, "checkpoints", job, f"step-{step:08}", "rank-0.safetensors")
            path = path if os.path.exists(path) else self.largest(os.path.dirname(path))
            with open(path, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                byte = file.read(1)
                file.seek(-1, os.SEEK_END)
                file.write(bytes([byte[0] ^ 1]))
        self.assertEqual(self.prune(job, "--keep-last", "1"), ([30, 50], [40, 60]))
        self.assertEqual(self.kept(job), [40, 60])
        for words in (("--keep-last", "0"), ("--keep-last", "-1")):
            self.tercio(*self.reach("checkpoint", "prune", job, *words), code=2)
        self.tercio(*self.reach("checkpoint", "prune", "nobody"), code=3)

    def largest(self, folder):
        return max((os.path.join(folder, name) for name in os.listdir(folder)), key=os.path.getsize)

    def test_multiples_of_keep_every_stay_and_nothing_goes_without_a_coordinator(self):
        job = self.submit("--set", "checkpoint.keep_last=100", "--set", "checkpoint.keep_every=20", *layout(1, 1, 2))
        self.json(*self.reach("wait", job))
        self.stop_daemons()
        _, err = self.tercio("checkpoint", "prune", job, "--keep-last", "1", "--state-dir", self.state, code=7)
        self.assertIn("no coordinator runs on this state directory", err)
        _, err = self.tercio("cancel", job, "--state-dir", self.state, code=7)
        self.assertIn("no coordinator runs on this state directory", err)
        self.daemons = []
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.assertEqual(self.prune(job, "--keep-last", "1"), ([10, 30, 50], [20, 40, 60]))


if __name__ == "__main__":
    python_cases.main()

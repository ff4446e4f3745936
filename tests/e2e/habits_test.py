"""What a person at a terminal does: mistypes, presses Ctrl-C, names another coordinator, removes old checkpoints."""

import contextlib
import fcntl
import json
import os
import signal
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
        self.refused("tercio has no verb 'lst'; did you mean 'list'?\nrun `tercio --help` for usage", "lst")
        self.refused("tercio has no verb 'frobnicate'", "frobnicate", "--help")
        self.refused("tercio checkpoint has no verb 'lits'; did you mean 'list'?", "checkpoint", "lits", "x")
        self.refused("tercio checkpoint needs a verb: list, verify, prune", "checkpoint")
        self.refused("tercio nodes has no verb 'drian'; did you mean 'drain'?", "nodes", "drian", "one")
        self.refused("tercio list has no option --outptu; did you mean '--output'?\nrun `tercio list --help`", "list", "--outptu", "json")
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


    def test_numbers_that_make_no_sense(self):
        for words in (("wait", "x", "--timeout", "nan"), ("wait", "x", "--timeout=-1s"), ("logs", "x", "--tail", "0"),
                      ("logs", "x", "--attempt=-1"), ("drill", "x", "--fault", "kill-trainer", "--rank=-1"),
                      ("checkpoint", "verify", "x", "--step=-5"), ("checkpoint", "export", "x", "--step", "0", "--format", "hf",
                                                                   "--output", "y"),
                      ("generate", "--checkpoint", "x", "--prompt", "y", "--temperature", "nan"),
                      ("generate", "--checkpoint", "x", "--prompt", "y", "--top-p", "nan"),
                      ("generate", "--checkpoint", "x", "--prompt", "y", "--top-k=-1"),
                      ("generate", "--checkpoint", "x", "--prompt", "y", "--seed=-1")):
            out, err = self.tercio(*words, code=2)
            self.assertEqual(out, "")
            self.assertTrue(err.startswith("error: tercio "), err)


class Outputs(TercioTest):
    """Where standard output goes nowhere, no verb says that all is well."""

    def end(self, words, stdout, **options):
        done = subprocess.run([os.path.join(BIN, "tercio"), *words], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=SECONDS,
                              check=False, env=self.environment(), **options)
        return done.returncode, done.stderr

    def test_a_full_disk(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for words in (["version", "-o", "json"], ["--help"], ["plan", self.path("job.yaml"), "--effective"]):
                code, err = self.end(words, full)
                self.assertEqual((code, err), (7, "error: cannot write to standard output: No space left on device\n"), words)
            code, err = self.end(["run", self.path("job.yaml"), "--state-dir", self.state, "-o", "json", "--set", "training.steps=2"], full)
            self.assertEqual(code, 7, err)
            job = self.json("list", "--state-dir", self.state)[0]
            self.assertEqual(job["state"], "succeeded")
            code, _ = self.end(["history", job["id"], "--state-dir", self.state, "-o", "jsonl"], full)
            self.assertEqual(code, 7)
            # What went wrong before counts.
            self.assertEqual(self.end(["get", "nobody", "--state-dir", self.state, "-o", "json"], full)[0], 3)

    def test_closed(self):
        code, err = self.end(["version"], None, preexec_fn=lambda: os.close(1))
        self.assertEqual(code, 7)
        self.assertIn("standard output", err)
        job = self.run_job(self.state, "--set", "training.steps=2")
        code, err = self.end(["get", job["id"], "--state-dir", self.state], None, preexec_fn=lambda: os.closerange(0, 2))
        self.assertEqual(code, 7, err)

    def test_one_value_or_a_line_each(self):
        job = self.run_job(self.state, "--set", "training.steps=3")["id"]
        where = ["--state-dir", self.state]
        self.assertEqual([step["step"] for step in self.json("history", job, *where)], [1, 2, 3])
        self.assertEqual(self.json("logs", job, "--rank", "99", *where), [])
        self.assertIn("succeeded", [event["kind"] for event in self.json("events", job, *where)])
        out, _ = self.tercio("list", "-o", "jsonl", *where)
        self.assertEqual([json.loads(line)["id"] for line in out.splitlines()], [job])
        out, _ = self.tercio("history", "nobody", "-o", "json", *where, code=3)
        self.assertEqual(out, "")


class Inputs(TercioTest):

    def test_a_directory_is_no_file(self):
        for verb in ("run", "plan", "submit"):
            out, err = self.tercio(verb, self.directory, code=2)
            self.assertEqual((out, err), ("", f"error: cannot read {self.directory}: Is a directory\n"))

    def test_the_plan_knows_the_vocabulary(self):
        def memory(*changes, notice=""):
            out, err = self.tercio("plan", self.path("job.yaml"), "-o", "json", *changes)
            self.assertIn(notice, err)
            self.assertEqual(err == "", notice == "", err)
            return json.loads(out)["layouts"][0]["predicted"]["memory_bytes_peak"]
        with open(self.path("corpus.txt"), encoding="utf-8") as file:
            characters = len(set(file.read()))
        self.assertEqual(memory(), memory("--set", f"model.vocab_size={characters}"))
        self.assertLess(memory(), memory("--set", "model.vocab_size=5000"))
        # It is that of the run.
        job = self.run_job(self.state, "--set", "training.steps=1")
        self.assertEqual(job["ranks"][0]["memory"]["planned"], memory())
        elsewhere = ["--set", "data.train=/not/here.txt"]
        self.assertEqual(memory(*elsewhere, notice="the size of the vocabulary is unknown here and assumed to be 256"),
                         memory("--set", "model.vocab_size=256"))
        out, err = self.tercio("plan", self.path("job.yaml"), "--cluster", self.path("x.yaml"), code=3)
        self.assertEqual(out, "")
        self.assertIn("x.yaml", err)
        _, err = self.tercio("plan", self.path("job.yaml"), "--tokens", "1e9", code=2)
        self.assertIn("--tokens has no effect without --cluster", err)

    def test_keys_without_effect_get_a_notice(self):
        changes = ["--set", "training.steps=1", "--set", "parallelism={tensor: 1, tensor_overlap: 4}",
                   "--set", "resources.cuda_graphs=false", "--set", "fault_tolerance.elastic_wait=1m"]
        notices = ["notice: parallelism.tensor_overlap has no effect: parallelism.tensor is 1",
                   "notice: resources.cuda_graphs has no effect: resources.device is cpu",
                   "notice: fault_tolerance.elastic_wait has no effect: without fault_tolerance.elastic_min_ranks the job "
                   "waits for all of its ranks"]
        out, err = self.tercio("plan", self.path("job.yaml"), "-o", "json", *changes)
        self.assertEqual((json.loads(out)["chosen"], err.splitlines()), (0, notices))
        out, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, "-o", "json", *changes)
        self.assertEqual((json.loads(out)["state"], err.splitlines()[:3]), ("succeeded", notices))
        _, err = self.tercio("submit", self.path("job.yaml"), "--coordinator", "127.0.0.1:1", *changes, code=5)
        self.assertEqual(err.splitlines()[:3], notices)

    def test_a_vocabulary_that_does_not_fit_is_refused_before_there_is_a_job(self):
        with open(self.path("corpus.txt"), "a", encoding="utf-8") as file:
            file.write("".join(map(chr, range(0x10000, 0x10000 + 1_000_000))))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        heads = memory // (16_000_000 * 256) + 1  # 16 bytes of each weight of a million rows are more than there is
        out, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, "--set", f"model.hidden={256 * heads}",
                               "--set", f"model.heads={heads}", "--set", "model.layers=1", "--set", "model.ffn_hidden=1", code=2)
        self.assertEqual(out, "")
        self.assertIn("does not fit in memory", err)
        self.assertFalse(os.path.exists(os.path.join(self.state, "state.sqlite")))


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
        _, err = self.tercio(*self.reach("wait", second, "--timeout", "0"), code=6)
        self.assertIn("did not end in time", err)
        self.assertNotIn("in time", self.tercio("wait", second, "--timeout", "2s", "--coordinator", "127.0.0.1:1", code=5)[1])
        self.tercio(*self.reach("cancel", second))
        self.tercio(*self.reach("wait", second, "--timeout", "0"), code=8)
        second = self.submit("--set", f"name={'n' * 200}", *layout(1, 1, 2))
        # Why the second waits.
        self.assertIn("queued, position 2 in the queue", self.tercio(*self.reach("get", second))[0])


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
        self.assertEqual(last[-2], f"the job continues; follow it with: tercio watch {job}")

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

    def test_while_the_data_is_prepared(self):
        where = ["--state-dir", self.path("own")]
        self.run_job(self.path("own"), "--set", "training.steps=1")
        cache = os.path.join(self.path("own"), "agent", "data-cache")
        with contextlib.ExitStack() as held:
            for name in os.listdir(cache):
                if name.endswith(".lock"):
                    file = held.enter_context(open(os.path.join(cache, name), "rb"))
                    fcntl.flock(file, fcntl.LOCK_EX)
            for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
                child = self.start("run", self.path("job.yaml"), *where)
                wait_for(lambda: self.waits_for_lock(child.pid), "the lock of the cache")  # noqa: B023
                child.send_signal(number)
                out, err = child.communicate(timeout=SECONDS)
                self.assertEqual((child.returncode, out, err), (code, "", "interrupted before a job was started\n"))
        self.assertEqual(len(self.json("list", *where)), 1)

    def waits_for_lock(self, process):
        with open("/proc/locks", encoding="utf-8") as locks:
            return any(f" {process} " in line and "->" in line for line in locks)

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
        self.assertRegex(out, r"(?s)removed .*step-00000010\nremoved .*step-00000020\nremoved 2 checkpoints, .*; 4 kept\n")
        self.assertEqual(self.kept(job), [30, 40, 50, 60])
        # The newest two are damaged: they take no other's place.
        for step in (50, 60):
            path = self.largest(os.path.join(self.state, "checkpoints", job, f"step-{step:08}", "attempt-1"))
            with open(path, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                byte = file.read(1)
                file.seek(-1, os.SEEK_END)
                file.write(bytes([byte[0] ^ 1]))
        self.assertEqual(self.prune(job, "--keep-last", "1"), ([30], [40, 50, 60]))
        self.assertEqual(self.kept(job), [40, 50, 60])
        listed = self.json(*self.reach("checkpoint", "list", job))
        self.assertEqual([bool(checkpoint["problem"]) for checkpoint in listed], [False, True, True])
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

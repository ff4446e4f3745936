"""Runs the real programs for tests: temporary directories, port 0, nothing left behind."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.join(ROOT, "bin")
SECONDS = 120  # far beyond what anything here takes, so that a hang fails instead of hanging the runner

JOB = """
name: small
model: {layers: 4, hidden: 32, heads: 4, context: 32, dropout: 0.1}
data: {train: corpus.txt, validation: 0.1, tokenizer: chars}
training:
  steps: 60
  global_batch: 8
  optimizer: {learning_rate: 3e-3}
  schedule: {warmup_steps: 10}
  evaluate: {every_steps: 20, batches: 2}
checkpoint: {every_steps: 10}
fault_tolerance: {max_restarts: 5}
"""

# Fields of a step that must be equal to the bit.
CURVE = ("step", "loss", "grad_norm", "learning_rate", "tokens", "validation_loss")


def layout(tensor, pipeline, data, schedule="1f1b"):
    return ["--set", f"parallelism={{tensor: {tensor}, pipeline: {pipeline}, data: {data}, "
                     f"schedule: {schedule}}}",
            "--set", f"resources.ranks={tensor * pipeline * data}"]


def wait_for(condition, what, seconds=SECONDS):
    """Asks at most a fifth of the time: a condition that starts a program would otherwise take a core from what it waits for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asked = time.monotonic()
        value = condition()
        if value:
            return value
        time.sleep(min(0.25, max(0.01, 4 * (time.monotonic() - asked))))
    raise AssertionError(f"waited {seconds} s for {what}")


def lasting_port():
    """A port to listen on again and again: none that the kernel gives to a connection that somebody opens meanwhile."""
    while True:
        with socket.socket() as listener:
            try:
                port = random.randrange(15000, 30000)
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def processes(word):
    """Process numbers whose command line holds all words of `word`."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode(errors="replace")
            with open(f"/proc/{name}/stat", "rb") as file:
                zombie = file.read().rsplit(b")", 1)[1].split()[0] == b"Z"
        except OSError:
            continue
        if not zombie and all(part in line for part in word.split()):
            found.append(int(name))
    return sorted(found)


class TercioTest(unittest.TestCase):

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="tercio-e2e.")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.daemons = []
        self.addCleanup(self.stop_daemons)
        self.state = os.path.join(self.directory, "state")
        words = ["red", "green", "blue", "small", "large", "round", "heavy", "light"]
        with open(self.path("corpus.txt"), "w", encoding="utf-8") as file:
            for i in range(6000):
                file.write(words[(i * i + i // 7) % len(words)] + (".\n" if i % 11 == 0 else " "))
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TERCIO_")}
        return {**kept, "XDG_STATE_HOME": self.path("xdg"), "XDG_CONFIG_HOME": self.path("config")}

    def start(self, *arguments, **options):
        return subprocess.Popen([os.path.join(BIN, "tercio"), *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=self.environment(), **options)

    def tercio(self, *arguments, code=0):
        """Runs a verb to its end, checks its exit code, returns (stdout, stderr)."""
        child = self.start(*arguments)
        try:
            out, err = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
        self.assertEqual(child.returncode, code, f"tercio {' '.join(arguments)}\n{out}\n{err}")
        return out, err

    def json(self, *arguments, code=0):
        return json.loads(self.tercio(*arguments, "-o", "json", code=code)[0])

    def run_job(self, state, *changes, code=0):
        return self.json("run", self.path("job.yaml"), "--state-dir", state, *changes, code=code)

    def history(self, job, state, *more):
        out, _ = self.tercio("history", job, "--state-dir", state, "-o", "jsonl", *more)
        return [json.loads(line) for line in out.splitlines()]

    def curve(self, job, state):
        """What must be equal to the bit."""
        return [tuple(step[key] for key in CURVE) for step in self.history(job, state)]

    def trainers(self, job):
        return processes(f"tercio-trainer {job}")

    # ---- daemons by hand ----

    def daemon(self, program, *arguments):
        log = open(self.path(f"{program}.{len(self.daemons)}.log"), "w", encoding="utf-8")
        child = subprocess.Popen([os.path.join(BIN, program), *arguments], stdout=subprocess.PIPE,
                                 stderr=log, text=True, env=self.environment())
        log.close()
        self.daemons.append(child)
        ready = child.stdout.readline()
        if not ready.startswith("ready "):
            with open(log.name, encoding="utf-8") as said:
                self.fail(f"{program}: {ready!r}\n{said.read()[-2000:]}")
        return child, dict(part.split("=", 1) for part in ready.split()[1:])

    def coordinator(self, *more):
        return self.daemon("tercio-coordinator", "--state-dir", self.state, "--listen", "127.0.0.1:0",
                           "--metrics-listen", "127.0.0.1:0", "--first-backoff", "0.2", *more)

    def agent(self, address, name="one", slots=4, *more):
        return self.daemon("tercio-agent", "--coordinator", address, "--state-dir",
                           self.path("agent-" + name), "--name", name, "--slots", str(slots),
                           "--metrics-listen", "127.0.0.1:0", "--stop-grace", "5", *more)

    def stop_daemons(self):
        for child in reversed(self.daemons):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(20)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
            child.stdout.close()


class ClusterTest(TercioTest):
    """Verbs against a coordinator; `address` is set once it is there."""

    address = None

    def reach(self, *arguments):
        return [*arguments, "--coordinator", self.address]

    def submit(self, *changes):
        return self.tercio(*self.reach("submit", self.path("job.yaml"), *changes))[0].strip()

    def get(self, job):
        return self.json(*self.reach("get", job))

    def after_step(self, job, step):
        return wait_for(lambda: (s := self.get(job))["step"] > step and s, f"step {step} of {job}")

    def events(self, *job):
        """Of a job, or of all and of the nodes."""
        out, _ = self.tercio(*self.reach("events", *job, "-o", "jsonl"))
        return [json.loads(line) for line in out.splitlines()]

    def kinds(self, job):
        return [event["kind"] for event in self.events(job)]

    def steps(self, job):
        out, _ = self.tercio(*self.reach("history", job, "-o", "jsonl"))
        return [json.loads(line) for line in out.splitlines()]

    def curve_of(self, job):
        """What must be equal to the bit."""
        return [tuple(step[key] for key in CURVE) for step in self.steps(job)]


class DiskTest(ClusterTest):
    """A file system of the test's own, at `disk`."""

    MKFS = ["mkfs.ext4", "-q"]

    def setUp(self):
        super().setUp()
        image, self.disk = self.path("image"), self.path("disk")
        os.mkdir(self.disk)
        with open(image, "wb") as file:
            file.truncate(256 << 20)
        for command in ([*self.MKFS, image], ["mount", "-o", "loop", image, self.disk]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self.skipTest(f"no file system of its own: {' '.join(command)}: {done.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk], check=True)


class FrozenDiskTest(DiskTest):
    """One that can stand still, as a server that is gone does."""

    frozen = False

    def setUp(self):
        super().setUp()
        # Before the file system goes: what hangs in it must be able to end.
        self.addCleanup(self.thaw)

    def freeze(self):
        subprocess.run(["fsfreeze", "-f", self.disk], check=True)
        self.frozen = True

    def thaw(self):
        if self.frozen:
            subprocess.run(["fsfreeze", "-u", self.disk], check=True)
        self.frozen = False

    def stop_daemons(self):
        self.thaw()
        super().stop_daemons()


class FailingFilesTest(ClusterTest):
    """Daemons whose calls on some files fail or are held up (common/testing/failing_files.cc)."""

    preloaded = None  # the rules of the daemon that is being started

    def environment(self):
        if not self.preloaded:
            return super().environment()
        library = os.path.join(ROOT, "bazel-bin", "common", "testing", "failing_files", "libfailing_files.so")
        if not os.path.exists(library):
            raise AssertionError(f"{library} is not there: bazel build //common/...")
        return {**super().environment(), "LD_PRELOAD": library, "FAILING_FILES": self.preloaded}

    def with_rules(self, name, start, *arguments):
        """Starts a daemon, and what it starts, for which rule() with this name counts."""
        self.preloaded = self.path(f"rules-{name}")
        try:
            return start(*arguments)
        finally:
            self.preloaded = None

    def rule(self, name, *lines):
        """From the next call on these, and no others, count."""
        with open(self.path(f"rules-{name}.new"), "w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
        os.rename(self.path(f"rules-{name}.new"), self.path(f"rules-{name}"))

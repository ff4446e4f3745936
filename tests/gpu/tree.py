"""The programs of an unpacked tarball, and how jobs run with them: as a user would, with directories and ports of their own."""

import contextlib
import json
import os
import random
import select
import signal
import struct
import subprocess
import tempfile
import urllib.request

from checks import Failure, require, wait_for

# Fields of a step that must be equal to the bit.
CURVE = ("step", "loss", "grad_norm", "learning_rate", "tokens", "validation_loss")
_SECONDS_TO_STOP = 20
_LOGS, _LOG_CHARACTERS = 8, 20000  # logs of a failure, and characters of each


class Tree:

    def __init__(self, root, folders, scratch, log):
        self.root = root
        self.scratch = scratch
        self.log = log
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TERCIO_")}
        self.environment = {**kept, "XDG_STATE_HOME": os.path.join(scratch, "xdg"), "LD_LIBRARY_PATH": ":".join(folders)}

    def program(self, name, folder="bin"):
        path = os.path.join(self.root, folder, name)
        require(os.access(path, os.X_OK), f"{folder}/{name} is not in {self.root}")
        return path

    def folder(self, prefix="state"):
        return tempfile.mkdtemp(prefix=prefix + ".", dir=self.scratch)

    def run(self, part, command, environment=None, codes=(0,)):
        """(exit code, stdout, stderr) of a command, which is stopped when the part's time is over."""
        self.log.write(f"$ {' '.join(command)}\n")
        limit = part.remaining()  # nothing is started that could not be waited for
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment or self.environment) as child:
            try:
                out, err = child.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                child.terminate()
                try:
                    out, err = child.communicate(timeout=_SECONDS_TO_STOP)
                except subprocess.TimeoutExpired:
                    child.kill()
                    out, err = child.communicate()
                self.log.write(out + err)
                raise Failure(f"{os.path.basename(command[0])} was stopped at the time limit of this part, "
                              f"{part.seconds:.0f} s") from None
        self.log.write(err)
        if child.returncode not in codes:
            self.log.write(out)
            lines = (err or out).strip().splitlines()
            said = [line for line in lines if line.startswith("error: ")] or lines[-3:]
            raise Failure(f"{' '.join([os.path.basename(command[0]), *command[1:2]])} ended with {child.returncode}: "
                          f"{' '.join(said)[:600]}")
        return child.returncode, out, err

    def tercio(self, part, *arguments, codes=(0,)):
        return self.run(part, [self.program("tercio"), *arguments], codes=codes)

    @contextlib.contextmanager
    def _logs_of(self, *folders):
        """When something fails: the ends of the logs that trainers and daemons wrote below these folders go to gpu.log."""
        try:
            yield
        except Exception:
            paths = [os.path.join(at, name) for folder in folders for at, _, names in os.walk(folder) for name in names
                     if name.endswith(".log")]
            for path in sorted(paths)[:_LOGS]:
                with open(path, encoding="utf-8", errors="replace") as file:
                    self.log.write(f"---- {os.path.basename(path)}\n{file.read()[-_LOG_CHARACTERS:]}\n")
            raise

    def write_job(self, job):
        path = os.path.join(self.folder("job"), "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(job, file)  # JSON is YAML
        return path

    def run_job(self, part, job, *more):
        """(state directory, job as `tercio get` shows it, its steps)."""
        state = self.folder()
        with self._logs_of(state):
            _, out, _ = self.tercio(part, "run", self.write_job(job), "--state-dir", state, "-o", "json", *more)
        done = json.loads(out)
        return state, done, self.history(part, done["id"], "--state-dir", state)

    def history(self, part, job, *where):
        _, out, _ = self.tercio(part, "history", job, *where, "-o", "jsonl")
        return [json.loads(line) for line in out.splitlines()]

    @contextlib.contextmanager
    def cluster(self, part, slots):
        """A coordinator and an agent of this machine's GPUs, which share them when there are fewer than slots."""
        daemons, folders = [], []

        def start(program, *arguments):
            folders.append(self.folder(program))
            child = subprocess.Popen([self.program(program), "--state-dir", folders[-1], *arguments],
                                     stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.environment)
            daemons.append(child)
            readable, _, _ = select.select([child.stdout], [], [], part.remaining())
            words = child.stdout.readline().split() if readable else []
            require(words[:1] == ["ready"], f"{program} did not start: see gpu.log")
            return dict(word.split("=", 1) for word in words[1:])

        try:
            self.log.flush()
            address = start("tercio-coordinator", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                            "--first-backoff", "0.2")["coordinator"]
            ready = start("tercio-agent", "--coordinator", address, "--device", "cuda", "--slots", str(slots), "--name", "here",
                          "--metrics-listen", "127.0.0.1:0", "--stop-grace", "10")
            with self._logs_of(*folders):
                yield Cluster(self, part, address, ready["metrics"])
        finally:
            for child in reversed(daemons):
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(_SECONDS_TO_STOP)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                child.stdout.close()


class Cluster:

    def __init__(self, tree, part, address, metrics):
        self.tree, self.part, self.metrics_address = tree, part, metrics
        self.reach = ("--coordinator", address)

    def submit(self, job):
        return self.tree.tercio(self.part, "submit", self.tree.write_job(job), *self.reach)[1].strip()

    def get(self, job):
        return json.loads(self.tree.tercio(self.part, "get", job, *self.reach, "-o", "json")[1])

    def after_step(self, job, step):
        def reached():
            status = self.get(job)
            require(status["state"] != "failed", f"the job failed: {status['error']}")
            return status["step"] > step or status["state"] == "succeeded"

        wait_for(self.part, reached, f"step {step + 1} of {job}")

    def wait(self, job):
        self.tree.tercio(self.part, "wait", job, *self.reach)

    def cancel(self, job):
        self.tree.tercio(self.part, "cancel", job, "--no-save", *self.reach)

    def history(self, job):
        return self.tree.history(self.part, job, *self.reach)

    def metrics(self):
        """"name{labels}" -> value, of the agent."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def trainers(self, job):
        """Process numbers of the job's ranks."""
        found = []
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    line = file.read().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if name.isdigit() and line.startswith("tercio-trainer ") and job in line:
                found.append(int(name))
        return sorted(found)


def curve(steps):
    return [tuple(step[key] for key in CURVE) for step in steps]


def largest_difference(steps, reference, key="loss"):
    """Of all steps, relative; fails where a curve is not whole."""
    require(len(steps) == len(reference) > 0, f"{len(steps)} steps instead of {len(reference)}")
    require(all(step[key] is not None for step in steps), f"a step's {key} is not finite")
    return max(abs(ours[key] / theirs[key] - 1) for ours, theirs in zip(steps, reference))


def layout(tensor, pipeline, data):
    return {"tensor": tensor, "pipeline": pipeline, "data": data}


def write_tokens(prefix, vocabulary, documents, length, seed=7):
    """A Megatron data set of a chain in which every token has four likely successors, so that there is something to learn."""
    draw = random.Random(seed)
    followers = [[draw.randrange(vocabulary) for _ in range(4)] for _ in range(vocabulary)]
    wide = vocabulary > 65500
    with open(prefix + ".bin", "wb") as file:
        token = 0
        for _ in range(documents):
            ids = []
            for _ in range(length):
                token = draw.choice(followers[token]) if draw.random() < 0.9 else draw.randrange(vocabulary)
                ids.append(token)
            file.write(struct.pack(f"<{length}{'i' if wide else 'H'}", *ids))
    size = 4 if wide else 2
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4 if wide else 8, documents, documents + 1))
        file.write(struct.pack(f"<{documents}i", *[length] * documents))
        file.write(struct.pack(f"<{documents}q", *[size * length * i for i in range(documents)]))
        file.write(struct.pack(f"<{documents + 1}q", *range(documents + 1)))

"""The whole service with real processes: layouts, kills, daemons, verbs, exit codes."""

import errno
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, ClusterTest, TercioTest, layout, processes, wait_for  # noqa: E402

assert ROOT


class Layouts(TercioTest):

    def curve_of(self, name, *changes):
        state = self.path(name)
        job = self.run_job(state, *changes)
        self.assertEqual((job["state"], job["step"]), ("succeeded", 60))
        self.assertEqual(processes(f"tercio-trainer {job['id']}"), [])
        return self.curve(job["id"], state)

    def test_processes_have_the_same_bits_in_every_layout(self):
        one = self.curve_of("1x1x1")
        self.assertEqual(len(one), 60)
        self.assertLess(one[-1][1], one[0][1])
        self.assertEqual(one, self.curve_of("1x2x2", *layout(1, 2, 2)))
        self.assertEqual(one, self.curve_of("1x4x2", *layout(1, 4, 2, "gpipe")))
        two = self.curve_of("2x1x1", *layout(2, 1, 1))
        self.assertEqual(two, self.curve_of("2x2x2", *layout(2, 2, 2)))
        for a, b in zip(one, two):
            self.assertAlmostEqual(b[1] / a[1], 1, delta=1e-4)
            self.assertAlmostEqual(b[2] / a[2], 1, delta=1e-4)


    def test_a_trace_shows_what_every_rank_did(self):
        path = self.path("trace.json")
        _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, "--trace", path,
                             "--trace-step", "3", *layout(1, 2, 2))
        self.assertRegex(err, r"trace of step 3 .* bubble \d+\.\d+ measured, \d+\.\d+ by the formula")
        with open(path, encoding="utf-8") as file:
            events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
        for rank in range(4):
            names = {e["name"] for e in events if e["pid"] == rank}
            self.assertLessEqual({"forward", "backward", "finish reduction", "optimizer"}, names)
            self.assertTrue(any(name.startswith("reduce layer") for name in names))
            self.assertEqual(names & {"send activation", "send gradient"},
                             {"send activation"} if rank < 2 else {"send gradient"})
        self.assertEqual({e["args"]["step"] for e in events}, {3})
        # Equal stages have a bubble of (2 - 1) / 4. Here the second one's 4 x 9 units of work hide all but the first one's
        # first forward and last backward pass, 1 + 2.
        _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.path("unequal"), "--trace", self.path("unequal.json"),
                             "--trace-step", "2", "--set", "training.steps=2", "--set", "resources.ranks=2",
                             "--set", "parallelism={tensor: 1, pipeline: 2, data: 1, stage_layers: [1, 3]}")
        self.assertRegex(err, r"trace of step 2 .* bubble \d+\.\d+ measured, 0\.083 for stages of 1, 3 layers")


class Recovery(TercioTest):

    def killed(self, moment, *changes):
        """Kills one trainer at a moment; the job must recover with the bits of an undisturbed run."""
        reference = self.run_job(self.path("reference"), *changes)
        child = self.start("run", self.path("job.yaml"), "--state-dir", self.state, *changes, "-o", "json")
        victims = wait_for(lambda: moment() and processes("tercio-trainer --job " + self.job_id()),
                           "a trainer")
        os.kill(victims[-1], signal.SIGKILL)
        out, err = child.communicate(timeout=120)
        self.assertEqual(child.returncode, 0, err)
        job = json.loads(out)
        self.assertGreaterEqual(job["restarts"], 1, err)
        self.assertEqual(self.curve(job["id"], self.state),
                         self.curve(reference["id"], self.path("reference")))

    def job_id(self):
        jobs = os.listdir(os.path.join(self.state, "agent", "logs")) if os.path.isdir(
            os.path.join(self.state, "agent", "logs")) else []
        return jobs[0] if jobs else "none"

    def checkpoints(self, pattern):
        return glob.glob(os.path.join(self.state, "checkpoints", "*", pattern))

    def test_killed_at_the_start(self):
        self.killed(lambda: self.job_id() != "none", *layout(1, 2, 1))

    def test_killed_while_training(self):
        self.killed(lambda: self.checkpoints("step-00000010/manifest.json"), *layout(1, 2, 2))

    def test_killed_while_a_checkpoint_streams(self):
        self.killed(lambda: self.checkpoints("step-*/attempt-*/rank-*"), *layout(2, 1, 2))

    def test_killed_at_the_commit(self):
        # All parts are there, or the new name just appeared and nobody has been told.
        self.killed(lambda: self.checkpoints("step-*/attempt-*/manifest.json*") or
                    self.checkpoints("step-00000010/manifest.json"), *layout(1, 1, 2))

    def test_the_private_daemons_are_killed(self):
        steps = ["--set", "training.steps=2000", "--set", "checkpoint.every_steps=50"]
        reference = self.run_job(self.path("reference"), *steps)
        child = self.start("run", self.path("job.yaml"), "--state-dir", self.state, *steps, "-o", "json")
        newest = lambda: max((int(path.split("step-")[1][:8]) for path in self.checkpoints("step-*/manifest.json")),
                             default=0)
        for program in ("tercio-agent", "tercio-coordinator", "tercio-agent"):
            seen = newest()
            wait_for(lambda: newest() > seen, "a checkpoint")  # noqa: B023
            before = processes(f"{program} {self.state}")
            self.assertEqual(len(before), 1)
            os.kill(before[0], signal.SIGKILL)
            wait_for(lambda: (now := processes(f"{program} {self.state}")) and now != before, "its return")  # noqa: B023
        out, err = child.communicate(timeout=120)
        self.assertEqual(child.returncode, 0, err)
        self.assertIn("the private agent exited (signal 9); restarting it", err)
        self.assertIn("the private coordinator exited (signal 9); restarting it", err)
        job = json.loads(out)
        self.assertEqual((job["state"], job["step"], job["restarts"]), ("succeeded", 2000, 0))
        self.assertEqual(self.curve(job["id"], self.state), self.curve(reference["id"], self.path("reference")))
        self.assertEqual(processes(f"tercio-agent {self.state}") + processes(f"tercio-coordinator {self.state}"), [])

    def test_a_damaged_checkpoint_is_left_out(self):
        job = self.run_job(self.state, "--set", "training.steps=40")
        reference = self.run_job(self.path("reference"), "--set", "training.steps=60",
                                 "--set", "training.schedule.decay_steps=40")
        newest = sorted(glob.glob(os.path.join(self.state, "checkpoints", "*", "step-*")))[-1]
        part = glob.glob(os.path.join(newest, "attempt-1", "*.safetensors"))[0]
        with open(part, "r+b") as file:
            file.seek(os.path.getsize(part) // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        findings = self.json("checkpoint", "verify", job["id"], "--state-dir", self.state, code=7)
        self.assertEqual([f["path"] for f in findings if not f["ok"]], [part])
        again = self.json("resume", job["id"], "--state-dir", self.state, "--set", "training.steps=60")
        self.assertEqual((again["state"], again["step"], again["id"]), ("succeeded", 60, job["id"]))
        events, _ = self.tercio("events", job["id"], "--state-dir", self.state)
        self.assertIn("checkpoint_damaged", events)
        self.assertIn("starts after step 30", events)
        self.assertEqual([step[:3] for step in self.curve(job["id"], self.state)],
                         [step[:3] for step in self.curve(reference["id"], self.path("reference"))])

    def test_interrupted_and_resumed_in_another_layout(self):
        child = self.start("run", self.path("job.yaml"), "--state-dir", self.state, "--set",
                           "training.steps=400", "-o", "json", *layout(1, 2, 1))
        wait_for(lambda: self.checkpoints("step-00000010/manifest.json"), "a checkpoint")
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 130, err)
        job = json.loads(out)
        self.assertEqual((job["state"], job["error"]), ("cancelled", "interrupted"))
        self.assertEqual(job["checkpoint"]["step"], job["step"])
        self.assertIn("tercio resume", err)
        resumed = self.json("resume", "--state-dir", self.state, *layout(1, 1, 2))
        self.assertEqual((resumed["state"], resumed["id"]), ("succeeded", job["id"]))
        reference = self.run_job(self.path("reference"), "--set", "training.steps=400")
        self.assertEqual(self.curve(job["id"], self.state),
                         self.curve(reference["id"], self.path("reference")))


class Daemons(ClusterTest):

    def setUp(self):
        super().setUp()
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.coordinator_metrics = ready["metrics"]
        _, self.agent_ready = self.agent(self.address)

    def test_every_verb_on_a_real_job(self):
        job = self.submit(*layout(2, 1, 2))
        self.assertEqual(self.json(*self.reach("wait", job))["state"], "succeeded")
        status = self.json(*self.reach("get", job))
        for key in ("id", "name", "state", "step", "steps", "loss", "tokens_per_second", "restarts",
                    "attempt", "plan", "checkpoint", "error"):
            self.assertIn(key, status)
        self.assertEqual((status["plan"]["tensor"], status["plan"]["data"]), (2, 2))
        self.assertIsNone(status["error"])
        self.assertEqual([j["id"] for j in self.json(*self.reach("list"))], [job])
        node = self.json(*self.reach("nodes"))[0]
        self.assertEqual((node["name"], node["state"], node["devices"], node["free"]), ("one", "ready", 4, 4))
        lines = self.tercio(*self.reach("history", job, "-o", "jsonl"))[0].splitlines()
        self.assertEqual([json.loads(line)["step"] for line in lines], list(range(1, 61)))
        self.assertIn("succeeded", self.tercio(*self.reach("events", job))[0])
        self.tercio(*self.reach("logs", job))
        self.assertEqual(self.tercio(*self.reach("watch", job))[0], "")
        steps = [c["step"] for c in self.json(*self.reach("checkpoint", "list", job))]
        self.assertEqual(steps, [40, 50, 60])
        self.tercio(*self.reach("checkpoint", "verify", job))
        first = self.tercio("generate", "--checkpoint", status["checkpoint"]["path"], "--prompt", "red ",
                            "--tokens", "20", "--seed", "1")[0]
        self.assertTrue(first.startswith("red "))
        self.assertEqual(first, self.tercio("generate", "--checkpoint", status["checkpoint"]["path"],
                                            "--prompt", "red ", "--tokens", "20", "--seed", "1")[0])
        with open(self.path("test.txt"), "w", encoding="utf-8") as file:
            file.write("red green blue small large " * 5)
        value = self.json("evaluate", "--checkpoint", status["checkpoint"]["path"], "--data",
                          self.path("test.txt"), "--metric", "perplexity")
        self.assertEqual(value["tokens"], 5 * 27 - 1)
        self.assertGreater(value["value"], 1)

    def test_metrics_of_both_daemons(self):
        job = self.submit("--set", "training.steps=2000")
        wait_for(lambda: self.json(*self.reach("get", job))["step"] > 5, "steps")
        pages = {}
        for name, address in (("coordinator", self.coordinator_metrics),
                              ("agent", self.agent_ready["metrics"])):
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
                pages[name] = page.read().decode()
        self.tercio(*self.reach("cancel", job, "--no-save"))
        self.assertIn(f'job_id="{job}"', pages["agent"])
        for name in ("tercio_tokens_total", "tercio_tokens_per_second", "tercio_loss",
                     'tercio_memory_bytes{', 'kind="planned"', 'kind="resident"'):
            self.assertIn(name, pages["agent"])
        self.assertIn("tercio_job_restarts_total", pages["coordinator"])
        promtool = shutil.which("promtool")
        if promtool is None:
            self.skipTest("promtool is not installed")
        for name, page in pages.items():
            check = subprocess.run([promtool, "check", "metrics"], input=page, text=True,
                                   capture_output=True, check=False)
            self.assertEqual(check.returncode, 0, f"{name}: {check.stdout}{check.stderr}")

    def test_health_and_reflection(self):
        """As Kubernetes probes and grpcurl ask; raw bytes, so that no generated code is needed."""
        script = """
import sys, grpc
channel = grpc.insecure_channel(sys.argv[1])
check = channel.unary_unary('/grpc.health.v1.Health/Check')
assert check(b'', timeout=10) == bytes([8, 1]), 'not serving'
reflect = channel.stream_stream('/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo')
answer = next(iter(reflect(iter([bytes([0x3a, 0])]), timeout=10)))
for service in (b'tercio.v1.JobService', b'tercio.v1.NodeService', b'tercio.v1.CheckpointService'):
    assert service in answer, service
"""
        if subprocess.run(["/usr/bin/python3", "-c", "import grpc"], capture_output=True,
                          check=False).returncode != 0:
            self.skipTest("python3-grpcio is not installed")
        asked = subprocess.run(["/usr/bin/python3", "-c", script, self.address], capture_output=True,
                               text=True, timeout=60, check=False)
        self.assertEqual(asked.returncode, 0, asked.stderr)

    def test_cancel_and_resume(self):
        job = self.submit("--set", "training.steps=100000")
        wait_for(lambda: self.json(*self.reach("get", job))["step"] > 3, "steps")
        self.tercio(*self.reach("wait", job, "--timeout", "1s"), code=6)
        self.tercio(*self.reach("cancel", job))
        self.assertEqual(self.json(*self.reach("wait", job), code=8)["state"], "cancelled")
        self.tercio(*self.reach("cancel", job), code=7)
        done = self.json(*self.reach("get", job))["step"]
        again = self.json(*self.reach("resume", job, "--set", f"training.steps={done + 5}"))
        self.assertEqual((again["state"], again["step"]), ("succeeded", done + 5))
        self.tercio(*self.reach("resume", job), code=7)

    def test_a_job_larger_than_the_cluster_waits_and_says_why(self):
        job = self.submit(*layout(1, 4, 2))
        status = wait_for(lambda: (s := self.json(*self.reach("get", job)))["error"] and s, "a reason")
        self.assertEqual(status["state"], "queued")
        self.assertIn("needs 8 devices", status["error"])
        self.agent(self.address, "two", 4)
        self.assertEqual(self.json(*self.reach("wait", job))["state"], "succeeded")
        self.assertEqual({r["node"] for r in self.json(*self.reach("get", job))["plan"]["ranks"]},
                         {"one", "two"})

    def test_data_that_a_node_cannot_read_fails_without_restart(self):
        job = self.submit("--set", "data.train=/nowhere/corpus.txt")
        status = self.json(*self.reach("wait", job), code=1)
        self.assertEqual((status["state"], status["restarts"]), ("failed", 0))
        self.assertIn("node one", status["error"])
        self.assertIn("/nowhere/corpus.txt", status["error"])

    def test_the_coordinator_is_killed_and_comes_back(self):
        job = self.submit("--set", "training.steps=600")
        wait_for(lambda: self.json(*self.reach("get", job))["step"] > 20, "steps")
        first = self.daemons[0]
        first.kill()
        first.wait()
        port = self.address
        self.daemon("tercio-coordinator", "--state-dir", self.state, "--listen", port,
                    "--metrics-listen", "127.0.0.1:0", "--first-backoff", "0.2")
        status = self.json(*self.reach("wait", job))
        self.assertEqual((status["state"], status["step"], status["restarts"]), ("succeeded", 600, 0))
        self.assertEqual(status["checkpoint"]["step"], 600)
        out, _ = self.tercio(*self.reach("history", job, "-o", "jsonl"))
        self.assertEqual([json.loads(line)["step"] for line in out.splitlines()],
                         list(range(1, 601)))

    def test_a_killed_agent_leaves_no_orphans(self):
        agent, _ = self.agent(self.address, "brief", 1, "--agent-grace", "1")
        self.daemons[1].terminate()
        self.daemons[1].wait()
        job = self.submit("--set", "training.steps=1000000")
        wait_for(lambda: self.json(*self.reach("get", job))["step"] > 3, "steps")
        self.assertNotEqual(self.trainers(job), [])
        agent.kill()
        agent.wait()
        wait_for(lambda: not self.trainers(job), "the end of the trainers", 30)


class FullDisk(TercioTest):
    """A state directory on a small file system of the test's own."""

    def setUp(self):
        super().setUp()
        small = self.path("small")
        os.mkdir(small)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", small],
                                 capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            self.skipTest(f"cannot mount a small file system: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", small], check=True)
        self.state = os.path.join(small, "state")
        self.filler = os.path.join(small, "filler")

    def leave(self, free):
        with open(self.filler, "wb", buffering=0) as file:
            left = os.statvfs(self.path("small"))
            try:
                file.write(bytes(left.f_bavail * left.f_frsize - free))
            except OSError as error:  # somebody else took what was free
                self.assertEqual(error.errno, errno.ENOSPC)

    def test_a_job_whose_checkpoints_cannot_fit_is_refused(self):
        self.leave(6 << 20)
        out, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, "--set",
                               "model.hidden=64", code=7)
        self.assertEqual(out, "")
        self.assertIn("disk full", err)
        self.assertIn("checkpoint.keep_last", err)
        self.assertEqual(processes(f"tercio-trainer {self.state}"), [])

    def test_a_disk_that_fills_costs_checkpoints_and_nothing_else(self):
        _, ready = self.coordinator()
        self.agent(ready["coordinator"])
        reach = ["--coordinator", ready["coordinator"]]
        job = self.tercio("submit", self.path("job.yaml"), "--set", "training.steps=2000", *reach)[0].strip()
        wait_for(lambda: glob.glob(os.path.join(self.state, "checkpoints", "*", "step-*", "manifest.json")),
                 "a checkpoint")
        self.leave(0)

        def failed():
            with open(self.path("tercio-coordinator.0.log"), encoding="utf-8") as log:
                return "no space left on device" in log.read().lower()
        wait_for(failed, "a checkpoint that fails")
        os.remove(self.filler)
        status = self.json("wait", job, *reach)
        self.assertEqual((status["state"], status["step"], status["restarts"]), ("succeeded", 2000, 0))
        self.assertEqual(status["checkpoint"]["step"], 2000)
        self.tercio("checkpoint", "verify", job, *reach)
        out, _ = self.tercio("history", job, "-o", "jsonl", *reach)
        self.assertEqual([json.loads(line)["step"] for line in out.splitlines()],
                         list(range(1, 2001)))


class ExitCodes(TercioTest):

    def test_usage_and_bad_jobs(self):
        self.tercio("no-such-verb", code=2)
        self.tercio("plot", code=2)
        with open(self.path("bad.yaml"), "w", encoding="utf-8") as file:
            file.write("model: {layer: 2}\ntraining: {steps: -1}\n")
        out, err = self.tercio("run", self.path("bad.yaml"), "--state-dir", self.state, code=2)
        self.assertEqual(out, "")
        self.assertIn("bad.yaml:1: model.layer: unknown key; did you mean 'layers'?", err)
        self.assertIn("bad.yaml:2: training.steps", err)
        self.assertFalse(os.path.exists(self.state))
        out, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state,
                               *layout(8, 1, 1), code=2)
        self.assertIn("tensor 8 does not divide model.heads 4", err)
        self.assertRegex(err, "nearest tensor x pipeline x data that work: .*4x2x1")
        for text, word in (("", "empty"), ("ab", "tokens")):
            with open(self.path("corpus.txt"), "w", encoding="utf-8") as file:
                file.write(text)
            _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, code=2)
            self.assertIn(word, err)
        os.remove(self.path("corpus.txt"))
        _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, code=2)
        self.assertIn("corpus.txt", err)

    def test_a_job_that_does_not_fit_is_refused_with_its_memory(self):
        _, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, "--set",
                             "model.hidden=65536", "--set", "model.heads=1024", code=2)
        self.assertIn("does not fit in memory", err)
        self.assertIn("optimizer", err)
        _, ready = self.coordinator()
        self.agent(ready["coordinator"])
        reach = ["--coordinator", ready["coordinator"]]
        wait_for(lambda: self.json("nodes", *reach), "the node")
        out, err = self.tercio("submit", self.path("job.yaml"), *reach, "--set",
                               "model.hidden=65536", "--set", "model.heads=1024", code=2)
        self.assertEqual((out, self.json("list", *reach)), ("", []))
        self.assertIn("optimizer", err)

    def test_unreachable_and_not_found(self):
        out, err = self.tercio("list", "--coordinator", "127.0.0.1:1", code=5)
        self.assertEqual(out, "")
        self.assertIn("127.0.0.1:1", err)
        self.tercio("get", "job", "--state-dir", self.path("nothing"), code=3)
        for without_jobs in (self.path("nothing"), self.directory):
            self.assertEqual(self.json("list", "--state-dir", without_jobs), [])
            self.assertEqual(self.tercio("list", "--state-dir", without_jobs, "-o", "jsonl"), ("", ""))
            out, err = self.tercio("list", "--state-dir", without_jobs)
            self.assertEqual((out.split(), err), (["ID", "NAME", "STATE", "STEP", "LOSS", "RESTARTS"], ""))
        self.assertFalse(os.path.exists(self.path("nothing")))
        self.tercio("list", "--state-dir", self.path("corpus.txt"), code=3)
        self.tercio("run", self.path("missing.yaml"), code=3)
        self.run_job(self.state, "--set", "training.steps=2")
        self.tercio("get", "no-such-job", "--state-dir", self.state, code=3)

    def test_conflicts(self):
        _, ready = self.coordinator()
        second = subprocess.run(
            [os.path.join(ROOT, "bin", "tercio-coordinator"), "--state-dir", self.path("other"),
             "--listen", ready["coordinator"], "--metrics-listen", "127.0.0.1:0"],
            capture_output=True, text=True, timeout=20, check=False)
        self.assertEqual((second.returncode, second.stdout), (7, ""))
        self.assertIn("port in use", second.stderr)
        out, err = self.tercio("run", self.path("job.yaml"), "--state-dir", self.state, code=7)
        self.assertEqual(out, "")
        self.assertIn(self.state, err)
        _, err = self.tercio("run", self.path("job.yaml"), "--state-dir",
                             self.path("corpus.txt", "state"), code=7)
        self.assertIn("corpus.txt/state", err)
        third = subprocess.run(
            [os.path.join(ROOT, "bin", "tercio-coordinator"), "--state-dir", self.path("other"),
             "--listen", "0.0.0.0:0", "--metrics-listen", "127.0.0.1:0"],
            capture_output=True, text=True, timeout=20, check=False)
        self.assertEqual(third.returncode, 2)

    def test_plans_and_data(self):
        report = self.json("plan", self.path("job.yaml"), "--ranks", "4")
        chosen = report["layouts"][report["chosen"]]
        self.assertIsNone(chosen["rejected"])
        self.assertEqual(chosen["tensor"] * chosen["pipeline"] * chosen["data"], 4)
        for candidate in report["layouts"]:
            if candidate["predicted"]:
                self.assertGreater(candidate["predicted"]["memory_bytes_peak"], 0)
        effective, _ = self.tercio("plan", self.path("job.yaml"), "--effective")
        with open(self.path("again.yaml"), "w", encoding="utf-8") as file:
            file.write(effective)
        self.assertEqual(self.tercio("plan", self.path("again.yaml"), "--effective")[0], effective)
        self.tercio("data", "tokenize", "--input", self.path("corpus.txt"), "--tokenizer", "bytes",
                    "--output", self.path("tokens"))
        summary = self.json("data", "inspect", self.path("tokens"))
        self.assertEqual(summary, {"documents": 1, "tokens": os.path.getsize(self.path("corpus.txt")),
                                   "dtype": "uint16", "vocab_size": 256})
        job = self.run_job(self.state, "--set", "training.steps=3", "--set",
                           f"data.train={self.path('tokens')}", "--set", "data.tokenizer=bytes")
        self.assertEqual(job["state"], "succeeded")
        for shell in ("bash", "zsh"):
            self.assertIn("tercio", self.tercio("completion", shell)[0])
        self.assertIn("tercio", self.tercio("version")[0])


if __name__ == "__main__":
    python_cases.main()

"""A real Prometheus scrapes a real training run. Every expression of the dashboards and rules is executed against it and
must return data; alerts are seen firing and resolving; a storm of scrapes harms nobody."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, ClusterTest, layout, wait_for  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "dashboards"))
import queries  # noqa: E402

BUILT = os.path.join(ROOT, "bazel-bin")
RULES = os.path.join(ROOT, "deploy", "prometheus", "rules")

# So long is a window of the rules here; alerts wait for a second before they fire.
SHORTER = {"1d": "60s", "1h": "25s", "15m": "15s", "10m": "12s", "5m": "8s", "2m": "5s"}

# What this run cannot show, by a part of the expression.
NOT_HERE = {
    "mfu_ratio": "ranks on CPUs: their peak is not known",
    "loss_scale": "fp16 only",
    "tercio_certificate_not_after": "no TLS here; tests of common/metrics read certificates",
    "tercio_job_validation_score": "no classifier here; quality_test.py reads its scores",
    "tercio_job_best_step": "no best checkpoint is asked for; quality_test.py reads it",
    "tercio_job_test_": "no test data; quality_test.py reads its scores and loss",
}
# Names of metrics that are on no page of this run.
NOT_ON_PAGES = {"tercio_mfu_ratio", "tercio_job_mfu_ratio", "tercio_job_loss_scale", "tercio_job_predicted_mfu_ratio",
                "tercio_certificate_not_after_timestamp_seconds",
                # Only where a library refuses something: agent_metrics_test reads it.
                "tercio_gpu_fallbacks_total",
                # A classifier's, and of jobs with test data: quality_test.py reads them.
                "tercio_job_best_step", "tercio_job_test_loss", "tercio_job_test_score", "tercio_job_validation_score",
                # Where preferences are learnt: coordinator_metrics_test reads them.
                "tercio_job_reward_margin", "tercio_job_reward_accuracy_ratio"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fetch(address, path="/metrics"):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as page:
        return page.read().decode()


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class Storm:
    """Scrapes as fast as the pages come, and connections that never ask or never read."""

    def __init__(self, addresses):
        self.addresses = [(host, int(port)) for host, port in (address.rsplit(":", 1) for address in addresses)]
        self.ends = threading.Event()
        self.answers = 0
        self.sockets = []
        self.threads = [threading.Thread(target=self.ask, args=(address,)) for address in self.addresses]

    def ask(self, address):
        # What is seen is what the daemons do, not these threads.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        while not self.ends.is_set():
            try:
                with socket.create_connection(address, timeout=30) as client:
                    client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                    while client.recv(1 << 16):
                        pass
                self.answers += 1
            except OSError:
                pass

    def __enter__(self):
        for i in range(1000):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(self.addresses[i % len(self.addresses)])
            self.sockets.append(client)
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        for thread in self.threads:
            thread.join()
        for client in self.sockets:
            client.close()


class PrometheusRun(ClusterTest):

    gpus = False

    def environment(self):
        if not self.gpus:
            return super().environment()
        return {**super().environment(), "LD_LIBRARY_PATH": os.path.join(BUILT, "common", "gpus", "testing", "fake_nvml"),
                "TERCIO_FAKE_NVML": self.path("gpus"), "TERCIO_GPU_INTERVAL": "0.2",
                "TERCIO_TRAINER": os.path.join(BUILT, "worker", "trainer", "tercio-trainer-emulated")}

    def setUp(self):
        super().setUp()
        self.ports = {"coordinator": free_port(), "metrics": free_port()}
        self.coordinator_child = self.start_coordinator()
        self.agents = {name: self.agent(self.address, name, 2, "--metrics-linger", "3") for name in ("a", "b")}
        self.gpus = True
        self.say("0.temperature 60")
        self.agents["g"] = self.agent(self.address, "g", 2, "--device", "cuda", "--metrics-linger", "3")
        self.gpus = False
        self.pages = [f"127.0.0.1:{self.ports['metrics']}"] + [ready["metrics"] for _, ready in self.agents.values()]
        self.start_prometheus()

    def start_coordinator(self):
        child, ready = self.daemon(
            "tercio-coordinator", "--state-dir", self.state, "--listen", f"127.0.0.1:{self.ports['coordinator']}",
            "--metrics-listen", f"127.0.0.1:{self.ports['metrics']}", "--first-backoff", "0.2", "--heartbeat-interval", "1",
            "--metrics-linger", "3")
        self.address = ready["coordinator"]
        return child

    def say(self, *lines):
        with open(self.path("gpus.new"), "w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
        os.rename(self.path("gpus.new"), self.path("gpus"))

    def start_prometheus(self):
        for name in ("recording.yml", "alerts.yml"):
            with open(os.path.join(RULES, name), encoding="utf-8") as file:
                text = file.read()
            text = re.sub(r"\[(\w+)\]", lambda found: f"[{SHORTER[found.group(1)]}]", text)
            text = re.sub(r"offset (\w+)", lambda found: f"offset {SHORTER[found.group(1)]}", text)
            text = re.sub(r"for: \w+", "for: 1s", text)
            text = re.sub(r"clamp_min\((.*), 60\)", r"clamp_min(\1, 3)", text)
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(text)
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [self.path("recording.yml"), self.path("alerts.yml")],
            "scrape_configs": [
                {"job_name": "tercio-coordinator", "static_configs": [{"targets": [self.pages[0]]}]},
                {"job_name": "tercio-agents",
                 "http_sd_configs": [{"url": f"http://{self.pages[0]}/sd", "refresh_interval": "1s"}]}]}
        with open(self.path("prometheus.yml"), "w", encoding="utf-8") as file:
            json.dump(config, file)  # which is YAML
        port = free_port()
        self.log = open(self.path("prometheus.log"), "w", encoding="utf-8")
        self.addCleanup(self.log.close)
        child = subprocess.Popen(
            ["prometheus", "--config.file", self.path("prometheus.yml"), "--storage.tsdb.path", self.path("tsdb"),
             "--web.listen-address", f"127.0.0.1:{port}"], stdout=self.log, stderr=self.log)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.prometheus = queries.Prometheus(f"http://127.0.0.1:{port}")

        def ready():
            self.assertIsNone(child.poll(), open(self.path("prometheus.log"), encoding="utf-8").read())
            try:
                return len([t for t in self.prometheus.get("targets")["activeTargets"] if t["health"] == "up"]) == 4
            except OSError:
                return False
        wait_for(ready, "Prometheus and its targets")

    def test_everything(self):
        job = self.submit("--set", "training.steps=1000000", "--set", "checkpoint.every_steps=40", *layout(1, 2, 2))
        self.after_step(job, 1)
        began = time.time()
        self.kill_a_rank(job)
        self.check_pages()
        self.alerts_fire_and_resolve(job)
        # Windows of the rules want some points.
        wait_for(lambda: time.time() > began + 12 and "tercio:job_eta:seconds" in self.recorded(), "the windows to fill")
        self.check_expressions(job, began)
        self.check_rules()
        self.scrape_storm(job)
        self.render(job, began)
        self.tercio(*self.reach("cancel", job))
        # Its last checkpoint is saved first.
        try:
            wait_for(lambda: self.get(job)["state"] == "cancelled", "the end of the job", 60)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.story(job)}") from None
        left = {}

        def are_gone():
            left.update({page: [line for line in fetch(page).splitlines() if job in line] for page in self.pages})
            return not any(left.values())
        try:
            wait_for(are_gone, "the series of the job to vanish", 30)
        except AssertionError as error:
            raise AssertionError(f"{error}; left: {left}; {self.story(job)}") from None

    def kill_a_rank(self, job):
        wait_for(lambda: self.get(job)["checkpoint"], "a checkpoint")
        os.kill(self.trainers(job)[0], signal.SIGKILL)
        wait_for(lambda: (s := self.get(job))["restarts"] == 1 and s["state"] == "running", "the restart")
        self.assertIn(f'tercio_job_restarts_total{{cause="killed",job_id="{job}",job_name="small"}} 1\n', fetch(self.pages[0]))

    def recorded(self):
        return {series["metric"]["__name__"] for series in self.prometheus.now('{__name__=~"tercio:.*"}')}

    # ---- pages ----

    def check_pages(self):
        """Both pages please promtool, and hold what docs/metrics.md lists, all of it and nothing else."""
        with open(os.path.join(ROOT, "docs", "metrics.md"), encoding="utf-8") as file:
            documented = set(re.findall(r"^\| `(\w+)` \|", file.read(), re.M))
        # Those of `tercio serve` are on its own page, which serve_test reads.
        documented = {name for name in documented if not name.startswith("tercio_serve_")}
        self.say("0.temperature 60", "0.xid 63")
        names = set()

        def read():
            for page in self.pages:
                names.update(re.findall(r"^# TYPE (\w+) ", fetch(page), re.M))
            return documented <= names | NOT_ON_PAGES
        try:
            wait_for(read, "all metrics of docs/metrics.md", 30)
        except AssertionError:
            self.assertEqual(sorted(documented - names - NOT_ON_PAGES), [], "on no page")
        self.assertEqual(sorted(names - documented), [])
        for page in self.pages:
            checked = subprocess.run(["promtool", "check", "metrics"], input=fetch(page), capture_output=True, text=True)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""), page)
        targets = json.loads(fetch(self.pages[0], "/sd"))
        self.assertEqual({target["labels"]["node"]: target["targets"] for target in targets},
                         {name: [ready["metrics"]] for name, (_, ready) in self.agents.items()})

    # ---- expressions ----

    def check_expressions(self, job, began):
        values = {"job": job, "rank": ".*", "node": ".*", "__rate_interval": "5s"}
        asked = empty = 0
        faults = []
        for name in queries.FILES:
            for where, expression in queries.expressions(queries.load(name)):
                asked += 1
                text = queries.substitute(expression, values)
                # Over the run, since some have data only for a while.
                data = self.prometheus.over_time(text, began, time.time(), 1)
                reason = next((why for part, why in NOT_HERE.items() if part in text), None)
                if not data and reason is None:
                    faults.append(f"{name}, {where}: no data: {text}")
                empty += not data
        self.assertEqual(faults, [])
        print(f"prometheus: {asked} expressions of dashboards, {empty} of them without data here by their nature")

    def check_rules(self):
        faults = []
        alerts = 0
        for group in self.prometheus.get("rules")["groups"]:
            for rule in group["rules"]:
                if rule["health"] != "ok":
                    faults.append(f"{rule['name']}: {rule.get('lastError')}")
                if rule["type"] == "recording":
                    if not self.prometheus.now(rule["name"]):
                        faults.append(f"{rule['name']}: no data")
                    continue
                alerts += 1
                # An alert that does not fire has no data; what it looks at has.
                for selector in re.findall(r"\b((?:tercio[_:]|process_|up\b)[\w:]*(?:\{[^}]*\})?)", rule["query"]):
                    known = any(part in selector for part in NOT_HERE)
                    # Codes that no call has ended with.
                    selector = re.sub(r'\{code=~[^}]*\}', "", selector)
                    if not known and not self.prometheus.now(f"last_over_time({selector}[1m])"):
                        faults.append(f"{rule['name']}: nothing is {selector}")
        self.assertEqual(faults, [])
        self.assertGreater(alerts, 40)

    # ---- alerts ----

    def fired(self, *names):
        """Now or before: some fire only for a while."""
        for name in names:
            selector = f'ALERTS{{alertname="Tercio{name}", alertstate="firing"}}'
            wait_for(lambda: self.asked(f"last_over_time({selector}[5m])"), f"{name} to fire", 40)

    def resolved(self, *names):
        for name in names:
            selector = f'ALERTS{{alertname="Tercio{name}", alertstate="firing"}}'
            wait_for(lambda: self.asked(selector) == [], f"{name} to resolve", 40)

    def asked(self, expression):
        try:
            return self.prometheus.now(expression)
        except OSError:
            return None

    def alerts_fire_and_resolve(self, job):
        agent = self.agents["g"][0]
        self.say("0.temperature 91", "0.xid 63")
        trainers = self.trainers(job)
        os.kill(trainers[0], signal.SIGSTOP)
        self.fired("GpuXid", "GpuHot", "JobNoProgress")
        os.kill(trainers[0], signal.SIGCONT)
        self.say("0.temperature 55", "0.xid 63")
        self.resolved("GpuHot")
        agent.send_signal(signal.SIGSTOP)
        self.fired("AgentLost", "TargetMissing")
        agent.send_signal(signal.SIGCONT)
        self.resolved("AgentLost", "TargetMissing", "JobNoProgress")
        self.coordinator_child.kill()
        self.coordinator_child.wait()
        self.fired("CoordinatorDown", "AgentCutOff")
        self.coordinator_child = self.start_coordinator()
        self.resolved("CoordinatorDown", "AgentCutOff", "GpuXid")
        self.after_step(job, self.get(job)["step"])

    def story(self, job):
        """What has become of the job, for a failure."""
        told = self.get(job)
        events = [(event["time"], event["attempt"], event["kind"], event["message"]) for event in self.events(job)[-12:]]
        return f"the job is {told['state']} at step {told['step']} after {told['restarts']} restarts; {events}"

    # ---- a storm ----

    def steps(self, job, seconds):
        first = self.get(job)["step"]
        began = time.monotonic()
        time.sleep(seconds)
        last = self.get(job)["step"]
        return last - first, time.monotonic() - began

    def scrape_storm(self, job):
        daemons = [self.coordinator_child, *(child for child, _ in self.agents.values())]
        before = [resident(child.pid) for child in daemons]
        measured = {False: [0, 0], True: [0, 0]}  # steps, seconds; in turns, since the machine has other work, too
        answers = 0
        for stormy in (False, True) * 3:
            if stormy:
                with Storm(self.pages) as storm:
                    slice_of = self.steps(job, 1)
                    for page in self.pages:
                        self.assertIn("tercio_build_info", fetch(page))
                answers += storm.answers
            else:
                slice_of = self.steps(job, 1)
            measured[stormy] = [sum(parts) for parts in zip(measured[stormy], slice_of)]
        grown = [resident(child.pid) - was for child, was in zip(daemons, before)]
        quiet, storms = (measured[stormy][1] / max(1, measured[stormy][0]) for stormy in (False, True))
        print(f"prometheus: a step takes {storms / quiet:.2f} times as long under {answers / measured[True][1]:.0f} scrapes a second "
              f"and 1000 idle connections; daemons grow by at most {max(grown) / 2**20:.1f} MiB")
        self.assertGreater(measured[True][0], 0, self.story(job))
        self.assertGreater(answers, 100)
        self.assertLess(max(grown), 32 << 20)

    def render(self, job, began):
        """The plots of the documents: python3 tests/e2e/prometheus_test.py with TERCIO_RENDER=DIRECTORY."""
        directory = os.environ.get("TERCIO_RENDER")
        if not directory:
            return
        for name in queries.FILES:
            subprocess.run(
                [sys.executable, os.path.join(ROOT, "dashboards", "render.py"), name, "--prometheus", self.prometheus.address,
                 "--begin", str(began), "--set", f"job={job}", "--set", "__rate_interval=5s", "--output",
                 os.path.join(directory, name.replace(".json", ".svg"))], check=True)


if __name__ == "__main__":
    python_cases.main()

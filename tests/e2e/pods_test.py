"""The pods of deploy/kubernetes/overlays/cpu-demo, run as a kubelet runs them (pods.py), with the commands of docs/operations.md: the
authority is made once, agents join by a token, a person logs in, a job trains, pods are deleted and come again.
"""

import concurrent.futures
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import TercioTest, wait_for  # noqa: E402
from kubernetes_test import kustomize, read  # noqa: E402
from network import Network  # noqa: E402
from pods import Pod  # noqa: E402

AGENTS = ("tercio-agent-0", "tercio-agent-1")
COORDINATOR = "tercio-coordinator-0"


class Pods(TercioTest):

    def setUp(self):
        super().setUp()
        self.network = Network(self)
        for name in (COORDINATOR, *AGENTS):
            self.network.plug_in(name)
        objects = read(kustomize("overlays/cpu-demo"))["objects"]
        self.sets = {item["metadata"]["name"]: item for item in objects if item["kind"] == "StatefulSet"}
        self.services = {item["metadata"]["name"] for item in objects if item["kind"] == "Service"}
        # The volume of jobs' data, filled as the document asks.
        os.makedirs(self.path("claims", "tercio-data"))
        shutil.copy(self.path("corpus.txt"), self.path("claims", "tercio-data"))

    def pod(self, name):
        kind, _, number = name.rpartition("-")
        self.assertLess(int(number), self.sets[kind]["spec"]["replicas"])
        self.assertIn("tercio-coordinator", self.services)
        hosts = {host: self.network.addresses[COORDINATOR] for host in ("tercio-coordinator", "tercio-coordinator.tercio", "tercio-coordinator.tercio.svc")}
        return Pod(self, self.network, name, self.sets[kind]["spec"]["template"], self.sets[kind]["spec"]["volumeClaimTemplates"], hosts)

    def token(self, *arguments):
        return self.coordinator_pod.execute("tercio-coordinator", "token", "--state-dir", "/var/lib/tercio", *arguments).strip()

    def verb(self, *arguments, code=0, text=None):
        """As a person in a pod that has the image; the one of the coordinator will do."""
        words = ["env", "XDG_CONFIG_HOME=/tmp/person", "tercio", *arguments, "--coordinator", "tercio-coordinator:7077"]
        return self.coordinator_pod.execute(*words, code=code, text=text)

    def get(self, job):
        return json.loads(self.verb("get", job, "-o", "json"))

    def authority(self):
        with open(self.path("claims", f"state-{COORDINATOR}", "access", "authority.pem"), encoding="utf-8") as file:
            return file.read()

    def start_coordinator(self):
        self.coordinator_pod = self.pod(COORDINATOR)
        self.coordinator_pod.start()
        self.coordinator_pod.wait_until_ready()

    def start_agents(self, secrets):
        self.agents = [self.pod(name) for name in AGENTS]
        for agent in self.agents:
            agent.secrets = secrets
            agent.start()
        for agent in self.agents:
            agent.wait_until_ready()

    def test_from_nothing_to_a_job_that_survives_the_deletion_of_its_pods(self):
        self.start_coordinator()
        first = self.authority()
        # No secret is in what a cluster keeps of the pods' output.
        self.assertNotIn("tercio1.", self.coordinator_pod.logs("authority") + self.coordinator_pod.logs("coordinator"))
        join = {"tercio-join": {"token": self.token("--role", "agent", "--nodes", "tercio-agent-*", "--uses", "8", "--ttl", "24h")}}
        self.start_agents(join)
        self.verb("login", "--token-file", "-", text=self.token("--role", "user", "--name", "ann"))
        with open(self.path("job.yaml"), encoding="utf-8") as file:
            job_file = file.read().replace("corpus.txt", "/data/corpus.txt")
        job = self.verb("submit", "-", "--set", "training.steps=1000000", "--set", "checkpoint.every_steps=0", "--set", "parallelism.data=4",
                        "--set", "resources.ranks=4", text=job_file).strip()
        wait_for(lambda: self.get(job)["step"] > 20, "steps")
        self.assertEqual({rank["node"] for rank in self.get(job)["plan"]["ranks"]}, set(AGENTS))
        # Agents that listen everywhere say where that is.
        nodes = json.loads(self.verb("nodes", "-o", "json"))
        self.assertEqual({node["name"]: node["metrics_address"] for node in nodes}, {name: f"{self.network.addresses[name]}:9465" for name in AGENTS})
        # A pod goes: the job, which never saves by itself, saves in the preStop hook, and waits for a place.
        waits = []
        gone = self.agents[1].delete(
            after_hook=lambda: waits.append(wait_for(lambda: (now := self.get(job))["state"] == "restarting" and now, "a job that waits")))
        self.assertTrue(gone, self.agents[1].logs("agent"))
        status = waits[0]
        saved = status["checkpoint"]["step"]
        self.assertGreater(saved, 20)
        self.assertEqual(status["restarts"], 0)
        # The coordinator's goes and comes: the authority is the one before.
        self.assertTrue(self.coordinator_pod.delete(), self.coordinator_pod.logs("coordinator"))
        self.start_coordinator()
        self.assertEqual(self.authority(), first)
        self.verb("login", "--token-file", "-", text=self.token("--role", "user", "--name", "ann"))
        # The agent's pod comes back, with its certificate and without the secret.
        self.agents[1] = self.pod(AGENTS[1])
        self.agents[1].start()
        self.agents[1].wait_until_ready()
        status = wait_for(lambda: (now := self.get(job))["state"] == "running" and now["step"] > saved + 20 and now, "the job to go on")
        self.assertEqual((status["attempt"], status["owner"]), (2, "ann"))
        # An upgrade of all agents at once is one save and one start. One comes on an empty volume, as those of a DaemonSet do: it has its
        # name and no certificate, and joins by the token.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            self.assertTrue(all(pool.map(Pod.delete, self.agents)))
        saved = self.get(job)["checkpoint"]["step"]
        self.assertGreater(saved, status["step"])
        shutil.rmtree(self.path("claims", f"state-{AGENTS[0]}"))
        self.start_agents(join)
        status = wait_for(lambda: (now := self.get(job))["state"] == "running" and now["step"] > saved and now, "the job on new pods")
        self.assertEqual((status["attempt"], status["restarts"]), (3, 0))
        self.verb("cancel", job)
        wait_for(lambda: self.get(job)["state"] == "cancelled", "the end of the job")


if __name__ == "__main__":
    python_cases.main()

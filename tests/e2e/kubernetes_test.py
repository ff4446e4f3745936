"""deploy/kubernetes and the Containerfiles: what kubectl makes of them, what the schemas say, and whether they fit the programs."""

import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
import tarball_contents  # noqa: E402
from harness import BIN, ROOT, SECONDS  # noqa: E402

FOLDER = os.path.join(ROOT, "deploy", "kubernetes")
OVERLAYS = ("overlays/cpu-demo", "overlays/gpu")
VERSIONS = ("1.27", "1.37")  # gRPC probes for everybody came with 1.27
WORKLOADS = ("StatefulSet", "DaemonSet", "Deployment")


class Environment:
    python = None

    @classmethod
    def get(cls):
        if cls.python is None:
            done = subprocess.run([os.path.join(ROOT, "tests", "python", "environment.sh")], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"the Python environment of tests cannot be made: {done.stderr}"
            cls.python = done.stdout.strip()
        return cls.python


def read(yaml, *versions):
    done = subprocess.run([Environment.get(), os.path.join(ROOT, "tests", "python", "read_manifests.py"), *versions], input=yaml,
                          capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kustomize(folder):
    done = subprocess.run(["kubectl", "kustomize", os.path.join(FOLDER, folder)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{folder}: {done.stderr}"
    return done.stdout


def flags_of(program):
    text = subprocess.run([os.path.join(BIN, program), "--help"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    return set(re.findall(r"(--[a-z][a-z-]+)", text)), set(re.findall(r"\bTERCIO_[A-Z_]+", text))


class Manifests(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.sets = {}
        for folder in OVERLAYS:
            cls.sets[folder] = read(kustomize(folder), *VERSIONS)
        cls.base = read(kustomize("base"), *VERSIONS)
        cls.monitoring = read(kustomize("monitoring"), *VERSIONS)

    def each(self, *kinds):
        for folder, found in self.sets.items():
            for item in found["objects"]:
                if item["kind"] in kinds:
                    yield f"{folder}: {item['kind']}/{item['metadata']['name']}", item, found["objects"]

    def pods(self):
        for name, item, objects in self.each(*WORKLOADS):
            yield name, item, item["spec"]["template"], objects

    def containers(self):
        for name, _, pod, _ in self.pods():
            for kind in ("initContainers", "containers"):
                for container in pod["spec"].get(kind, []):
                    yield f"{name}: {container['name']}", container, pod, kind == "initContainers"

    def test_schemas(self):
        for found in (*self.sets.values(), self.base):
            self.assertEqual(found["faults"], [])
            self.assertEqual(found["unknown"], [])
            self.assertGreater(len(found["objects"]), 10)
        self.assertEqual(self.monitoring["unknown"], ["ServiceMonitor/tercio"])
        self.assertEqual(self.monitoring["faults"], [])

    def test_the_judge_finds_faults(self):
        text = kustomize("base")
        self.assertTrue(read(text.replace("replicas: 1", "replicas: one"), *VERSIONS)["faults"])
        self.assertTrue(read(text.replace("serviceName:", "servicesName:"), *VERSIONS)["faults"])

    def test_everything_has_a_namespace_and_a_name_once(self):
        for folder, found in self.sets.items():
            names = [(item["kind"], item["metadata"]["name"]) for item in found["objects"]]
            self.assertEqual(len(names), len(set(names)), folder)
            for item in found["objects"]:
                if item["kind"] not in ("Namespace", "PriorityClass"):
                    self.assertEqual(item["metadata"].get("namespace"), "tercio", item["metadata"]["name"])

    def test_security_of_pods(self):
        for name, _, pod, _ in self.pods():
            context = pod["spec"]["securityContext"]
            self.assertTrue(context["runAsNonRoot"] and context["runAsUser"] > 0, name)
            self.assertEqual(context["seccompProfile"]["type"], "RuntimeDefault", name)
            self.assertFalse(pod["spec"]["automountServiceAccountToken"], name)
            for key in ("hostNetwork", "hostPID", "hostIPC"):
                self.assertFalse(pod["spec"].get(key), name)
            for volume in pod["spec"].get("volumes", []):
                self.assertNotIn("hostPath", volume, name)
        for name, container, _, _ in self.containers():
            context = container["securityContext"]
            self.assertTrue(context["readOnlyRootFilesystem"], name)
            self.assertFalse(context["allowPrivilegeEscalation"], name)
            self.assertEqual(context["capabilities"]["drop"], ["ALL"], name)
            self.assertFalse(context.get("privileged"), name)

    def test_resources_probes_and_time_to_stop(self):
        for name, container, pod, starts in self.containers():
            resources = container["resources"]
            self.assertIn("memory", resources["limits"], name)
            for what in ("cpu", "memory"):
                self.assertIn(what, resources["requests"], name)
            if starts:
                continue
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            for probe, service in (("startupProbe", "liveness"), ("livenessProbe", "liveness"), ("readinessProbe", "readiness")):
                self.assertEqual(container[probe]["grpc"], {"port": ports["health"], "service": service}, f"{name}: {probe}")
            self.assertEqual(len(container["args"]), len(set(container["args"])), name)
            arguments = dict(argument.lstrip("-").split("=", 1) for argument in container["args"])
            self.assertEqual(arguments["health-listen"], f"0.0.0.0:{ports['health']}", name)
            if "stop-grace" in arguments:
                # The kubelet kills what is left then.
                self.assertLessEqual(float(arguments["stop-grace"]) + 10, pod["spec"]["terminationGracePeriodSeconds"], name)

    def test_arguments_are_flags_of_the_programs(self):
        for name, container, _, starts in self.containers():
            if starts:
                continue
            program = container["command"][0]
            flags, variables = flags_of(program)
            for argument in container["args"]:
                self.assertIn(argument.split("=", 1)[0], flags, f"{name}: {argument}")
            known = {variable["name"] for variable in container.get("env", [])}
            for variable in known:
                if variable.startswith("TERCIO_"):
                    self.assertIn(variable, variables, name)
            # What $(NAME) stands for is there.
            for used in re.findall(r"\$\((\w+)\)", " ".join(container["args"])):
                self.assertIn(used, known, name)

    def test_ports_of_services_annotations_and_arguments_agree(self):
        for name, item, pod, objects in self.pods():
            labels = pod["metadata"]["labels"]
            container = pod["spec"]["containers"][0]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            listens = {argument.rsplit(":", 1)[1] for argument in container["args"] if "-listen=" in argument or "--listen=" in argument}
            self.assertEqual({str(port) for port in ports.values()}, listens, name)
            annotations = pod["metadata"]["annotations"]
            self.assertEqual(annotations["prometheus.io/port"], str(ports["metrics"]), name)
            self.assertIn(f"--metrics-listen=0.0.0.0:{ports['metrics']}", container["args"], name)
            services = [s for s in objects if s["kind"] == "Service" and self.selects(s["spec"]["selector"], labels)]
            self.assertTrue(services, name)
            for service in services:
                for port in service["spec"]["ports"]:
                    self.assertEqual(ports.get(port["targetPort"]), port["port"], f"{name}: {service['metadata']['name']}: {port['name']}")
            if item["kind"] == "StatefulSet":
                self.assertIn(item["spec"]["serviceName"], [s["metadata"]["name"] for s in services if s["spec"].get("clusterIP") == "None"])

    @staticmethod
    def selects(selector, labels):
        return selector.items() <= labels.items()

    def test_selectors_select(self):
        for name, item, pod, objects in self.pods():
            self.assertTrue(self.selects(item["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]), name)
            for kind, path in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
                matching = [o for o in objects if o["kind"] == kind and o["spec"][path].get("matchLabels") and
                            self.selects(o["spec"][path]["matchLabels"], pod["metadata"]["labels"])]
                self.assertEqual(len(matching), 1, f"{name}: {kind}")
        for name, item, objects in self.each("NetworkPolicy"):
            selector = item["spec"]["podSelector"].get("matchLabels", {})
            ports = {port["name"] for o in objects if o["kind"] in WORKLOADS and self.selects(selector, o["spec"]["template"]["metadata"]["labels"])
                     for port in o["spec"]["template"]["spec"]["containers"][0]["ports"]}
            for rule in item["spec"].get("ingress", []):
                for port in rule.get("ports", []):
                    self.assertIn(port["port"], ports, name)
        # What the ServiceMonitor looks for is there.
        monitor = self.monitoring["objects"][0]["spec"]
        for folder, found in self.sets.items():
            chosen = [s for s in found["objects"] if s["kind"] == "Service" and self.selects(monitor["selector"]["matchLabels"], s["metadata"]["labels"])]
            self.assertEqual({s["metadata"]["name"] for s in chosen}, {"tercio-coordinator", "tercio-agent"}, folder)
            for service in chosen:
                self.assertIn(monitor["endpoints"][0]["port"], [port["name"] for port in service["spec"]["ports"]])

    def test_what_pods_refer_to_is_there(self):
        for name, item, pod, objects in self.pods():
            names = {(o["kind"], o["metadata"]["name"]) for o in objects}
            spec = pod["spec"]
            self.assertIn(("ServiceAccount", spec["serviceAccountName"]), names, name)
            self.assertIn(("PriorityClass", spec["priorityClassName"]), names, name)
            volumes = {v["name"] for v in spec["volumes"]} | {c["metadata"]["name"] for c in item["spec"].get("volumeClaimTemplates", [])}
            for container in (*spec.get("initContainers", []), *spec["containers"]):
                for mount in container["volumeMounts"]:
                    self.assertIn(mount["name"], volumes, name)
            for volume in spec["volumes"]:
                if "persistentVolumeClaim" in volume:
                    self.assertIn(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]), names, name)
            mounts = {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
            self.assertIn("/tmp", mounts, name)
            for argument in spec["containers"][0]["args"]:
                if argument.startswith("--state-dir="):
                    self.assertIn(argument.split("=", 1)[1], mounts, name)

    def test_the_documented_token_is_for_the_pods_of_the_agents(self):
        with open(os.path.join(ROOT, "docs", "operations.md"), encoding="utf-8") as file:
            pattern = re.search(r"^    kubectl .* token .*--nodes '([^']+)'", file.read(), re.MULTILINE).group(1)
        item = next(o for o in self.sets["overlays/cpu-demo"]["objects"] if o["kind"] == "StatefulSet" and o["metadata"]["name"] != "tercio-coordinator")
        container = item["spec"]["template"]["spec"]["containers"][0]
        self.assertIn("--name=$(NODE)", container["args"])
        node = next(variable for variable in container["env"] if variable["name"] == "NODE")
        self.assertEqual(node["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name")
        self.assertTrue(fnmatch.fnmatchcase(f"{item['metadata']['name']}-0", pattern), pattern)

    def test_gpus(self):
        agents = [o for o in self.sets["overlays/gpu"]["objects"] if o["kind"] == "DaemonSet"]
        self.assertEqual(len(agents), 1)
        spec = agents[0]["spec"]["template"]["spec"]
        resources = spec["containers"][0]["resources"]
        self.assertGreaterEqual(int(resources["limits"]["nvidia.com/gpu"]), 1)
        self.assertEqual(resources["limits"]["nvidia.com/gpu"], resources["requests"]["nvidia.com/gpu"])
        self.assertIn("nvidia.com/gpu", [toleration["key"] for toleration in spec["tolerations"]])
        self.assertIn("--device=cuda", spec["containers"][0]["args"])
        shm = next(volume for volume in spec["volumes"] if volume["name"] == "shm")
        self.assertEqual(shm["emptyDir"]["medium"], "Memory")


class Rules(unittest.TestCase):

    def test_the_document_makes_objects_of_all_rules(self):
        with open(os.path.join(ROOT, "docs", "operations.md"), encoding="utf-8") as file:
            loop = re.search(r"^    for f in recording alerts; do\n.*?^    done", file.read(), re.MULTILINE | re.DOTALL).group(0)
        made = read(subprocess.run(["sh", "-euc", loop], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=True).stdout)["objects"]
        for name, item in zip(("recording", "alerts"), made, strict=True):
            with open(os.path.join(ROOT, "deploy", "prometheus", "rules", f"{name}.yml"), encoding="utf-8") as file:
                rules = read(file.read())["objects"][0]
            self.assertEqual((item["kind"], item["metadata"], item["spec"]), ("PrometheusRule", {"name": f"tercio-{name}", "namespace": "tercio"}, rules))


def instructions(name):
    """(instruction, arguments) of a Containerfile."""
    with open(os.path.join(ROOT, "deploy", name), encoding="utf-8") as file:
        text = re.sub(r"\\\n", " ", "".join(line for line in file if not line.startswith("#")))
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


class Images(unittest.TestCase):
    FILES = ("Containerfile", "Containerfile.cuda")

    def version(self):
        with open(os.path.join(ROOT, "common", "version.cc"), encoding="utf-8") as file:
            return re.search(r'kVersion = "([^"]+)"', file.read()).group(1)

    def copied(self, name):
        """Place in the image -> place in the tarball."""
        packed = set(tarball_contents.read()) | {"LICENSES", "VERSION", "lib/libone.so.1", "licenses/one"}
        copied = {}
        for instruction, arguments in instructions(name):
            if instruction != "COPY":
                continue
            *sources, target = arguments.split()
            for source in sources:
                found = [place for place in packed if place == source or place.startswith(source + "/")]
                self.assertTrue(found, f"{name}: COPY {source}: not in the tarball")
                for place in found:
                    relative = os.path.basename(place) if place == source else os.path.relpath(place, source)
                    copied[os.path.join(target, relative)] = place
        return copied

    def test_what_is_copied_is_in_the_tarball_and_what_is_started_is_in_the_image(self):
        for name in self.FILES:
            copied = self.copied(name)
            given = dict(instructions(name))
            entry = json.loads(given["ENTRYPOINT"])[0]
            self.assertIn(entry, copied, name)
            folder = given["ENV"].split()[0].split("=", 1)[1].split(":")[0]
            for program in ("tercio", "tercio-coordinator", "tercio-agent", "tercio-trainer"):
                self.assertIn(f"{folder}/{program}", copied, name)
            self.assertIn("LICENSE", copied.values(), name)
            # Programs look for their libraries in ../lib.
            self.assertIn(os.path.join(os.path.dirname(folder), "lib", "libone.so.1"), copied, name)

    def test_the_user_and_what_is_not_in_it(self):
        for name in self.FILES:
            given = dict(instructions(name))
            self.assertEqual(given["USER"], "10001:10001", name)
            self.assertEqual(given["FROM"], "docker.io/library/debian:12-slim", name)
            words = shlex.split(" ".join(arguments for _, arguments in instructions(name)))
            for tool in ("apt-get", "g++", "bazel", "curl", "wget", "pip"):
                self.assertNotIn(tool, words, name)
            self.assertIn(f'org.opencontainers.image.version="{self.version()}"', given["LABEL"], name)

    def test_images_of_the_manifests_are_those_of_this_version(self):
        for folder in OVERLAYS:
            images = set(re.findall(r"image: (\S+)", kustomize(folder)))
            for image in images:
                self.assertIn(image, (f"tercio:{self.version()}", f"tercio-cuda:{self.version()}"))

    def test_ports_are_those_of_the_manifests(self):
        ports = {port for folder in OVERLAYS for port in re.findall(r"containerPort: (\d+)", kustomize(folder))}
        for name in self.FILES:
            self.assertLessEqual(set(dict(instructions(name))["EXPOSE"].split()), ports, name)


if __name__ == "__main__":
    python_cases.main()

"""Runs pods of manifests on this machine, as the kubelet would: init containers in order, then the container, as the first process of its
own process numbers, with its user, environment, volumes and a root file system that is read only; probes; the end with preStop, SIGTERM
and SIGKILL. A pod has a network namespace; services are names in its /etc/hosts.

The image is this machine's /usr with the programs of ./bin in /opt/tercio/bin. Needs root. What is mounted is mounted in namespaces that end
with their pod: nothing of it is seen outside.
"""

import os
import shutil
import signal
import subprocess

from harness import BIN, ROOT, SECONDS, wait_for

PROGRAMS = ("tercio", "tercio-coordinator", "tercio-agent", "tercio-trainer")
PYTHON = "/usr/bin/python3"  # which sees Debian's python3-grpcio

# Makes the root of a container in $1, an empty folder, and becomes its first process. `mounts`, further down, stands in its place.
ENTER = r"""
root=$1 binaries=$2 etc=$3; shift 3
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$root"
cd "$root"
mkdir -p usr proc sys dev opt/tercio/bin
mount --bind /usr usr
mount -o remount,bind,ro usr
ln -s usr/bin usr/lib usr/lib64 usr/sbin .
cp -a "$etc" etc
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/urandom c 1 9
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
for program in "$binaries"/*; do
  place="opt/tercio/bin/${program##*/}"
  touch "$place"
  mount --bind "$(readlink -f "$program")" "$place"
done
%(mounts)s
mount -o remount,ro "$root"
exec /usr/sbin/chroot . /usr/bin/env -i %(environment)s setpriv %(rights)s "$@"
"""


def quoted(word):
    return "'" + word.replace("'", "'\\''") + "'"


class Pod:
    """`test` is a TercioTest; `network` has a space of the pod's name; `hosts` is name -> address."""

    def __init__(self, test, network, name, template, claims, hosts):
        self.test, self.network, self.name, self.spec, self.hosts = test, network, name, template["spec"], hosts
        self.secrets = {}  # name -> {key: text}
        self.claims = {claim["metadata"]["name"]: f"{claim['metadata']['name']}-{name}" for claim in claims}
        self.child = None
        self.folder = test.path("pods", name)
        for what in ("root", "volumes", "binaries"):
            os.makedirs(os.path.join(self.folder, what), exist_ok=True)
        for program in PROGRAMS:
            link = os.path.join(self.folder, "binaries", program)
            if not os.path.lexists(link):
                os.symlink(os.path.realpath(os.path.join(BIN, program)), link)

    # ---- volumes ----

    def own(self, path, mode):
        """As fsGroup has it."""
        os.chown(path, -1, self.spec["securityContext"]["fsGroup"])
        os.chmod(path, mode)

    def volume(self, volume):
        """The folder on this machine; empty volumes are made anew."""
        name = volume["name"]
        path = os.path.join(self.folder, "volumes", name)
        if "persistentVolumeClaim" in volume:
            path = self.test.path("claims", volume["persistentVolumeClaim"]["claimName"])
            os.makedirs(path, exist_ok=True)
            self.own(path, 0o2775)
            return path
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        if "secret" in volume:
            secret = self.secrets.get(volume["secret"]["secretName"])
            self.test.assertTrue(secret is not None or volume["secret"].get("optional"), f"{self.name}: no secret for {name}")
            for key, value in (secret or {}).items():
                with open(os.path.join(path, key), "w", encoding="utf-8") as file:
                    file.write(value)
                self.own(file.name, volume["secret"]["defaultMode"])
            self.own(path, 0o755)
        else:
            self.test.assertIn("emptyDir", volume, f"{self.name}: {name}")
            self.own(path, 0o777)
        return path

    def volumes(self):
        of_claims = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in self.claims.items()]
        return {volume["name"]: self.volume(volume) for volume in [*self.spec["volumes"], *of_claims]}

    # ---- containers ----

    def value(self, variable):
        if "value" in variable:
            return variable["value"]
        field = variable["valueFrom"]["fieldRef"]["fieldPath"]
        return {"metadata.name": self.name, "status.podIP": self.network.addresses[self.name], "spec.nodeName": "node-of-" + self.name}[field]

    def environment(self, container):
        image = {"PATH": "/opt/tercio/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "RUNTIME_DIRECTORY": "/run/tercio"}
        return {**image, **{variable["name"]: self.value(variable) for variable in container.get("env", [])}}

    def rights(self, container):
        context = {**self.spec["securityContext"], **container["securityContext"]}
        words = [f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}", f"--groups={context['fsGroup']}"]
        if not context["allowPrivilegeEscalation"]:
            words.append("--no-new-privs")
        if context["capabilities"]["drop"] == ["ALL"]:
            words += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        return " ".join(words)

    def etc(self):
        """/etc of the image, with the names of the services."""
        path = os.path.join(self.folder, "etc")
        os.makedirs(path, exist_ok=True)
        shutil.copy("/etc/ld.so.cache", path)
        texts = {"passwd": "root:x:0:0::/:/bin/sh\ntercio:x:10001:10001::/var/lib/tercio:/usr/sbin/nologin\n", "group": "root:x:0:\ntercio:x:10001:\n",
                 "nsswitch.conf": "hosts: files\n", "hosts": "".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **self.hosts}.items())}
        for name, text in texts.items():
            with open(os.path.join(path, name), "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def start_container(self, container, volumes):
        mounts = []
        for mount in container["volumeMounts"]:
            inside = quoted(mount["mountPath"].lstrip("/"))
            mounts += [f"mkdir -p {inside}", f"mount --bind {quoted(volumes[mount['name']])} {inside}"]
            if mount.get("readOnly"):
                mounts.append(f"mount -o remount,bind,ro {inside}")
        environment = self.environment(container)
        script = ENTER % {"mounts": "\n".join(mounts), "rights": self.rights(container),
                          "environment": " ".join(quoted(f"{name}={value}") for name, value in environment.items())}
        words = [*container.get("command", []), *container.get("args", [])]
        for name, value in environment.items():
            words = [word.replace(f"$({name})", value) for word in words]
        with open(self.log(container["name"]), "a", encoding="utf-8") as log:
            return subprocess.Popen([*self.network.inside(self.name), "unshare", "--mount", "--pid", "--fork", "sh", "-euc", script, "sh",
                                     os.path.join(self.folder, "root"), os.path.join(self.folder, "binaries"), self.etc(), *words],
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self, container):
        return os.path.join(self.folder, f"{container}.log")

    def logs(self, container):
        with open(self.log(container), encoding="utf-8") as file:
            return file.read()

    @property
    def container(self):
        return self.spec["containers"][0]

    def start(self):
        """Returns once the container runs; its init containers have succeeded."""
        self.test.assertEqual(len(self.spec["containers"]), 1)
        volumes = self.volumes()
        for container in self.spec.get("initContainers", []):
            child = self.start_container(container, volumes)
            self.test.assertEqual(child.wait(SECONDS), 0, self.logs(container["name"]))
        self.child = self.start_container(self.container, volumes)
        self.test.addCleanup(self.kill)

    # ---- what the kubelet does with it ----

    def first_process(self):
        """Of the container, as this machine numbers it; None when it has ended. `unshare --fork` stands before it."""
        found = subprocess.run(["pgrep", "-P", str(self.child.pid)], capture_output=True, text=True, check=False).stdout.split()
        return int(found[0]) if found and self.child.poll() is None else None

    def probe(self, kind):
        asked = self.container[kind]["grpc"]
        ask = [PYTHON, os.path.join(ROOT, "tests", "e2e", "ask_health.py"), f"{self.network.addresses[self.name]}:{asked['port']}", asked["service"]]
        done = subprocess.run([*self.network.inside(self.name), *ask], capture_output=True, text=True, timeout=SECONDS, check=False)
        self.test.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip() == "SERVING"

    def wait_until_ready(self):
        for kind in ("startupProbe", "readinessProbe"):
            wait_for(lambda: self.child.poll() is not None or self.probe(kind), f"{self.name}: {kind}")  # noqa: B023
            self.test.assertIsNone(self.child.poll(), self.logs(self.container["name"]))

    def execute(self, *command, code=0, text=None):
        """`kubectl exec`: the output."""
        environment = [f"{name}={value}" for name, value in self.environment(self.container).items()]
        enter = ["nsenter", "--target", str(self.first_process()), "--all", "--root", "--wd", "env", "-i", *environment, "setpriv",
                 *self.rights(self.container).split()]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, input=text, timeout=SECONDS, check=False)
        self.test.assertEqual(done.returncode, code, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def delete(self, after_hook=lambda: None):
        """Ends the pod; true when it has gone by itself within its time. Its claims stay."""
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook:
            self.execute(*hook["exec"]["command"])
            after_hook()
            self.test.assertIsNone(self.child.poll(), "a kubelet says FailedPreStopHook when the container ends before its hook")
        first = self.first_process()
        if first is not None:
            os.kill(first, signal.SIGTERM)
        try:
            self.child.wait(self.spec["terminationGracePeriodSeconds"])
            return True
        except subprocess.TimeoutExpired:
            self.kill()
            return False

    def kill(self):
        """At once, with all that it has started: its first process takes the others along."""
        if self.child is None:
            return
        # Not by the death of `unshare`: --kill-child is forgotten where the user changes.
        first = self.first_process()
        if first is not None:
            os.kill(first, signal.SIGKILL)
        self.child.wait(SECONDS)
